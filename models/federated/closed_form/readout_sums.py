"""What sums over regressors and targets can honestly be: the judge of every algorithm that sends them to the cloud
(ours).

A state is a tanh, so at most 1; a direct input is at most `clip`, and so is a target; the constant is 1. That bounds
every sum by its number of rows. One that says what has changed says how many rows it added and took back, and is
bounded by those; and whoever takes rows back, the Gram matrix of those that are left has no negative eigenvalue.

What this cannot see: the cloud keeps one sum and no gateway's part of it, so whose rows are taken back is the word of
who takes them, up to `max_samples` in a round. A gateway that lies about that can spoil a sum that is not much larger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.moments import symmetric
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM, SAMPLES, SQUARES
from fedgate.models.federated.protocol.schema import UpdateError

TURNED = "turned"  # rows added and rows taken back, together
SLACK = 1e-6  # of a bound: states are float32
ROUNDING = 1e-9  # of the size of two sums, left of their difference
NEGATIVE = 1e-8  # rounding leaves a Gram matrix this far from positive, beside a diagonal of one


class Bounds(NamedTuple):
    """The largest size of each regressor (M,) and of a target, and how many rows one gateway may count for."""

    regressors: Floats
    target: float
    max_samples: int


def bounds_of(network: Network, feature_count: int, max_samples: int) -> Bounds:
    """Return what bounds the sums of a gateway of F features."""
    largest = np.ones(network.readout_size(feature_count))
    if network.direct:
        largest[network.layers * network.units : -1] = network.clip
    return Bounds(largest, 1.0 if network.task == "classify" else network.clip, max_samples)


def rows_of(update: Arrays, bounds: Bounds) -> float:
    """Return how many rows an update counts for that takes none back; raises `UpdateError` for none or too many."""
    rows = float(update[SAMPLES])
    if not 0.0 < rows <= bounds.max_samples:
        raise UpdateError(f"{SAMPLES}: expected above 0 and up to {bounds.max_samples}, got {rows:g}")
    return rows


def judge(before: Mapping[str, Array], update: Arrays, bounds: Bounds) -> None:
    """Raise `UpdateError` for an update that no rows make together with the sums of the rounds `before`.

    The Gram matrix is one triangle (M(M + 1)/2,) or one of each class (classes, M(M + 1)/2); of the latter `squares`
    says how many rows each class has.
    """
    _judge_change(update, bounds)
    before, update = ({name: array for name, array in sums.items() if name != TURNED} for sums in (before, update))
    total = {name: np.asarray(before.get(name, 0.0) + array) for name, array in update.items()}
    moved = {name: np.abs(before.get(name, 0.0)) + np.abs(array) for name, array in update.items()}
    rows, size = float(total[SAMPLES]), len(bounds.regressors)
    if rows < -ROUNDING * float(moved[SAMPLES]):
        raise UpdateError(f"{SAMPLES}: expected a total of at least 0 with what was counted before, got {rows:g}")
    by_class = total[GRAM].ndim > 1
    per_gram = np.reshape(total[SQUARES] if by_class else total[SAMPLES], (-1, 1))
    _within(SAMPLES, per_gram.sum(axis=0) - rows, np.zeros(1), np.reshape(moved[SAMPLES], 1))
    diagonals, moved_diagonals = _diagonals(total[GRAM], size), _diagonals(moved[GRAM], size)
    _within(GRAM, diagonals, per_gram * np.square(bounds.regressors), moved_diagonals)
    _within(GRAM, per_gram - diagonals[:, -1:], 0.0 * per_gram, moved_diagonals[:, -1:])  # the constant counts rows
    _within(SQUARES, total[SQUARES], rows * bounds.target**2 * np.ones_like(total[SQUARES]), moved[SQUARES])
    products, moved_products = (  # Cauchy and Schwarz: (Σ y s)² <= Σ y² Σ s²
        np.sqrt(np.maximum(np.outer(part[SQUARES], diagonal.sum(axis=0)), 0.0))
        for part, diagonal in ((total, diagonals), (moved, moved_diagonals))
    )
    _within(CROSS, total[CROSS], products, moved_products)
    units = np.where(moved_diagonals > 0.0, np.sqrt(moved_diagonals), 1.0)
    for triangle, unit in zip(total[GRAM].reshape(len(diagonals), -1), units, strict=True):
        root_of(symmetric(triangle, size) / np.outer(unit, unit), f"{GRAM}: expected sums of rows")


def _judge_change(update: Arrays, bounds: Bounds) -> None:
    """Refuse an update that is more than the rows it says it adds and takes back can make."""
    claimed = float(update[SAMPLES])
    turned = float(update.get(TURNED, claimed))
    added, taken = (turned + claimed) / 2.0, (turned - claimed) / 2.0
    if max(added, taken) > bounds.max_samples * (1.0 + SLACK) or abs(claimed) > bounds.max_samples:
        raise UpdateError(f"{SAMPLES}: expected up to {bounds.max_samples}, got {max(added, taken, abs(claimed)):g}")
    if min(added, taken) < -ROUNDING * turned:
        raise UpdateError(f"{TURNED}: expected at least the {abs(claimed):g} rows of {SAMPLES}, got {turned:g}")
    largest = np.concatenate([bounds.regressors, [bounds.target]])
    sizes = np.square(largest) * turned  # no sum of one gateway can be larger, nor move farther
    diagonals = _diagonals(update[GRAM], len(bounds.regressors))
    _within(GRAM, diagonals, np.broadcast_to(sizes[:-1], diagonals.shape), np.abs(diagonals))
    _within(SQUARES, update[SQUARES], np.full(update[SQUARES].shape, sizes[-1]), np.abs(update[SQUARES]))
    products = np.broadcast_to(bounds.regressors * bounds.target * turned, update[CROSS].shape)
    _within(CROSS, update[CROSS], products, np.abs(update[CROSS]))
    every, loudest = np.ravel(update[GRAM]), float(bounds.regressors.max()) ** 2 * turned
    _within(GRAM, every, np.full(every.shape, loudest), np.abs(every))


def _diagonals(gram: Array, size: int) -> Floats:
    """Return the diagonals (1 or classes, M) of one or more upper triangles, whose row i begins with place (i, i)."""
    lengths = np.arange(size, 0, -1)
    return np.asarray(gram.reshape(-1, int(lengths.sum()))[:, np.cumsum(lengths) - lengths])


def _within(name: str, found: Array, most: Array, moved: Array) -> None:
    """Refuse sizes above `most`, beyond what rounding leaves of sums as large as `moved`."""
    over = np.abs(found) - (most * (1.0 + SLACK) + ROUNDING * moved)
    if (over > 0.0).any():
        at = np.unravel_index(int(over.argmax()), over.shape)
        raise UpdateError(
            f"{name}: expected sizes up to {most[at]:g}, which is what the rows allow, got one of {abs(found[at]):g}"
        )


def root_of(products: Floats, what: str) -> Floats:
    """Return the Cholesky factor (m, m) of products of rows (m, m), scaled to a diagonal of one, which `what` expects.

    Raises `UpdateError` where an eigenvalue is further below zero than rounding leaves one.
    """
    try:  # far cheaper than the eigenvalues, which are only needed for the message
        return np.asarray(np.linalg.cholesky(products + NEGATIVE * np.eye(len(products))), dtype=np.float64)
    except np.linalg.LinAlgError:
        least = np.linalg.eigvalsh(products)[0]
        raise UpdateError(f"{what}, so no negative eigenvalue, got {least:.3g}") from None
