"""Streams of steps, each with its part in a study, and the windows of them.

A part is an inner fold of the steps that train, by which settings are chosen, or what is reported; no step is both.
Where a value is forecast the end of the steps that train is a part of its own, so that settings are chosen on days
after those that an inner training saw, as what is reported is after all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.datasets.files import Whole
from fedgate.models.arrays import FEATURES, NEW_SERIES, Floats
from fedgate.models.federated.protocol.algorithm import normalise

REPORT, IGNORED = -1, -2  # parts beside the inner folds 0, 1
FOLDS = 2
LATER = FOLDS  # added to the fold of what comes after all days of the folds 0, 1
BETWEEN = 2 * FOLDS  # days of the folds 0, 1 whose values are later ones: they only train in the end
TRAINS = tuple(range(BETWEEN + 1))
MAX_GAP = 2  # missing steps that are bridged, as in the networks' default; more begin a new series


class Stream(NamedTuple):
    """One sensor's steps in units of its own: values z (m, C), steps missing before each, what is to be told y (m,),
    nan where nobody knows, and the part (m,) of each.

    `gateway` is who holds it in a training, `place` where it is. Of a place that is not `seen` no step trains.
    """

    gateway: str
    place: str
    z: Floats
    missing: Whole
    y: Floats
    part: Whole
    seen: bool = True


class Windows(NamedTuple):
    """Windows of a stream by the step (n,) at which each ends."""

    stream: Stream
    at: Whole

    @property
    def y(self) -> Floats:
        """What is to be told (n,)."""
        return np.asarray(self.stream.y[self.at])

    def rows(self, before: int, after: int = 0) -> Floats:
        """Return `before` steps up to each end and `after` behind it as rows (n, C * T), channel after channel."""
        at = self.at[:, None] + np.arange(1 - before, after + 1)  # (n, T)
        return np.asarray(self.stream.z[at].transpose(0, 2, 1).reshape(len(at), -1))


def cut_windows(stream: Stream, parts: Collection[int], steps: int, every: int = 1) -> Windows:
    """Return the windows of so many steps that lie in one series, whose y is known and whose end is in `parts`; one in
    `every` of them.
    """
    place = pd.Series(stream.y).groupby(number_series(stream.missing)).cumcount()
    known = (place >= steps - 1) & np.isfinite(stream.y) & np.isin(stream.part, list(parts))
    return Windows(stream, np.flatnonzero(known)[::every])


def number_series(missing: Whole) -> Whole:
    """Return the number (m,) of the series that each step belongs to."""
    return np.cumsum((missing == NEW_SERIES) | (missing > MAX_GAP))


def take_later(values: Floats, missing: Whole, horizon: int) -> Floats:
    """Return what values (m,) are `horizon` steps later, nan where that is beyond the series."""
    return np.asarray(pd.Series(values).groupby(number_series(missing)).shift(-horizon), dtype=np.float64)


def in_units_of(x: Floats, commissioning: NDArray[np.bool_], clip: float) -> Floats:
    """Return rows (m, C) in units of the commissioning rows among them, clipped."""
    own, _ = normalise({}, {FEATURES: x[commissioning]}, "own")
    return np.asarray(np.clip(normalise(own, {FEATURES: x}, "own")[1], -clip, clip))
