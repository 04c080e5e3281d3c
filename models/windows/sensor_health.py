"""Whether a sensor can be believed: its rate, its gaps, and channels that are stuck or clipped.

A broken sensor must raise an alarm of its own and never look like a damaged structure, so these are judged from the raw
samples, before and apart from any model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedgate.models.arrays import Array

_LONGEST_GAP = 500  # rows: beyond it, a rate 1000 ppm off leaves open how many are missing
_FEWEST_CLIPPED, _SHARE_CLIPPED = 3, 0.01  # samples
_FEWEST_VALUES = 8  # a channel with fewer distinct values is a coarse one (a switch, whole degrees), not a clipped one
_PILED_UP = 4.0  # times the count of the next value: a quantised sinusoid's ends reach 2.4, a clipped one's far more


@dataclass(frozen=True, slots=True)
class StreamHealth:
    """Counters of one stream since the start. A row is one sample of each of its channels."""

    received: int  # rows
    dropped: int  # rows that were late or repeated, or whose place on the grid was taken
    missing: int  # rows that never came, judged by the times of the blocks
    not_finite: int  # single values; they count as gaps
    declared_rate_hz: float  # 0 for single readings
    measured_rate_hz: float  # 0 until it is known
    last_t_ns: int | None  # time of the newest row


@dataclass(frozen=True, slots=True)
class RateMeter:
    """Measures a stream's rate over all blocks since the last long gap: rows over the time between first rows."""

    declared_rate_hz: float = 0.0
    measured_rate_hz: float = 0.0
    first_ns: int | None = None  # time at which the baseline begins
    rows: int = 0  # of the baseline, missing ones included
    last_ns: int | None = None  # time of the newest row
    missing: int = 0  # rows, since the start


def meter(state: RateMeter, t_ns: int, rate_hz: float, rows: int) -> RateMeter:
    """Count a block of `rows` that begins at `t_ns`; rate_hz is the declared one, 0 for a single irregular reading."""
    period_ns = 1e9 / rate_hz if rate_hz else 0.0
    last_ns = t_ns + round((rows - 1) * period_ns)
    if state.first_ns is None or state.last_ns is None or rate_hz != state.declared_rate_hz:
        return RateMeter(rate_hz, state.measured_rate_hz, t_ns, rows, last_ns, state.missing)
    gap = round((t_ns - state.last_ns) / period_ns) - 1 if rate_hz else 0  # rows between the blocks
    missing = state.missing + max(gap, 0)
    if abs(gap) > _LONGEST_GAP:
        return RateMeter(rate_hz, state.measured_rate_hz, t_ns, rows, last_ns, missing)
    before = state.rows + gap
    elapsed_ns = t_ns - state.first_ns
    measured_rate_hz = before * 1e9 / elapsed_ns if elapsed_ns > 0 else state.measured_rate_hz
    return RateMeter(rate_hz, measured_rate_hz, state.first_ns, before + rows, last_ns, missing)


def stuck_channels(channels: Sequence[str], values: Array) -> tuple[str, ...]:
    """Name the channels of a window, values (T, C), that never change."""
    stuck = values.min(axis=0) == values.max(axis=0)  # (C,)
    return tuple(channel for channel, is_stuck in zip(channels, stuck, strict=True) if is_stuck)


def clipped_channels(channels: Sequence[str], values: Array) -> tuple[str, ...]:
    """Name the channels of a window, values (T, C), whose samples pile up at their own lowest or highest value.

    At least 1 % of the samples, and at least 3, are exactly the extreme one and more than 4 times as many as have
    the value next to it. A channel with fewer than 8 different values is too coarse to tell and never named.
    """
    fewest = max(_SHARE_CLIPPED * len(values), _FEWEST_CLIPPED)
    lowest, highest = (values == values.min(axis=0)).sum(axis=0), (values == values.max(axis=0)).sum(axis=0)  # (C,)
    suspects = np.maximum(lowest, highest) >= fewest  # sorting all channels would cost more than their features
    return tuple(
        channel
        for channel, column, is_suspect in zip(channels, values.T, suspects, strict=True)
        if is_suspect and _piles_up(column, fewest)
    )


def _piles_up(column: Array, fewest: float) -> bool:
    _, counts = np.unique(column, return_counts=True)
    ends = ((counts[0], counts[1]), (counts[-1], counts[-2])) if len(counts) >= _FEWEST_VALUES else ()
    return any(extreme >= fewest and extreme > _PILED_UP * beside for extreme, beside in ends)
