"""What the support vector detectors check and decide before they fit: rows, ν, and the width of the kernel (ours).

A gateway has 1 GB and a kernel matrix grows with the square of its rows, so fits take at most `most_rows` of them.
Which ones is fixed by the order of the rows alone: the same data gives the same model, and rows spread evenly over the
baseline cover day and night alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np

from fedgate.models.arrays import Array, Floats, Integers

Kernel = Literal["rbf", "linear"]
Solver = Literal["libsvm", "sgd"]
Width = float | Literal["median"] | None
Border = Literal["vectors", "others"]
Quantile = Callable[[float], float]  # the squared distance that a share of the pairs of rows is below

MOST_ROWS = 2_000
PARTNERS = 16  # of each row, twice: the quantiles of more pairs hardly move
# Factors of the widths that nobody gave, chosen on some tables and checked on others: docs/results/kernel-widths.md.
NARROW = 32.0  # of `exact_width`
WIDE, LEAST_SPREAD = 2.0, 0.5  # of `map_width`
FEWEST_ROWS = 2
# In logarithms of the kernel sum: free vectors lie on the border but for what the solver leaves.
ON_BORDER = 1e-4
LARGEST = 2.0**500  # of a distance, and its inverse the least: beyond them squares leave float64
FEWEST_EXPECTED = 10  # rows outside, or inside: without any where so many are expected a border is none


class FitWarning(UserWarning):
    """A fit whose border says nothing of its rows."""


class FitError(ValueError):
    """A detector cannot be fitted; one class below for each cause."""


class DataError(FitError):
    """The rows given have no model of this kind."""


class SettingError(FitError):
    """A setting is outside its range, or two do not go together."""


class ConvergenceError(FitError):
    """A solver stopped before it was done; half a solution is not returned."""


def spread(x: Array, most_rows: int) -> Floats:
    """Return at most `most_rows` of the rows (n, F), spread evenly from the first to the last."""
    x = np.asarray(x, dtype=np.float64)
    if len(x) <= most_rows:
        return x
    return np.asarray(x[np.linspace(0, len(x) - 1, most_rows).round().astype(np.int64)])


def finite_rows(x: Array, remedy: str) -> Floats:
    """Return rows (n, F) as float64; raises `DataError` where one holds what is no finite number, with the remedy."""
    rows = np.asarray(x, dtype=np.float64)
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        raise DataError(f"row {row}, column {column} is {rows[row, column]}, expected finite values: {remedy}")
    return rows


def whole_classes(y: Array | None, classes: int) -> Integers:
    """Return classes (n,) as whole numbers; raises `SettingError` without any, `DataError` for one that is none."""
    if y is None:
        raise SettingError("task 'classify' needs labels and found none; without labels take 'predict'")
    labels = np.asarray(y)
    wrong = labels[~np.isin(labels, np.arange(classes))]
    if len(wrong):
        raise DataError(f"class {wrong[0]} given, expected whole numbers from 0 to {classes - 1}")
    return labels.astype(np.int64)


def training_rows(x: Array, nu: float, most_rows: int = MOST_ROWS) -> Floats:
    """Return the rows to fit on as float64 (n, F).

    Raises `SettingError` for ν outside (0, 1] and for `most_rows` below two, `DataError` for anything but two or more
    finite rows.
    """
    if not 0.0 < nu <= 1.0:
        raise SettingError(f"nu {nu:g} given, expected above 0 and up to 1: it is the share of rows outside the border")
    if most_rows < FEWEST_ROWS:
        raise SettingError(f"most_rows {most_rows} given, expected at least {FEWEST_ROWS}")
    z = np.asarray(x, dtype=np.float64)
    if z.ndim != 2 or z.shape[1] == 0:
        raise DataError(f"features of shape {z.shape} given, expected rows and columns (n, F)")
    if len(z) < FEWEST_ROWS:
        raise DataError(f"{len(z)} rows given, expected at least {FEWEST_ROWS}: a border needs rows on both its sides")
    finite_rows(z, "drop such windows")
    if np.abs(z).max() > LARGEST:
        raise DataError(f"values up to {np.abs(z).max():g} given, expected up to {LARGEST:g}: take a larger unit")
    if (z == z[0]).all():
        raise DataError(f"all {len(z)} rows are the same, expected rows that differ: see whether the sensor is stuck")
    return spread(z, most_rows)


def known(kernel: str, solver: str, step: float | None) -> None:
    """Raise `SettingError` for a kernel or a solver that there is none of, and for a step of a solver without one."""
    for name, value, expected in (("kernel", kernel, get_args(Kernel)), ("solver", solver, get_args(Solver))):
        if value not in expected:
            raise SettingError(f"{name} {value!r} given, expected one of {', '.join(expected)}")
    if step is not None and solver != "sgd":
        raise SettingError(f"step {step:g} given, expected none: solver {solver!r} has no step, 'sgd' has")


def kernel_width(gamma: Width, z: Floats) -> float:
    """Return γ of k(a, b) = exp(-γ |a - b|²) for rows z (n, F): as given, or from their median distance d.

    With "median" γ = 1 / (2 d²), for None `NARROW` times as much (`exact_width`). Raises `FitError`.
    """
    if isinstance(gamma, str) and gamma != "median":
        raise SettingError(f"gamma {gamma!r} given, expected a positive number, 'median', or none")
    if gamma is None:
        return exact_width(quantile_of(z))
    if gamma == "median":
        return 1.0 / (2.0 * median_distance(z) ** 2)
    width = float(gamma)
    if not 0.0 < width < np.inf:
        raise SettingError(f"gamma {width:g} given, expected a positive number, 'median', or none")
    return width


def exact_width(quantile: Quantile, narrow: float = NARROW) -> float:
    """Return γ = `narrow` / (2 d²), d the median distance, of a kernel that compares a row with every other."""
    return narrow / (2.0 * quantile(0.5))


def map_width(quantile: Quantile, wide: float = WIDE) -> float:
    """Return γ = `wide` / (difference of the quartiles of d²) of a random map, or of spheres for rows drawn anew.

    What they must tell apart is how distances differ. A map of hundreds of components cannot tell narrow kernels from
    zero, though, and no row drawn anew lies inside a narrow sphere: so the quartiles, which fall together where there
    are few distances or many features, count as `LEAST_SPREAD` of the median apart at least.
    """
    difference = quantile(0.75) - quantile(0.25)
    return wide / max(difference, LEAST_SPREAD * quantile(0.5))


def border_for(gamma: Width, border: Border | None) -> Border:
    """Return where the border is taken from: as given, else from the others where the width is the default."""
    return border or ("others" if gamma is None else "vectors")


def warn_of_share(outside: Array, nu: float) -> None:
    """Warn where of the rows of a fit, `outside` (n,) tells which lie outside, all do, or none where ν says several."""
    count, found = len(outside), int(np.count_nonzero(outside))
    is_all, is_none = found == count, found == 0
    if (is_all and (1.0 - nu) * count >= FEWEST_EXPECTED) or (is_none and nu * count >= FEWEST_EXPECTED):
        warnings.warn(
            f"{'all' if found else 'none'} of the {count} rows that a border was fitted to lie outside, expected about"
            f" {nu:.0%}: the kernel does not fit their distances; set gamma, or where it is set leave it out",
            FitWarning,
            stacklevel=3,
        )


def squared_pair_distances(z: Floats) -> Floats:
    """Return squared distances (p,) of different rows z (n, F), at most `MOST_ROWS` of them, each to the `PARTNERS`
    before and after it in an order that is drawn, the same for the same number of rows.

    In their own order rows come back after a day, and a partner at a fixed step may be one of the same hour. Rows that
    are equal have no distance: where features are coarse most pairs might be, and a kernel needs a width.
    """
    z = z[np.random.default_rng(0).permutation(len(z))[:MOST_ROWS]]
    steps = range(1, min(PARTNERS, len(z) // 2) + 1)
    squares = [np.square(z - np.roll(z, step, axis=0)).sum(axis=1) for step in steps]
    joined = np.concatenate([np.zeros(0), *squares])
    return np.asarray(joined[joined > 0.0])


def quantile_of(z: Floats) -> Quantile:
    """Return the quantiles of squared distances of different rows z (n, F); raises `DataError` where all are the same,
    or so near or far that float64 does not hold their squares.
    """
    with np.errstate(over="ignore", under="ignore"):
        squares = squared_pair_distances(z)
    median = float(np.sqrt(np.median(squares))) if len(squares) else 0.0
    if not 1.0 / LARGEST <= median <= LARGEST and not (z == z[0]).all():
        raise DataError(
            f"rows lie {median:g} apart in the median, expected {1.0 / LARGEST:g} to {LARGEST:g}, whose squares are"
            " numbers: give the features in another unit, or gamma as a number"
        )
    if len(squares) == 0:
        raise DataError(
            "all rows are the same, so their median distance is zero: give gamma as a number, or see whether the sensor"
            " is stuck or every feature constant"
        )
    return lambda share: float(np.quantile(squares, share))


def median_distance(z: Floats) -> float:
    """Return the median distance of two different rows z (n, F); raises `DataError` where all are the same."""
    return float(np.sqrt(quantile_of(z)(0.5)))
