"""Tasks that may need a memory: two generated ones that are standard, four on recorded streams.

    narma          y(t+1) = 0.3 y(t) + 0.05 y(t) Σ y(t-i) + 1.5 u(t-9) u(t) + 0.1, i = 0..9, from u
                   (Atiya and Parlos 2000)
    mackey-glass   dx/dt = 0.2 x(t-17) / (1 + x(t-17)^10) - 0.1 x, `ahead` steps on, from x (Jaeger and Haas 2004)
    air handling   the supply air's temperature from the other points of the unit, one a minute
    bearing        which of seven conditions a bearing is in, from two raw accelerations at 12 kHz
    occupancy      whether somebody is in the room, from CO2, humidity and temperature, one a minute
    pump           whether the valve is closed, from eight sensors of a pump, one a second

Each is cut into rows that train, rows that choose and rows that are reported, one after the other in time or by file.
"""

from __future__ import annotations

import csv
import gzip
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.firmware_sim.studies.esn_memory.options import TaskOptions
from fedgate.firmware_sim.studies.esn_streams.data import SKAB_FILES, SKAB_TRAIN, skab_rows
from fedgate.models.arrays import NEW_SERIES, Floats

TRAIN, CHOOSE, REPORT = 0, 1, 2
SHARES = (0.6, 0.8)  # of a series: until where it trains, until where it chooses

STEPS_PER_UNIT, DELAY = 10, 17  # of the Mackey-Glass equation, integrated by Euler's rule
SETTLE_STEPS = 3_000
BEARING_FILES = ("normal", "ball_007", "inner_007", "outer6_007", "ball_021", "inner_021", "outer6_021")
BEARING_EVERY, BEARING_ROWS, BEARING_WINDOW = 4, 15_000, 250  # 48 kHz to 12 kHz; 1.25 s of each; judged every 21 ms
AIR_FILE, AIR_TARGET, AIR_FAULT, HEALTHY = "mzvav_2_1.csv.gz", "AHU: Supply Air Temperature", "Fault Type", "none"
AIR_INPUTS = (
    "AHU: Outdoor Air Temperature",
    "AHU: Mixed Air Temperature",
    "AHU: Return Air Temperature",
    "AHU: Supply Air Fan Status",
    "AHU: Supply Air Fan Speed Control Signal",
    "AHU: Return Air Fan Speed Control Signal",
    "AHU: Exhaust Air Damper Control Signal",
    "AHU: Outdoor Air Damper Control Signal",
    "AHU: Return Air Damper Control Signal",
    "AHU: Cooling Coil Valve Control Signal",
    "AHU: Heating Coil Valve Control Signal",
    "AHU: Supply Air Duct Static Pressure",
    "Occupancy Mode Indicator",
)
ROOM_INPUTS, ROOM_TARGET = ("Temperature", "Humidity", "CO2"), "Occupancy"
PUMP_CHOOSE, PUMP_REPORT = 6, 8  # the first file that chooses, and that is reported


class Task(NamedTuple):
    """Inputs (n, I) in units of the training rows, targets (n, c), rows missing before each, and what a row is for.

    Of a classification the targets are one-hot, and rows of one `window` (n,) are judged together. `last` (n,) is what
    the target was a step before, where it is known then; no model sees it.
    """

    inputs: Floats
    targets: Floats
    missing: NDArray[np.int64]
    part: NDArray[np.int64]
    window: NDArray[np.int64] | None = None
    last: Floats | None = None


def task(options: TaskOptions, folder: Path, rng: np.random.Generator) -> Task:
    """Return a task; only generated ones draw from `rng`. Raises `StudyError` where a file is missing."""
    if options.kind == "narma":
        return _generated(*narma(options.rows, rng))
    if options.kind == "mackey-glass":
        x = mackey_glass(options.rows + options.ahead, rng)
        return _generated(x[: options.rows], x[options.ahead :], x[: options.rows])
    found = {"air handling": _air, "bearing": _bearing, "occupancy": _occupancy, "pump": _pump}[options.kind]
    return found(folder)


def narma(count: int, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Return input u, uniform from 0 to 0.5, the output it has at once, and the output before (n,)."""
    u, y = rng.uniform(0.0, 0.5, count), np.zeros(count + 1)
    for t in range(9, count):
        y[t + 1] = 0.3 * y[t] + 0.05 * y[t] * y[t - 9 : t + 1].sum() + 1.5 * u[t - 9] * u[t] + 0.1
    return u, y[1:], y[:-1]


def mackey_glass(count: int, rng: np.random.Generator) -> Floats:
    """Return the series x (n,), one value a unit of time, from a start near 1.2."""
    delay, steps = DELAY * STEPS_PER_UNIT, (SETTLE_STEPS + count) * STEPS_PER_UNIT
    x = np.empty(delay + steps)
    x[: delay + 1] = 1.2 + 0.2 * (rng.random(delay + 1) - 0.5)
    for t in range(delay, len(x) - 1):
        late = x[t - delay]
        x[t + 1] = x[t] + (0.2 * late / (1.0 + late**10) - 0.1 * x[t]) / STEPS_PER_UNIT
    return np.asarray(x[-count * STEPS_PER_UNIT :: STEPS_PER_UNIT])


def _generated(u: Floats, y: Floats, last: Floats) -> Task:
    part = in_time(len(u))
    missing = np.zeros(len(u), dtype=np.int64)
    missing[0] = NEW_SERIES
    return _scaled(u[:, None], y, missing, part, last)


def in_time(count: int) -> NDArray[np.int64]:
    """Return the parts of a series (n,): the start trains, what follows chooses, the end is reported."""
    place = np.arange(count) / count
    return np.select([place < SHARES[0], place < SHARES[1]], [TRAIN, CHOOSE], REPORT).astype(np.int64)


def _scaled(x: Floats, y: Floats, missing: NDArray[np.int64], part: NDArray[np.int64], last: Floats) -> Task:
    """Return a regression in units of the training rows; a column that never moves there stays as it is."""
    inputs = _standard(x, part == TRAIN)
    center, scale = y[part == TRAIN].mean(), y[part == TRAIN].std()
    return Task(inputs, ((y - center) / scale)[:, None], missing, part, last=(last - center) / scale)


def _standard(x: Floats, head: NDArray[np.bool_]) -> Floats:
    deviation = x[head].std(axis=0)
    return np.asarray((x - x[head].mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0))


def _table(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.is_file():
        raise StudyError(f"{path.name} is missing in {path.parent}; expected the recordings of this study there")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header = next(csv.reader(file))
        lines = list(csv.reader(file))
    names = header if len(lines[0]) == len(header) else ["row", *header]  # one set names no column of row numbers
    absent = [name for name in columns if name not in names]
    if absent:
        raise StudyError(f"{path}: column {absent[0]!r} is missing; found {', '.join(names)}")
    return [dict(zip(names, line, strict=True)) for line in lines]


@lru_cache(maxsize=1)
def _air(folder: Path) -> Task:
    """Return the healthy days of the multi-zone unit, which lie in all seasons: of every four the first two train, the
    third chooses, the last is reported.
    """
    lines = _table(folder / AIR_FILE, (*AIR_INPUTS, AIR_TARGET, AIR_FAULT, "Datetime"))
    lines = [line for line in lines if line[AIR_FAULT] == HEALTHY]
    minutes = np.array([np.datetime64(line["Datetime"], "m") for line in lines]).astype(np.int64)
    days = np.unique(minutes // 1_440, return_inverse=True)[1]
    part = np.array([TRAIN, TRAIN, CHOOSE, REPORT])[days % 4]
    x = np.array([[float(line[name]) for name in AIR_INPUTS] for line in lines])
    y = np.array([float(line[AIR_TARGET]) for line in lines])
    changes = np.diff(part) != 0  # a network must not carry a state from the days that train into those that choose
    missing = np.concatenate([[NEW_SERIES], np.where(changes, NEW_SERIES, np.diff(minutes) - 1)])
    return _scaled(x, y, missing, part, np.concatenate([y[:1], y[:-1]]))


@lru_cache(maxsize=1)
def _bearing(folder: Path) -> Task:
    """Return seven recordings one after the other, each of them a class, cut in time."""
    from scipy.signal import decimate

    parts = []
    for index, name in enumerate(BEARING_FILES):
        path = folder / f"{name}.npz"
        if not path.is_file():
            raise StudyError(f"{path.name} is missing in {folder}; expected the bearing recordings there")
        with np.load(path) as file:
            values = file["acc"][: BEARING_ROWS * BEARING_EVERY] * file["scale"]
        thin = np.asarray(decimate(values - values.mean(axis=0), BEARING_EVERY, axis=0))
        count = len(thin) // BEARING_WINDOW * BEARING_WINDOW
        part = np.repeat(in_time(count // BEARING_WINDOW), BEARING_WINDOW)
        parts.append((thin[:count], np.full(count, index), part))
    x, y, part = (np.concatenate(column) for column in zip(*parts, strict=True))
    missing = np.concatenate([[NEW_SERIES], np.where(np.diff(y) != 0, NEW_SERIES, 0)])
    x = x / x[part == TRAIN].std(axis=0)  # one scale for all: a gateway does not know the class
    return Task(x, np.eye(len(BEARING_FILES))[y], missing, part, np.arange(len(x)) // BEARING_WINDOW)


@lru_cache(maxsize=1)
def _occupancy(folder: Path) -> Task:
    """Return the training file, of which the end chooses, and the test file, which is reported."""
    wanted = (*ROOM_INPUTS, ROOM_TARGET)
    first, second = (_table(folder / f"{name}.csv.gz", wanted) for name in ("datatraining", "datatest"))
    x = np.array([[float(line[name]) for name in ROOM_INPUTS] for line in (*first, *second)])
    y = np.array([int(line[ROOM_TARGET]) for line in (*first, *second)])
    chooses = np.arange(len(first)) >= SHARES[0] * len(first)
    part = np.concatenate([np.where(chooses, CHOOSE, TRAIN), np.full(len(second), REPORT)])
    missing = np.zeros(len(x), dtype=np.int64)
    missing[[0, len(first)]] = NEW_SERIES
    return Task(_standard(x, part == TRAIN), np.eye(2)[y], missing, part, np.arange(len(x)))


@lru_cache(maxsize=1)
def _pump(folder: Path) -> Task:
    """Return the files one after the other, each in units of its own healthy head."""
    parts = []
    for index in range(SKAB_FILES):
        x, label, seconds = skab_rows(folder / "valve1" / f"{index}.csv.gz")
        use = TRAIN if index < PUMP_CHOOSE else CHOOSE if index < PUMP_REPORT else REPORT
        missing = np.concatenate([[NEW_SERIES], np.maximum(np.diff(seconds) - 1, 0)])
        parts.append((_standard(x, np.arange(len(x)) < SKAB_TRAIN), label, missing, np.full(len(x), use)))
    x, label, missing, part = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Task(x, np.eye(2)[label], missing, part, np.arange(len(x)))
