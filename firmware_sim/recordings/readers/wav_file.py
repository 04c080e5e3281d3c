"""Reads .wav, which vibration loggers write as often as sound recorders do."""

from __future__ import annotations

import struct
import warnings
from io import BytesIO

import numpy as np

from fedgate.firmware_sim.recordings.errors import DamagedError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.recording import Channel, Recording, as_float64, positions
from fedgate.firmware_sim.recordings.source import Source

_BYTE_ORDER = {b"RIFF": "<I", b"RIFX": ">I"}
# What scipy raises for chunks that contradict each other.
_BROKEN = (ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, MemoryError, ZeroDivisionError,
           UnboundLocalError, struct.error)  # fmt: skip


def read_wav(source: Source, options: ReadOptions) -> Recording:
    """Read samples scaled so that full scale is 1.0, whatever their width in the file.

    Raises:
        DamagedError: no RIFF file, cut, or with contradicting chunks.
    """
    from scipy.io import wavfile

    _check_length(source.data)
    try:
        with warnings.catch_warnings(record=True) as remarks:
            warnings.simplefilter("always", wavfile.WavFileWarning)
            rate_hz, samples = wavfile.read(BytesIO(source.data))
    except _BROKEN as error:
        raise DamagedError("chunks", f"cannot be read ({error})", "write it again as PCM or float") from error
    values = samples[:, np.newaxis] if samples.ndim == 1 else samples  # (T, C)
    names = [f"channel_{i + 1}" for i in range(values.shape[1])]
    chosen = positions(names, options.columns) if options.columns else list(range(len(names)))
    kind = values.dtype
    scaled = kind.kind in "iu"
    if kind == np.uint8:
        values = values - 128.0
    full_scale = 128.0 if kind == np.uint8 else float(-np.iinfo(kind).min) if scaled else 1.0
    found = [f"{kind} samples scaled so that full scale is 1.0" if scaled else f"{kind} samples as they are"]
    if options.rate_hz is not None:
        found.append(f"rate {options.rate_hz:g} Hz as declared; the file says {rate_hz} Hz")
    return Recording(
        name=source.name,
        channels=tuple(Channel(names[i]) for i in chosen),
        rate_hz=options.rate_hz or float(rate_hz),
        values=as_float64(values[:, chosen]) / full_scale,
        found=(*found, *(f"the reader remarks: {remark.message}" for remark in remarks)),
    )


def _check_length(data: bytes) -> None:
    """Compare the announced with the real length: scipy reads a cut file without complaint."""
    mark = data[:4]
    if len(data) < 12 or (mark not in _BYTE_ORDER and mark != b"RF64"):
        raise DamagedError("byte 0", f"found {mark!r}, expected RIFF, RIFX or RF64", "write it again as .wav")
    if mark == b"RF64":
        return
    (announced,) = struct.unpack(_BYTE_ORDER[mark], data[4:8])
    if announced + 8 > len(data):
        problem = f"the file ends here, its header announces {announced + 8} bytes"
        raise DamagedError(f"byte {len(data)}", problem, "the file is cut; copy it again")
