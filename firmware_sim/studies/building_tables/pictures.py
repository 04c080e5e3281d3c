"""The pictures of the study of smart buildings: how the error falls from round to round, and ROC curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.building_tables.options import Options
from fedgate.firmware_sim.studies.building_tables.rows import Row, closed_form, lead
from fedgate.firmware_sim.studies.engine.pictures import GREEN, ORANGE, PINK, SKY

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY, INK)
Drawn = Sequence[tuple[str, list[Row]]]


def draw_curves(options: Options, tables: Drawn, path: Path) -> None:
    """Write a panel for each table: the error or balanced accuracy on reported windows after each round, and as level
    lines the table's first method and the closed forms.
    """

    def fill(axes: Any, name: str, rows: list[Row]) -> None:
        each = options.tables[name]
        for colour, row in zip(COLOURS * len(rows), [r for r in rows if r.name in each.curve], strict=False):
            values = _values(row, "curve.")
            axes.plot(np.arange(1, len(values) + 1), values, color=colour, lw=1.4, label=row.name)
        level = [row for index, row in enumerate(rows) if index == 0 or closed_form(row)]
        for style, row in zip(("--", ":", "-."), level, strict=False):
            axes.axhline(row.of_group(lead(each)), color=GREY, ls=style, lw=1.2, label=row.name)
        axes.set_xlabel("round", color=INK)
        if each.horizon:
            axes.set_yscale("log")  # what does not learn is far above the rest
        axes.set_ylabel("MSE" if each.horizon else "balanced accuracy", color=INK)

    _draw(tables, fill, path)


def draw_roc(options: Options, tables: Drawn, path: Path) -> None:
    """Write a panel for each table: the share of class 1 that is found at each share of false alarms."""

    def fill(axes: Any, name: str, rows: list[Row]) -> None:
        chosen = [row for row in rows if row.name in options.tables[name].roc]
        for colour, row in zip(COLOURS * len(rows), chosen, strict=False):
            values = _values(row, "roc.")
            axes.plot(np.linspace(0.0, 1.0, len(values)), values, color=colour, lw=1.4, label=row.name)
        axes.plot([0.0, 1.0], [0.0, 1.0], color=GREY, ls="--", lw=1.0)
        axes.set_xlabel("false positive rate", color=INK)
        axes.set_ylabel("true positive rate", color=INK)

    _draw(tables, fill, path)


def _values(row: Row, start: str) -> list[float]:
    """Return what the first seed has under a name, in its order, the mean over rooms left out."""
    keys = sorted(key for key in row.seeds[0][0] if key.startswith(start))
    return [float(np.mean([each[key] for each in row.seeds[0] if key in each])) for key in keys]


def _draw(tables: Drawn, fill: Callable[[Any, str, list[Row]], None], path: Path) -> None:
    figure = Figure(figsize=(4.6 * len(tables), 4.2), facecolor="white", layout="constrained")
    for axes, (name, rows) in zip(np.ravel(figure.subplots(1, len(tables))), tables, strict=True):
        fill(axes, name, rows)
        axes.set_title(name, color=INK, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color=GREY, alpha=0.25, lw=0.6)
        axes.legend(frameon=False, fontsize=8)
    write(figure, path)
