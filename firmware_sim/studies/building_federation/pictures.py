"""The picture of the study of the costs of federation: losses by round and fleet, and by what a gateway sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.building_federation.options import Method
from fedgate.firmware_sim.studies.engine.pictures import GREEN, ORANGE, PINK, SKY
from fedgate.models.arrays import Floats

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY, INK)
STYLES = ("-", "--", ":")


class Line(Protocol):
    """What is drawn of a row of the report."""

    @property
    def name(self) -> str: ...
    @property
    def method(self) -> Method: ...
    @property
    def sensors(self) -> int: ...
    @property
    def losses(self) -> Floats: ...
    def total(self, rounds: int) -> float: ...


def draw(fleets: Sequence[Line], rows: Sequence[Line], trivial: float, path: Path) -> None:
    """Write two panels: loss by round for every fleet, and loss by megabytes for every way to travel."""
    figure = Figure(figsize=(12.0, 5.0), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for index, row in enumerate(fleets):
        mean = row.losses.mean(axis=0)
        left.plot(
            np.arange(1, len(mean) + 1), mean, color=COLOURS[index % len(COLOURS)], label=f"{row.sensors} sensors"
        )
    drawn = [row for row in rows if row.method.model in ("federated", "central")]
    for index, row in enumerate(drawn):
        mean = row.losses.mean(axis=0)
        sent = [row.total(rounds) / 1e6 for rounds in range(1, len(mean) + 1)]
        style = STYLES[index // len(COLOURS) % len(STYLES)]
        right.plot(sent, mean, style, marker=".", color=COLOURS[index % len(COLOURS)], label=row.name)
    left.set_xlabel("round", color=INK)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylabel("loss on later days", color=INK)
    right.set_xlabel("MB sent and received by the whole fleet", color=INK)
    right.set_xscale("log")
    low = min(float(row.losses.mean(axis=0).min()) for row in [*fleets, *drawn])
    left.set_ylim(0.95 * low, max(1.5 * trivial, 1.5 * low))
    for axes in (left, right):
        _finish(axes, trivial)
    write(figure, path)


def _finish(axes: Axes, trivial: float) -> None:
    axes.axhline(trivial, color=GREY, ls="--", lw=1.0, label="last value")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GREY, alpha=0.25, lw=0.6)
    axes.tick_params(colors=INK)
    axes.legend(frameon=False, fontsize=8, loc="upper right")
