"""Where the rows of a recording do not follow one another, and what time it is at a row all the same.

The only place that looks for gaps in time stamps: what is read from a file, described, cut, played or measured asks it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.models.time_units import NS

LARGEST_NS = 2**62  # a century and a half; two of them still fit into int64
LONG = 1.5  # usual intervals between two time stamps, from which on rows are missing between them
_NONE = np.zeros(0, dtype=np.int64)


class Gaps(NamedTuple):
    """The gaps of a recording, in the order of its rows."""

    rows: NDArray[np.int64] = _NONE  # (G,) ascending, above 0: the first row behind each gap
    lost_ns: NDArray[np.int64] = _NONE  # (G,) passed without a sample; negative where the time stamps go back

    def between(self, first: int, last: int) -> Gaps:
        """Return the gaps inside the rows from `first` up to, not including, `last`, counted from `first`."""
        inside = (self.rows > first) & (self.rows < last)
        return Gaps(self.rows[inside] - first, self.lost_ns[inside])

    def start_s(self, row: int, rate_hz: float) -> float:
        """Return when a row begins, in seconds since the first one; time stamps that go back lose no time."""
        return row / rate_hz + _forward_s(self.lost_ns[self.rows <= row])

    def end_s(self, row: int, rate_hz: float) -> float:
        """Return when the row ahead of `row` ends: a gap between the two comes later."""
        return row / rate_hz + _forward_s(self.lost_ns[self.rows < row])

    def stamp_ns(self, row: int, rate_hz: float) -> int:
        """Return what the time stamp of a row is, counted from the first row's."""
        return round(row / rate_hz * NS) + int(self.lost_ns[self.rows <= row].sum())

    def row_at(self, at_s: float, rate_hz: float, count: int) -> int:
        """Return the row of `count` that begins nearest to a time, or the one behind the gap that the time lies in."""
        lost_s = np.concatenate([[0.0], np.cumsum(np.maximum(self.lost_ns, 0), dtype=np.float64) / NS])
        starts = np.concatenate([[0], self.rows])
        ends = np.concatenate([self.rows, [count]])
        part = int(np.searchsorted(starts / rate_hz + lost_s, at_s, side="right")) - 1
        return int(np.clip(round((at_s - lost_s[part]) * rate_hz), starts[part], ends[part]))

    def parts(self, count: int) -> list[tuple[int, int]]:
        """Return first and end of each run of `count` rows without a gap in it."""
        return list(pairwise([0, *self.rows.tolist(), count]))


GAPLESS = Gaps()


def _forward_s(lost_ns: NDArray[np.int64]) -> float:
    return float(np.maximum(lost_ns, 0).sum(dtype=np.float64)) / NS  # as a float, which a wild clock cannot overflow


def find_gaps(stamps_ns: NDArray[np.int64]) -> Gaps:
    """Return the gaps between rows with these time stamps, (T,).

    Rows are missing where an interval is longer than `LONG` usual ones, of those above 0 the median: stamps may be
    coarser than the rows, which then share them.
    """
    intervals_ns = np.diff(stamps_ns)
    forward = intervals_ns[intervals_ns > 0]
    if not len(forward):
        return GAPLESS
    interval_ns = float(np.median(forward))
    at = np.flatnonzero((intervals_ns > LONG * interval_ns) | (intervals_ns < 0))
    return Gaps(at + 1, np.maximum(intervals_ns[at], -LARGEST_NS) - min(round(interval_ns), LARGEST_NS))
