"""The picture of what can be had for how many bytes: accuracy and error over what one gateway sends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.engine.pictures import GREEN, ORANGE, PINK, SKY

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


def draw(curves: Sequence[Curve], whole: Curve, logistic: float, path: Path) -> None:
    """Draw accuracy and error of all curves over the bytes sent, and accuracy over those sent and received; `whole`,
    IncFed with all units, is a star.
    """
    figure = Figure(figsize=(14.0, 4.8), facecolor="white", layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for index, curve in enumerate([*curves, whole]):
        is_whole = curve is whole
        look = {"color": COLOURS[index % len(COLOURS)], "marker": MARKS[index % len(MARKS)], "ms": 4.5, "lw": 1.3}
        look |= {"color": INK, "marker": "*", "ms": 13, "lw": 0} if is_whole else {}
        both = [sent + received for sent, received in zip(curve.sent, curve.received, strict=True)]
        left.plot(curve.sent, curve.accuracies, label=f"{curve.name}, all units" if is_whole else curve.name, **look)
        middle.plot(both, curve.accuracies, **look)
        right.plot(curve.sent, curve.errors, **look)
    for axes in (left, middle):
        axes.axhline(whole.accuracies[0] - WITHIN, color=INK, ls="--", lw=0.9, label=f"IncFed less {WITHIN:g}")
        axes.axhline(logistic, color=GREY, ls=":", lw=1.2, label="logistic without memory")
        axes.set_ylim(0.7, 0.88)
    right.set_ylim(0.28, 0.5)
    _plain(left, "accuracy, subjects that took no part", "bytes that one gateway sends")
    _plain(middle, "the same over all bytes", "bytes that one gateway sends and receives")
    _plain(right, "squared error of the outputs", "bytes that one gateway sends")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    write(figure, path)


def _plain(axes: Axes, title: str, along: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(along, color=INK)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
    axes.tick_params(colors=INK)
