"""What the study of sensor streams is made of: stretches of rows with roles, gateways that have some, and sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, Arrays, Floats

IGNORED, TRAIN, CALIBRATE, WATCHED = 0, 1, 2, 3
SECONDS_PER_DAY = 86_400.0
LEAST = 1e-9  # of a mean square; differences of sums may round to less than nothing


class Stretch(NamedTuple):
    """One series of a gateway: rows x (n, F), rows missing before each, whether a row is anomalous, and its role.

    `kind` says what the anomalies in it are. The healthy rows of a `copy`, into which a fault was put, are those of
    another stretch, and count only once.
    """

    x: Floats
    missing: NDArray[np.int64]
    label: NDArray[np.int64]
    role: NDArray[np.int64]
    kind: str = ""
    copy: bool = False


class Gateway(NamedTuple):
    """One gateway and all it measured; faults that were put in are copies, in stretches of their own."""

    name: str
    stretches: tuple[Stretch, ...]


class Streams(NamedTuple):
    """A data set: its gateways, seconds from one row to the next, and how scores become alarms.

    Rows are judged in windows of `window_rows`, of which the first `skipped_rows` do not count. Two alarms with less
    than `merge` judged windows between them are one. In a `fleet` all gateways watch the same.
    """

    gateways: tuple[Gateway, ...]
    step_s: float
    merge: int
    window_rows: int = 1
    skipped_rows: int = 0
    fleet: bool = False

    @property
    def window_s(self) -> float:
        """Seconds from one judged window to the next."""
        return self.step_s * self.window_rows

    @property
    def windows_per_day(self) -> float:
        """How often a day a gateway judges."""
        return SECONDS_PER_DAY / self.window_s


def training_data(gateway: Gateway) -> Arrays:
    """Return the rows of a gateway that train, as a federated algorithm takes them."""
    x, missing = [], []
    for stretch in gateway.stretches:
        rows = stretch.role == TRAIN
        begun = rows & ~np.concatenate([[False], rows[:-1]])
        x.append(stretch.x[rows])
        missing.append(np.where(begun, NEW_SERIES, stretch.missing)[rows])
    return {FEATURES: np.concatenate(x), MISSING: np.concatenate(missing)}


class Judged(NamedTuple):
    """Windows of one stretch: their score, label and role (m,)."""

    score: Floats
    label: NDArray[np.int64]
    role: NDArray[np.int64]
    kind: str
    copy: bool


def judged(streams: Streams, stretch: Stretch, scores: Floats) -> Judged:
    """Return the windows of a stretch whose rows have scores (n,).

    A score is a logarithm; that of a window is the logarithm of the mean.
    """
    size = streams.window_rows
    count = len(scores) // size
    parts = scores[: count * size].reshape(count, size)[:, streams.skipped_rows :]
    whole = parts[:, 0] if size == 1 else np.log(np.exp(parts).mean(axis=1))
    firsts = slice(0, count * size, size)
    return Judged(whole, stretch.label[firsts], stretch.role[firsts], stretch.kind, stretch.copy)


def smoothed(each: Judged, count: int) -> Judged:
    """Return windows with the logarithm of the mean over the last `count` of them, fewer at the start."""
    if count == 1:
        return each
    total = np.concatenate([[0.0], np.cumsum(np.exp(each.score))])
    stop = np.arange(1, len(total))
    start = np.maximum(stop - count, 0)
    return each._replace(score=np.log(np.maximum(total[stop] - total[start], LEAST) / (stop - start)))
