"""Streams and blocks to cut windows from, and windows made comparable."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fedgate.models.features.kinds import Statistic
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.windows.grid import Block, Lost, Window, Windower, push

SECOND_NS = 10**9

Event = Window | Lost


def spec_of(*channels: str, rate_hz: float = 10.0, window_s: float = 1.0, hop_s: float | None = None) -> FeatureSpec:
    return FeatureSpec(
        rate_hz=rate_hz,
        window_s=window_s,
        hop_s=window_s if hop_s is None else hop_s,
        channels=channels,
        steps=(Statistic(kind="level"),),
    )


def feed(state: Windower, blocks: list[Block]) -> tuple[Windower, list[Event]]:
    events: list[Event] = []
    for block in blocks:
        state, more = push(state, block)
        events += more
    return state, events


def described(events: list[Event]) -> list[object]:
    """Make events comparable, to the bit."""
    return [(e.t_ns, e.values.tolist(), e.filled) if isinstance(e, Window) else e for e in events]


def windows_of(events: list[Event]) -> list[Window]:
    return [event for event in events if isinstance(event, Window)]


def series(name: str, rows: NDArray[np.float64], *cuts: int, rate_hz: float = 10.0, t_ns: int = 0) -> list[Block]:
    """Cut rows (n, C), sampled without a gap, into blocks."""
    ends = [0, *sorted(cuts), len(rows)]
    return [
        Block(name, t_ns + round(first * 1e9 / rate_hz), rate_hz, rows[first:end])
        for first, end in pairwise(ends)
        if first < end
    ]


def ramp(count: int, channels: int = 1, first: float = 0.0) -> NDArray[np.float64]:
    return first + np.arange(count * channels, dtype=np.float64).reshape(count, channels)
