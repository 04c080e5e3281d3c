"""Columns of the sums that a gateway elects for itself: how they travel, are judged, added and solved for
(federated-esn paper; the bounds are ours).

A gateway sends of B = Σ s sᵀ and A = Σ y sᵀ the columns of its own choice, as indices and values. Two gateways' values
belong to other columns, so they are put into their places in the cloud and only then added. The sum is no Gram matrix:
column j says that the error is not correlated with unit j on the rows of those who chose it, and a unit that nobody
chose gets no weight. What else a ridge refers to, trace(B) and the number of rows, is sent whole.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats, Integers
from fedgate.models.detectors.base.moments import symmetric
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM, SAMPLES, SQUARES, RankError
from fedgate.models.federated.closed_form.readout_sums import ROUNDING, SLACK, Bounds, judge, rows_of
from fedgate.models.federated.protocol.schema import UpdateError

COLUMNS, TRACE = "columns", "trace"


def elected(gram: Floats, units: int, count: int, alpha: float, rng: np.random.Generator) -> Integers:
    """Return which `count` of the first `units` columns of a Gram matrix (M, M) a gateway sends, in their order: a
    share `alpha` by importance, the signed sums of its rows over the units, and others drawn at random.
    """
    importance = gram[:units, :units].sum(axis=1)
    best = np.argsort(-importance, kind="stable")[: round(alpha * count)]
    others = rng.permutation(np.setdiff1d(np.arange(units), best))[: count - len(best)]
    return np.sort(np.concatenate([best, others]))


def masked(sums: Mapping[str, Array], columns: Integers, units: int) -> Arrays:
    """Return sums with the elected columns of A and B, and all those from `units` on, which belong to no unit."""
    size = sums[CROSS].shape[1]
    gram = symmetric(sums[GRAM], size)
    places = np.concatenate([columns, np.arange(units, size)])
    return {
        COLUMNS: columns.astype(np.int32),
        GRAM: np.ascontiguousarray(gram[:, places]),
        CROSS: np.ascontiguousarray(sums[CROSS][:, places]),
        SQUARES: sums[SQUARES],
        SAMPLES: sums[SAMPLES],
        TRACE: np.array(np.trace(gram)),
    }


def shapes(count: int, outputs: int, size: int, units: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a masked update."""
    sent = count + size - units
    return {COLUMNS: (count,), GRAM: (size, sent), CROSS: (outputs, sent), SQUARES: (outputs,), SAMPLES: (), TRACE: ()}


def placed(update: Arrays, bounds: Bounds, units: int) -> Arrays:
    """Return a masked update of right shapes as sums over all columns, zero in those that were not sent.

    Raises `UpdateError` for what no rows make.
    """
    size, chosen = len(bounds.regressors), update[COLUMNS]
    if not np.isin(chosen, np.arange(units)).all() or len(np.unique(chosen)) < len(chosen):
        raise UpdateError(f"{COLUMNS}: expected different whole numbers below {units}, got {chosen.tolist()[:8]}")
    places = np.concatenate([chosen.astype(np.int64), np.arange(units, size)])
    _judge(update, places, bounds)
    gram, cross = np.zeros((size, size)), np.zeros((len(update[CROSS]), size))
    gram[:, places], cross[:, places] = update[GRAM], update[CROSS]
    return {GRAM: gram, CROSS: cross, **{name: update[name] for name in (SQUARES, SAMPLES, TRACE)}}


def _judge(update: Arrays, places: Integers, bounds: Bounds) -> None:
    block, rows = update[GRAM][places], rows_of(update, bounds)  # (k, k) of the columns that were sent
    if not np.allclose(block, block.T, rtol=SLACK, atol=ROUNDING * rows):
        raise UpdateError(f"{GRAM}: expected the same between two columns both ways, got others")
    sums = {name: update[name] for name in (CROSS, SQUARES, SAMPLES)} | {GRAM: block[np.triu_indices(len(block))]}
    judge({}, sums, bounds._replace(regressors=bounds.regressors[places]))
    largest = np.sqrt(rows * np.outer(np.square(bounds.regressors), np.diag(block)))  # Cauchy and Schwarz
    over = np.abs(update[GRAM]) - largest * (1.0 + SLACK) - ROUNDING * rows
    if (over > 0.0).any():
        raise UpdateError(f"{GRAM}: expected sizes that the rows allow, got one {over.max():.3g} above")
    least = float(np.trace(block))
    most = least + rows * float(np.square(np.delete(bounds.regressors, places)).sum())
    trace, slack = float(update[TRACE]), SLACK * most
    if not least - slack <= trace <= most + slack:
        raise UpdateError(f"{TRACE}: expected {least:g} to {most:g}, got {trace:g}")


def solve(total: Mapping[str, Array], ridge: float) -> tuple[Floats, float]:
    """Return W = A (B + β I)⁻¹ (c, M) of a sum of masked columns, which is not symmetric, and the condition of what was
    inverted. β is `ridge` in mean eigenvalues of the sum before it was masked.

    Raises `RankError` where that is singular.
    """
    from scipy.linalg.lapack import dgecon, dgetrf, dgetrs

    size = len(total[GRAM])
    beta = ridge * float(total[TRACE]) / size
    matrix = total[GRAM] + beta * np.eye(size)
    norm = float(np.abs(matrix).sum(axis=0).max())
    factor, pivots, singular = dgetrf(matrix)
    reciprocal = 0.0 if singular else float(dgecon(factor, norm)[0])
    if reciprocal == 0.0:
        raise RankError(f"ridge {ridge:g} (β = {beta:.3g}) given, with which the masked sum is singular: expected more")
    weights, _ = dgetrs(factor, pivots, np.asfortranarray(total[CROSS].T), trans=1)
    return np.ascontiguousarray(weights.T), 1.0 / reciprocal
