"""The readout of an echo state network in closed form: from sums alone, so that gateways need to send nothing else.

    W = A (B + β I)⁻¹,   A = Σ y sᵀ,  B = Σ s sᵀ,   β = ridge · trace(B) / M        (IncFed: federated-esn paper, B.4)

β relative to the mean eigenvalue means the same for one gateway and for a hundred, for an hour and for a year. The
expected error on new rows follows from the same sums (Golub, Heath and Wahba 1979, generalised cross-validation):

    variance = Σ e² / n / (1 - freedom / n)²,   Σ e² = Σ y² - 2 W·A + W B·W,   freedom = trace(B (B + β I)⁻¹)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays, Booleans, Floats
from fedgate.models.detectors.base.checks import FitError
from fedgate.models.detectors.base.moments import symmetric

GRAM, CROSS, SQUARES, SAMPLES = "gram", "cross", "squares", "samples"
BLOCK_ROWS = 1024  # of states widened to float64 at a time
EPSILON = float(np.finfo(np.float64).eps)
REMEDY = 1e-6  # the ridge that an error message names: far above rounding, far below what smooths
# Of Σ y²: what a residual below this is made of is rounding of the sums.
SMALLEST_SHARE = 1e-12


class RankError(FitError):
    """The states do not determine a readout; the message names a ridge that would."""


class Solution(NamedTuple):
    """Readout W (c, M), β as it was added, the condition of B + β I, and its Cholesky factor (M, M)."""

    weights: Floats
    beta: float
    condition: float
    factor: Floats


def sums(states: Array, targets: Array, weights: Array | None = None) -> Arrays:
    """Return what adds up over rows of states (n, M) and targets (n, c): the upper triangle of Σssᵀ (M(M + 1)/2,), Σysᵀ
    (c, M), Σy² (c,) and n (), in float64 whatever the states are kept in; each row `weights` (n,) times where given.
    """
    roots = None if weights is None else np.sqrt(np.asarray(weights, dtype=np.float64))[:, None]  # (n, 1)
    size, y = states.shape[1], np.asarray(targets, dtype=np.float64)
    gram, cross = np.zeros((size, size)), np.zeros((y.shape[1], size))
    y = y if roots is None else y * roots
    for first in range(0, len(states), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        block = np.asarray(states[rows], dtype=np.float64)
        block = block if roots is None else block * roots[rows]
        gram += block.T @ block
        cross += y[rows].T @ block
    samples = np.array(float(len(states)) if weights is None else float(np.sum(weights)))
    return {GRAM: gram[_upper(size)], CROSS: cross, SQUARES: np.square(y).sum(axis=0), SAMPLES: samples}


def sizes(total: Mapping[str, Array]) -> Arrays:
    """Return how large each of these sums could be by its squares (Cauchy and Schwarz): columns differ in unit."""
    size, gram = total[CROSS].shape[1], total[GRAM]  # (..., M(M + 1)/2), one for each class where they are balanced
    upper = _upper(size)
    lengths = np.sqrt(gram[..., (np.cumsum(upper) - 1)[:: size + 1]])  # (..., M), from the diagonal
    whole = np.sqrt(np.square(lengths).reshape(-1, size).sum(axis=0))
    return {
        GRAM: (lengths[..., :, None] * lengths[..., None, :])[..., upper],
        CROSS: np.sqrt(total[SQUARES])[:, None] * whole,
        SQUARES: total[SQUARES],
    }


@lru_cache(maxsize=2)
def _upper(size: int) -> Booleans:
    return np.triu(np.ones((size, size), dtype=np.bool_))


def solve(total: Mapping[str, Array], ridge: float) -> Solution:
    """Return the readout of sums with a ridge relative to the mean eigenvalue.

    Raises `RankError`, naming a ridge that would do, where the sums plus the ridge do not determine a readout.
    """
    from scipy.linalg.lapack import dpocon, dpotrf, dpotrs

    size = total[CROSS].shape[1]
    gram = symmetric(total[GRAM], size)
    mean = float(np.trace(gram)) / size
    beta = ridge * mean
    gram[np.diag_indices(size)] += beta
    norm = float(np.abs(gram).sum(axis=0).max())
    factor, failed = dpotrf(gram.T, lower=0, clean=1, overwrite_a=1)  # symmetric, and so in LAPACK's own order
    reciprocal = 0.0 if failed else float(dpocon(factor, norm, uplo="U")[0])
    if not reciprocal > size * EPSILON:
        raise RankError(
            f"ridge {ridge:g} (β = {beta:.3g}) given for {float(total[SAMPLES]):g} rows of {size} states that leave "
            f"directions undetermined: expected a ridge of {REMEDY:g} (β = {REMEDY * mean:.3g}) or more"
        )
    weights, _ = dpotrs(factor, total[CROSS].T, lower=0)
    return Solution(np.ascontiguousarray(weights.T), beta, 1.0 / reciprocal, factor)


def variance(total: Mapping[str, Array], found: Solution) -> Floats:
    """Return the mean square error (c,) that a readout is to expect on new rows of the kind behind the sums."""
    from scipy.linalg.lapack import dpotri

    count, weights = float(total[SAMPLES]), found.weights
    size = weights.shape[1]
    explained = 2.0 * (weights * total[CROSS]).sum(axis=1)
    explained -= (weights @ symmetric(total[GRAM], size) * weights).sum(axis=1)
    squares = np.maximum(total[SQUARES] - explained, SMALLEST_SHARE * total[SQUARES])
    inverse, _ = dpotri(found.factor, lower=0)
    left = 1.0 - (size - found.beta * float(np.trace(inverse))) / count
    smallest = EPSILON  # of a target that was zero throughout, and of as many freedoms as rows
    return np.asarray(np.maximum(squares / count, smallest) / max(left, np.sqrt(smallest)) ** 2)
