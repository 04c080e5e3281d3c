"""Count, sum and second moments of rows: what adds up over gateways and still gives the exact pooled covariance (ours).

Sums of squares far from zero lose the digits of the variance, 2 log10(level / deviation) of the 16 there are; so rows
are first taken from a reference point that all gateways share, and the reference is put back into the mean at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.pca import principal
from fedgate.models.units import ROUNDING, STILL

SAMPLES, SUM_OF_ROWS, PRODUCTS = "samples", "sum", "products"


class Reference(NamedTuple):
    """The point rows are taken from and the unit they are taken in, both (F,); `noise` is what counts as constant."""

    point: Floats
    unit: Floats
    noise: float = 0.0


def reference_of(mean: Array, variance: Array) -> Reference:
    """Return the reference at a mean (F,), in units of the deviation (F,), one where there is none."""
    deviation = deviations(mean, variance, 0.0)
    return Reference(np.asarray(mean), np.where(deviation > 0.0, deviation, 1.0))


def origin(feature_count: int, *, own_units: bool) -> Reference:
    """Return the reference zero: for rows in a gateway's own deviations, or as they are."""
    return Reference(np.zeros(feature_count), np.ones(feature_count), 1.0 / STILL if own_units else 0.0)


def moments(z: Array) -> Arrays:
    """Return count (), sum (m,) and Σzzᵀ (m(m + 1)/2,) of rows (n, m), the upper triangle row by row."""
    rows = np.asarray(z, dtype=np.float64)
    upper = np.triu_indices(rows.shape[1])
    return {
        SAMPLES: np.array(float(len(rows))),
        SUM_OF_ROWS: rows.sum(axis=0),
        PRODUCTS: np.asarray((rows.T @ rows)[upper]),
    }


def triangle(size: int) -> int:
    """Return how many numbers the upper triangle of a (size, size) matrix holds."""
    return size * (size + 1) // 2


def symmetric(upper: Array, size: int) -> Floats:
    """Return the symmetric matrix (size, size) of an upper triangle."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = upper
    return np.asarray(matrix + np.triu(matrix, 1).T)


def mean_and_covariance(total: Mapping[str, Array]) -> tuple[Floats, Floats]:
    """Return the mean (m,) and the covariance (m, m), divided by n, of all rows behind a sum of moments."""
    count, mean = float(total[SAMPLES]), total[SUM_OF_ROWS] / float(total[SAMPLES])
    return np.asarray(mean), symmetric(total[PRODUCTS], len(mean)) / count - np.outer(mean, mean)


def deviations(mean: Array, variance: Array, noise: float) -> Floats:
    """Return the deviation (F,) of each feature, zero where it moves by less than rounding or `noise`."""
    deviation = np.sqrt(np.maximum(variance, 0.0))
    return np.where(deviation > ROUNDING * np.abs(mean) + noise, deviation, 0.0)


def subspace(total: Mapping[str, Array], components: int, reference: Reference, sketch: Array | None = None) -> Arrays:
    """Return mean, deviation and at most `components` principal directions of all rows behind a sum of moments.

    One direction at least is left for the residual. With a `sketch` (F, m) the moments are those of rows projected on
    it, units are the reference's, and the directions lie inside the sketch.
    """
    mean, covariance = mean_and_covariance(total)
    count = min(components, len(mean) - 1)
    if sketch is not None:
        places = {"mean": reference.point, "deviation": reference.unit, "sketch": sketch, "sketch_mean": mean}
        return places | principal(covariance, count)
    center = reference.point + reference.unit * mean
    deviation = deviations(center, np.diag(covariance) * np.square(reference.unit), reference.noise)
    moves = deviation > 0.0
    deviation = np.where(moves, deviation, 1.0)
    scale = np.where(moves, reference.unit / deviation, 0.0)  # what never moved has no direction
    return {"mean": center, "deviation": deviation} | principal(covariance * np.outer(scale, scale), count)
