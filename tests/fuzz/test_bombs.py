"""Files that are small and claim, or unpack to, more than any machine holds: refused, with memory that stays bounded.

They are read in a process of its own, whose memory is looked at after each. The limits are those of the readers, made
small, so that the bombs are too.
"""

from __future__ import annotations

import gzip
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from fedgate.firmware_sim import children
from tests.support.recording_samples import mat_bytes, npz_bytes, wav_bytes
from tests.support.waiting import PATIENCE_S

MIB = 2**20
MOST = 2 * MIB  # that a reader takes here
MEMORY_MIB = 48  # that reading may add: some copies of what a reader takes, and no more
CHILD = """
import sys
from pathlib import Path
import pyarrow.parquet, scipy.io.wavfile, pymseed
from fedgate.firmware_sim import recordings
from fedgate.firmware_sim.recordings import RecordingError, read, recording, source
from fedgate.firmware_sim.recordings.readers import (
    csv_file, formats, mat_check, mseed_file, npz_file, parquet_file
)
most = int(sys.argv[-1])
for module in (mat_check, npz_file, parquet_file, source):
    module.MAX_BYTES = most
for module in (csv_file, recording):
    module.MAX_VALUES = most // 8

def peak_kib():
    # not ru_maxrss, which begins with that of who started us and hides all that is less
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index("VmHWM:") + 1])

for path in map(Path, sys.argv[1:-1]):
    before = peak_kib()
    try:
        read(path)
        said = 'taken'
    except RecordingError as error:
        said = f'{type(error).__name__}: {error}'
    print((peak_kib() - before) // 1024, said)
"""


def claiming(data: bytes) -> bytes:
    """Return an archive whose array says that it has more numbers than there are bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data.npy", data)
    return packed.getvalue()


def npy(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(64)


def parquet(**columns: object) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, compression="zstd")
    return file.getvalue()


def one_text_for_many_rows() -> bytes:
    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 100_000])
    return parquet(value=np.zeros(100_000), state=texts)


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gzip of zeros": (".csv.gz", lambda: gzip.compress(bytes(100 * MIB), 9)),
    "gzip of a table": (".csv.gz", lambda: gzip.compress(b"t,x\n" + b"0,1\n" * (MOST // 4 - 2))),
    "zip of zeros": (".zip", lambda: claiming(bytes(MOST + 1)).replace(b"data.npy", b"data.csv")),
    "npz of zeros": (".npz", lambda: npz_bytes(data=np.zeros((MOST // 8 + 1, 1)), fs=1.0)),
    "npz of single bytes": (".npz", lambda: npz_bytes(data=np.zeros((MOST - 4096, 1), np.int8), fs=1.0)),
    "npz that claims terabytes": (".npz", lambda: claiming(npy((2**40, 1)))),
    "mat of zeros": (".mat", lambda: mat_bytes(packed=True, data=np.zeros((MOST // 8 + 1, 1)), fs=1.0)),
    "mat of many": (".mat", lambda: mat_bytes(packed=True, **{f"v{i}": np.zeros(MOST // 16) for i in range(60)})),
    "parquet of zeros": (".parquet", lambda: parquet(value=np.zeros(MOST // 8 + 1))),
    "parquet of one text": (".parquet", one_text_for_many_rows),
    "wav of single bytes": (".wav.gz", lambda: gzip.compress(wav_bytes(np.zeros(MOST - 4096, np.uint8)))),
}


@pytest.mark.soak
def test_bombs_are_refused_in_bounded_memory(tmp_path: Path) -> None:
    paths = []
    for name, (ending, made) in BOMBS.items():
        paths.append(tmp_path / f"{name.replace(' ', '_')}{ending}")
        paths[-1].write_bytes(made())
        assert paths[-1].stat().st_size < MIB // 2
    command = [sys.executable, "-c", CHILD, *map(str, paths), str(MOST)]
    done = children.run(command, PATIENCE_S, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    lines = done.stdout.splitlines()
    assert len(lines) == len(BOMBS)
    for path, line in zip(paths, lines, strict=True):
        grown_mib, said = line.split(" ", 1)
        assert said.startswith(("FileAccessError", "DamagedError")) and str(path) in said, line
        assert int(grown_mib) < MEMORY_MIB, line
