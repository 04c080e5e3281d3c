"""Samples to windows: several streams fused into one gateway-level window on one time grid.

Sensors deliver blocks that are late, repeated or lost, by clocks that run a little fast or slow. A model needs windows
of T samples at the declared rate. Whatever lies between is decided here, and every window that could not be built is
reported with its channels and the reason: a gateway that watches nothing must not look like one at peace.

The grid: place i is at origin + i / rate_hz. A sample goes to the place nearest to its time, so a node whose crystal is
100 ppm off skips or doubles a place now and then and nothing accumulates; a doubled place keeps its first sample, or
aggregates all of them where its stream says so. The grid begins with the latest of the streams' first samples, and
windows begin every hop_s from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedgate.models.arrays import Booleans, Floats
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.windows.aggregation import Aggregate
from fedgate.models.windows.sensor_health import StreamHealth
from fedgate.models.windows.stream import (
    NEVER,
    Block,
    SignalError,
    Stream,
    StreamSpec,
    forget,
    place,
    read,
    received,
    restart,
    unheard,
)
from fedgate.models.windows.stream import health as stream_health

__all__ = [
    "Aggregate",
    "Block",
    "Lost",
    "SignalError",
    "StreamSpec",
    "Window",
    "Windower",
    "health",
    "push",
    "rest",
    "start",
]

RESTART_WINDOWS = 10  # a block further away from the grid than so many windows belongs to another time


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Finite values (T, C) in the order of `FeatureSpec.channels`, the first row at `t_ns`."""

    t_ns: int
    values: Floats
    bridged: Booleans  # (T, C) values that were not measured

    @property
    def filled(self) -> int:
        """How many values were bridged."""
        return int(np.count_nonzero(self.bridged))

    def newly_filled(self, spec: FeatureSpec) -> dict[str, int]:
        """Return how many values of each channel were bridged in the part that is new since the window before."""
        counts = np.count_nonzero(self.bridged[-spec.hop_samples :], axis=0)  # (C,)
        return {name: count for name, count in zip(spec.channels, counts.tolist(), strict=True) if count}


@dataclass(frozen=True, slots=True)
class Lost:
    """A window that could not be built, or the one under way when time jumped."""

    t_ns: int
    channels: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Windower:
    """State of the fusion; `push` returns a new one. Memory is bounded by the patience and the longest gap bridged."""

    spec: FeatureSpec
    streams: dict[str, Stream]  # never changed, only replaced
    patience: int  # places
    far: int  # places
    has_origin: bool = False  # the grid has an origin
    origin_ns: int = 0
    next: int = 0  # first place of the next window
    aside: tuple[Block, ...] = ()  # blocks that wait for the grid to begin, or that may show that time has jumped

    @property
    def newest(self) -> int:
        """Newest place of all streams."""
        return max(stream.last for stream in self.streams.values())

    def duration_ns(self, places: int) -> int:
        """Duration of so many places."""
        return round(places * 1e9 / self.spec.rate_hz)

    def time_ns(self, place: int) -> int:
        """Time of a place."""
        return self.origin_ns + self.duration_ns(place)


def start(spec: FeatureSpec, streams: Sequence[StreamSpec], patience_s: float | None = None) -> Windower:
    """Begin with no samples. A stream more than `patience_s` (default: two windows) behind another is not waited for.

    Raises:
        SignalError: not every channel of the specification comes from exactly one stream, or two streams share a name.
    """
    given = sorted(channel for stream in streams for channel in stream.channels)
    names = [stream.name for stream in streams]
    if given != sorted(spec.channels) or len(set(names)) < len(names):
        raise SignalError(
            f"streams {names} bring the channels {given}; expected different names and, from all streams together, each"
            f" of {sorted(spec.channels)} once"
        )
    patience_s = 2 * spec.window_s if patience_s is None else patience_s
    far_s = max(RESTART_WINDOWS * spec.window_s, patience_s, *(stream.gap_s or 0.0 for stream in streams))
    return Windower(
        spec,
        {stream.name: unheard(stream, spec.rate_hz) for stream in streams},
        patience=round(patience_s * spec.rate_hz),
        far=round(far_s * spec.rate_hz),
    )


def push(state: Windower, block: Block) -> tuple[Windower, list[Window | Lost]]:
    """Take the next block of a stream; return the windows it completes or gives up, oldest first.

    A window is complete when every stream has passed its end and the gaps in it are decided. It is `Lost` for the
    channels in which a gap is too long, or whose stream is more than the patience behind.

    Rows at or before the newest place of their stream are dropped. A block further than `RESTART_WINDOWS` windows from
    the grid, either way, is set aside. When several blocks set aside cover more than the patience, and none between
    fitted the grid, time has jumped: one `Lost` says so, and the grid begins anew with them. So it does when a stream's
    next block set aside is as far again from the one before. One node's old backlog or wrong clock thus stops no other.

    Raises:
        SignalError: the block is not one of a declared stream's; the state given stays valid.
    """
    if block.stream not in state.streams:
        raise SignalError(f"block of stream {block.stream!r}; expected one of {list(state.streams)}")
    state = _with(state, received(state.streams[block.stream], block))
    if state.has_origin:
        return _take(state, block)
    if not _is_apart(state, block):
        state = _set_aside(state, block)
        return _begin(state) if _need_not_wait(state) else (state, [])
    state, events = _begin(state)
    state, more = _take(state, block)
    return state, events + more


def rest(state: Windower) -> list[Window | Lost]:
    """Return what the windows come to that are over but wait for samples, where no more will come: a recording ends."""
    events: list[Window | Lost] = []
    first = state.next
    while state.has_origin and state.newest >= first + state.spec.samples - 1:
        events.append(_build(state, first))
        first += state.spec.hop_samples
    return events


def health(state: Windower) -> dict[str, StreamHealth]:
    """Return the counters of every stream."""
    waiting = {name: sum(len(b.values) for b in state.aside if b.stream == name) for name in state.streams}
    return {name: stream_health(stream, waiting[name]) for name, stream in state.streams.items()}


def _with(state: Windower, stream: Stream) -> Windower:
    return replace(state, streams={**state.streams, stream.spec.name: stream})


def _span_ns(blocks: tuple[Block, ...]) -> int:
    return max(block.end_ns for block in blocks) - min(block.t_ns for block in blocks)


def _is_apart(state: Windower, block: Block) -> bool:
    """Tell whether a block is far from the latest one that was set aside. One that follows it at once is not, however
    long both are.
    """
    if not state.aside:
        return False
    latest, far_ns = state.aside[-1], state.duration_ns(state.far)
    return not latest.t_ns - far_ns <= block.t_ns <= latest.end_ns + far_ns


def _is_far(state: Windower, block: Block) -> bool:
    earliest_ns, latest_ns = state.time_ns(state.next - state.far), state.time_ns(state.newest + state.far)
    return block.t_ns > latest_ns or block.end_ns < earliest_ns


def _set_aside(state: Windower, block: Block) -> Windower:
    aside = () if _is_apart(state, block) else state.aside
    if any(block.stream == other.stream and block.end_ns <= other.end_ns for other in aside):
        return state  # repeated, and must not fill the memory
    return replace(state, aside=(*aside, replace(block, values=block.values.copy())))  # the caller may reuse its array


def _take(state: Windower, block: Block) -> tuple[Windower, list[Window | Lost]]:
    if not _is_far(state, block):
        state = replace(state, aside=()) if state.aside else state
        return _emit(_with(state, place(state.streams[block.stream], block, state.origin_ns)))
    jumped_again = _is_apart(state, block) and state.aside[-1].stream == block.stream
    state = _set_aside(state, block)
    waited = len(state.aside) > 1 and _span_ns(state.aside) > state.duration_ns(state.patience)
    return _restart(state) if jumped_again or waited else (state, [])


def _need_not_wait(state: Windower) -> bool:
    """Tell whether every stream was heard, or one for longer than the patience."""
    received = {block.stream for block in state.aside}
    return len(received) == len(state.streams) or _span_ns(state.aside) > state.duration_ns(state.patience)


def _begin(state: Windower) -> tuple[Windower, list[Window | Lost]]:
    first_ns = {block.stream: block.t_ns for block in reversed(state.aside)}
    origin_ns = max(first_ns.values())
    streams = dict(state.streams)
    for block in state.aside:
        streams[block.stream] = place(streams[block.stream], block, origin_ns)
    return _emit(replace(state, streams=streams, has_origin=True, origin_ns=origin_ns, next=0, aside=()))


def _restart(state: Windower) -> tuple[Windower, list[Window | Lost]]:
    jump_s = (state.aside[0].t_ns - state.time_ns(state.newest)) / 1e9
    reason = f"time jumped by {jump_s:+.3f} s: the grid begins anew"
    lost = Lost(state.time_ns(state.next), state.spec.channels, reason)
    streams = {name: restart(stream) for name, stream in state.streams.items()}
    state, events = _begin(replace(state, streams=streams))
    return state, [lost, *events]


def _emit(state: Windower) -> tuple[Windower, list[Window | Lost]]:
    newest, decided = state.newest, min(stream.decided for stream in state.streams.values())
    if any(stream.spec.aggregate and stream.spec.fill == "hold" for stream in state.streams.values()):
        decided = min(decided, newest - 1)  # such a stream is not waited for, but time for the place's samples there is
    events: list[Window | Lost] = []
    first, last = state.next, state.next + state.spec.samples - 1
    while newest >= last and (decided >= last or newest - last > state.patience):
        events.append(_build(state, first))
        first, last = first + state.spec.hop_samples, last + state.spec.hop_samples
    if not events:
        return state, events
    streams = {name: forget(stream, first) for name, stream in state.streams.items()}
    return replace(state, streams=streams, next=first), events


def _build(state: Windower, first: int) -> Window | Lost:
    spec = state.spec
    values = np.empty((spec.samples, len(spec.channels)))
    bridged = np.zeros(values.shape, dtype=np.bool_)
    lost: list[str] = []
    reasons: list[str] = []
    for stream in state.streams.values():
        columns = [spec.channels.index(channel) for channel in stream.spec.channels]
        rows, bridged[:, columns] = read(stream, first, spec.samples)  # (T, C of the stream)
        values[:, columns] = rows
        lacking = [name for name, column in zip(stream.spec.channels, rows.T, strict=True) if np.isnan(column).any()]
        if lacking:
            lost += lacking
            reasons.append(_reason(stream, first + spec.samples - 1))
    t_ns = state.time_ns(first)
    return Lost(t_ns, tuple(lost), "; ".join(reasons)) if lost else Window(t_ns, values, bridged)


def _reason(stream: Stream, last: int) -> str:
    if stream.last == NEVER:
        return f"stream {stream.spec.name!r} was not heard yet"
    if stream.last < last:
        return f"stream {stream.spec.name!r} ends {(last - stream.last) / stream.rate_hz:.3f} s before the window does"
    return f"stream {stream.spec.name!r} has a gap of more than {stream.gap / stream.rate_hz:g} s"
