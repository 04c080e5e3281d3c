"""Many samples to one value of a place on the time grid: what a stream faster than the grid, or irregular, becomes.

A room's sensor speaks every minute, a building is judged by quarters of an hour. Each place keeps a few numbers however
many samples arrive, and ends the same however they were cut into blocks: samples are taken in one by one, in order.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import Floats, Integers

Aggregate = Literal["mean", "min", "max", "last"]


class Gathered(NamedTuple):
    """What has arrived in some places, ascending (k,): how many finite samples, their first and their running value,
    each (k, C). The running value of a mean is the sum of distances from the first, so that a constant stays exactly
    one.
    """

    places: Integers
    counts: Integers
    firsts: Floats
    running: Floats

    def values(self, how: Aggregate) -> Floats:
        """Return one value for each place and channel, (k, C), NaN where no sample was finite."""
        counts = np.maximum(self.counts, 1)
        found = self.firsts + self.running / counts if how == "mean" else self.running
        return np.where(self.counts > 0, found, np.nan)

    def since(self, index: int) -> Gathered:
        """Return the places from an index on."""
        return Gathered(self.places[index:], self.counts[index:], self.firsts[index:], self.running[index:])


def gather(how: Aggregate, before: Gathered | None, places: Integers, values: Floats) -> Gathered:
    """Return the places of `before` and of samples, values (n, C) at `places` (n,), ascending and not before it."""
    known = np.zeros(0, dtype=np.int64) if before is None else before.places
    all_places, at = np.unique(np.concatenate([known, places]), return_inverse=True)
    shape = (len(all_places), values.shape[1])
    after = Gathered(all_places, np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape))
    if before is not None:
        for column, old in zip(after[1:], before[1:], strict=True):
            column[: len(known)] = old
    for channel, samples in enumerate(values.T):
        finite = np.isfinite(samples)
        _take(how, after, channel, at[len(known) :][finite], samples[finite])
    return after


def _take(how: Aggregate, after: Gathered, channel: int, at: NDArray[np.intp], samples: Floats) -> None:
    """Add the finite samples (m,) of one channel to the places of index `at` (m,)."""
    counts, firsts, running = (column[:, channel] for column in after[1:])  # views
    places, leaders = np.unique(at, return_index=True)
    is_new = counts[places] == 0
    firsts[places[is_new]] = running[places[is_new]] = samples[leaders[is_new]]
    if how == "mean":
        running[places[is_new]] = 0.0
        np.add.at(running, at, samples - firsts[at])
    elif how == "last":
        running[at] = samples
    else:
        (np.minimum if how == "min" else np.maximum).at(running, at, samples)
    np.add.at(counts, at, 1)
