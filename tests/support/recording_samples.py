"""One small sound file of every format, made here, for the tests that read it and for those that break it first."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pymseed
import scipy.io
import scipy.io.wavfile
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings import ReadOptions, Recording, read
from tests.support.syntax import ROOT

DATA = ROOT / "tests" / "data"
RATE_HZ = 4.0
START = "2022-04-11 08:36:25"
START_NS = 1_649_666_185_000_000_000
VALUES = np.random.default_rng(0).normal(size=(40, 2)).round(4)  # (T, C)
LABELS = np.repeat([0, 1], [25, 15])  # (T,)


def read_bytes(folder: Path, name: str, data: bytes, **options: Any) -> Recording:
    path = folder / name
    path.write_bytes(data)
    return read(path, ReadOptions(**options))


def csv_bytes(delimiter: str = ",", decimal: str = ".") -> bytes:
    lines = [delimiter.join(["time", "force [kN]", "strain (um/m)", "label"])]
    for i, (force, strain) in enumerate(VALUES):
        seconds, hundredths = divmod(i * 25, 100)
        cells = [f"2022-04-11 08:36:{25 + seconds:02d}.{hundredths:02d}", f"{force}", f"{strain}"]
        cells = [cells[0], *(cell.replace(".", decimal) for cell in cells[1:]), str(LABELS[i])]
        lines.append(delimiter.join(cells))
    return "".join(f"{line}\n" for line in lines).encode()


def lvm_bytes(x_columns: str = "One") -> bytes:
    end = "***End_of_Header***"
    head = [
        "LabVIEW Measurement\t",
        "Writer_Version\t2",
        "Separator\tTab",
        "Decimal_Separator\t,",
        f"X_Columns\t{x_columns}",
    ]
    head += ["Date\t2022/04/10", "Time\t01:00:00", end, "\t", "Channels\t2\t", "Date\t2022/04/11\t2022/04/11"]
    head += ["Time\t08:36:25,0000000000000000000\t08:36:25,0000000000000000000", "Y_Unit_Label\tkN\tum/m"]
    head += ["Delta_X\t0,250000\t0,250000", f"{end}\t\t", "X_Value\tforce\tstrain\tComment"]
    for i, row in enumerate(VALUES):
        time = f"{i / RATE_HZ:.6f}" if x_columns == "One" else ""
        head.append("\t".join([time, *map(str, row)]).replace(".", ","))
    return "".join(f"{line}\r\n" for line in head).encode()


def zip_bytes(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("_csv", ".csv"), data)
    return packed.getvalue()


def npz_bytes(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def mat_bytes(*, packed: bool = False, **arrays: Any) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, arrays, do_compression=packed)
    return file.getvalue()


def wav_bytes(samples: NDArray[Any], rate_hz: int = 800) -> bytes:
    file = io.BytesIO()
    scipy.io.wavfile.write(file, rate_hz, samples)
    return file.getvalue()


def parquet_bytes(**columns: Any) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file, write_page_checksum=True)
    return file.getvalue()


def mseed_bytes(channel: str, start: str, rate_hz: float, samples: NDArray[Any]) -> bytes:
    record = pymseed.MS3Record()
    record.sourceid = f"FDSN:XX_TEST__{channel}"
    record.set_starttime_str(start)
    record.samprate = rate_hz
    record.encoding = pymseed.DataEncoding.FLOAT64
    return b"".join(record.generate(np.asarray(samples, dtype=np.float64), "d"))


def times_ns() -> NDArray[np.int64]:
    return START_NS + (np.arange(len(VALUES)) * (1_000_000_000 / RATE_HZ)).astype(np.int64)  # (T,)


def labelled_arrays() -> dict[str, Any]:
    names = np.array(["force [kN]", "strain (um/m)"])
    return {"data": VALUES, "channels": names, "fs": RATE_HZ, "t0": np.array([START]), "label": LABELS}


def parquet_sample() -> bytes:
    time = pyarrow.array(times_ns(), pyarrow.timestamp("ns"))
    return parquet_bytes(**{"time": time, "force [kN]": VALUES[:, 0], "strain (um/m)": VALUES[:, 1], "label": LABELS})


def sound_files() -> list[tuple[str, bytes]]:
    """Ending and content of one file a format and variant, all readable without options."""
    counts = (VALUES * 1000).astype(np.int16)
    arrays = labelled_arrays()
    return [
        (".csv", csv_bytes()),
        (".txt", csv_bytes(";", ",")),
        (".tsv", csv_bytes("\t")),
        (".csv.gz", gzip.compress(csv_bytes(), mtime=0)),
        (".zip", zip_bytes(run_csv=csv_bytes())),
        (".lvm", lvm_bytes()),
        (".npz", npz_bytes(**arrays)),
        (".npz", npz_bytes(acc=counts, scale=np.full(2, 1e-3), fs=np.full(2, RATE_HZ))),
        (".mat", mat_bytes(data=VALUES, fs=RATE_HZ, channels=np.array(["a", "b"], dtype=object), extra={"gain": 1})),
        (".mat", mat_bytes(packed=True, data=VALUES.astype(np.float32), fs=RATE_HZ)),
        (".wav", wav_bytes(counts)),
        (".wav", wav_bytes(VALUES.astype(np.float32))),
        (".mseed", (DATA / "testdata-3channel-signal.mseed2").read_bytes()[:2048]),
        (".mseed", mseed_bytes("H_N_Z", "2022-04-11T08:36:25Z", RATE_HZ, VALUES[:, 0])),
        (".parquet", parquet_sample()),
    ]
