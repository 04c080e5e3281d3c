"""The width of a kernel that nobody gave: from quantiles of the distances of two rows, over all gateways (ours).

One exchange comes first, once in a training: each gateway counts the distances of its rows, in the units that the
algorithm sees, in bins of their logarithm, the same for all. Counts add up and may travel masked. A bin is a quarter of
an octave of the squared distance, and found from the digits of the number: in units 2^20 times as large every count
lies 160 bins further on, and γ is 2^-40 of what it was to the last bit. Between the ends of its bin a quantile is
interpolated, so that a distance that falls to the other side of an edge hardly moves it. How γ follows from quantiles
is a rule of the detector (`exact_width` and `map_width` in `models.detectors.training`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from models.arrays import FEATURES, ROUNDING, Array, Arrays, Floats
from models.detectors.training import PARTNERS, Quantile, squared_pair_distances
from models.federated.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Phase,
    Server,
    UpdateError,
    checked,
    healthy_rows,
    normalise,
)
from models.federated.feature_step import behind
from models.federated.tally import SUM

DISTANCES = "distances"
PER_OCTAVE = 4
OCTAVES = 128  # of squared distances below one, and as many above: lengths from 5e-20 to 2e19
BINS = 2 * OCTAVES * PER_OCTAVE
_EDGES = 2.0 ** (np.arange(1, PER_OCTAVE) / PER_OCTAVE - 1.0)  # of the digits, which are in [0.5, 1)


def with_width(
    algorithm: Algorithm,
    gamma: float | str | None,
    name: str,
    rule: Callable[[Quantile], float],
    normalisation: str,
) -> Algorithm:
    """Return the algorithm with an exchange before its first that puts γ by a rule into `shared` under `name`; as it is
    where γ is given.
    """
    if gamma is not None:
        return algorithm

    def squares_of(own: Arrays, data: Arrays) -> tuple[Arrays, Floats]:
        own, z = normalise(own, data, normalisation)
        return own, squared_pair_distances(healthy_rows(data, z))

    gather = counting(squares_of, lambda quantile: {name: np.array(rule(quantile))})
    phases = (gather, *(behind(phase, (), phase.train) for phase in algorithm.phases))
    return algorithm._replace(phases=phases, setup=1 + algorithm.setup)


def counting(
    squares_of: Callable[[Arrays, Arrays], tuple[Arrays, Floats]], found: Callable[[Quantile], Arrays]
) -> Phase:
    """Return the exchange that puts into `shared` what is `found` from the quantiles over all gateways.

    `squares_of(own, data)` returns the gateway's state and its squares (p,), all above zero.
    """

    def train(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        del shared, rng
        if len(data[FEATURES]) == 0:
            return own, {}
        own, squares = squares_of(own, data)
        return own, {DISTANCES: counted(squares)} if len(squares) else {}

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        known = partial(quantile, total[DISTANCES])
        return server._replace(shared={**server.shared, **found(known)}, phase=1)

    def admit(server: Server, update: Arrays) -> Arrays:
        del server
        most = MAX_SAMPLES * PARTNERS
        wide = checked(update, {DISTANCES: (BINS,)}, largest=most)
        least, pairs = float(wide[DISTANCES].min()), float(wide[DISTANCES].sum())
        if least < 0.0 or not 1 <= pairs <= most:
            expected = f"expected counts of 1 to {most} pairs in all, none negative"
            raise UpdateError(f"{DISTANCES}: {expected}, got {pairs:g} with a least of {least:g}")
        return wide

    return Phase(train, SUM, advance, admit)


def counted(squares: Floats) -> Floats:
    """Count squared distances (p,) above zero in the bins: (B,), whole numbers."""
    digits, exponents = np.frexp(squares * (1.0 + ROUNDING))  # what lies on an edge is in the bin above everywhere
    place = (exponents + OCTAVES) * PER_OCTAVE + np.searchsorted(_EDGES, digits, side="right")
    return np.bincount(np.clip(place, 0, BINS - 1), minlength=BINS).astype(np.float64)


def quantile(counts: Array, share: float) -> float:
    """Return what a share in (0, 1] of counted squares is below, as if those of a bin lay evenly in it."""
    counts = np.rint(counts)  # a sum that travelled masked comes back within its quantum
    before = np.cumsum(counts) - counts
    below = share * counts.sum()
    place = int(np.flatnonzero(before < below)[-1])
    octave, part = divmod(place, PER_OCTAVE)
    within = float((below - before[place]) / counts[place])
    return math.ldexp(2.0 ** ((part + within) / PER_OCTAVE - 1.0), octave - OCTAVES)
