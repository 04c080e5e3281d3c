"""One stream of samples on the time grid: which places hold a sample, and how the others are bridged.

A stream is a value. Its pieces are never changed, only added and forgotten, so a new value shares them with the old one
and a block costs nothing that grows with the window.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field, model_validator

from fedgate.models.arrays import Booleans, Floats, Integers
from fedgate.models.windows.aggregation import Aggregate, Gathered, gather
from fedgate.models.windows.sensor_health import RateMeter, StreamHealth, meter

NEVER = -(2**62)  # a place before all others
DEFAULT_GAP = 3  # places, bridged by interpolation where gap_s is not given
RATE_TOLERANCE = 0.01  # a stream faster than the grid by more would lose many of its samples
_HALF = 0.501  # rounds to the nearest place, and does not tear a stream exactly half a period off between two
_TWICE_S = 1e-6  # a row no later than so much behind the one before is that row once more


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


class StreamSpec(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How one stream becomes channels of the window.

    A gap of up to `gap_s` is bridged: by a straight line ("interpolate", for regular sampling; default three periods of
    rate_hz), or by the last value ("hold", for readings that come now and then; gap_s is how long one stays valid).
    A window waits for an interpolated stream, but not for a held one whose last value is still valid. `gap_s` = 0
    bridges nothing: a window with a missing value is lost.

    With `aggregate` a place is not the first of the samples nearest to it but the mean, least, largest or last of all
    that are nearer to it than to another place; a place without a sample is a gap as any other.
    """

    name: str
    channels: tuple[str, ...] = Field(min_length=1)
    fill: Literal["interpolate", "hold"] = "interpolate"
    gap_s: float | None = Field(default=None, ge=0)
    aggregate: Aggregate | None = None

    @model_validator(mode="after")
    def _hold_has_a_limit(self) -> StreamSpec:
        if self.fill == "hold" and self.gap_s is None:
            raise ValueError("gap_s: expected with fill = 'hold', the time in seconds for which a reading stays valid")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """What has come of one stream with C channels. A row is one sample of each of them."""

    spec: StreamSpec
    rate_hz: float  # of the grid
    gap: int  # places that are bridged
    newest: Integers  # (C,) newest place with a finite value
    last: int = NEVER  # newest place
    decided: int = NEVER  # up to here, no sample that may still come changes a value
    pieces: tuple[tuple[Integers, Floats], ...] = ()  # places (k,) ascending, values (k, C), NaN where not finite
    received: int = 0  # rows
    placed: int = 0  # rows
    not_finite: int = 0  # values
    rate: RateMeter = field(default_factory=RateMeter)
    open: Gathered | None = None  # the newest place of a stream that aggregates, which later samples may change
    reached: float = -np.inf  # where its newest row lies, in places


def unheard(spec: StreamSpec, rate_hz: float) -> Stream:
    """Return a stream that was not heard yet."""
    gap = DEFAULT_GAP if spec.gap_s is None else int(spec.gap_s * rate_hz + 1e-6)
    return Stream(spec, rate_hz, gap, np.full(len(spec.channels), NEVER))


def received(stream: Stream, block: Block) -> Stream:
    """Count a block's rows. Raises SignalError where the block cannot be the stream's."""
    name, shape, channels = stream.spec.name, block.values.shape, len(stream.spec.channels)
    if len(shape) != 2 or shape[0] == 0 or shape[1] != channels:
        raise SignalError(f"block of stream {name!r} has the shape {shape}; expected (samples, {channels})")
    fastest_hz = stream.rate_hz * (1 + RATE_TOLERANCE) if stream.spec.aggregate is None else np.inf
    if not 0 <= block.rate_hz <= fastest_hz:
        raise SignalError(
            f"block of stream {name!r} has {block.rate_hz} Hz; expected 0 to rate_hz = {stream.rate_hz} Hz: filter and"
            " thin out a faster stream first, or let it aggregate"
        )
    if block.rate_hz == 0 and shape[0] > 1:
        raise SignalError(f"block of stream {name!r} has {shape[0]} samples at 0 Hz; expected a single reading")
    return replace(stream, received=stream.received + shape[0])


def place(stream: Stream, block: Block, origin_ns: int) -> Stream:
    """Put each row at the place nearest to its time, if that is later than all places of the stream before; where the
    stream aggregates, if its time is later than that of all rows before.
    """
    first = (block.t_ns - origin_ns) * 1e-9 * stream.rate_hz
    period = stream.rate_hz / block.rate_hz if block.rate_hz else 0.0  # of the stream, in places
    positions = first + period * np.arange(len(block.values))  # (T,) ascending
    places = np.floor(positions + _HALF).astype(np.int64)
    if stream.spec.aggregate is None:
        fresh = (np.diff(places, prepend=stream.last) > 0) & (places > stream.last)
    else:
        fresh = positions > stream.reached + _TWICE_S * stream.rate_hz
    places, values = places[fresh], block.values[fresh].astype(np.float64)
    if not len(places):
        return stream
    finite = np.isfinite(values)
    values[~finite] = np.nan
    stream = replace(
        stream,
        placed=stream.placed + len(places),
        not_finite=stream.not_finite + int(finite.size - np.count_nonzero(finite)),
        rate=meter(stream.rate, block.t_ns, block.rate_hz, len(block.values)),
    )
    if stream.spec.aggregate is None:
        return _with_piece(stream, places, values)
    gathered = gather(stream.spec.aggregate, stream.open, places, values)
    closed = gathered.values(stream.spec.aggregate)[:-1]
    stream = replace(stream, open=gathered.since(-1), reached=float(positions[-1]))
    return _with_piece(stream, gathered.places[:-1], closed)


def _with_piece(stream: Stream, places: Integers, values: Floats) -> Stream:
    """Return the stream with rows at places that are settled."""
    newest, pieces = stream.newest, stream.pieces
    if len(places):
        newest = np.maximum(newest, np.where(np.isfinite(values), places[:, None], NEVER).max(axis=0))
        pieces = (*pieces, (places, values))
    last = int(places[-1]) if stream.open is None else int(stream.open.places[0])
    stream = replace(stream, newest=newest, last=last, pieces=pieces)
    return replace(stream, decided=_decided(stream))


def _decided(stream: Stream) -> int:
    # A value is held whatever comes next. A line needs the gap's other end, or the certainty that it is too far away.
    newest, settled = stream.newest, stream.last if stream.open is None else stream.last - 1
    if stream.spec.fill == "hold":
        received = newest if stream.open is None else np.where(stream.open.counts[0] > 0, stream.last, newest)
        return int(np.maximum(received + stream.gap, stream.last).min())
    return int(np.where(settled - newest > stream.gap, settled, newest).min())


def forget(stream: Stream, first: int) -> Stream:
    """Let go of what windows from place `first` on cannot need."""
    return replace(stream, pieces=tuple(piece for piece in stream.pieces if piece[0][-1] >= first - stream.gap - 1))


def restart(stream: Stream) -> Stream:
    """Return the stream without samples, its counters kept."""
    rate = replace(stream.rate, first_ns=None)
    stream = replace(stream, last=NEVER, decided=NEVER, pieces=(), open=None, reached=-np.inf)
    return replace(stream, newest=np.full_like(stream.newest, NEVER), rate=rate)


def health(stream: Stream, waiting: int) -> StreamHealth:
    """Return the counters; `waiting` rows were received and are neither placed nor dropped yet."""
    return StreamHealth(
        received=stream.received,
        dropped=stream.received - stream.placed - waiting,
        missing=stream.rate.missing,
        not_finite=stream.not_finite,
        declared_rate_hz=stream.rate.declared_rate_hz,
        measured_rate_hz=stream.rate.measured_rate_hz,
        last_t_ns=stream.rate.last_ns,
    )


def read(stream: Stream, first: int, count: int) -> tuple[Floats, Booleans]:
    """Return the values (count, C) from place `first` on, NaN where a gap is too long, and which were bridged."""
    all_pieces = stream.pieces
    if stream.open is not None and stream.spec.aggregate is not None:  # given up: what arrived until now
        all_pieces = (*all_pieces, (stream.open.places, stream.open.values(stream.spec.aggregate)))
    pieces = [(places, values) for places, values in all_pieces if places[-1] >= first and places[0] < first + count]
    rows = [values[slice(*np.searchsorted(places, (first, first + count)))] for places, values in pieces]
    if sum(map(len, rows)) == count:
        complete = np.concatenate(rows)
        if np.isfinite(complete).all():
            return complete, np.zeros(complete.shape, dtype=np.bool_)
    if not all_pieces:
        empty = np.full((count, len(stream.newest)), np.nan)
        return empty, np.zeros(empty.shape, dtype=np.bool_)
    wanted = np.arange(first, first + count)
    places = np.concatenate([piece[0] for piece in all_pieces])
    values = np.concatenate([piece[1] for piece in all_pieces])
    columns = [_bridge(stream, places, column, wanted) for column in values.T]
    return np.stack([column for column, _ in columns], axis=1), np.stack([mask for _, mask in columns], axis=1)


def _bridge(stream: Stream, places: Integers, values: Floats, wanted: Integers) -> tuple[Floats, Booleans]:
    known = np.isfinite(values)
    places, values = places[known], values[known]
    if not len(places):
        return np.full(len(wanted), np.nan), np.zeros(len(wanted), dtype=np.bool_)
    after = np.searchsorted(places, wanted)  # index of the first known place at or after each
    left, right = np.maximum(after - 1, 0), np.minimum(after, len(places) - 1)
    present = places[right] == wanted
    if stream.spec.fill == "hold":
        near = (after > 0) & (wanted - places[left] <= stream.gap)
        filled = values[left]
    else:
        near = (after > 0) & (after < len(places)) & (places[right] - places[left] - 1 <= stream.gap)
        filled = np.interp(wanted, places, values)
    bridged = near & ~present
    return np.where(present, values[right], np.where(bridged, filled, np.nan)), bridged
