"""Samples to windows: several streams fused into one gateway-level window on one time grid.

Sensors deliver blocks that are late, repeated or lost, from clocks that run a little fast or slow. A model needs windows
of exactly T samples at the declared rate. Whatever lies between is decided here, and every window that could not be
built is reported with its channels and the reason: a gateway that watches nothing must not look like one at peace.

The grid: place i is at origin + i / rate_hz. A sample goes to the place nearest to its time, so a node whose crystal is
100 ppm off skips or doubles a place now and then and nothing accumulates; a doubled place keeps its first sample. The
grid begins with the latest of the streams' first samples. Windows begin every hop_s from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.arrays import Floats
from models.features import FeatureSpec
from models.sensor_health import RateMeter, StreamHealth, meter

RESTART_WINDOWS = 10  # a block further away from the grid than so many windows belongs to another time
RATE_TOLERANCE = 0.01  # a stream that much faster than the grid would lose every hundredth sample
_DEFAULT_GAP = 3  # places bridged by interpolation where gap_s is not given
_NEVER = -(2**62)  # a place before all others

Places = NDArray[np.int64]


class SignalError(ValueError):
    """A block or a set of streams that cannot belong to the windows asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Samples of one stream, values (T, C) in the order of its channels, the first at `t_ns` on the gateway's timeline.

    `rate_hz` is the stream's declared rate, or 0 for a single irregular reading, values (1, C).
    """

    stream: str
    t_ns: int
    rate_hz: float
    values: Floats

    @property
    def end_ns(self) -> int:
        """Time at which the next sample is due."""
        return self.t_ns + (round(len(self.values) * 1e9 / self.rate_hz) if self.rate_hz else 0)


class StreamSpec(BaseModel):
    """How one stream becomes channels of the window.

    A gap up to `gap_s` is bridged: by a straight line ("interpolate", for regular sampling; default three sample
    periods of the grid), or by the last value ("hold", for readings that come when something changes; no default). The
    window waits for an interpolated stream, but never for a held one while its last value holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    channels: tuple[str, ...] = Field(min_length=1)
    fill: Literal["interpolate", "hold"] = "interpolate"
    gap_s: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _hold_has_a_limit(self) -> StreamSpec:
        if self.fill == "hold" and self.gap_s is None:
            raise ValueError("gap_s: expected with fill = 'hold', the longest time a reading stays valid")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Values (T, C) in the order of `FeatureSpec.channels`, finite, the first row at `t_ns`."""

    t_ns: int
    values: Floats
    filled: int  # values that were bridged


@dataclass(frozen=True, slots=True)
class Lost:
    """A window that could not be built, or the one under way when time jumped."""

    t_ns: int
    channels: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class _Layout:
    """What never changes: the declared streams in units of grid places."""

    spec: FeatureSpec
    streams: tuple[StreamSpec, ...]
    position: dict[str, int]  # of a stream's name in `streams`
    columns: tuple[list[int], ...]  # of each stream's channels in the window
    gaps: tuple[int, ...]  # places bridged
    patience: int  # places
    far: int  # places

    def place(self, duration_ns: int) -> int:
        """Nearest place after a duration."""
        return int(np.floor(duration_ns * 1e-9 * self.spec.rate_hz + 0.5))

    def duration_ns(self, places: int) -> int:
        return round(places * 1e9 / self.spec.rate_hz)


@dataclass(frozen=True, slots=True)
class _Progress:
    """What has come of one stream."""

    pieces: tuple[tuple[Places, Floats], ...] = ()  # places (k,) ascending and values (k, C), NaN where not finite
    last: int = _NEVER  # newest place
    decided: int = _NEVER  # up to here nothing that may still come can change a value
    finite: Places | None = None  # (C,) newest place with a finite value
    received: int = 0
    placed: int = 0
    not_finite: int = 0
    rate: RateMeter = RateMeter()
    last_t_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Windower:
    """State of the fusion; `push` returns a new one. Memory is bounded by the patience and the longest gaps."""

    layout: _Layout
    progress: tuple[_Progress, ...]  # in the order of the streams
    origin_ns: int | None = None  # None: the grid has not begun
    next: int = 0  # first place of the next window
    aside: tuple[Block, ...] = ()  # blocks before the grid begins, or that may show that time has jumped


def start(spec: FeatureSpec, streams: Sequence[StreamSpec], patience_s: float | None = None) -> Windower:
    """Begin with no samples. A stream that is `patience_s` (default: two windows) behind another is not waited for.

    Raises:
        SignalError: not every channel of the specification comes from exactly one stream, or two streams share a name.
    """
    names = [stream.name for stream in streams]
    given = sorted(channel for stream in streams for channel in stream.channels)
    if given != sorted(spec.channels) or len(set(names)) < len(names):
        raise SignalError(
            f"streams {names} bring the channels {given}; expected different names, and from all streams together each of"
            f" {sorted(spec.channels)} once"
        )
    patience_s = 2 * spec.window_s if patience_s is None else patience_s
    gaps_s = [stream.gap_s for stream in streams if stream.gap_s is not None]
    layout = _Layout(
        spec=spec,
        streams=tuple(streams),
        position={name: position for position, name in enumerate(names)},
        columns=tuple([spec.channels.index(channel) for channel in stream.channels] for stream in streams),
        gaps=tuple(_DEFAULT_GAP if s.gap_s is None else int(s.gap_s * spec.rate_hz + 1e-6) for s in streams),
        patience=round(patience_s * spec.rate_hz),
        far=round(max(RESTART_WINDOWS * spec.window_s, patience_s, *gaps_s, 0) * spec.rate_hz),
    )
    return Windower(layout, tuple(_Progress() for _ in streams))


def push(state: Windower, block: Block) -> tuple[Windower, list[Window | Lost]]:
    """Take the next block of a stream; return the windows it completes, oldest first.

    A window is ready when every stream has passed its end and the gaps in it are decided. It is given up as `Lost` for
    the channels without values when a gap is too long or a stream is more than the patience behind.

    Rows at or before the newest place of their stream are dropped. A block further than `RESTART_WINDOWS` windows from
    the grid, either way, is set aside. When a window's length was set aside with no block between that fits the grid,
    time has jumped: one `Lost` says so, and the grid begins anew with the blocks set aside. So neither a node's old
    backlog nor a single wrong time stops the other streams.

    Raises:
        SignalError: the block is not one of a declared stream's; the state given stays valid.
    """
    position = _check(state.layout, block)
    progress = state.progress[position]
    state = _with(state, position, replace(progress, received=progress.received + len(block.values)))
    if state.origin_ns is None:
        return _begin(_set_aside(state, block))
    if not _is_far(state, block):
        return _emit(_place(replace(state, aside=()) if state.aside else state, block))
    jumped_again = bool(state.aside) and block.t_ns - state.aside[-1].t_ns > state.layout.duration_ns(state.layout.far)
    state = _set_aside(state, block)
    if not jumped_again and _span(state.layout, state.aside) < state.layout.spec.samples:
        return state, []
    return _restart(state, block)


def health(state: Windower) -> dict[str, StreamHealth]:
    """Return the counters of every stream."""
    aside = {name: sum(len(block.values) for block in state.aside if block.stream == name) for name in state.layout.position}
    return {
        stream.name: StreamHealth(
            received=progress.received,
            dropped=progress.received - progress.placed - aside[stream.name],
            missing=progress.rate.missing,
            not_finite=progress.not_finite,
            declared_rate_hz=progress.rate.declared_rate_hz,
            measured_rate_hz=progress.rate.measured_rate_hz,
            last_t_ns=progress.last_t_ns,
        )
        for stream, progress in zip(state.layout.streams, state.progress, strict=True)
    }


def _check(layout: _Layout, block: Block) -> int:
    position = layout.position.get(block.stream)
    if position is None:
        raise SignalError(f"block of stream {block.stream!r}; declared are {list(layout.position)}")
    channels = layout.streams[position].channels
    if block.values.ndim != 2 or block.values.shape[1] != len(channels) or not len(block.values):
        raise SignalError(
            f"block of stream {block.stream!r} has the shape {block.values.shape}; expected (samples, {len(channels)})"
            f" for {channels}"
        )
    highest_hz = layout.spec.rate_hz * (1 + RATE_TOLERANCE)
    if not 0 <= block.rate_hz <= highest_hz or (block.rate_hz == 0 and len(block.values) > 1):
        raise SignalError(
            f"block of stream {block.stream!r} has {len(block.values)} samples at {block.rate_hz} Hz; expected a rate up"
            f" to rate_hz = {layout.spec.rate_hz} (a faster stream must be filtered and thinned first), or one at 0 Hz"
        )
    return position


def _with(state: Windower, position: int, progress: _Progress) -> Windower:
    return replace(state, progress=(*state.progress[:position], progress, *state.progress[position + 1 :]))


def _set_aside(state: Windower, block: Block) -> Windower:
    far_ns = state.layout.duration_ns(state.layout.far)
    aside = state.aside
    if aside and abs(block.t_ns - aside[-1].t_ns) > far_ns:
        aside = ()
    if any(block.stream == other.stream and block.t_ns <= other.t_ns for other in aside):
        return state
    # The caller may reuse its memory before the block is placed.
    return replace(state, aside=(*aside, replace(block, values=block.values.copy())))


def _span(layout: _Layout, blocks: tuple[Block, ...]) -> int:
    return layout.place(max(block.end_ns for block in blocks) - min(block.t_ns for block in blocks))


def _begin(state: Windower) -> tuple[Windower, list[Window | Lost]]:
    """Begin the grid when every stream was heard, or when one was heard for longer than the patience."""
    firsts = {block.stream: block.t_ns for block in reversed(state.aside)}
    if len(firsts) < len(state.layout.streams) and _span(state.layout, state.aside) <= state.layout.patience:
        return state, []
    aside, state = state.aside, replace(state, aside=(), origin_ns=max(firsts.values()), next=0)
    for block in aside:
        state = _place(state, block)
    return _emit(state)


def _restart(state: Windower, block: Block) -> tuple[Windower, list[Window | Lost]]:
    layout = state.layout
    window_ns = _time(state, state.next)
    jump_s = (state.aside[0].t_ns - _time(state, max(progress.last for progress in state.progress))) / 1e9
    lost = Lost(window_ns, layout.spec.channels, f"time jumped by {jump_s:+.3f} s in stream {block.stream!r}: grid begun anew")
    kept = tuple(
        replace(progress, pieces=(), last=_NEVER, decided=_NEVER, finite=None, rate=replace(progress.rate, first_ns=None))
        for progress in state.progress
    )
    state, events = _begin(Windower(layout, kept, aside=state.aside))
    return state, [lost, *events]


def _time(state: Windower, place: int) -> int:
    assert state.origin_ns is not None
    return state.origin_ns + state.layout.duration_ns(place)


def _is_far(state: Windower, block: Block) -> bool:
    newest = max(progress.last for progress in state.progress)
    first, end = (state.layout.place(t_ns - state.origin_ns) for t_ns in (block.t_ns, block.end_ns))
    return first > newest + state.layout.far or end < state.next - state.layout.far


def _place(state: Windower, block: Block) -> Windower:
    """Put the rows at their places, without those at or before the newest place of the stream."""
    layout, position = state.layout, state.layout.position[block.stream]
    progress = state.progress[position]
    rate_hz = layout.spec.rate_hz
    first = (block.t_ns - state.origin_ns) * 1e-9 * rate_hz
    period = rate_hz / block.rate_hz if block.rate_hz else 0.0
    places = np.floor(first + 0.5 + period * np.arange(len(block.values))).astype(np.int64)  # (T,) ascending
    fresh = np.diff(places, prepend=progress.last) > 0
    fresh &= places > progress.last
    places, values = places[fresh], block.values[fresh].astype(np.float64)
    if not len(places):
        return state
    finite = np.isfinite(values)
    newest = np.where(finite, places[:, None], _NEVER).max(axis=0)
    values[~finite] = np.nan
    newest = newest if progress.finite is None else np.maximum(newest, progress.finite)
    last = int(places[-1])
    gap = layout.gaps[position]
    if layout.streams[position].fill == "hold":
        decided = np.maximum(newest + gap, last)
    else:
        decided = np.where(last - newest > gap, last, newest)
    return _with(
        state,
        position,
        replace(
            progress,
            pieces=(*progress.pieces, (places, values)),
            last=last,
            decided=int(decided.min()),
            finite=newest,
            placed=progress.placed + len(places),
            not_finite=progress.not_finite + int(finite.size - finite.sum()),
            rate=meter(progress.rate, block.t_ns, block.rate_hz, len(block.values)),
            last_t_ns=block.t_ns + round((len(block.values) - 1) * 1e9 / block.rate_hz) if block.rate_hz else block.t_ns,
        ),
    )


def _emit(state: Windower) -> tuple[Windower, list[Window | Lost]]:
    layout = state.layout
    newest = max(progress.last for progress in state.progress)
    decided = min(progress.decided for progress in state.progress)
    events: list[Window | Lost] = []
    first = state.next
    while True:
        end = first + layout.spec.samples - 1
        if newest < end or (decided < end and newest - end <= layout.patience):
            break
        events.append(_build(state, first))
        first += layout.spec.hop_samples
    if not events:
        return state, events
    progress = tuple(
        replace(p, pieces=tuple(piece for piece in p.pieces if piece[0][-1] >= first - gap - 1))
        for p, gap in zip(state.progress, layout.gaps, strict=True)
    )
    return replace(state, progress=progress, next=first), events


def _build(state: Windower, first: int) -> Window | Lost:
    layout = state.layout
    values = np.empty((layout.spec.samples, len(layout.spec.channels)))
    filled = 0
    reasons = []
    lost: list[str] = []
    for position, stream in enumerate(layout.streams):
        progress = state.progress[position]
        part = _rows(progress.pieces, first, layout.spec.samples)
        if part is None:
            part, bridged = _bridged(progress.pieces, first, layout.spec.samples, len(stream.channels), stream.fill == "hold", layout.gaps[position])
            filled += bridged
        values[:, layout.columns[position]] = part
    return Window(_time(state, first), values, filled)
