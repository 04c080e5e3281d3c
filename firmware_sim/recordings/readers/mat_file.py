"""Reads MATLAB's .mat, version 5 to 7 (up to `save -v7`)."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import DamagedError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.mat_check import readable_variables
from fedgate.firmware_sim.recordings.readers.named_arrays import recording_from
from fedgate.firmware_sim.recordings.recording import Recording
from fedgate.firmware_sim.recordings.source import Source


def read_mat(source: Source, options: ReadOptions) -> Recording:
    """Read named arrays as laid out in `named_arrays`; structures and objects stay unread.

    Raises:
        DamagedError: another version of the format, or a body that cannot be read.
    """
    from scipy.io import loadmat

    version = source.data[:19]
    if version.startswith(b"MATLAB 7.3") or version.startswith(b"\x89HDF"):
        remedy = "save it in MATLAB with save(file, '-v7'), or convert it to .npz with the h5py library"
        raise DamagedError("byte 0", "MATLAB 7.3, which is HDF5 inside and not read here", remedy)
    if version != b"MATLAB 5.0 MAT-file":
        problem = f"found {version!r}, expected 'MATLAB 5.0 MAT-file'"
        raise DamagedError("byte 0", problem, "save it in MATLAB with save(file, '-v7')")
    names, others = readable_variables(source.data)
    try:
        content = loadmat(BytesIO(source.data), variable_names=names) if names else {}
    except (ValueError, TypeError, NotImplementedError) as error:
        raise DamagedError("variables", f"cannot be read ({error})", "the file is garbled; copy it again") from error
    recording = recording_from(source.name, {name: _plain(content[name]) for name in names}, options)
    return recording.noting(f"left unread, as neither numbers nor texts: {', '.join(others)}") if others else recording


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """A cell array of texts as an array of texts; everything else as it is."""
    if array.dtype.kind == "O" and all(isinstance(cell, np.ndarray) and cell.size == 1 for cell in array.flat):
        return np.array([str(cell.item()) for cell in array.flat])
    return array
