"""What all tables of the bridges study are made of: the chosen cell of every method, and how sure its AUC is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.bridges.methods import View
from fedgate.firmware_sim.studies.bridges.options import Options
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results

VIEWS: dict[View, str] = {
    "sensors": "One gateway per sensor",
    "setups": "One gateway per setup, all sensors fused",
    "sensor x setup": "One gateway per sensor and setup",
}


class Row(NamedTuple):
    """A method of a view: the cell that was chosen for it, and among how many."""

    name: str
    cell: Cell
    figures: Figures
    tried: int

    @property
    def auc(self) -> float:
        return self.figures["fleet.auc"]

    @property
    def error(self) -> float:
        return error(self.figures, "fleet.auc")

    @property
    def told(self) -> str:
        return f"{self.name} {with_error(self.figures, 'fleet.auc')}"


def chosen_rows(options: Options, results: Results, view: View) -> list[Row]:
    """Return for each method of a view the cell that did best where it is chosen, the first of equals."""
    rows = []
    for name in options.methods:
        mine = [(cell, figures) for cell, figures in results if (cell["method"], cell["view"]) == (name, view)]
        if mine:
            rows.append(Row(name, *max(mine, key=lambda each: each[1]["choose"]), len(mine)))
    return rows


def chooses(options: Options) -> bool:
    """Tell whether there are several training setups to choose settings on."""
    return len(options.train_setups) > 1 and not options.sweep


def error(figures: Figures, key: str) -> float:
    """Return the standard error of one of the areas among a cell's figures, all of which are of the same windows."""
    return metrics.auc_error(figures[key], int(figures["damaged"]), int(figures["healthy"]))


def with_error(figures: Figures, key: str) -> str:
    """Return an area with its standard error."""
    return f"{figures[key]:.3f} ± {error(figures, key):.3f}"


def apart(first: Row, second: Row) -> float:
    """Return by how much the fleet of one row is above another's, or 0 where that is within the error of the
    difference: the root of the sum of both squares.
    """
    difference = first.auc - second.auc
    return difference if abs(difference) > math.hypot(first.error, second.error) else 0.0


def always_in_alarm(figures: Figures) -> float:
    """Return F, damage as positive, of a gateway that is always in alarm: with so much damage it is high."""
    damaged, healthy = figures["damaged"], figures["healthy"]
    return 2.0 * damaged / (2.0 * damaged + healthy)


def listed(values: Iterable[object]) -> str:
    """Return values with commas between them."""
    return ", ".join(map(str, values))
