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
from fedgate.firmware_sim.pictures import COLOURS, GREY, INK, write

MARKS = "os^vDPX*"
PANEL_IN = (4.8, 3.6)
MOST_ACROSS = 3
MANY_LABELS = 6  # from here on they are turned
Series = dict[str, tuple[list[Any], list[Shown]]]


def draw(section: Section, results: Results, path: Path) -> None:
    """Write the picture of a section as PNG: the first of its `rows` along the axis, a line for each of the others."""
    panels = _panels(section, results)
    across = min(len(panels), MOST_ACROSS)
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(PANEL_IN[0] * across, PANEL_IN[1] * down), facecolor="white", layout="constrained")
    places = figure.subplots(down, across, squeeze=False).flat
    for title, series in panels.items():
        _draw_panel(next(places), section, title, series)
    for empty in places:
        empty.set_axis_off()
    handles, names = figure.axes[0].get_legend_handles_labels()
    if len(names) > 1:
        figure.legend(handles, names, frameon=False, loc="outside lower center", ncols=min(len(names), 4), fontsize=8)
    write(figure, path)


def _panels(section: Section, results: Results) -> dict[str, Series]:
    """Return by panel and line the places along the axis and what is shown there."""
    entries = lay_out(results, section)
    found: dict[str, Series] = {}
    for row, columns in entries.items():
        for column, shown in columns.items():
            names = {**dict(zip(section.rows[1:], row[1:], strict=True))}
            names |= dict(zip([*section.columns, HEAD], column, strict=True))
            panel = named(section, names.pop(section.panels)) if section.panels else ""
            if len(section.figures) == 1:
                names.pop(HEAD, None)
            line = ", ".join(named(section, value) for value in names.values())
            along, many = found.setdefault(panel, {}).setdefault(line, ([], []))
            along.append(row[0])
            many.append(shown)
    return found


def named(section: Section, value: object) -> str:
    """Return the words for a coordinate or its value, `-` where a cell has none."""
    if isinstance(value, float) and math.isnan(value):
        return "-"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return section.labels.get(text, text)


def _draw_panel(panel: Panel, section: Section, title: str, series: Series) -> None:
    every = list(dict.fromkeys(place for along, _ in series.values() for place in along))
    is_scale = section.kind == "lines" and all(isinstance(place, int | float) for place in every)
    for index, (name, (along, shown)) in enumerate(series.items()):
        x = list(along) if is_scale else [float(every.index(place)) for place in along]
        _draw_series(panel, section.kind, index, len(series), name, x, shown)
    for label, height in section.level.items():
        panel.axhline(height, color=INK, ls="--", lw=1.0)
        panel.annotate(
            label,
            (0.01, height),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )
    if not is_scale:
        turned = {"rotation": 60, "ha": "right", "fontsize": 7} if len(every) > MANY_LABELS else {"fontsize": 8}
        panel.set_xticks(range(len(every)), [named(section, place) for place in every], **turned)
    _plain(panel, section, title)


def _draw_series(
    panel: Panel, kind: str, index: int, count: int, name: str, x: Sequence[float], shown: Sequence[Shown]
) -> None:
    heights = [each.value for each in shown]
    spreads = None if all(math.isnan(each.spread) for each in shown) else [each.spread for each in shown]
    look: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "label": name}
    if kind == "bars":
        width = 0.8 / count
        panel.bar([each - 0.4 + width * (index + 0.5) for each in x], heights, width, yerr=spreads, **look)
        return
    line = {"lw": 1.4} if kind == "lines" else {"ls": "none"}
    offset = 0.0 if kind == "lines" else 0.5 * (index - (count - 1) / 2) / max(count, 1)
    mark = MARKS[index % len(MARKS)]
    panel.errorbar([each + offset for each in x], heights, spreads, marker=mark, ms=4, capsize=2, **line, **look)


def _plain(panel: Panel, section: Section, title: str) -> None:
    head = next(iter(section.figures)) if len(section.figures) == 1 else ""
    panel.set_title(title, loc="left", fontsize=10, color=INK)
    panel.set_xlabel(named(section, section.rows[0]), color=INK)
    panel.set_ylabel(head, color=INK)
    if "x" in section.log:
        panel.set_xscale("log")
    if "y" in section.log:
        panel.set_yscale("log")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
    panel.tick_params(colors=INK)
