"""Converters from what publishers hand out to the layouts that the studies read, which `docs/reference/datasets.md`
describes.

A converter takes the publisher's file or folder and the folder that `measure --data` names, below which it writes.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.models.arrays import Floats

Z24_SETUPS, Z24_RATE_HZ = range(1, 6), 100.0
Z24_REFERENCES, Z24_RESTORED = (1, 2), 8  # undamaged; and repaired, which counts as neither
Z24_SAMPLES, Z24_DAMAGED_SAMPLES = 61_440, 32_768
Z24_SENSORS = ("ref1", "ref2", "ref3", "ref4", "ref5")
CWRU_FILES = {
    "normal": 97,
    "inner_007": 109,
    "ball_007": 122,
    "outer6_007": 135,
    "inner_021": 213,
    "ball_021": 226,
    "outer6_021": 238,
}
CWRU_RATE_HZ, CWRU_SAMPLES, CWRU_SENSORS = 48_000.0, 120_000, ("DE", "FE")
WRIST_STREAMS = ("eda", "bvp", "temp", "hr", "acc")
WRIST_LABELS = "Processed_data/Improved_All_Combined_hr_rsp_binary.csv"
SITES, SITE_CHANNELS = ("A", "C"), ("temperature_C", "rel_humidity_pct", "light1", "light2")
SKAB_FILES = (*(f"valve1/{number}" for number in range(16)), "anomaly-free/anomaly-free")
NAB_SERIES = ("ambient_temperature_system_failure", "machine_temperature_system_failure")
OCCUPANCY_FILES = ("datatraining", "datatest")
AIR_UNITS = {"mzvav_2_1": "MZVAV-2-1", "szcav": "SZCAV"}
# What the publisher's inventory says of each faulty day; the others are healthy.
AIR_FAULTS = {
    "2007-08-28": ("heating coil valve leaking", "stage 1, 0.4 GPM"),
    "2007-08-29": ("heating coil valve leaking", "stage 2, 1.0 GPM"),
    "2007-08-30": ("heating coil valve leaking", "stage 3, 2.0 GPM"),
    "2017-03-11": ("cooling coil valve stuck", "fully closed 0%"),
    "2017-03-12": ("cooling coil valve stuck", "fully open 100%"),
    "2017-03-15": ("cooling coil valve leaking", "5% of max flow"),
    "2017-03-16": ("cooling coil valve leaking", "50% of max flow"),
    "2017-03-18": ("OA damper stuck", "fully open 100%"),
    "2017-03-19": ("OA damper stuck", "partially open 50%"),
    "2017-03-20": ("OA damper leaking", "20% of max damper flow"),
    "2017-03-21": ("OA damper leaking", "50% of max damper flow"),
    "2017-03-22": ("heating coil valve leaking", "5% of max flow"),
    "2017-03-23": ("heating coil valve leaking", "40% of max flow"),
    "2017-03-24": ("heating coil valve stuck", "fully closed 0%"),
    "2017-03-25": ("heating coil valve stuck", "fully open 100%"),
    "2017-03-26": ("heating coil valve stuck", "partially open 50%"),
    "2017-03-31": ("cooling coil valve stuck", "partially open 50%"),
}


class Table(NamedTuple):
    """A publisher's table: names of its features in order, how many rows it has, what the positive class is called, the
    label that the other gets, where the class stands, and whether the first cell names the row.
    """

    columns: tuple[str, ...]
    rows: int
    positive: str
    negative_label: int = -1
    label_at: int = -1
    has_names: bool = False


MEASURED = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave_points",
    "symmetry",
    "fractal_dimension",
)
CELLS = tuple(f"{name}_{kind}" for kind, name in product(("mean", "se", "worst"), MEASURED))
VOICE = (
    "MDVP:Fo(Hz)",
    "MDVP:Fhi(Hz)",
    "MDVP:Flo(Hz)",
    "MDVP:Jitter(%)",
    "MDVP:Jitter(Abs)",
    "MDVP:RAP",
    "MDVP:PPQ",
    "Jitter:DDP",
    "MDVP:Shimmer",
    "MDVP:Shimmer(dB)",
    "Shimmer:APQ3",
    "Shimmer:APQ5",
    "MDVP:APQ",
    "Shimmer:DDA",
    "NHR",
    "HNR",
    "RPDE",
    "DFA",
    "spread1",
    "spread2",
    "D2",
    "PPE",
)
GRAIN = ("area", "perimeter", "major_axis_length", "minor_axis_length", "eccentricity", "convex_area", "extent")


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"f{index}" for index in range(count))


TABLES = {
    "breast_cancer_ad": Table(CELLS, 367, "o", 0),
    "pen_global": Table(_numbered(16), 809, "o", 0),
    "letter": Table(_numbered(32), 1_600, "o", 0),
    "satellite": Table(_numbered(36), 5_100, "o", 0),
    "banknote": Table(("variance", "skewness", "curtosis", "entropy"), 1_372, "1"),
    "breast_cancer_wdbc": Table(CELLS, 569, "M", label_at=1, has_names=True),
    "sonar": Table(tuple(f"band_{index:02d}" for index in range(1, 61)), 208, "M"),
    "mammographic_mass": Table(("bi_rads", "age", "shape", "margin", "density"), 961, "1"),
    "parkinsons": Table(VOICE, 195, "1", label_at=17, has_names=True),
    "rice_cammeo_osmancik": Table(GRAIN, 3_810, "Cammeo"),
}


def scaled(values: Floats) -> tuple[NDArray[np.int16], Floats]:
    """Return signals (..., T, S) as int16 and the scale (..., S) of each, which gives them back when multiplied."""
    scale = np.maximum(np.abs(values).max(axis=-2), np.finfo(np.float64).tiny) / 32_767.0
    return np.round(values / scale[..., None, :]).astype(np.int16), scale


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write an npz file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def write_lines(path: Path, lines: Iterable[Iterable[str]], separator: str = ",") -> None:
    """Write a table, packed where the name ends in `.gz`, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator, lineterminator="\n").writerows(lines)


def convert_z24(source: Path, target: Path) -> None:
    """Convert `<state>/avt/Processed/<state>setup<nn>_R.mat` below a folder, variable `data_last5` (T, 5) float64.

    Of each state setups 1 to 5 are kept, cut to one length.
    """
    for folder in _some(source, "[01][0-9]"):
        state = int(folder.name)
        paths = {setup: folder / f"avt/Processed/{folder.name}setup{setup:02d}_R.mat" for setup in Z24_SETUPS}
        setups = [setup for setup, path in paths.items() if path.is_file()]
        if not setups:
            raise StudyError(f"{folder}: expected avt/Processed/{folder.name}setup01_R.mat or one of the next four")
        values = [_variable(paths[setup], "data_last5", len(Z24_SENSORS)) for setup in setups]
        limit = Z24_SAMPLES if state in (*Z24_REFERENCES, Z24_RESTORED) else Z24_DAMAGED_SAMPLES
        acc, scale = scaled(np.stack([each[: min(limit, *map(len, values))] for each in values]))
        label = 0 if state in Z24_REFERENCES else -1 if state == Z24_RESTORED else 1
        known = {"setups": np.array(setups, dtype=np.int16), "fs": Z24_RATE_HZ, "state": np.int16(state)}
        path = target / f"streams/z24_bridge/state{state:02d}.npz"
        write_arrays(path, acc=acc, scale=scale, label=np.int16(label), channels=Z24_SENSORS, **known)


def convert_cwru(source: Path, target: Path) -> None:
    """Convert `97.mat` and the other files of `CWRU_FILES` in a folder, variables `X097_DE_time` and `X097_FE_time`."""
    for name, number in CWRU_FILES.items():
        path = source / f"{number}.mat"
        values = np.column_stack([_variable(path, f"X{number:03d}_{sensor}_time", 1) for sensor in CWRU_SENSORS])
        acc, scale = scaled(values[:CWRU_SAMPLES])
        known = {"fs": CWRU_RATE_HZ, "rpm": np.int32(1_797), "channels": CWRU_SENSORS}
        path = target / f"streams/cwru_bearing/{name}.npz"
        write_arrays(path, acc=acc, scale=scale, label=np.int16(name != "normal"), **known)


def convert_wrists(source: Path, target: Path) -> None:
    """Convert a copy of Stress-Predict's repository: Empatica's `Raw_data/S<nn>/EDA.csv` and its neighbours (start,
    rate, then samples), and the labels by the second of all participants. Who has no labels is left out.
    """
    labels = np.loadtxt(source / WRIST_LABELS, delimiter=",", skiprows=1, usecols=(0, 3, 4))
    for folder in _some(source / "Raw_data", "S[0-9]*"):
        mine = labels[labels[:, 0] == int(folder.name[1:]), 1:]
        if not len(mine):
            continue
        arrays: dict[str, Any] = {}
        for name in WRIST_STREAMS:
            lines = np.loadtxt(folder / f"{name.upper()}.csv", delimiter=",", ndmin=2)
            arrays |= {f"{name}_t0": lines[0, 0], f"{name}_fs": lines[1, 0]}
            arrays[name] = lines[2:] if name == "acc" else lines[2:, 0].astype(np.float32)
        bvp, scale = scaled(arrays["bvp"].astype(np.float64)[:, None])
        start_s, seconds = arrays["eda_t0"], int(len(arrays["eda"]) / arrays["eda_fs"])
        label, at = np.full(seconds, -1, dtype=np.int8), (mine[:, 0] - start_s).astype(np.int64)
        within = (at >= 0) & (at < seconds)
        label[at[within]] = mine[within, 1]
        arrays |= {"bvp": bvp[:, 0], "bvp_scale": scale[0], "acc": arrays["acc"].astype(np.int8)}
        path = target / f"streams/stress_predict_e4/{folder.name}.npz"
        write_arrays(path, label_1hz=label, label_t0=start_s, **arrays)


def convert_sites(source: Path, target: Path) -> None:
    """Convert `datasets-location_<X>/*-measurement<nn>.csv` below a folder: number, time in ms, one that is not kept,
    node, four channels, occupants, activity, door and window.
    """
    for site in SITES:
        runs = [
            np.column_stack([np.full(len(lines), int(path.stem[-2:])), lines])
            for path in _some(source / f"datasets-location_{site}", "*measurement[0-9][0-9].csv")
            for lines in [np.loadtxt(path, delimiter=",", ndmin=2)]
        ]
        every = np.concatenate(runs)
        truth = zip(("occupants", "activity", "door_open", "window_open"), every[:, 9:].T, strict=True)
        known = {"measurement": every[:, 0].astype(np.int16), "t_ms": every[:, 2].astype(np.int64)}
        known |= {"node": every[:, 4].astype(np.int8), **{name: column.astype(np.int8) for name, column in truth}}
        path = target / f"streams/room_climate/location_{site}.npz"
        write_arrays(path, x=every[:, 5:9].astype(np.float32), channels=SITE_CHANNELS, **known)


def convert_air(source: Path, target: Path) -> None:
    """Convert `MZVAV-2-1.csv` and `SZCAV.csv` in a folder: times as m/d/yyyy h:mm, and the kinds of faults added."""
    for name, unit in AIR_UNITS.items():
        with (source / f"{unit}.csv").open(encoding="utf-8-sig", newline="") as file:
            header, *lines = csv.reader(file)
        rows = [[*(re.sub(r"\s+", " ", word).strip() for word in header), "Fault Type", "Fault Intensity"]]
        for stamp, *cells in lines:
            told = datetime.strptime(stamp, "%m/%d/%Y %H:%M").isoformat(timespec="minutes")
            kept = ("" if cell == "#VALUE!" else cell for cell in cells)
            rows.append([told, *kept, *AIR_FAULTS.get(told[:10], ("none", ""))])
        write_lines(target / f"streams/hvac_fdd/{name}.csv.gz", rows)


def convert_nab(source: Path, target: Path) -> None:
    """Convert a copy of NAB's repository: two series of `data/realKnownCause`, and their windows."""
    windows = json.loads((source / "labels/combined_windows.json").read_text(encoding="utf-8"))
    folder = target / "streams/nab"
    _pack(source / "data/realKnownCause", folder, {f"{name}.csv": f"realKnownCause_{name}.csv" for name in NAB_SERIES})
    chosen = {f"realKnownCause_{name}.csv": windows[f"realKnownCause/{name}.csv"] for name in NAB_SERIES}
    (folder / "anomaly_windows.json").write_text(json.dumps(chosen, indent=1), encoding="utf-8")


def convert_skab(source: Path, target: Path) -> None:
    """Convert a copy of SKAB's folder `data`: `valve1` and `anomaly-free`, packed."""
    _pack(source, target / "streams/skab_pump", {f"{name}.csv": f"{name}.csv" for name in SKAB_FILES})


def convert_occupancy(source: Path, target: Path) -> None:
    """Convert `datatraining.txt` and `datatest.txt` in a folder, packed."""
    _pack(source, target / "streams/uci_occupancy", {f"{name}.txt": f"{name}.csv" for name in OCCUPANCY_FILES})


def convert_table(name: str, source: Path, target: Path) -> None:
    """Convert a publisher's table, one row a line; numbers stay the texts that they are, '?' becomes an empty cell.

    Headers are left out. Of Parkinson's voices the person is kept beside.
    """
    table, rows, people = TABLES[name], list[list[str]](), list[list[str]]()
    with source.open(encoding="utf-8-sig", newline="") as file:
        lines = [[cell.strip() for cell in line] for line in csv.reader(file)]
    for cells in (line for line in lines if len(line) == table.has_names + len(table.columns) + 1):
        label = 1 if cells.pop(table.label_at) == table.positive else table.negative_label
        row_name = cells.pop(0) if table.has_names else ""
        if all(re.fullmatch(r"[-+.\deE]+|[?]", cell) for cell in cells):
            rows.append([*("" if cell == "?" else cell for cell in cells), str(label)])
            people.append([row_name.split("_")[-2]] if name == "parkinsons" else [])
    if len(rows) != table.rows:
        raise StudyError(f"{len(rows)} rows of {len(table.columns)} numbers and a class, expected {table.rows}")
    write_lines(target / f"tabular/{name}.csv", [[*table.columns, "label"], *rows])
    if name == "parkinsons":
        write_lines(target / f"tabular/{name}.groups.csv", [["subject"], *people])


CONVERTERS: dict[str, Callable[[Path, Path], None]] = {
    "z24_bridge": convert_z24,
    "cwru_bearing": convert_cwru,
    "stress_predict_e4": convert_wrists,
    "room_climate": convert_sites,
    "hvac_fdd": convert_air,
    "nab": convert_nab,
    "skab_pump": convert_skab,
    "uci_occupancy": convert_occupancy,
    **{name: partial(convert_table, name) for name in TABLES},
}


def convert(name: str, source: Path, target: Path) -> None:
    """Convert a data set by its name; raises `StudyError` where the source is not what its publisher hands out."""
    try:
        CONVERTERS[name](source, target)
    except (OSError, LookupError, ValueError, csv.Error) as error:
        raise StudyError(f"{source}: expected {name} as its publisher hands it out ({error})") from error


def _variable(path: Path, name: str, width: int) -> Floats:
    """Return a variable (T, width) of one of MATLAB's files."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        found = np.asarray(loadmat(path, variable_names=[name])[name], dtype=np.float64)
    except (MatReadError, NotImplementedError, KeyError, ValueError, zlib.error) as error:
        raise StudyError(f"{path}: expected MATLAB's format up to version 7 with {name} ({error})") from error
    if found.ndim != 2 or found.shape[1] != width:
        raise StudyError(f"{path}: {name} is {found.shape}, expected (T, {width})")
    return found


def _some(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise StudyError(f"{folder}: nothing named {pattern} there; expected the publisher's folder")
    return found


def _pack(source: Path, target: Path, names: dict[str, str]) -> None:
    for old, new in names.items():
        plain, path = (source / old).read_bytes(), target / f"{new}.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(plain))
