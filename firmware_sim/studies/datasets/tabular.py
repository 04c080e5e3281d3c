"""Rows with a class each, to learn from and to judge by: labelled tables with gaps and groups, and made-up clouds.

A table is `<data>/tabular/<name>.csv`: numbers, last a column `label`, above 0 for the positive class. Beside it may
lie `<name>.groups.csv`, whose rows must not be torn apart, and `<name>.classes.csv`, finer classes of the same rows.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.evaluate.splits import TRAIN_SHARE
from fedgate.firmware_sim.studies.datasets.unit_range import to_unit_range
from fedgate.models.arrays import Floats

FOLDER = "tabular"
Labels = NDArray[np.int64]


class Rows(NamedTuple):
    """Features (n, F), nan where a cell is empty, classes (n,) from 0 (normal), and groups (n,)."""

    x: Floats
    y: Labels
    groups: Labels


class Split(NamedTuple):
    """Rows to learn from, with their groups, and rows to judge by; nothing of the latter is used to fill or scale."""

    x: Floats  # (n, F)
    y: Labels  # (n,)
    groups: Labels
    test_x: Floats
    test_y: Labels

    def scaled(self) -> Split:
        """Return the split with features in [0, 1] by their extremes among the rows to learn from."""
        return self._replace(x=to_unit_range(self.x, self.x), test_x=to_unit_range(self.test_x, self.x))

    def inner(self, rng: np.random.Generator) -> Split:
        """Return a split of the rows to learn from alone."""
        early = _draw_early(self.groups, rng)
        return Split(self.x[early], self.y[early], self.groups[early], self.x[~early], self.y[~early])


@lru_cache(maxsize=16)
def read_rows(data: Path, name: str, *, grouped: bool = False, coded: bool = False) -> Rows:
    """Return a table, each row a group of its own unless `grouped`; where `coded`, with its finer classes in order.

    Raises:
        DataError: a file has another layout.
    """
    path = data / FOLDER / f"{name}.csv"
    table = pd.read_csv(path, dtype=str)
    if table.columns[-1] != "label":
        raise DataError(f"{path}: expected a last column 'label', got {table.columns[-1]!r}")
    try:
        values = table.to_numpy(object).astype(np.float64)
    except ValueError as error:
        raise DataError(f"{path}: expected numbers or empty cells ({error})") from None
    if np.isnan(values[:, -1]).any():
        raise DataError(f"{path}: row {np.isnan(values[:, -1]).argmax() + 1} has no label; expected one in each row")
    y = (values[:, -1] > 0).astype(np.int64)
    if coded:
        y = _rank(_read_column(path, "classes", len(y)).astype(np.int64))
    groups = _rank(_read_column(path, "groups", len(y))) if grouped else np.arange(len(y))
    return Rows(values[:, :-1], y, groups)


def _read_column(path: Path, name: str, count: int) -> NDArray[np.str_]:
    beside = path.with_suffix(f".{name}.csv")
    column = pd.read_csv(beside, dtype=str).iloc[:, 0].to_numpy(np.str_)
    if len(column) != count:
        raise DataError(f"{beside}: {len(column)} rows, expected the {count} of the table beside it")
    return column


def _rank(values: NDArray[np.int64] | NDArray[np.str_]) -> Labels:
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def split_groups(rows: Rows, rng: np.random.Generator) -> Split:
    """Return 70 % of the groups to learn from and the others to judge by."""
    early = _draw_early(rows.groups, rng)
    order = rng.permutation(len(rows.y))
    return _filled(rows, order[early[order]], order[~early[order]])


def split_classes(rows: Rows, train: tuple[int, int], test_each: int, rng: np.random.Generator) -> Split:
    """Return rows drawn at random: so many of each class to learn from and equally many of both to judge by.

    Raises:
        DataError: a class has too few rows.
    """
    parts = []
    for value, count in enumerate(train):
        members = rng.permutation(np.flatnonzero(rows.y == value))
        if len(members) < count + test_each:
            raise DataError(f"class {value} has {len(members)} rows, expected at least {count} + {test_each}")
        parts.append((members[:count], members[count : count + test_each]))
    early, late = (rng.permutation(np.concatenate([part[at] for part in parts])) for at in (0, 1))
    return _filled(rows, early, late)._replace(groups=np.arange(len(early)))


def _draw_early(groups: Labels, rng: np.random.Generator) -> NDArray[np.bool_]:
    names = rng.permutation(np.unique(groups))
    return np.isin(groups, names[: round(TRAIN_SHARE * len(names))])


def _filled(rows: Rows, train: Labels, test: Labels) -> Split:
    """Return the split with gaps filled by the medians of what learns."""
    x = np.where(np.isnan(rows.x), np.nanmedian(rows.x[train], axis=0), rows.x)
    return Split(x[train], rows.y[train], rows.groups[train], x[test], rows.y[test])


def make_clouds(features: int, count: int, spread: float, seed: int) -> Rows:
    """Return scikit-learn's made-up classification, two Gaussian clouds at corners of a cube of half side `spread`."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        n_samples=count,
        n_features=features,
        n_informative=features,
        n_redundant=0,
        n_clusters_per_class=1,
        class_sep=spread,
        flip_y=0.0,
        random_state=seed,
    )
    return Rows(np.asarray(x), np.asarray(y, dtype=np.int64), np.arange(count))
