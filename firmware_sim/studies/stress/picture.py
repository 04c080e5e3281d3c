"""The picture of the stress study: every subject's AUC by method, so that a mean cannot hide whom a method fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.stress.rows import Row

SPREAD = 0.32  # of a method's height, over which its subjects are laid out in their order
CHANCE = 0.5


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the picture: a line for each method, a dot for each subject, a bar at the mean; and of the late windows a
    circle as usual, a cross where the wrist is switched on only then.
    """
    figure = Figure(figsize=(9.0, 1.2 + 0.55 * len(rows)), facecolor="white", layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        values = list(row.of_subjects("auc").values())
        heights = place + np.linspace(-SPREAD, SPREAD, len(values))
        axes.plot(values, heights, "o", ms=4, color=BLUE, alpha=0.7, label="a subject" if place == 0 else None)
        ends = [place - SPREAD, place + SPREAD]
        axes.plot([row.mean("auc")] * 2, ends, color=INK, lw=2, label="mean" if place == 0 else None)
        for key, mark, told in (("usual", "o", "mean of the late windows"), ("late", "x", "... switched on only then")):
            label = told if place == 0 else None
            axes.plot(row.mean(key), place, mark, ms=9, mew=2, color=VERMILLION, mfc="none", label=label)
    axes.axvline(CHANCE, color=GREY, ls="--", lw=1.0)
    axes.set_yticks(range(len(rows)), [row.method for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("AUC, stress against rest", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color=GREY, alpha=0.25, lw=0.6)
    figure.legend(frameon=False, loc="outside lower center", ncols=4, fontsize=9)
    write(figure, path)
