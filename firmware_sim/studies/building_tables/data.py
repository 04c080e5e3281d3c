"""The recordings behind the tables of smart buildings, as streams with their parts.

keti           room413.npz ..: CO2, humidity, light, motion, temperature, means of 15 min; a gateway for each room.
               Every third room never trains. Of all others the first 80 % of the time trains, and of all rooms the
               last 20 % is reported. Inner folds are rooms.
room climate   location_A.npz, location_C.npz: four and five sensor nodes in two rooms, each a gateway; is somebody
               there? Even runs train, odd ones are reported. Inner folds are runs.
three rooms    the same and the office of datatraining.csv.gz, datatest.csv.gz, by what all three have; one room is
               left out. Inner folds are the two rooms that are not.
air handlers   mzvav_2_1.csv.gz, szcav.csv.gz: two units, their common points, means of 3 min; is the day one of
               those with a fault? Days train and are reported in turn, healthy and faulty ones each for itself.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.building_tables.air import air_streams
from fedgate.firmware_sim.studies.building_tables.files import arrays, binned, gaps, table
from fedgate.firmware_sim.studies.building_tables.streams import (
    BETWEEN,
    FOLDS,
    IGNORED,
    LATER,
    REPORT,
    Steps,
    Stream,
    Task,
    later,
    own_units,
)
from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.models.arrays import Floats

DataSet = Literal["keti", "room climate", "three rooms", "air handlers", "air handlers by day"]

CLIP = 6.0  # of a channel's own deviations
SECONDS_PER_DAY = 86_400

KETI_STEP_S, KETI_LEAST_STEPS = 900, 400
KETI_LIGHT, KETI_MOTION, KETI_TEMPERATURE = 2, 3, 4
KETI_POSSIBLE_C = (10.0, 40.0)  # one sensor reports 394 degrees
KETI_EARLY, KETI_TRAINS, KETI_HELD_OUT = 0.6, 0.8, 3  # shares of the time; every so many rooms one never trains

SITES = ("A", "C")
SITE_LIGHTS = (2, 3)
CHANGE_S = 600  # a step also holds how far it is from the one so long before
OFFICE = "office"
OFFICE_STEP_S = 60
OFFICE_COLUMNS = ("Temperature", "Humidity", "Light", "Occupancy")


def load(
    name: DataSet, folder: Path, window: int, horizon: int, every: int, left_out: str, change: bool = True
) -> Task:
    """Return a task; raises `StudyError` where a file is missing or laid out otherwise."""
    if name == "keti":
        return Task(_keti(folder, horizon), window, horizon, every, SECONDS_PER_DAY // KETI_STEP_S, change)
    if name in ("air handlers", "air handlers by day"):
        return Task(air_streams(folder, by_day=name == "air handlers by day"), window, 0, every)
    if name == "room climate":
        return Task(_sites(folder / "room_climate", 30, all_lights=True), window, 0, every)
    return Task(_three_rooms(folder, left_out), window, 0, every)


@lru_cache(maxsize=2)
def _keti(folder: Path, horizon: int) -> tuple[Stream, ...]:
    found = [(path.stem, *_keti_room(path)) for path in sorted(folder.glob("room*.npz"))]
    rooms = [each for each in found if each[2][-1] >= KETI_LEAST_STEPS]
    if len(rooms) < 2 * KETI_HELD_OUT:
        raise StudyError(f"{folder}: {len(rooms)} rooms of {KETI_LEAST_STEPS} steps; expected {2 * KETI_HELD_OUT}")
    streams: list[Stream] = []
    for index, (name, x, bins) in enumerate(rooms):
        seen = index % KETI_HELD_OUT != KETI_HELD_OUT - 1
        cut = int(KETI_TRAINS * (bins[-1] + 1))
        angle = 2.0 * np.pi * x[:, -1] / SECONDS_PER_DAY
        z = own_units(x[:, :-1], bins < cut, CLIP)
        missing = gaps(bins)
        y = later(z[:, 0], missing, horizon)
        early = int(KETI_EARLY * (bins[-1] + 1))
        fold = index % KETI_HELD_OUT % FOLDS
        target = bins + horizon  # no value of later days is one before them
        ends = [bins >= cut, (bins >= early) & (target < cut) & seen, (target < early) & seen, (target < cut) & seen]
        part = np.select(ends, [REPORT, fold + LATER, fold, BETWEEN], IGNORED)
        z = np.column_stack([z, np.sin(angle), np.cos(angle)])
        streams.append(Stream(name, name, z, missing, y, part, seen))
    return tuple(streams)


def _keti_room(path: Path) -> tuple[Floats, Steps]:
    """Return steps (m, 6), the last column the second of the day, and the number of each."""
    file = arrays(path, ("t", "x"))
    t_s, x = file["t"].astype(np.float64), file["x"].astype(np.float64)
    x[:, KETI_LIGHT] = np.log1p(np.maximum(x[:, KETI_LIGHT], 0.0))
    x[:, KETI_MOTION] = x[:, KETI_MOTION] > 0.0
    x[:, KETI_TEMPERATURE] = np.clip(x[:, KETI_TEMPERATURE], *KETI_POSSIBLE_C)
    means, bins = binned((t_s - t_s[0]) // KETI_STEP_S, x)
    return np.column_stack([means, (t_s[0] + bins * KETI_STEP_S) % SECONDS_PER_DAY]), bins


class _Run(NamedTuple):
    """One recording of one node: means (m, C), their numbers, whether somebody was there, and its number."""

    x: Floats
    bins: Steps
    y: Floats
    number: int


@lru_cache(maxsize=2)
def _sites(folder: Path, step_s: int, *, all_lights: bool) -> tuple[Stream, ...]:
    streams = []
    for site in SITES:
        names = ("measurement", "t_ms", "node", "x", "occupants")
        file = arrays(folder / f"location_{site}.npz", names)
        for node in np.unique(file["node"]):
            mine = {name: file[name][file["node"] == node] for name in names}
            runs = [_site_run(mine, int(run), step_s, all_lights=all_lights) for run in np.unique(mine["measurement"])]
            name = f"{site}{int(node)}"
            streams.append(_occupancy(name, name, runs, CHANGE_S // step_s))
    return tuple(streams)


def _site_run(mine: dict[str, NDArray[Any]], run: int, step_s: int, *, all_lights: bool) -> _Run:
    rows = mine["measurement"] == run
    x, there = mine["x"][rows].astype(np.float64), mine["occupants"][rows] > 0
    lights = list(SITE_LIGHTS if all_lights else SITE_LIGHTS[:1])
    x = np.column_stack([x[:, :2], np.log1p(np.maximum(x[:, lights], 0.0)), there])
    t_ms = mine["t_ms"][rows]
    means, bins = binned((t_ms - t_ms[0]) // (1_000 * step_s), x)
    return _Run(means[:, :-1], bins, (means[:, -1] > 0.5).astype(np.float64), run)


def _occupancy(gateway: str, place: str, runs: list[_Run], change: int) -> Stream:
    """Return runs one after the other, in units of those that train, with what has changed in each channel beside it.

    Of the runs that train two in turn are of the same fold.
    """
    x = np.concatenate([each.x for each in runs])
    missing = np.concatenate([gaps(each.bins) for each in runs])
    index = np.concatenate([np.full(len(each.x), each.number) for each in runs])
    trains = index % 2 == 0
    part = np.where(trains, index // 2 % FOLDS, REPORT)
    before = np.concatenate([np.maximum(np.arange(len(each.x)) - change, 0) - np.arange(len(each.x)) for each in runs])
    changes = x - x[np.arange(len(x)) + before]
    z = own_units(np.column_stack([x, changes]), trains, CLIP)
    return Stream(gateway, place, z, missing, np.concatenate([each.y for each in runs]), part)


def _three_rooms(folder: Path, left_out: str) -> tuple[Stream, ...]:
    streams = [*_sites(folder / "room_climate", OFFICE_STEP_S, all_lights=False), _office(folder / "uci_occupancy")]
    rooms = list(dict.fromkeys(_room(stream) for stream in streams))
    if left_out not in rooms:
        raise StudyError(f"room {left_out!r} is to be left out; expected one of {', '.join(rooms)}")
    others = [room for room in rooms if room != left_out]
    found = []
    for stream in streams:
        seen = _room(stream) != left_out
        fold = others.index(_room(stream)) if seen else IGNORED
        part = np.where(stream.part == REPORT, REPORT, fold)
        found.append(stream._replace(part=part, seen=seen))
    return tuple(found)


def _room(stream: Stream) -> str:
    return stream.place if stream.place == OFFICE else stream.place[0]


@lru_cache(maxsize=1)
def _office(folder: Path) -> Stream:
    """Return the office: the file of the training trains, that of the test is reported."""
    runs = []
    for index, name in enumerate(("datatraining", "datatest")):
        lines = table(folder / f"{name}.csv.gz", ("date", *OFFICE_COLUMNS))
        t_s = np.array([np.datetime64(line["date"].replace(" ", "T"), "s") for line in lines]).astype(np.float64)
        x = np.array([[float(line[column]) for column in OFFICE_COLUMNS] for line in lines])
        x[:, 2] = np.log1p(x[:, 2])
        means, bins = binned(np.round((t_s - t_s[0]) / OFFICE_STEP_S), x)  # stamps are within a second of the minute
        runs.append(_Run(means[:, :-1], bins, (means[:, -1] > 0.5).astype(np.float64), index))
    return _occupancy(OFFICE, OFFICE, runs, CHANGE_S // OFFICE_STEP_S)
