"""Reads miniSEED 2 and 3, what seismometers and many structural loggers write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.recording import Channel, Recording, positions, shortened
from fedgate.firmware_sim.recordings.source import MAX_BYTES, Source
from fedgate.models.time_units import NS

if TYPE_CHECKING:
    from pymseed.mstracelist import MS3TraceSeg

# A wrong start time in one record would otherwise ask for years of NaN.
_MAX_VALUES = MAX_BYTES // 8


@dataclass(frozen=True)
class _Segment:
    """Samples without a gap."""

    channel: str
    start_ns: int
    rate_hz: float
    samples: NDArray[np.float64]  # (n,)


def read_mseed(source: Source, options: ReadOptions) -> Recording:
    """Read all traces onto one clock; gaps, late starts and early ends become NaN.

    Raises:
        DamagedError: a record is cut, fails its checksum or cannot be decoded; the place is its first byte.
        ChoiceError: traces of different rates, or a channel that is not there.
    """
    _check_records(source.data)
    segments = _segments(source.data)
    if not segments:
        raise DamagedError("records", "no samples in any of them", "the file holds only headers or text")
    names = sorted({segment.channel for segment in segments})
    if options.columns:
        names = [names[i] for i in positions(names, options.columns)]
    segments = [segment for segment in segments if segment.channel in names]
    rates_hz = sorted({segment.rate_hz for segment in segments})
    if len(rates_hz) > 1:
        each = [f"{segment.channel} {segment.rate_hz:g} Hz" for segment in segments]
        raise ChoiceError("traces", f"different rates: {shortened(sorted(set(each)))}", "choose columns of one rate")
    values, found = _on_one_clock(segments, names, rates_hz[0])
    return Recording(
        name=source.name,
        channels=tuple(Channel(name) for name in names),
        rate_hz=rates_hz[0],
        values=values,
        t0_ns=min(segment.start_ns for segment in segments),
        found=found,
    )


def _check_records(data: bytes) -> None:
    """Decode record by record, because reading all at once passes over a cut record and over Steim check failures."""
    from pymseed import MiniSEEDError, MS3Record, get_error_messages

    offset = 0
    try:
        for record in MS3Record.from_buffer(data, unpack_data=True):
            remarks = get_error_messages()
            if remarks:
                raise DamagedError(f"record at byte {offset}", "; ".join(remarks), "the file is garbled; copy it again")
            offset += record.reclen
    except MiniSEEDError as error:
        place = f"record at byte {offset} of {len(data)}"
        raise DamagedError(place, str(error), "the file is cut or garbled; copy it again") from error
    if not offset:
        raise DamagedError("byte 0", "the file is empty", "copy it again")


def _segments(data: bytes) -> list[_Segment]:
    from pymseed import MiniSEEDError, MS3TraceList

    try:
        with MS3TraceList(buffer=data, unpack_data=True) as traces:
            return [
                _segment(_channel(trace.sourceid), piece)
                for trace in traces
                for piece in trace
                if piece.numsamples > 0 and piece.sampletype in ("i", "f", "d")
            ]
    except (MiniSEEDError, UnicodeDecodeError) as error:
        raise DamagedError("traces", str(error), "the file is garbled; copy it again") from error


def _segment(channel: str, piece: MS3TraceSeg) -> _Segment:
    # Copied, as the library's memory goes when the trace list is closed.
    return _Segment(channel, piece.starttime, piece.samprate, np.array(piece.np_datasamples, dtype=np.float64))


def _channel(source_id: str) -> str:
    """NET.STA.LOC.CHA where the source is of that kind, else its identifier as written."""
    from pymseed import sourceid2nslc

    try:
        return ".".join(sourceid2nslc(source_id))
    except ValueError:
        return source_id


def _on_one_clock(
    segments: list[_Segment], names: list[str], rate_hz: float
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Values of shape (T, C) from the earliest sample to the latest."""
    start_ns = min(segment.start_ns for segment in segments)
    exact = [(segment.start_ns - start_ns) / NS * rate_hz for segment in segments]
    length = max(round(at) + len(segment.samples) for at, segment in zip(exact, segments, strict=True))
    if length * len(names) > _MAX_VALUES:
        problem = f"{length} samples from first to last for {sum(len(s.samples) for s in segments)} recorded ones"
        raise DamagedError("traces", problem, "a start time is wrong, or cut the file into pieces")
    values = np.full((length, len(names)), np.nan)
    overlapping = 0
    for at, segment in zip(exact, segments, strict=True):
        target = values[round(at) : round(at) + len(segment.samples), names.index(segment.channel)]
        overlapping += int(np.count_nonzero(~np.isnan(target)))
        target[:] = segment.samples
    found = [f"{len(segments)} segments of {len(names)} channels"]
    gaps = int(np.count_nonzero(np.isnan(values)))
    if gaps:
        found.append(f"{gaps} samples missing in gaps, late starts or early ends, set to NaN")
    if overlapping:
        found.append(f"{overlapping} samples recorded twice, the later segment kept")
    off_clock = max(abs(at - round(at)) for at in exact)
    if off_clock > 0.01:
        found.append(f"segments moved by up to {off_clock:.2f} samples onto one clock")
    return values, tuple(found)
