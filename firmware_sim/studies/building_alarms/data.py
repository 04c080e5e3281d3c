"""The recordings of the study of alarm rules, each as sensors: healthy rows first, then what is watched.

    keti   room413.npz ..: 5 minutes, every second room is for development; faults are put in
    skab   valve1/0.csv.gz ..: 1 s, the first eight are for development; the valve is closed in each
    nab    machine temperature (5 minutes) is for development, ambient temperature (1 hour) is reported; both labelled
    hvac   mzvav_2_1.csv.gz: 5 minutes, whole days; healthy days first, then those with a documented fault

The hour of the day, where days matter, is a column among the others: two harmonics, so that what is usual at an hour
can be expected.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.demo.faults import SENSOR_FAULTS, sensor_fault
from fedgate.firmware_sim.studies.building_alarms.options import AlarmSet, DataSet
from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.firmware_sim.studies.esn_streams.data import (
    SKAB_CALIBRATE,
    SKAB_CHANNELS,
    SKAB_FILES,
    SKAB_TRAIN,
    skab_rows,
)
from fedgate.models.arrays import NEW_SERIES, Floats, generator

Part = Literal["development", "reported"]
Whole = NDArray[np.int64]

DAY_S, HARMONICS = 86_400, 2
CALENDAR = tuple(f"{wave} {k}" for k in range(1, HARMONICS + 1) for wave in ("sin", "cos"))
STEP_S = 300
TRAIN_DAYS, BASELINE_DAYS = 4, 6
KETI_NAMES, KETI_COLUMNS = ("CO2", "humidity", "light", "temperature"), (0, 1, 2, 4)
KETI_POSSIBLE_C = (5.0, 45.0)  # one sensor reports 394 degrees
LEAST_ROWS = 1_800
# How long each fault lasts, in hours (a spike: two rows).
LASTS_H = {"stuck": 4.0, "drift": 6.0, "offset": 3.0, "noise": 2.0, "other time": 3.0}
SPIKE_ROWS, MARGIN_ROWS = 2, 10
NAB_TRAIN, NAB_BASELINE = 0.10, 0.15
NAB_FILES: Mapping[Part, str] = MappingProxyType({"development": "machine", "reported": "ambient"})
HVAC_FAULT, HVAC_SAYS, HVAC_TIME = "Fault Type", "Fault Detection Ground Truth", "Datetime"
HVAC_SKIPPED = (HVAC_TIME, HVAC_FAULT, HVAC_SAYS, "Fault Intensity")


class Event(NamedTuple):
    """One anomaly: its kind, its rows, and, where it was put in, the rows as they are then (stop - start, F)."""

    kind: str
    start: int
    stop: int
    x: Floats | None = None


class Sensor(NamedTuple):
    """One watched sensor: rows x (n, F) with those missing before each and the second of each, names of the columns,
    which of them are watched, where the baseline ends, how many of its rows may train, and what is wrong in the rest.
    """

    name: str
    x: Floats
    missing: Whole
    seconds: Whole
    names: tuple[str, ...]
    watched: tuple[str, ...]
    trained: int
    begin: int
    hop_s: float
    events: tuple[Event, ...]

    @property
    def columns(self) -> list[int]:
        """Places of the watched columns."""
        return [self.names.index(name) for name in self.watched]

    @property
    def days(self) -> float:
        """Healthy days that are watched."""
        documented = sum(each.stop - each.start for each in self.events if each.x is None)
        return (len(self.x) - self.begin - documented) * self.hop_s / DAY_S


def load(chosen: AlarmSet, data: Path, part: Part, seed: int) -> list[Sensor]:
    """Return the sensors of one part of a data set; raises `StudyError` where a file is missing."""
    folder = data / chosen.folder
    sensors = _LOADERS[chosen.data](folder, part)
    if chosen.watched:
        sensors = [
            each._replace(name=f"{each.name} {name}", watched=(name,)) for each in sensors for name in chosen.watched
        ]
    return [_faulted(each, chosen.faults, seed) for each in sensors]


def _faulted(sensor: Sensor, each: int, seed: int) -> Sensor:
    """Return a sensor with faults of every kind, `each` of them, at random times after the baseline."""
    if not each:
        return sensor
    rng, events = generator(seed, 0, sensor.name), list(sensor.events)
    column, away = sensor.columns[0], round(DAY_S / 2 / sensor.hop_s)
    deviation = float(sensor.x[: sensor.begin, column].std())
    healthy = min([len(sensor.x), *(event.start for event in sensor.events)])
    for kind in SENSOR_FAULTS * each:
        count = SPIKE_ROWS if kind == "spike" else round(LASTS_H[kind] * 3_600 / sensor.hop_s)
        start = int(rng.integers(sensor.begin + MARGIN_ROWS, healthy - count))
        rows = slice(start, start + count)
        faulty = sensor_fault(sensor.x[:healthy], column, rows, kind, deviation, rng, away=away)
        events.append(Event(kind, start, start + count, faulty[rows]))
    return sensor._replace(events=tuple(events))


def missing_before(seconds: Whole, hop_s: float) -> Whole:
    """Return how many rows are missing before each, of the second of each; a series begins where time goes back."""
    between = np.round(np.diff(seconds) / hop_s).astype(np.int64) - 1
    return np.concatenate([[NEW_SERIES], np.where(between < 0, NEW_SERIES, between)])


def calendar(seconds: Whole) -> Floats:
    """Return the columns (n, 2 HARMONICS) that tell the hour of the day."""
    angle = 2.0 * np.pi * (seconds % DAY_S) / DAY_S
    waves = [wave(k * angle) for k in range(1, HARMONICS + 1) for wave in (np.sin, np.cos)]
    return np.stack(waves, axis=1)


def _keti(folder: Path, part: Part) -> list[Sensor]:
    rooms = [path for path in sorted(folder.glob("room*.npz")) if len(_room(path)[1]) >= LEAST_ROWS]
    if len(rooms) < 2:
        raise StudyError(f"{folder}: {len(rooms)} rooms of {LEAST_ROWS} rows of 5 min there; expected at least 2")
    return [_keti_sensor(path) for path in rooms[part == "reported" :: 2]]


def _keti_sensor(path: Path) -> Sensor:
    x, seconds = _room(path)
    since = seconds - seconds[0]
    trained, begin = (int(np.searchsorted(since, days * DAY_S)) for days in (TRAIN_DAYS, BASELINE_DAYS))
    rows, names = np.concatenate([x, calendar(seconds)], axis=1), (*KETI_NAMES, *CALENDAR)
    missing = missing_before(seconds, STEP_S)
    return Sensor(path.stem, rows, missing, seconds, names, KETI_NAMES, trained, begin, float(STEP_S), ())


@lru_cache(maxsize=32)
def _room(path: Path) -> tuple[Floats, Whole]:
    """Return the means over 5 minutes (n, 4) and when each of these begins; empty ones are left out."""
    with np.load(path) as file:
        absent = sorted({"t", "x"} - set(file.files))
        if absent:
            raise StudyError(f"{path}: array {absent[0]!r} is missing; expected t and x")
        t, x = file["t"], file["x"].astype(np.float64)[:, KETI_COLUMNS]
    x[:, 3] = np.clip(x[:, 3], *KETI_POSSIBLE_C)
    x[:, 2] = np.log1p(np.maximum(x[:, 2], 0.0))
    return _binned(t - t[0], x, t[0])


def _binned(since: Whole, x: Floats, first: int) -> tuple[Floats, Whole]:
    """Return the means of rows (n, F) over steps, and the second at which each step begins."""
    steps, place = np.unique(since // STEP_S, return_inverse=True)
    means = [np.bincount(place, column) / np.bincount(place) for column in x.T]
    return np.stack(means, axis=1), np.asarray(first + steps * STEP_S, dtype=np.int64)


def _skab(folder: Path, part: Part) -> list[Sensor]:
    half = SKAB_FILES // 2
    first = 0 if part == "development" else half
    return [_skab_sensor(folder / "valve1" / f"{k}.csv.gz") for k in range(first, first + half)]


def _skab_sensor(path: Path) -> Sensor:
    x, label, seconds = skab_rows(path)
    events = tuple(Event("valve", start, stop) for start, stop in runs(label == 1))
    missing, name = missing_before(seconds, 1.0), path.name.removesuffix(".csv.gz")
    baseline = SKAB_TRAIN, SKAB_CALIBRATE
    return Sensor(f"valve1/{name}", x, missing, seconds, SKAB_CHANNELS, SKAB_CHANNELS, *baseline, 1.0, events)


def runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and stop of every run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int64)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _nab(folder: Path, part: Part) -> list[Sensor]:
    stem = f"realKnownCause_{NAB_FILES[part]}_temperature_system_failure.csv"
    path, windows = folder / f"{stem}.gz", folder / "anomaly_windows.json"
    for each in (path, windows):
        if not each.is_file():
            raise StudyError(f"{each.name} is missing in {folder}; expected the files of NAB there")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    seconds = np.array([_second(line["timestamp"]) for line in lines])
    later = np.concatenate([[True], np.diff(seconds) > 0])  # an hour occurs twice
    seconds, values = seconds[later], np.array([float(line["value"]) for line in lines])[later]
    hop_s = float(np.median(np.diff(seconds)))
    spans = [[_second(end) for end in each] for each in json.loads(windows.read_text(encoding="utf-8"))[stem]]
    events = tuple(Event("failure", *np.searchsorted(seconds, span).tolist()) for span in spans)
    week = 2.0 * np.pi * (seconds % (7 * DAY_S)) / (7 * DAY_S)
    x = np.column_stack([values, calendar(seconds), np.sin(week), np.cos(week)])
    names = ("temperature", *CALENDAR, "sin week", "cos week")
    trained, begin = (int(share * len(x)) for share in (NAB_TRAIN, NAB_BASELINE))
    missing = missing_before(seconds, hop_s)
    return [Sensor(NAB_FILES[part], x, missing, seconds, names, ("temperature",), trained, begin, hop_s, events)]


def _second(stamp: str) -> int:
    return int(np.datetime64(stamp.partition(".")[0].replace(" ", "T"), "s").astype(np.int64))


def _hvac(folder: Path, part: Part) -> list[Sensor]:
    del part  # nothing is chosen on it
    x, seconds, names, faults = _hvac_rows(folder / "mzvav_2_1.csv.gz")
    days = seconds // DAY_S
    healthy = [day for day in np.unique(days).tolist() if not set(faults[days == day]) - {""}]
    faulty = [day for day in np.unique(days).tolist() if "" not in set(faults[days == day])]
    order = np.concatenate([np.flatnonzero(days == day) for day in (*healthy, *faulty)])
    x, seconds, faults = x[order], seconds[order], faults[order]
    begin = int(np.searchsorted(np.cumsum(np.diff(seconds // DAY_S, prepend=-1) != 0), BASELINE_DAYS, side="right"))
    trained = begin * TRAIN_DAYS // BASELINE_DAYS
    events = tuple(Event(str(faults[start]), start, stop) for start, stop in _days_of(seconds, faults != ""))
    rows = np.concatenate([x, calendar(seconds)], axis=1)
    missing = missing_before(seconds, STEP_S)
    return [Sensor("mzvav", rows, missing, seconds, (*names, *CALENDAR), names, trained, begin, float(STEP_S), events)]


def _days_of(seconds: Whole, faulty: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and stop of every faulty day."""
    days = np.where(faulty, seconds // DAY_S, -1)
    return [run for day in dict.fromkeys(days[faulty].tolist()) for run in runs(days == day)]


@lru_cache(maxsize=2)
def _hvac_rows(path: Path) -> tuple[Floats, Whole, tuple[str, ...], NDArray[np.str_]]:
    """Return means over 5 minutes (n, F), when each begins, the names of the columns and the fault of each, '' where
    healthy; a day whose fault is documented but not in the ground truth is left out.
    """
    if not path.is_file():
        raise StudyError(f"{path.name} is missing in {path.parent}; expected the files of hvac_fdd there")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    lines = [line for line in lines if (line[HVAC_FAULT] == "none") == (float(line[HVAC_SAYS]) == 0)]
    names = tuple(name for name in lines[0] if name not in HVAC_SKIPPED and all(line[name] for line in lines))
    seconds = np.array([_second(line[HVAC_TIME]) for line in lines])
    x, starts = _binned(seconds, np.array([[float(line[name]) for name in names] for line in lines]), 0)
    first = np.searchsorted(seconds, starts)
    faults = np.array(["" if lines[row][HVAC_FAULT] == "none" else lines[row][HVAC_FAULT] for row in first.tolist()])
    moves = x.std(axis=0) > 0.0
    return x[:, moves], starts, tuple(np.array(names)[moves].tolist()), faults


_LOADERS: Mapping[DataSet, Callable[[Path, Part], list[Sensor]]] = MappingProxyType(
    {"keti": _keti, "skab": _skab, "nab": _nab, "hvac": _hvac}
)
