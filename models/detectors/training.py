"""What the support vector detectors check and decide before they fit: rows, ν, and the width of the kernel.

A gateway has 1 GB and a kernel matrix grows with the square of its rows, so fits take at most `most_rows` of them.
Which ones is fixed by the order of the rows alone: the same data gives the same model, and rows spread evenly over the
baseline cover day and night alike.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from models.arrays import Array, Floats

Kernel = Literal["rbf", "linear"]
Solver = Literal["libsvm", "sgd"]
Width = float | Literal["median"] | None

MOST_ROWS = 2_000
ROWS_FOR_MEDIAN = 500  # 124,750 pairs: the median of more hardly moves
FEWEST_ROWS = 2


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
    if not np.isfinite(z).all():
        row, column = np.argwhere(~np.isfinite(z))[0]
        raise DataError(f"row {row}, column {column} is {z[row, column]}, expected finite values: drop such windows")
    if (z == z[0]).all():
        raise DataError(f"all {len(z)} rows are the same, expected rows that differ: see whether the sensor is stuck")
    return spread(z, most_rows)


def known(kernel: str, solver: str) -> None:
    """Raise `SettingError` for a kernel or a solver that there is none of."""
    for name, value, expected in (("kernel", kernel, get_args(Kernel)), ("solver", solver, get_args(Solver))):
        if value not in expected:
            raise SettingError(f"{name} {value!r} given, expected one of {', '.join(expected)}")


def kernel_width(gamma: Width, z: Floats) -> float:
    """Return γ of k(a, b) = exp(-γ |a - b|²) for rows z (n, F): as given, 1 / F for None, else from the median.

    With "median" σ is the median distance between two different rows of at most `ROWS_FOR_MEDIAN`, taken as `spread`
    does, and γ = 1 / (2 σ²).
    """
    if gamma is None:
        return float(1.0 / z.shape[1])
    if isinstance(gamma, str) and gamma != "median":
        raise SettingError(f"gamma {gamma!r} given, expected a positive number, 'median', or none for 1 / F")
    if gamma == "median":
        sigma = median_distance(z)
        return 1.0 / (2.0 * sigma * sigma)
    width = float(gamma)
    if not 0.0 < width < np.inf:
        raise SettingError(f"gamma {width:g} given, expected a positive number, 'median', or none for 1 / F")
    return width


def median_distance(z: Floats) -> float:
    """Return the median distance between two rows; raises `DataError` where most rows are the same."""
    rows = spread(z, ROWS_FOR_MEDIAN)
    rows = rows - rows.mean(axis=0)  # far from the origin the digits of small distances would cancel
    square = (rows * rows).sum(axis=1)
    squares = square[:, None] + square[None, :] - 2.0 * rows @ rows.T
    median = float(np.median(squares[np.triu_indices(len(rows), 1)]))
    if median <= float(np.finfo(np.float64).eps) * float(square.max()):
        raise DataError(
            "more than half of the pairs of rows are equal, so their median distance is zero: give gamma as a number, "
            "or see whether the sensor is stuck or every feature constant"
        )
    return float(np.sqrt(median))
