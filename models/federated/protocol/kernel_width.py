"""The width of a kernel that nobody gave: from quantiles of the distances of two rows, over all gateways (ours).

One exchange comes first, once in a training: each gateway counts the distances of its rows, in the units that the
algorithm sees, in bins of their logarithm, the same for all. Counts add up and may travel masked. A bin is a quarter of
an octave of the squared distance, and found from the digits of the number: in units 2^20 times as large every count
lies 160 bins further on, and γ is 2^-40 of what it was to the last bit. Between the ends of its bin a quantile is
interpolated, so that a distance that falls to the other side of an edge hardly moves it. How γ follows from quantiles
is a rule of the detector (`exact_width` and `map_width` in `fedgate.models.detectors.base.checks`).

A gateway sends shares of its pairs in 4,096ths, so it counts for its weight, one at most, and not for its rows: of ten,
one that lies can move the quantiles no farther than to others of the honest nine (docs/decisions/05).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from fedgate.models.arrays import ROUNDING, Array, Arrays, Floats
from fedgate.models.detectors.base.checks import Quantile, squared_pair_distances
from fedgate.models.federated.protocol.algorithm import (
    Algorithm,
    Phase,
    RoundFailedError,
    Server,
    Trained,
    healthy_rows,
    normalise,
)
from fedgate.models.federated.protocol.composition import UNIT_FREE, having
from fedgate.models.federated.protocol.contributions import weight_of
from fedgate.models.federated.protocol.feature_step import begin_with
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, UpdateError

DISTANCES = "distances"
PER_OCTAVE = 4
OCTAVES = 128  # of squared distances below one, and as many above: lengths from 5e-20 to 2e19
BINS = 2 * OCTAVES * PER_OCTAVE
FULL = 2**12  # counts of a gateway of weight one
_EDGES = 2.0 ** (np.arange(1, PER_OCTAVE) / PER_OCTAVE - 1.0)  # of the digits, which are in [0.5, 1)


def with_width(
    algorithm: Algorithm,
    gamma: float | str | None,
    name: str,
    rule: Callable[[Quantile], float],
    normalisation: str,
) -> Algorithm:
    """Return the algorithm with an exchange before its first that puts γ by a rule into `global_state` under `name`; as
    it is where γ is given, or each gateway takes its own.
    """
    if gamma == "median":
        return algorithm
    algorithm = having(algorithm, UNIT_FREE)
    if gamma is not None:
        return algorithm

    def squares_of(local_state: Arrays, data: Arrays) -> tuple[Arrays, Floats]:
        local_state, z = normalise(local_state, data, normalisation)
        return local_state, squared_pair_distances(healthy_rows(data, z))

    gather = counting(squares_of, lambda quantile: {name: np.array(rule(quantile))})
    return begin_with(gather, algorithm, algorithm.phases)


def counting(
    squares_of: Callable[[Arrays, Arrays], tuple[Arrays, Floats]], found: Callable[[Quantile], Arrays]
) -> Phase:
    """Return the exchange that puts into `global_state` what is `found` from the quantiles over all gateways.

    `squares_of(own, data)` returns the gateway's state and its squares (p,), all above zero.
    """

    def learn(_global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        local_state, squares = squares_of(local_state, data)
        counts = scaled(counted(squares), round(FULL * min(weight_of(data), 1.0)))
        return local_state, {DISTANCES: counts} if counts.any() else {}

    def advance(server: Server, total: Arrays) -> Server:
        known = partial(quantile, total[DISTANCES])
        return server._replace(global_state={**server.global_state, **found(known)}, phase=1)

    def check(_server: Server, update: Arrays) -> None:
        counts = update[DISTANCES]
        pairs = float(counts.sum())
        if not 1 <= pairs <= FULL or (counts != np.rint(counts)).any():
            raise UpdateError(f"{DISTANCES}: expected whole counts that add up to 1 to {FULL}, got {pairs:g}")

    return Phase(learn, SUM, advance, {DISTANCES: Field((BINS,), "sum", least=0.0, largest=FULL)}, check)


def counted(squares: Floats) -> Floats:
    """Count squared distances (p,) above zero in the bins: (B,), whole numbers."""
    digits, exponents = np.frexp(squares * (1.0 + ROUNDING))  # what lies on an edge is in the bin above everywhere
    place = (exponents + OCTAVES) * PER_OCTAVE + np.searchsorted(_EDGES, digits, side="right")
    return np.bincount(np.clip(place, 0, BINS - 1), minlength=BINS).astype(np.float64)


def scaled(counts: Array, total: int) -> Floats:
    """Return counts (B,) in proportion, whole numbers that add up to `total`; all zero where there are none.

    What rounding down leaves goes to the largest remainders, the lowest bin first.
    """
    whole = counts.astype(np.int64) * total
    shares, remainders = np.divmod(whole, max(int(counts.sum()), 1))
    left = total - int(shares.sum()) if counts.any() else 0
    shares[np.argsort(-remainders, kind="stable")[:left]] += 1
    return shares.astype(np.float64)


def quantile(counts: Array, share: float) -> float:
    """Return what a share in (0, 1] of squares, counted in bins (B,), is below, as if those of a bin lay evenly in it.

    Raises `RoundFailedError` for what is no sum of counts: single ones that travelled masked were judged by nobody.
    """
    counts = np.rint(counts)  # a sum that travelled masked comes back within its quantum
    if counts.min() < 0.0 or not counts.any():
        raise RoundFailedError(
            f"{DISTANCES}: expected counts above zero in all and none negative, got {counts.sum():g}"
        )
    before = np.cumsum(counts) - counts
    below = share * counts.sum()
    place = int(np.flatnonzero(before < below)[-1])
    octave, part = divmod(place, PER_OCTAVE)
    within = float((below - before[place]) / counts[place])
    return math.ldexp(2.0 ** ((part + within) / PER_OCTAVE - 1.0), octave - OCTAVES)
