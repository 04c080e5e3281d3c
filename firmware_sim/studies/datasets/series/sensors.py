"""Sensors under watch: healthy rows first, then what is watched, with what is wrong in it.

    keti   rooms, means of 5 minutes, every second room is for development; faults are put in
    skab   files of a pump, 1 s, the first eight are for development; the valve is closed in each
    nab    machine temperature (5 minutes) is for development, ambient temperature (1 hour) is reported; both labelled
    hvac   an air handler, means of 5 minutes, whole days; healthy days first, then those with a documented fault

The hour of the day, where days matter, is a column among the others: two harmonics, so that what is usual at an hour
can be expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.demo.faults import SENSOR_FAULTS, sensor_fault
from fedgate.firmware_sim.studies.datasets.series import hvac, nab, skab
from fedgate.firmware_sim.studies.datasets.series.files import SECONDS_PER_DAY, Whole, binned, missing_before
from fedgate.firmware_sim.studies.datasets.series.keti import CHANNELS, Room, load_rooms
from fedgate.models.arrays import Floats, generator

Part = Literal["development", "reported"]

HARMONICS, PERIODS_S = 2, (SECONDS_PER_DAY, 7 * SECONDS_PER_DAY)
STEP_S = 300
TRAIN_DAYS, BASELINE_DAYS = 4, 6
LEAST_ROWS, POSSIBLE_C = 1_800, (5.0, 45.0)
ROOM_NAMES = ("CO2", "humidity", "light", "temperature")
# How long each fault lasts, in hours (a spike: two rows).
LASTS_H = {"stuck": 4.0, "drift": 6.0, "offset": 3.0, "noise": 2.0, "other time": 3.0}
SPIKE_ROWS, MARGIN_ROWS = 2, 10
NAB_TRAIN, NAB_BASELINE = 0.10, 0.15
NAB_SERIES: Mapping[Part, str] = MappingProxyType({"development": "machine", "reported": "ambient"})


class SensorSet(settings.Table):
    """One data set.

    :param watched: names of the columns that are watched, each as a sensor of its own; all as one where none is given.
    :param faults: how many of each kind are put into each watched column; none where 0.
    :param merge_s: alarms less than this apart are one.
    """

    data: Literal["keti", "skab", "nab", "hvac"]
    folder: str
    watched: tuple[str, ...] = ()
    faults: Annotated[int, Field(ge=0)] = 0
    merge_s: Annotated[float, Field(gt=0)]


class Event(NamedTuple):
    """One anomaly: its kind, its rows, and, where it was put in, the rows as they are then (stop - start, F)."""

    kind: str
    start: int
    stop: int
    x: Floats | None = None


class Sensor(NamedTuple):
    """One watched sensor: rows x (n, F) with the second of each, names of the columns, which of them are watched, how
    many rows may train, where the baseline ends, and what is wrong in the rest.
    """

    name: str
    x: Floats
    seconds: Whole
    names: tuple[str, ...]
    watched: tuple[str, ...]
    trained: int
    begin: int
    hop_s: float
    events: tuple[Event, ...] = ()

    @property
    def columns(self) -> list[int]:
        """Places of the watched columns."""
        return [self.names.index(name) for name in self.watched]

    @property
    def missing(self) -> Whole:
        """Rows missing before each."""
        return missing_before(self.seconds, self.hop_s)

    @property
    def days(self) -> float:
        """Healthy days that are watched."""
        documented = sum(each.stop - each.start for each in self.events if each.x is None)
        return (len(self.x) - self.begin - documented) * self.hop_s / SECONDS_PER_DAY


def load_sensors(chosen: SensorSet, data: Path, part: Part, seed: int) -> list[Sensor]:
    """Return the sensors of one part of a data set; raises `StudyError` where a file is missing."""
    sensors = list(_LOADERS[chosen.data](data / chosen.folder, part))
    if chosen.watched:
        sensors = [
            each._replace(name=f"{each.name} {name}", watched=(name,)) for each in sensors for name in chosen.watched
        ]
    return [_with_faults(each, chosen.faults, seed) for each in sensors]


def _with_faults(sensor: Sensor, each: int, seed: int) -> Sensor:
    """Return a sensor with faults of every kind, `each` of them, at random times after the baseline."""
    rng, events = generator(seed, 0, sensor.name), list(sensor.events)
    column, away = sensor.columns[0], round(SECONDS_PER_DAY / 2 / sensor.hop_s)
    deviation = float(sensor.x[: sensor.begin, column].std())
    healthy = min([len(sensor.x), *(event.start for event in sensor.events)])
    for kind in SENSOR_FAULTS * each:
        count = SPIKE_ROWS if kind == "spike" else round(LASTS_H[kind] * 3_600 / sensor.hop_s)
        start = int(rng.integers(sensor.begin + MARGIN_ROWS, healthy - count))
        rows = slice(start, start + count)
        faulty = sensor_fault(sensor.x[:healthy], column, rows, kind, deviation, rng, away=away)
        events.append(Event(kind, start, start + count, faulty[rows]))
    return sensor._replace(events=tuple(events))


def find_runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and stop of every run of true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int64)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _with_hours(sensor: Sensor, *, week: bool = False) -> Sensor:
    """Return a sensor with columns that tell the hour of the day, and of the `week` as well."""
    day, of_week = (2.0 * np.pi * (sensor.seconds % period) / period for period in PERIODS_S)
    angles = [*(k * day for k in range(1, HARMONICS + 1)), *[of_week] * week]
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    names = [f"{wave} {index}" for index in range(1, len(angles) + 1) for wave in ("sin", "cos")]
    return sensor._replace(x=np.column_stack([sensor.x, *waves]), names=(*sensor.names, *names))


def _load_rooms(folder: Path, part: Part) -> Iterator[Sensor]:
    rooms = load_rooms(folder, STEP_S, POSSIBLE_C, LEAST_ROWS)
    return map(_room, rooms[part == "reported" :: 2])


def _room(room: Room) -> Sensor:
    since = room.steps * STEP_S
    ends = np.searchsorted(since, [TRAIN_DAYS * SECONDS_PER_DAY, BASELINE_DAYS * SECONDS_PER_DAY]).tolist()
    x = room.x[:, [CHANNELS.index(name) for name in ROOM_NAMES]]
    return _with_hours(
        Sensor(room.name, x, room.first_s + since, ROOM_NAMES, ROOM_NAMES, ends[0], ends[1], float(STEP_S))
    )


def _load_pump(folder: Path, part: Part) -> Iterator[Sensor]:
    half = skab.FILES // 2
    for index in range(half) if part == "development" else range(half, skab.FILES):
        x, label, seconds = skab.read_pump(folder / "valve1" / f"{index}.csv.gz")
        events = tuple(Event("valve", start, stop) for start, stop in find_runs(label == 1))
        names, ends = skab.CHANNELS, (skab.TRAIN, skab.CALIBRATE)
        yield Sensor(f"valve1/{index}", x, seconds, names, names, *ends, 1.0, events)


def _load_temperature(folder: Path, part: Part) -> Iterator[Sensor]:
    name = NAB_SERIES[part]
    values, seconds, failures = nab.load_series(folder, name)
    hop_s = float(np.median(np.diff(seconds)))
    events = tuple(Event("failure", start, stop) for start, stop in failures)
    ends = int(NAB_TRAIN * len(values)), int(NAB_BASELINE * len(values))
    names = ("temperature",)
    yield _with_hours(Sensor(name, values[:, None], seconds, names, names, *ends, hop_s, events), week=True)


def _load_air(folder: Path, part: Part) -> Iterator[Sensor]:
    del part  # nothing is chosen on it
    frame = hvac.read_unit(folder / hvac.UNITS["multi-zone"])
    apart = [hvac.TIME, hvac.TRUTH, hvac.KIND, hvac.INTENSITY, hvac.SECOND]
    points = frame.drop(columns=apart, errors="ignore").dropna(axis=1)
    x, steps = binned(frame[hvac.SECOND].to_numpy() // STEP_S, points.to_numpy(dtype=np.float64))
    seconds, days = steps * STEP_S, steps * STEP_S // SECONDS_PER_DAY
    kind = frame[hvac.KIND].to_numpy()[np.searchsorted(frame[hvac.SECOND], seconds)]
    share = pd.Series(kind != hvac.HEALTHY).groupby(days).transform("mean")
    order = np.concatenate([np.flatnonzero(share == 0.0), np.flatnonzero(share == 1.0)])
    x, seconds, days, kind = x[order], seconds[order], days[order], kind[order]
    faulty = dict.fromkeys(days[kind != hvac.HEALTHY].tolist())
    events = tuple(Event(kind[start], start, stop) for day in faulty for start, stop in find_runs(days == day))
    begin = int(np.searchsorted(pd.factorize(days)[0], BASELINE_DAYS))
    moves = x.std(axis=0) > 0.0
    names, ends = tuple(points.columns[moves]), (begin * TRAIN_DAYS // BASELINE_DAYS, begin)
    yield _with_hours(Sensor("mzvav", x[:, moves], seconds, names, names, *ends, float(STEP_S), events))


_LOADERS: Mapping[str, Callable[[Path, Part], Iterator[Sensor]]] = MappingProxyType(
    {"keti": _load_rooms, "skab": _load_pump, "nab": _load_temperature, "hvac": _load_air}
)
