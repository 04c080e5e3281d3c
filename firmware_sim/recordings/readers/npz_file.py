"""Reads NumPy's .npz, never with pickles: a recording is data and must not be able to run code."""

from __future__ import annotations

import tokenize
import warnings
import zipfile
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import DamagedError, FileAccessError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.named_arrays import recording_from
from fedgate.firmware_sim.recordings.recording import Recording
from fedgate.firmware_sim.recordings.source import MAX_BYTES, Source

_REMEDY = "save it again with numpy.savez, without object arrays"
# What numpy and zipfile raise for archives and array headers that are not what they should be.
_BROKEN = (
    ValueError, KeyError, EOFError, OSError, TypeError, MemoryError, RuntimeError, NotImplementedError, SyntaxError,
    zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip


def read_npz(source: Source, options: ReadOptions) -> Recording:
    """Read named arrays as laid out in `named_arrays`.

    Raises:
        DamagedError: no archive, an array that cannot be read, an array of Python objects; the place is the array.
    """
    return recording_from(source.name, read_arrays(source.data), options)


def read_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name; raises `DamagedError` and `FileAccessError`."""
    if not data.startswith(b"PK"):
        raise DamagedError("byte 0", f"found {data[:4]!r}, expected the start of a zip archive", _REMEDY)
    place = "archive"
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_BYTES:
            raise FileAccessError(place, f"unpacks to {size} bytes", f"keep it below {MAX_BYTES} bytes")
        arrays = {}
        with np.load(BytesIO(data), allow_pickle=False) as members, warnings.catch_warnings():
            # A header written by Python 2 is read all the same; numpy warns because that is slow.
            warnings.simplefilter("ignore", UserWarning)
            for name in members.files:
                place = f"array {name}"
                arrays[name] = members[name]
    except _BROKEN as error:
        raise DamagedError(place, f"cannot be read ({error})", _REMEDY) from error
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
