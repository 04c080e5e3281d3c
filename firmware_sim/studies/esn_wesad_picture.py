"""The picture of what can be had for how many bytes: accuracy and error over what one gateway sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from firmware_sim.picture import BLUE, GREY, INK, VERMILLION
from firmware_sim.studies.pictures import GREEN, ORANGE, PINK, SKY, write

COLOURS = (INK, ORANGE, BLUE, VERMILLION, GREY, GREEN, PINK, SKY)
MARKS = "osD^vPX*"
WITHIN = 0.015


class Curve(NamedTuple):
    """One way to send less, over its sizes."""

    name: str
    sent: Sequence[float]
    received: Sequence[float]
    accuracies: Sequence[float]
    errors: Sequence[float]


def draw(
    curves: Sequence[Curve], whole_bytes: float, whole_accuracy: float, whole_error: float, logistic: float, path: Path
) -> None:
    """Draw accuracy and error of all curves over the bytes sent, with IncFed's own as a star."""
    figure = Figure(figsize=(11.0, 4.8), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, curve in enumerate(curves):
        look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKS[index % len(MARKS)], "ms": 4.5, "lw": 1.3}
        left.plot(curve.sent, curve.accuracies, label=curve.name, **look)
        right.plot(curve.sent, curve.errors, **look)
    left.plot(whole_bytes, whole_accuracy, marker="*", ms=13, color=INK, lw=0, label="IncFed, all units")
    right.plot(whole_bytes, whole_error, marker="*", ms=13, color=INK, lw=0)
    left.axhline(whole_accuracy - WITHIN, color=INK, ls="--", lw=0.9, label=f"IncFed less {WITHIN:g}")
    left.axhline(logistic, color=GREY, ls=":", lw=1.2, label="logistic without memory")
    left.set_ylim(0.6, 0.9)
    right.set_ylim(0.24, 0.5)
    _plain(left, "accuracy, subjects that took no part")
    _plain(right, "squared error of the outputs")
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    write(figure, path)


def _plain(axes: Axes, title: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("bytes that one gateway sends", color=INK)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
    axes.tick_params(colors=INK)
