"""What tables and picture of the stress study are made of: a method, features and normalisation, with all seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread
from fedgate.firmware_sim.studies.engine.study import Figures, Results
from fedgate.firmware_sim.studies.stress.options import BASELINES, Options
from fedgate.models.arrays import Floats


class Row(NamedTuple):
    """The figures of one place in a table, one set for each seed."""

    method: str
    features: str
    normalisation: str
    seeds: tuple[Figures, ...]

    def of_subjects(self, key: str) -> dict[str, float]:
        """Return a figure by subject, the mean over seeds."""
        names = [name.removeprefix(f"{key}.") for name in self.seeds[0] if name.startswith(f"{key}.")]
        return {name: float(np.mean([figures[f"{key}.{name}"] for figures in self.seeds])) for name in names}

    def mean(self, key: str) -> float:
        """Return a figure's mean over subjects and seeds; nan where it was not measured."""
        values = self._values(key)
        return float(values.mean()) if values.size else float("nan")

    def told(self, key: str) -> str:
        """Return a figure as mean ± standard deviation over subjects."""
        return spread(self.mean(key), deviation(self._values(key)))

    def of_seeds(self, key: str) -> float:
        """Return the standard deviation over seeds of the mean over subjects; nan of a single seed."""
        return deviation([self._replace(seeds=(figures,)).mean(key) for figures in self.seeds])

    def _values(self, key: str) -> Floats:
        return np.array(list(self.of_subjects(key).values()))


def paired(first: Row, second: Row) -> tuple[float, float]:
    """Return by how much the AUC of one row is above another's, subject by subject, and the standard error of that."""
    ours, theirs = first.of_subjects("auc"), second.of_subjects("auc")
    gains = np.array([ours[name] - theirs[name] for name in ours])
    return float(gains.mean()), float(deviation(gains) / np.sqrt(len(gains)))


def rows_of(options: Options, results: Results) -> list[Row]:
    """Return all rows, in the order of the methods."""
    found: dict[tuple[str, str, str], list[Figures]] = {}
    for cell, figures in results:
        found.setdefault((cell["method"], cell["features"], cell["normalisation"]), []).append(figures)
    order = list(options.methods)
    rows = [Row(*key, tuple(figures)) for key, figures in found.items()]
    return sorted(rows, key=lambda row: order.index(row.method))


def without_signal(options: Options, row: Row) -> bool:
    """Tell whether a row's method looks at no signal, so that it belongs into every table."""
    return options.methods[row.method].algorithm in BASELINES


def listens(options: Options, row: Row) -> bool:
    """Tell whether a row is a method to be judged: it sees the signals, and is no control."""
    return not without_signal(options, row) and not options.methods[row.method].control
