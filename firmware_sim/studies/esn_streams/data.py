"""The sensor streams of the study, cut into gateways: rows that train, rows that give the level, rows that are watched.

    skab     valve1/0.csv.gz .. and anomaly-free.csv.gz: a gateway for each file, 1 Hz; the valve is closed in each
    keti     room413.npz ..: a gateway for each room, 5 min; healthy as far as is known, so faults are put in
    z24      state01.npz .. state17.npz: a gateway for each sensor or for each training setup, windows of 20 s
    munich   comes with the package: a gateway for each of three sensors, windows of 5 s

A row is a time step. Who trains on what is settled here, so that all methods see the same: the head of a stream, the
healthy setups. Bridges are judged by windows of many rows, each of them a series of its own.
"""

from __future__ import annotations

import csv
import gzip
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.demo.faults import SENSOR_FAULTS, sensor_fault
from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.firmware_sim.studies.esn_streams.bridges import Bridge, bridge_gateways
from fedgate.firmware_sim.studies.esn_streams.rows import CALIBRATE, IGNORED, TRAIN, WATCHED, Gateway, Streams, Stretch
from fedgate.models.arrays import NEW_SERIES, Floats, generator

DataSet = Literal["skab", "keti", "z24 sensors", "z24 setups", "munich"]
Part = Literal["development", "reported"]

SKAB_CHANNELS = (
    "Accelerometer1RMS",
    "Accelerometer2RMS",
    "Current",
    "Pressure",
    "Temperature",
    "Thermocouple",
    "Voltage",
    "Volume Flow RateRMS",
)
SKAB_LABEL = "anomaly"
SKAB_FILES = 16
SKAB_TRAIN, SKAB_CALIBRATE = 250, 400  # rows from the start of a file
SKAB_FREE_TRAIN, SKAB_FREE_CALIBRATE = 0.5, 0.7  # of the file without anomalies
SKAB_MERGE_ROWS = 30

KETI_STEP_S, KETI_PER_DAY = 300, 288
KETI_COLUMNS, KETI_LIGHT, KETI_TEMPERATURE = (0, 1, 2, 4), 2, 3  # CO2, humidity, light, temperature; no motion
KETI_POSSIBLE_C = (5.0, 45.0)  # one sensor reports 394 degrees
KETI_TRAIN_DAYS, KETI_CALIBRATE_DAYS, KETI_LEAST_ROWS = 4, 6, 1_800
KETI_MERGE_ROWS, KETI_BEFORE_ROWS, KETI_WARM_ROWS = 12, 24, 288
# How long each fault lasts, in rows.
KETI_LASTS = {"spike": 2, "stuck": 48, "drift": 72, "offset": 36, "noise": 24, "other time": 36}
VALVE = "valve"
BRIDGES: dict[DataSet, Bridge] = {"z24 sensors": "sensors", "z24 setups": "setups", "munich": "munich"}


class Wrong(NamedTuple):
    """Faults that are put into rooms: how many of each kind into each of these channels, each into its own copy."""

    channels: tuple[int, ...]
    each: int
    seed: int


def load(name: DataSet, folder: Path, part: Part, wrong: Wrong, columns: tuple[int, ...]) -> Streams:
    """Return the gateways of one half of a data set; of a room they may see some `columns` alone.

    Raises `StudyError` where a file is missing or laid out otherwise.
    """
    if name == "skab":
        return _skab(folder, part)
    if name == "keti":
        return _keti(folder, part, wrong, list(columns))
    return bridge_gateways(BRIDGES[name], folder, development=part == "development")


def _skab(folder: Path, part: Part) -> Streams:
    first = 0 if part == "development" else SKAB_FILES // 2
    paths = [folder / "valve1" / f"{k}.csv.gz" for k in range(first, first + SKAB_FILES // 2)]
    gateways = [Gateway(f"valve1/{path.name.removesuffix('.csv.gz')}", (_skab_stretch(path),)) for path in paths]
    healthy = _skab_stretch(folder / "anomaly-free" / "anomaly-free.csv.gz", part)
    gateways.append(Gateway(f"anomaly-free, {part}", (healthy,)))
    return Streams(tuple(gateways), 1.0, SKAB_MERGE_ROWS)


@lru_cache(maxsize=SKAB_FILES + 2)
def _skab_stretch(path: Path, half: Part | None = None) -> Stretch:
    """Return a file, or the half of it that is a part's own: its first rows are the development's."""
    x, label, seconds = skab_rows(path)
    if half is not None:
        rows = slice(len(x) // 2) if half == "development" else slice(len(x) // 2, None)
        x, label, seconds = x[rows], label[rows], seconds[rows]
    cuts = (SKAB_TRAIN, SKAB_CALIBRATE)
    if path.stem.startswith("anomaly-free"):
        cuts = int(SKAB_FREE_TRAIN * len(x)), int(SKAB_FREE_CALIBRATE * len(x))
    return Stretch(x, _missing(seconds), label, _roles(np.arange(len(x)), *cuts), VALVE)


def skab_rows(path: Path) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Return values (n, 8), labels (n,) and the second of each row; without a column of labels all is healthy."""
    if not path.is_file():
        raise StudyError(f"{path.name} is missing in {path.parent}; expected the files of SKAB there")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file, delimiter=";"))
    missing = [name for name in ("datetime", *SKAB_CHANNELS) if not lines or name not in lines[0]]
    if missing:
        raise StudyError(f"{path}: column {missing[0]!r} is missing; expected those of SKAB, separated by ';'")
    x = np.array([[float(line[name]) for name in SKAB_CHANNELS] for line in lines])
    label = np.array([int(float(line.get(SKAB_LABEL, 0))) for line in lines], dtype=np.int64)
    return x, label, np.array([np.datetime64(line["datetime"], "s") for line in lines]).astype(np.int64)


def _missing(steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many rows are missing before each of them, of the time step of each."""
    return np.concatenate([[NEW_SERIES], np.maximum(np.diff(steps) - 1, 0)])


def _roles(at: NDArray[np.int64], train: int, calibrate: int) -> NDArray[np.int64]:
    return np.select([at < train, at < calibrate], [TRAIN, CALIBRATE], WATCHED)


def _keti(folder: Path, part: Part, wrong: Wrong, columns: list[int]) -> Streams:
    rooms = [path for path in sorted(folder.glob("room*.npz")) if _long_enough(path)]
    if len(rooms) < 2:
        raise StudyError(f"{folder}: {len(rooms)} rooms of {KETI_LEAST_ROWS} rows of 5 min there; expected at least 2")
    chosen = rooms[0::2] if part == "development" else rooms[1::2]
    gateways = tuple(_keti_gateway(path, wrong, columns) for path in chosen)
    return Streams(gateways, float(KETI_STEP_S), KETI_MERGE_ROWS)


def _long_enough(path: Path) -> bool:
    return int(_keti_rows(path)[1][-1]) >= KETI_LEAST_ROWS - 1


@lru_cache(maxsize=32)
def _keti_rows(path: Path) -> tuple[Floats, NDArray[np.int64]]:
    """Return the means over 5 minutes (n, 4) and the number of each of these five minutes; empty ones are left out."""
    with np.load(path) as file:
        absent = sorted({"t", "x"} - set(file.files))
        if absent:
            raise StudyError(f"{path}: array {absent[0]!r} is missing; expected t and x")
        t, x = file["t"], file["x"].astype(np.float64)
    x = x[:, KETI_COLUMNS]
    x[:, KETI_TEMPERATURE] = np.clip(x[:, KETI_TEMPERATURE], *KETI_POSSIBLE_C)
    x[:, KETI_LIGHT] = np.log1p(np.maximum(x[:, KETI_LIGHT], 0.0))
    bins, place = np.unique((t - t[0]) // KETI_STEP_S, return_inverse=True)
    means = [np.bincount(place, column) / np.bincount(place) for column in x.T]
    return np.stack(means, axis=1), bins.astype(np.int64)


def _keti_gateway(path: Path, wrong: Wrong, columns: list[int]) -> Gateway:
    x, bins = _keti_rows(path)
    missing = _missing(bins)
    role = _roles(bins, KETI_TRAIN_DAYS * KETI_PER_DAY, KETI_CALIBRATE_DAYS * KETI_PER_DAY)
    clean = Stretch(x, missing, np.zeros(len(x), dtype=np.int64), role)
    deviation, rng = x[role != WATCHED].std(axis=0), generator(wrong.seed, 0, path.stem)
    watched = np.flatnonzero(role == WATCHED)
    copies = []
    for channel in wrong.channels:
        for kind in SENSOR_FAULTS * wrong.each:
            first = int(rng.integers(watched[0] + KETI_BEFORE_ROWS, watched[-1] - KETI_LASTS[kind]))
            rows = slice(first, first + KETI_LASTS[kind])
            faulty = sensor_fault(x, channel, rows, kind, float(deviation[channel]), rng, away=KETI_PER_DAY // 2)
            copies.append(_faulted(faulty, missing, rows, kind))
    stretches = (clean, *copies)
    return Gateway(path.stem, tuple(each._replace(x=each.x[:, columns]) if columns else each for each in stretches))


def _faulted(x: Floats, missing: NDArray[np.int64], rows: slice, kind: str) -> Stretch:
    """Return the part of a faulty copy that matters: a day for the state to settle, two hours before, and the fault."""
    cut = slice(max(rows.start - KETI_WARM_ROWS, 0), rows.stop)
    at = np.arange(cut.start, cut.stop)
    before = missing[cut].copy()
    before[0] = NEW_SERIES
    role = np.where(at < rows.start - KETI_BEFORE_ROWS, IGNORED, WATCHED)
    return Stretch(x[cut], before, (at >= rows.start).astype(np.int64), role, kind, copy=True)
