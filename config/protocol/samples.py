"""Raw samples around an alarm: the signed request for them, the refusal of it, and the clip that holds them.

A clip is in the format of `wire`. Of each source i it has the arrays `i.values` (T, C), as the sensor sent them,
`i.t_ns` (P,), `i.rate_hz` (P,) and `i.rows` (P,): the samples came in P blocks, the first sample of each at its time,
with so many rows; rate 0 is a single reading. What is between two blocks was not measured, or did not arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from fedgate.config.protocol import wire
from fedgate.config.protocol.frames import DURATION_S_MAX, TIME_NS_MAX
from fedgate.config.protocol.messages import (
    Count,
    Id,
    Message,
    MessageError,
    Moment,
    Name,
    Short,
    Signed,
    find_first_problem,
)
from fedgate.models.arrays import Array
from fedgate.models.time_units import NS

SOURCES_MAX, CHANNELS_MAX = 200, 1_000  # of one clip, and of one source
PIECE_BYTES = 200  # that a block takes in the memory of a gateway besides its values, ...
PIECES_MAX = 100_000  # ... so that no clip has as many
CLIP = ".clip"  # ends the item of a clip
RATE_HZ_MIN, RATE_HZ_MAX = 1e-6, 1e9


class SampleRequest(Signed):
    """The site wants the samples around an alarm of one gateway; another number is another request."""

    alarm: Name  # its id
    number: Count


class SampleRefusal(Message):
    """Why the samples around an alarm do not come."""

    alarm: Name
    number: Count
    reason: Short


def name_clip(alarm: str, number: int) -> str:
    """Return the item under which the clip of an alarm travels, in answer to a request of this number: a receipt for
    what answered another request does not settle it.
    """
    return f"{_digest(alarm, number)}{CLIP}"


def is_clip(item: str) -> bool:
    """Tell whether an item, by its name, is a clip."""
    return item.endswith(CLIP)


def name_refusal(alarm: str, number: int) -> str:
    """Return the item under which the refusal of a request travels."""
    return f"{_digest(alarm, number)}.refused"


def _digest(alarm: str, number: int) -> str:
    return hashlib.sha256(f"{alarm}/{number}".encode()).hexdigest()[:32]


class ClipPart(BaseModel):
    """A part of what a clip says of itself, read as strictly as a message is."""

    model_config = Message.model_config


class ClipChannel(ClipPart):
    """A channel of a clip: its value in the unit is raw * gain + bias."""

    name: Id
    unit: Name = ""
    gain: float = 1.0
    bias: float = 0.0

    @property
    def is_in_unit(self) -> bool:
        """Whether its raw values are in its unit."""
        return (self.gain, self.bias) == (1.0, 0.0)


class ClipSource(ClipPart):
    """A source of samples of a clip."""

    name: Id
    channels: Annotated[tuple[ClipChannel, ...], Field(min_length=1, max_length=CHANNELS_MAX)]


class ClipMeta(ClipPart):
    """What a clip says of itself."""

    version: Annotated[int, Field(ge=1, le=1_000)] = 1
    gateway: Id
    alarm: Name
    cause: Id
    onset_ns: Moment
    t_ns: Moment  # when the alarm was raised
    clock: Name = "unknown"  # of the gateway
    cut: Name = ""  # why it is shorter than the settings say
    sources: Annotated[tuple[ClipSource, ...], Field(min_length=1, max_length=SOURCES_MAX)]


class Piece(NamedTuple):
    """Samples (T, C) that came together, as they came; the first at `t_ns`, the others by the rate."""

    t_ns: int
    rate_hz: float  # 0: a single reading
    values: Array

    @property
    def end_ns(self) -> int:
        """The time behind its last sample."""
        return self.t_ns + (round(len(self.values) / self.rate_hz * NS) if self.rate_hz else 0)


class Clip(NamedTuple):
    """A clip: what it says of itself, and the pieces of each of its sources, in the order of `meta.sources`."""

    meta: ClipMeta
    pieces: tuple[tuple[Piece, ...], ...]


def encode_clip(clip: Clip) -> bytes:
    """Return a clip as bytes; integers stay integers, and so does the width of all, where all pieces have one type.

    Raises `wire.WireError` where it says too much of itself.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for place, (source, pieces) in enumerate(zip(clip.meta.sources, clip.pieces, strict=True)):
        empty = np.zeros((0, len(source.channels)), dtype=np.float32)
        arrays |= {
            f"{place}.values": np.concatenate([piece.values for piece in pieces]) if pieces else empty,
            f"{place}.t_ns": np.array([piece.t_ns for piece in pieces], dtype=np.int64),
            f"{place}.rate_hz": np.array([piece.rate_hz for piece in pieces], dtype=np.float64),
            f"{place}.rows": np.array([len(piece.values) for piece in pieces], dtype=np.int64),
        }
    return wire.encode(arrays, clip.meta.model_dump())


def decode_clip(body: bytes, size_max: int) -> Clip:
    """Return the clip in a body of so many bytes at most; raises `MessageError` for anything else."""
    meta, arrays = _read(body, size_max)
    return Clip(meta, tuple(tuple(_cut_pieces(arrays, place)) for place in range(len(meta.sources))))


def check_clip(body: bytes, size_max: int) -> ClipMeta:
    """Return what a clip says of itself; raises `MessageError` where `decode_clip` does, and builds no block."""
    return _read(body, size_max)[0]


def _read(body: bytes, size_max: int) -> tuple[ClipMeta, wire.Arrays]:
    try:
        arrays, document = wire.decode(body, size_max)
        meta = ClipMeta.model_validate(document)
    except wire.WireError as error:
        raise MessageError(f"clip: {error}") from None
    except ValidationError as error:
        raise MessageError(f"clip: {find_first_problem(error)}") from None
    count = sum(array.size for name, array in arrays.items() if name.endswith(".rows"))
    if count > PIECES_MAX:
        raise MessageError(f"clip: {count} blocks given, at most {PIECES_MAX} expected")
    for place, source in enumerate(meta.sources):
        _check_source(arrays, place, source)
    return meta, arrays


def _check_source(arrays: wire.Arrays, place: int, source: ClipSource) -> None:
    found = {name: arrays.get(f"{place}.{name}") for name in ("values", "t_ns", "rate_hz", "rows")}
    values, t_ns, rate_hz, rows = found.values()
    if values is None or t_ns is None or rate_hz is None or rows is None:
        lacking = [name for name, one in found.items() if one is None]
        raise MessageError(f"clip: source {source.name} lacks {', '.join(lacking)}")
    if values.ndim != 2 or values.shape[1] != len(source.channels):
        expected = f"(samples, {len(source.channels)})"
        raise MessageError(f"clip: source {source.name}: values of {values.shape}, expected {expected}")
    kinds = "".join(one.dtype.str for one in (t_ns, rate_hz, rows))
    if kinds != "<i8<f8<i8" or not (t_ns.ndim == 1 and t_ns.shape == rate_hz.shape == rows.shape):
        raise MessageError(f"clip: source {source.name}: times, rates and rows of blocks do not belong together")
    if np.any(rows < 1) or np.any(rows > len(values)) or int(rows.sum()) != len(values):
        raise MessageError(f"clip: source {source.name}: its blocks do not have the {len(values)} rows that are here")
    is_single = rate_hz == 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        is_long = ~is_single & ~((rows - 1) / rate_hz <= DURATION_S_MAX)
    is_of_no_rate = ~is_single & ~((rate_hz >= RATE_HZ_MIN) & (rate_hz <= RATE_HZ_MAX))
    is_never = (t_ns < -TIME_NS_MAX) | (t_ns > TIME_NS_MAX)
    if np.any(is_never | is_long | is_of_no_rate | (is_single & (rows != 1))):
        raise MessageError(f"clip: source {source.name}: a block has a time, a rate or a length that no block has")


def _cut_pieces(arrays: wire.Arrays, place: int) -> Iterator[Piece]:
    values, t_ns, rate_hz, rows = (arrays[f"{place}.{name}"] for name in ("values", "t_ns", "rate_hz", "rows"))
    for at, rate, count, end in zip(t_ns, rate_hz, rows, np.cumsum(rows), strict=True):
        yield Piece(int(at), float(rate), values[end - count : end])
