"""What tables and pictures of smart buildings are made of: a method on a table, with all seeds and rooms left out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.building_tables.options import Method, Options, TableOptions
from fedgate.firmware_sim.studies.engine.markdown import deviation, spread
from fedgate.firmware_sim.studies.engine.study import Figures, Results
from fedgate.models.arrays import Floats


class Row(NamedTuple):
    """The figures of one line of a table: for each seed those of every room left out, in its order."""

    name: str
    method: Method
    group: str
    seeds: tuple[tuple[Figures, ...], ...]

    def mean(self, key: str) -> float:
        """Return the mean of a figure over rooms left out and seeds; nan where it was not measured."""
        return float(np.mean(self._of_seeds(key)))

    def of_group(self, key: str) -> float:
        """Return the mean of a figure of the table's group."""
        return self.mean(f"{self.group}.{key}")

    def told(self, key: str) -> str:
        """Return a figure of the group as mean ± standard deviation over seeds."""
        return told(self.of_group(key), deviation(self._of_seeds(f"{self.group}.{key}")))

    def of_places(self) -> dict[str, float]:
        """Return the figure of every place of the group, the mean over seeds."""
        starts = ("place.seen.", "place.unseen.") if self.group == "all" else (f"place.{self.group}.",)
        found: dict[str, list[float]] = {}
        for figures in (each for seed in self.seeds for each in seed):
            for key, value in figures.items():
                if key.startswith(starts):
                    found.setdefault(key.split(".", 2)[2], []).append(value)
        return {name: float(np.mean(values)) for name, values in found.items()}

    def _of_seeds(self, key: str) -> Floats:
        return np.array([np.mean([each.get(key, np.nan) for each in seed]) for seed in self.seeds])


def told(mean: float, deviation: float) -> str:
    """Return a figure with its spread, or a dash where there is none."""
    return "–" if np.isnan(mean) else spread(mean, deviation)


def rows_of(options: Options, results: Results, table: str) -> list[Row]:
    """Return the rows of a table in the order of its methods."""
    each = options.tables[table]
    found: dict[str, dict[int, list[Figures]]] = {name: {} for name in each.methods}
    for cell, figures in results:
        if cell["table"] == table:
            found[cell["method"]].setdefault(cell["seed"], []).append(figures)
    return [
        Row(name, options.methods[name], each.group, tuple(tuple(of) for of in seeds.values()))
        for name, seeds in found.items()
    ]


def lead(table: TableOptions) -> str:
    """Return the figure by which methods of a table are held against each other."""
    return "mse" if table.horizon else "ba"


def best(table: TableOptions, rows: list[Row]) -> Row:
    """Return the row with the best lead figure; a row without one is never it."""
    sign = -1.0 if table.horizon else 1.0
    return max(rows, key=lambda row: np.nan_to_num(sign * row.of_group(lead(table)), nan=-np.inf))


def closed_form(row: Row) -> bool:
    """Tell whether a row is a federated method that needs one exchange and is exact."""
    return row.method.model in ("lags", "esn") and row.method.data == "federated" and not row.method.columns


def by_gradient(row: Row) -> bool:
    """Tell whether a row is a federated recurrent network, with a model that serves all."""
    method = row.method
    federated = method.model == "recurrent" and method.data == "federated" and not method.only_seen
    return federated and method.fixed.get("network.cell") != "linear"
