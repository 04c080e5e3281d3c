"""The data of the robust SVM's studies: tables with gaps and groups, the pump with its fault codes, made-up clouds."""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.studies.robust_svm.methods import Labels, Split, early_rows
from fedgate.models.arrays import Floats

TABLES = "tabular"


class Rows(NamedTuple):
    """Features, nan where a cell is empty, with classes and groups that must not be torn apart."""

    x: Floats  # (n, F)
    y: Labels  # (n,)
    groups: Labels  # (n,) each row its own where the table has no groups


@lru_cache(maxsize=16)
def table(data: Path, name: str, grouped: bool = False) -> Rows:
    """Read `<data>/tabular/<name>.csv`: numbers, last a column `label` above 0 for the positive class.

    Raises `DataError` for another layout.
    """
    path = data / TABLES / f"{name}.csv"
    header, cells = _cells(path)
    if header[-1] != "label":
        raise DataError(f"{path}: expected a last column 'label', got {header[-1]!r}")
    try:
        values = np.array([[float(cell) if cell else np.nan for cell in row] for row in cells])
    except ValueError as error:
        raise DataError(f"{path}: expected numbers or empty cells ({error})") from None
    groups = np.arange(len(values))
    if grouped:
        groups = np.unique(_column(data, f"{name}.groups", len(values)), return_inverse=True)[1]
    return Rows(values[:, :-1], (values[:, -1] > 0).astype(np.int64), np.asarray(groups, dtype=np.int64))


@lru_cache(maxsize=4)
def fault_codes(data: Path, name: str) -> Labels:
    """Return the classes (n,) of `<name>.classes.csv`, 0 for code 0 and 1 to K in the order of the codes."""
    codes = _column(data, f"{name}.classes", len(table(data, name).y))
    order = sorted(set(codes), key=int)
    return np.array([order.index(code) for code in codes], dtype=np.int64)


def shuffled(rows: Rows, rng: np.random.Generator) -> Split:
    """Return 70 % of the groups to learn from and the others to judge by, gaps filled with medians of the former."""
    early = early_rows(rows.groups, rng)
    order = rng.permutation(len(rows.y))
    train, test = order[early[order]], order[~early[order]]
    medians = np.nanmedian(rows.x[train], axis=0)
    x = np.where(np.isnan(rows.x), medians, rows.x)
    return Split(x[train], rows.y[train], x[test], rows.y[test], rows.groups[train])


def clouds(features: int, count: int, spread: float, seed: int) -> Rows:
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


def drawn(rows: Rows, train: tuple[int, int], test_each: int, rng: np.random.Generator) -> Split:
    """Return rows drawn at random: so many of each class to learn from and equally many of both to judge by."""
    parts = []
    for value, count in enumerate(train):
        members = rng.permutation(np.flatnonzero(rows.y == value))
        if len(members) < count + test_each:
            raise DataError(f"class {value} has {len(members)} rows, expected at least {count} + {test_each}")
        parts.append((members[:count], members[count : count + test_each]))
    early, late = (rng.permutation(np.concatenate([part[at] for part in parts])) for at in (0, 1))
    return Split(rows.x[early], rows.y[early], rows.x[late], rows.y[late])


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2:
        raise DataError(f"{path}: expected a header and rows, got {len(rows)} lines")
    return rows[0], rows[1:]


def _column(data: Path, name: str, count: int) -> list[str]:
    path = data / TABLES / f"{name}.csv"
    values = [row[0] for row in _cells(path)[1]]
    if len(values) != count:
        raise DataError(f"{path}: {len(values)} rows, expected the {count} of the table beside it")
    return values
