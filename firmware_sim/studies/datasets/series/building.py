"""Recordings of smart buildings as streams of steps, each with its part in a study, and the windows of them.

A part is an inner fold of the steps that train, by which settings are chosen, or what is reported; no step is both.
Where a value is forecast the end of the steps that train is a part of its own, so that settings are chosen on days
after those that an inner training saw, as what is reported is after all of them.

keti           CO2, humidity, light, motion, temperature and the time of day; means of 15 min, a gateway for each room.
               Every third room never trains. Of all others the first 80 % of the time trains, and of all rooms the
               last 20 % is reported. Inner folds are rooms.
room climate   location_A.npz, location_C.npz: four and five sensor nodes in two rooms, each a gateway; is somebody
               there? Even runs train, odd ones are reported. Inner folds are runs (Morgner et al., ESORICS 2017).
three rooms    the same and the office of datatraining.csv.gz, datatest.csv.gz (Candanedo and Feldheim, Energy and
               Buildings 112 (2016) 28), by what all three have; one room is left out and reported. Inner folds are the
               two rooms that are not.
air handlers   two units, their common points, means of 3 min; is the day one of those with a fault? Days train and are
               reported in turn, healthy and faulty ones each for itself. One unit has a single healthy day, which is
               cut into blocks of hours: there a healthy block that is reported lies between two that train. `by day`
               each day is a gateway, and so has seen one class alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.datasets.series import hvac
from fedgate.firmware_sim.studies.datasets.series.files import (
    SECONDS_PER_DAY,
    Whole,
    binned,
    missing_before,
    read_arrays,
    read_table,
    seconds_of,
)
from fedgate.firmware_sim.studies.datasets.series.keti import Room, load_rooms
from fedgate.models.arrays import FEATURES, NEW_SERIES, Floats
from fedgate.models.federated.protocol.algorithm import normalise

DataSet = Literal["keti", "room climate", "three rooms", "air handlers", "air handlers by day"]
LeftOut = Literal["", "A", "C", "office"]  # of the three rooms

REPORT, IGNORED = -1, -2  # parts beside the inner folds 0, 1
FOLDS = 2
LATER = FOLDS  # added to the fold of what comes after all days of the folds 0, 1
BETWEEN = 2 * FOLDS  # days of the folds 0, 1 whose values are later ones: they only train in the end
TRAINS = tuple(range(BETWEEN + 1))
MAX_GAP = 2  # missing steps that are bridged, as in the networks' default; more begin a new series

CLIP, AIR_CLIP = 6.0, 8.0  # of a channel's own deviations
KETI_STEP_S, KETI_LEAST_STEPS, KETI_POSSIBLE_C = 900, 400, (10.0, 40.0)
KETI_EARLY, KETI_TRAINS, KETI_HELD_OUT = 0.6, 0.8, 3  # shares of the time; every so many rooms one never trains
SITES = ("A", "C")
NODE_STEP_S, ROOM_STEP_S = 30, 60
RUN_STEPS = 1_000_000  # more than a run has
CHANGE_S = 600  # a step also holds how far it is from the one so long before
OFFICE, OFFICE_COLUMNS = "office", ["Temperature", "Humidity", "Light", "Occupancy"]
AIR_POINTS = (
    "AHU: Outdoor Air Temperature",  # column 0: the weather
    "AHU: Supply Air Temperature",
    "AHU: Mixed Air Temperature",
    "AHU: Return Air Temperature",
    "AHU: Supply Air Fan Status",
    "AHU: Supply Air Fan Speed Control Signal",
    "AHU: Outdoor Air Damper Control Signal",
    "AHU: Return Air Damper Control Signal",
    "AHU: Exhaust Air Damper Control Signal",
    "AHU: Cooling Coil Valve Control Signal",
    "AHU: Heating Coil Valve Control Signal",
    "Occupancy Mode Indicator",
)
AIR_STEP_S, BLOCK_S = 180, 7_200


class Stream(NamedTuple):
    """One sensor's steps in units of its own: values z (m, C), steps missing before each, what is to be told y (m,),
    nan where nobody knows, and the part (m,) of each.

    `gateway` is who holds it in a training, `place` where it is. Of a place that is not `seen` no step trains.
    """

    gateway: str
    place: str
    z: Floats
    missing: Whole
    y: Floats
    part: Whole
    seen: bool = True


class Windows(NamedTuple):
    """Windows of a stream by the step (n,) at which each ends."""

    stream: Stream
    at: Whole

    @property
    def y(self) -> Floats:
        """What is to be told (n,)."""
        return np.asarray(self.stream.y[self.at])

    def rows(self, before: int, after: int = 0) -> Floats:
        """Return `before` steps up to each end and `after` behind it as rows (n, C * T), channel after channel."""
        at = self.at[:, None] + np.arange(1 - before, after + 1)  # (n, T)
        return np.asarray(self.stream.z[at].transpose(0, 2, 1).reshape(len(at), -1))


def cut_windows(stream: Stream, parts: Collection[int], steps: int, every: int = 1) -> Windows:
    """Return the windows of so many steps that lie in one series, whose y is known and whose end is in `parts`; one in
    `every` of them.
    """
    place = pd.Series(stream.y).groupby(number_series(stream.missing)).cumcount()
    known = (place >= steps - 1) & np.isfinite(stream.y) & np.isin(stream.part, list(parts))
    return Windows(stream, np.flatnonzero(known)[::every])


def number_series(missing: Whole) -> Whole:
    """Return the number (m,) of the series that each step belongs to."""
    return np.cumsum((missing == NEW_SERIES) | (missing > MAX_GAP))


def take_later(values: Floats, missing: Whole, horizon: int) -> Floats:
    """Return what values (m,) are `horizon` steps later, nan where that is beyond the series."""
    return np.asarray(pd.Series(values).groupby(number_series(missing)).shift(-horizon), dtype=np.float64)


def in_units_of(x: Floats, commissioning: NDArray[np.bool_], clip: float) -> Floats:
    """Return rows (m, C) in units of the commissioning rows among them, clipped."""
    own, _ = normalise({}, {FEATURES: x[commissioning]}, "own")
    return np.asarray(np.clip(normalise(own, {FEATURES: x}, "own")[1], -clip, clip))


@lru_cache(maxsize=4)
def load_streams(name: DataSet, folder: Path, horizon: int = 0, left_out: LeftOut = "") -> tuple[Stream, ...]:
    """Return the streams of a data set; y is a class, or of `keti` the CO2 `horizon` steps later.

    Raises:
        OSError: a file is missing.
        StudyError: one is laid out otherwise, or there are too few rooms.
    """
    if name == "keti":
        rooms = load_rooms(folder, KETI_STEP_S, KETI_POSSIBLE_C, KETI_LEAST_STEPS)
        return tuple(_room(room, index, horizon) for index, room in enumerate(rooms))
    if name == "room climate":
        return tuple(_nodes(folder / "room_climate", NODE_STEP_S, lights=2))
    if name == "three rooms":
        return tuple(_three_rooms(folder, left_out))
    units = (_unit(unit, folder / file) for unit, file in hvac.UNITS.items())
    return tuple(each for unit in units for each in (_days(unit) if name == "air handlers by day" else [unit]))


def _room(room: Room, index: int, horizon: int) -> Stream:
    bins, end = room.steps, room.steps[-1] + 1
    early, cut = int(KETI_EARLY * end), int(KETI_TRAINS * end)
    z, missing = in_units_of(room.x, bins < cut, CLIP), missing_before(bins)
    target = bins + horizon  # no value of later days is one before them
    seen, fold = index % KETI_HELD_OUT != KETI_HELD_OUT - 1, index % KETI_HELD_OUT % FOLDS
    ends = [bins >= cut, (bins >= early) & (target < cut) & seen, (target < early) & seen, (target < cut) & seen]
    part = np.select(ends, [REPORT, fold + LATER, fold, BETWEEN], IGNORED)
    angle = 2.0 * np.pi * ((room.first_s + bins * KETI_STEP_S) % SECONDS_PER_DAY) / SECONDS_PER_DAY
    y = take_later(z[:, 0], missing, horizon)
    return Stream(room.name, room.name, np.column_stack([z, np.sin(angle), np.cos(angle)]), missing, y, part, seen)


def _nodes(folder: Path, step_s: int, lights: int) -> Iterable[Stream]:
    for site in SITES:
        names = "measurement", "t_ms", "node", "x", "occupants"
        run, t_ms, node, x, occupants = read_arrays(folder / f"location_{site}.npz", *names)
        x = np.column_stack([x[:, : 2 + lights].astype(np.float64), occupants > 0])
        for each in np.unique(node):
            of = node == each
            bins = _since_begin(run[of], t_ms[of]) // (1_000 * step_s)
            yield _occupancy(f"{site}{each}", run[of].astype(np.int64), bins, x[of], step_s)


def _since_begin(run: Whole, t: Whole) -> Whole:
    """Return the time (n,) since the first row of the same run."""
    _, first, of = np.unique(run, return_index=True, return_inverse=True)
    return np.asarray(t - t[first][of])


def _occupancy(name: str, run: Whole, bins: Whole, x: Floats, step_s: int) -> Stream:
    """Return runs one after the other, in units of those that train, with what has changed in each channel beside it.

    Rows (n, C) are temperature, humidity, lights, and whether anybody is there; each has the number of its run and of
    its step in that. Of the runs that train two in turn are of the same fold.
    """
    x[:, 2:-1] = np.log1p(np.maximum(x[:, 2:-1], 0.0))
    means, steps = binned(run * RUN_STEPS + bins, x)
    z, y, run = means[:, :-1], (means[:, -1] > 0.5).astype(np.float64), steps // RUN_STEPS
    first, trains, place = np.searchsorted(run, run), run % 2 == 0, np.arange(len(run))
    changes = z - z[np.maximum(place - CHANGE_S // step_s, first)]
    missing = np.where(place == first, NEW_SERIES, missing_before(steps))
    part = np.where(trains, run // 2 % FOLDS, REPORT)
    return Stream(name, name, in_units_of(np.column_stack([z, changes]), trains, CLIP), missing, y, part)


def _three_rooms(folder: Path, left_out: LeftOut) -> Iterable[Stream]:
    """Yield the streams of three rooms, of which one alone is reported and the others are the inner folds."""
    others = [room for room in (*SITES, OFFICE) if room != left_out]
    for stream in (*_nodes(folder / "room_climate", ROOM_STEP_S, lights=1), _office(folder / "uci_occupancy")):
        room = stream.place if stream.place == OFFICE else stream.place[0]
        fold, reported = (IGNORED, REPORT) if room == left_out else (others.index(room), IGNORED)
        yield stream._replace(part=np.where(stream.part == REPORT, reported, fold), seen=room != left_out)


def _office(folder: Path) -> Stream:
    """Return the office: the file of the training trains, that of the test is reported."""
    frames = [read_table(folder / f"{name}.csv.gz", "date", *OFFICE_COLUMNS) for name in ("datatraining", "datatest")]
    run = np.repeat([0, 1], [len(frame) for frame in frames])
    frame = pd.concat(frames)
    since = _since_begin(run, seconds_of(frame["date"]))
    bins = np.round(since / ROOM_STEP_S).astype(np.int64)  # stamps are within a second of the minute
    return _occupancy(OFFICE, run, bins, frame[OFFICE_COLUMNS].to_numpy(dtype=np.float64), ROOM_STEP_S)


def _unit(unit: str, path: Path) -> Stream:
    frame = hvac.read_unit(path, *AIR_POINTS)
    points = [*AIR_POINTS, hvac.TRUTH]  # an empty cell holds the value before
    means, steps = binned(frame[hvac.SECOND].to_numpy() // AIR_STEP_S, frame[points].ffill().to_numpy(dtype=np.float64))
    means, y = means[:, :-1], means[:, -1]
    part, block = _parts(steps * AIR_STEP_S, y)
    missing = np.where(np.diff(block, prepend=-1) != 0, NEW_SERIES, missing_before(steps))
    return Stream(unit, unit, in_units_of(means, (part != REPORT) & (y == 0.0), AIR_CLIP), missing, y, part)


def _parts(seconds: Whole, y: Floats) -> tuple[Whole, Whole]:
    """Return the part of each step and the number of the series it belongs to: a day, or a block of a day that is the
    only one of its class.
    """
    day, hours = seconds // SECONDS_PER_DAY, seconds % SECONDS_PER_DAY // BLOCK_S
    part, block = np.empty(len(y), dtype=np.int64), day * (SECONDS_PER_DAY // BLOCK_S)
    for label in (0.0, 1.0):
        of = y == label
        rank = pd.factorize(day[of])[0]
        if rank.max() == 0:
            rank, block = hours[of], np.where(of, block + hours, block)
        part[of] = np.where(rank % 2 == 0, rank // 2 % FOLDS, REPORT)
    return part, block


def _days(whole: Stream) -> Iterable[Stream]:
    """Yield a stream for each day, or block of one."""
    days = np.cumsum(whole.missing == NEW_SERIES)
    for day in np.unique(days):
        of = days == day
        columns = (column[of] for column in (whole.z, whole.missing, whole.y, whole.part))
        yield Stream(f"{whole.gateway}, {day}", whole.place, *columns)
