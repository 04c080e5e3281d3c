"""Pictures of a study: a table drawn as lines, points with their spread, or bars, with a panel for each part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes as Panel
from matplotlib.figure import Figure

from fedgate.firmware_sim.engine.frame import Results, Shown, lay_out
from fedgate.firmware_sim.engine.spec import HEAD, Section
from fedgate.firmware_sim.engine.spec import Figure as ShownFigure
from fedgate.firmware_sim.pictures import COLOURS, GREY, INK, write

MARKS = "os^vDPX*"
SHADE = "#FBE6BF"
FEW_POINTS = 25  # a line with more has no marks
PANEL_IN = (4.8, 3.6)
STACKED_IN = (9.6, 1.6)
MOST_ACROSS = 3
MANY_LABELS, LETTERS_ACROSS = 6, 50  # beyond these they are turned
MOST_LABELS = 40
MOST_TICKS = 8
LETTER_IN, LEGEND_IN = 0.06, 0.58  # of a legend's entry
DASHES = ("-", "--", ":")  # when all colours are used
Series = dict[str, tuple[list[Any], list[Shown]]]


def draw(section: Section, results: Results, path: Path) -> None:
    """Write the picture of a section as PNG: the first of its `rows` along the axis, a line for each of the others."""
    panels = _panels(section, results)
    down = len(panels) if section.stacked else math.ceil(len(panels) / MOST_ACROSS)
    across = math.ceil(len(panels) / down)
    wide, high = STACKED_IN if section.stacked else PANEL_IN
    figure = Figure(figsize=(wide * across, high * down), facecolor="white", layout="constrained")
    places = figure.subplots(down, across, squeeze=False, sharex=section.stacked).flat
    shades = _shades(section, results)
    names = list(dict.fromkeys(name for series in panels.values() for name in series))
    for title, series in panels.items():
        panel = next(places)
        _draw_panel(panel, section, title, series, names)
        for along, shown in list(shades.get(title, {}).values())[:1]:
            _shade(panel, along, shown)
    for empty in places:
        empty.set_axis_off()
    for panel in figure.axes[:-1] if section.stacked else ():
        panel.set_xlabel("")
    _add_legend(figure, names)
    write(figure, path)


def _shades(section: Section, results: Results) -> dict[str, Series]:
    """Return by panel what shades it."""
    if not section.shaded:
        return {}
    shaded = section.model_copy(update={"figures": {HEAD: ShownFigure(of=section.shaded)}, "along": None})
    return _panels(shaded, results)


def _add_legend(figure: Figure, names: Sequence[str]) -> None:
    handles: dict[str, Any] = {str(each.get_label()): each for panel in figure.axes for each in panel.containers}
    names = [_written(name) for name in names]
    if len(names) > 1:
        letters = (max(map(len, names)) + sum(map(len, names)) / len(names)) / 2  # a column is as wide as its longest
        fit = int(figure.get_figwidth() / (LEGEND_IN + LETTER_IN * letters))
        figure.legend(
            [handles[name] for name in names],
            names,
            frameon=False,
            loc="outside lower center",
            ncols=max(1, min(len(names), fit)),
            fontsize=8,
        )


def _panels(section: Section, results: Results) -> dict[str, Series]:
    """Return by panel and line the places along the axis and what is shown there."""
    entries = lay_out(results, section)
    measured = _places(section, results)
    found: dict[str, Series] = {}
    for row, columns in entries.items():
        for column, shown in columns.items():
            names = {**dict(zip(section.rows[1:], row[1:], strict=True))}
            names |= dict(zip([*section.columns, HEAD], column, strict=True))
            panel = ", ".join(named(section, names.pop(key)) for key in section.panels)
            if len(section.figures) == 1:
                names.pop(HEAD, None)
            line = ", ".join(named(section, value) for value in names.values())
            along, many = found.setdefault(panel, {}).setdefault(line, ([], []))
            along.append(measured[row, column[:-1]] if section.along else row[0])
            many.append(shown)
    return found


def _places(section: Section, results: Results) -> dict[tuple[Any, Any], float]:
    """Return by row and column the places along the axis, where a figure is its scale."""
    if section.along is None:
        return {}
    entries = lay_out(results, section.model_copy(update={"figures": {HEAD: section.along}}))
    return {(row, column[:-1]): shown.value for row, columns in entries.items() for column, shown in columns.items()}


def named(section: Section, value: object) -> str:
    """Return the words for a coordinate or its value, `-` where a cell has none."""
    if isinstance(value, float) and math.isnan(value):
        return "-"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return section.labels.get(text, text)


def _written(text: str) -> str:
    """Return a text that matplotlib writes as it is: no formula between dollars, no name that it hides."""
    return (" " if text[:1] in ("", "_") else "") + text.replace("$", r"\$")


def _draw_panel(panel: Panel, section: Section, title: str, series: Series, names: Sequence[str]) -> None:
    every = list(dict.fromkeys(place for along, _ in series.values() for place in along))
    is_scale = section.kind == "lines" and all(type(place) in (int, float) for place in every)
    for name, (along, shown) in series.items():
        x = [float(place if is_scale else every.index(place)) for place in along]
        order = sorted(range(len(x)), key=x.__getitem__)
        x, many = [x[index] for index in order], [shown[index] for index in order]
        _draw_series(panel, section.kind, names.index(name), len(names), _written(name), x, many)
    for label, height in section.level.items():
        panel.axhline(height, color=INK, ls="--", lw=1.0)
        panel.annotate(
            _written(label),
            (0.01, height),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    _plain(panel, section, title)
    if "y" in section.log and any(0.0 < each.value < math.inf for _, shown in series.values() for each in shown):
        panel.set_yscale("log")
    if not is_scale:
        _label_places(panel, [_written(named(section, place)) for place in every])
    elif "x" in section.log and max(every) > 0:
        panel.set_xscale("log")
        if len(every) <= MOST_TICKS:
            panel.set_xticks(every, [_written(named(section, place)) for place in every])
            panel.xaxis.minorticks_off()


def _label_places(panel: Panel, names: Sequence[str]) -> None:
    """Write names along the axis: turned where they would run into each other, and no more than can be read."""
    is_crowded = sum(map(len, names)) > LETTERS_ACROSS or len(names) > MANY_LABELS
    look: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
    step = math.ceil(len(names) / MOST_LABELS)
    panel.set_xticks(range(0, len(names), step), names[::step], fontsize=7 if is_crowded else 8, **look)


def _shade(panel: Panel, along: Sequence[float], shown: Sequence[Shown]) -> None:
    is_shaded = [each.value > 0 for each in shown]
    panel.fill_between(along, 0, 1, where=is_shaded, step="mid", transform=panel.get_xaxis_transform(), color=SHADE)


def _draw_series(
    panel: Panel, kind: str, index: int, count: int, name: str, x: Sequence[float], shown: Sequence[Shown]
) -> None:
    heights = [each.value if math.isfinite(each.value) else math.nan for each in shown]
    spreads = None if all(math.isnan(each.spread) for each in shown) else [each.spread for each in shown]
    look: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "label": name}
    if kind == "bars":
        width = 0.8 / count
        places = [each - 0.4 + width * (index + 0.5) for each in x]
        panel.bar(places, heights, width, yerr=spreads, error_kw={"ecolor": INK, "elinewidth": 1.0}, **look)
        return
    again = index // len(COLOURS)
    line = {"lw": 1.4, "ls": DASHES[again % len(DASHES)]} if kind == "lines" else {"ls": "none"}
    offset = 0.0 if kind == "lines" else 0.5 * (index - (count - 1) / 2) / max(count, 1)
    mark = "" if kind == "lines" and len(x) > FEW_POINTS else MARKS[(index + again) % len(MARKS)]
    panel.errorbar([each + offset for each in x], heights, spreads, marker=mark, ms=4, capsize=2, **line, **look)


def _plain(panel: Panel, section: Section, title: str) -> None:
    head = next(iter(section.figures)) if len(section.figures) == 1 else ""
    panel.set_title(_written(title), loc="left", fontsize=10, color=INK)
    panel.set_xlabel(_written(named(section, section.along.of if section.along else section.rows[0])), color=INK)
    panel.set_ylabel(_written(head), color=INK)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
    panel.tick_params(colors=INK)
