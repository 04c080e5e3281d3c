"""A clip as a file that other programs read: CSV, or miniSEED 3. Values stay as the sensor sent them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from fedgate.config.protocol.samples import Clip, ClipChannel, ClipSource, Piece
from fedgate.models.arrays import Array
from fedgate.models.time_units import NS

APART = 0.1  # of the time between two samples: pieces that are farther from following each other are two segments
RAW = "raw"  # stands for the unit of values to which a gain or a bias is still to be applied
FLOAT_EXACT = 2**53  # up to which float64 holds every whole number


class ClipFileError(ValueError):
    """A clip that a format cannot hold; the message says what to do."""


class Segment(NamedTuple):
    """Samples (T, C) without a gap."""

    t_ns: int
    rate_hz: float
    values: Array


def find_source(clip: Clip, name: str | None) -> tuple[ClipSource, tuple[Piece, ...]]:
    """Return a source of a clip, the only one where none is named, and its pieces; raises `ClipFileError`."""
    known = {source.name: (source, pieces) for source, pieces in zip(clip.meta.sources, clip.pieces, strict=True)}
    if name is None and len(known) > 1:
        raise ClipFileError(f"the clip has the sources {', '.join(known)}, each of a clock of its own; name one")
    if name is not None and name not in known:
        raise ClipFileError(f"source {name!r} given; expected one of {', '.join(known)}")
    source, pieces = known[next(iter(known)) if name is None else name]
    if not pieces:
        raise ClipFileError(f"source {source.name} sent nothing around this alarm")
    return source, pieces


def join_pieces(pieces: Sequence[Piece]) -> list[Segment]:
    """Return pieces that follow one another as one segment; a gap, a step of the clock or another rate begins one."""
    runs: list[list[Piece]] = []
    rows = expected_ns = 0
    for piece in pieces:
        follows = bool(runs) and piece.rate_hz == runs[-1][0].rate_hz > 0
        if not (follows and abs(piece.t_ns - expected_ns) * piece.rate_hz <= APART * NS):
            runs.append([])
            rows = 0
        runs[-1].append(piece)
        rows += len(piece.values)
        expected_ns = runs[-1][0].t_ns + (round(rows / piece.rate_hz * NS) if piece.rate_hz else 0)
    return [Segment(run[0].t_ns, run[0].rate_hz, np.concatenate([one.values for one in run])) for run in runs]


def write_csv(source: ClipSource, pieces: Sequence[Piece]) -> bytes:
    """Return a table: the time of each sample in UTC, and a column a channel; a value that is no number is empty."""
    heads = ["time", *(f"{one.name} [{_name_unit(one)}]" if _name_unit(one) else one.name for one in source.channels)]
    lines = [",".join(heads)]
    for piece in pieces:
        for row, values in enumerate(piece.values.tolist()):
            t_ns = piece.t_ns + (round(row / piece.rate_hz * NS) if piece.rate_hz else 0)
            lines.append(",".join([format_time(t_ns), *map(_format_value, values)]))
    return ("\n".join(lines) + "\n").encode()


def _name_unit(channel: ClipChannel) -> str:
    unit = channel.unit if channel.is_in_unit else RAW
    return "".join(" " if one in '[],"' else one for one in unit)


def _format_value(value: float) -> str:
    return "" if isinstance(value, float) and math.isnan(value) else repr(value)


def format_time(t_ns: int) -> str:
    """Return a time in UTC, to the nanosecond."""
    seconds, rest_ns = divmod(t_ns, NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"


def write_mseed(source: ClipSource, pieces: Sequence[Piece]) -> bytes:
    """Return miniSEED 3: a trace a channel under its name, a segment for each run without a gap.

    The format has no place for a unit, so that, gain and bias are an extra header `fedgate` of each record.
    Raises `ClipFileError` for readings of no steady rate, or whole numbers that no encoding of the format holds.
    """
    from pymseed import DataEncoding, MS3Record

    segments = join_pieces(pieces)
    if any(segment.rate_hz == 0 for segment in segments):
        raise ClipFileError(
            f"source {source.name} sends readings at no steady rate, which miniSEED cannot hold; write CSV"
        )
    encodings = {"i": DataEncoding.INT32, "f": DataEncoding.FLOAT32, "d": DataEncoding.FLOAT64}
    records: list[bytes] = []
    for place, channel in enumerate(source.channels):
        for segment in segments:
            kind, values = _fit_encoding(channel, segment.values[:, place])
            record = MS3Record()
            record.formatversion = 3
            record.sourceid = channel.name
            record.starttime = segment.t_ns
            record.samprate = segment.rate_hz
            record.encoding = encodings[kind]
            record.extra = json.dumps({"fedgate": channel.model_dump(exclude={"name"})})
            records += record.generate(values, kind)
    return b"".join(records)


def _fit_encoding(channel: ClipChannel, values: Array) -> tuple[str, Any]:
    """Return values as miniSEED has them: whole numbers of 32 bits, or float of 32 or 64."""
    if values.dtype.kind == "f":
        kind = "d" if values.dtype.itemsize == 8 else "f"
        return kind, np.ascontiguousarray(values, dtype=np.float64 if kind == "d" else np.float32)
    largest = max(abs(int(values.min())), abs(int(values.max())))
    if largest < 2**31:
        return "i", np.ascontiguousarray(values, dtype=np.int32)
    if largest > FLOAT_EXACT:
        raise ClipFileError(f"channel {channel.name}: {largest} is beyond what miniSEED holds exactly; write CSV")
    return "d", np.ascontiguousarray(values, dtype=np.float64)
