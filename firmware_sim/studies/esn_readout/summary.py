"""What was measured in the study of the gradient-trained readout, by place and rate, one number for each seed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results
from fedgate.models.arrays import Floats

SEPARATOR = "|"


class Place(NamedTuple):
    """The coordinates of cells that differ only by their seed."""

    part: str
    reservoirs: str
    method: str
    attack: str
    answer: str


class Summary(NamedTuple):
    """Figures of the trainings by place, of what stands beside by method, and of the thesis's own form."""

    places: dict[Place, list[Figures]]
    beside: dict[str, dict[str, list[float]]]
    literal: Figures

    def of(self, place: Place, rate: float, name: str) -> Floats:
        """Return a figure (seeds,) at a rate of the server; empty where that was not measured."""
        key = f"{rate:g}{SEPARATOR}{name}"
        return np.array([figures[key] for figures in self.places.get(place, [])])

    def curve(self, place: Place, rate: float, rounds: int) -> Floats:
        """Return the balanced accuracy (rounds,) after every round, the mean over seeds."""
        return np.array([self.of(place, rate, f"curve.{index}").mean() for index in range(rounds)])


def place_of(cell: Cell) -> Place:
    """Return where a cell of a bench belongs."""
    return Place(*(str(cell[name]) for name in Place._fields))


def summarised(results: Results) -> Summary:
    """Return the results by place."""
    found = Summary({}, {}, {})
    for cell, figures in results:
        if cell["part"] == "literal":
            found.literal.update(figures)
        elif cell["part"] == "beside":
            kept = found.beside.setdefault(cell["method"], {})
            for name, value in figures.items():
                kept.setdefault(name, []).append(value)
        else:
            found.places.setdefault(place_of(cell), []).append(figures)
    return found
