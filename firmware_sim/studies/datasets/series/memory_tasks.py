"""Tasks that may need a memory: two generated ones that are standard, four on recorded streams.

    NARMA-10                  y(t+1) = 0.3 y(t) + 0.05 y(t) Σ y(t-i) + 1.5 u(t-9) u(t) + 0.1, i = 0..9, from u
                              (Atiya and Parlos 2000)
    Mackey-Glass, 84 steps    dx/dt = 0.2 x(t-17) / (1 + x(t-17)^10) - 0.1 x, 84 steps on, from x (Jaeger and Haas 2004)
    ahead
    supply air temperature    from the other points of an air handling unit, one a minute
    bearing condition         which of seven conditions a bearing is in, from two raw accelerations at 12 kHz
    room occupied             whether somebody is in the room, from CO2, humidity and temperature, one a minute
    pump valve closed         whether the valve is closed, from eight sensors of a pump, one a second

Each is cut into rows that train, rows that choose and rows that are reported, one after the other in time or by file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.datasets.series import bridges, hvac, skab
from fedgate.firmware_sim.studies.datasets.series.files import SECONDS_PER_DAY, Whole, missing_before, read_table
from fedgate.models.arrays import NEW_SERIES, Floats

Recorded = Literal["supply air temperature", "bearing condition", "room occupied", "pump valve closed"]
Generated = Literal["NARMA-10", "Mackey-Glass, 84 steps ahead"]
TRAIN, CHOOSE, REPORT = 0, 1, 2
SHARES = (0.6, 0.8)  # of a series: until where it trains, until where it chooses

AHEAD, STEPS_PER_UNIT, DELAY, SETTLE_STEPS = 84, 10, 17, 3_000  # of the Mackey-Glass equation, by Euler's rule
AIR_TARGET = "AHU: Supply Air Temperature"
AIR_INPUTS = [
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
]
BEARING_STATES = ("normal", "ball_007", "inner_007", "outer6_007", "ball_021", "inner_021", "outer6_021")
BEARING_EVERY, BEARING_ROWS, BEARING_WINDOW = 4, 15_000, 250  # 48 kHz to 12 kHz; 1.25 s of each; judged every 21 ms
ROOM_INPUTS, ROOM_TARGET = ["Temperature", "Humidity", "CO2"], "Occupancy"
PUMP_CHOOSE, PUMP_REPORT = 6, 8  # the first file that chooses, and that is reported


class Task(NamedTuple):
    """Inputs (n, I) in units of the training rows, targets (n, c), rows missing before each, and what a row is for.

    Of a classification the targets are one-hot, and rows of one `window` (n,) are judged together. `last` (n,) is what
    the target was a step before, where it is known then; no model sees it.
    """

    inputs: Floats
    targets: Floats
    missing: Whole
    part: Whole
    window: Whole | None = None
    last: Floats | None = None


def load(name: Recorded | Generated, data: Path, rows: int, rng: np.random.Generator) -> Task:
    """Return a task; only generated ones, of so many rows, draw from `rng`.

    Raises:
        StudyError: a file or one of its columns is missing.
    """
    if name == "NARMA-10":
        return _generated(*narma(rows, rng))
    if name == "Mackey-Glass, 84 steps ahead":
        x = mackey_glass(rows + AHEAD, rng)
        return _generated(x[:rows], x[AHEAD:], x[:rows])
    return _RECORDED[name](data / "streams")


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
    return _regression(u[:, None], y, missing_before(np.arange(len(u))), cut_in_time(len(u)), last)


def cut_in_time(count: int) -> Whole:
    """Return the parts of a series (n,): the start trains, what follows chooses, the end is reported."""
    place = np.arange(count) / count
    return np.select([place < SHARES[0], place < SHARES[1]], [TRAIN, CHOOSE], REPORT).astype(np.int64)


def _regression(x: Floats, y: Floats, missing: Whole, part: Whole, last: Floats) -> Task:
    """Return a task in units of the training rows; a column that never moves there stays as it is."""
    inputs = _standard(x, part == TRAIN)
    centre, scale = y[part == TRAIN].mean(), y[part == TRAIN].std()
    return Task(inputs, ((y - centre) / scale)[:, None], missing, part, last=(last - centre) / scale)


def _standard(x: Floats, head: NDArray[np.bool_]) -> Floats:
    deviation = x[head].std(axis=0)
    return np.asarray((x - x[head].mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0))


@lru_cache(maxsize=1)
def _air(folder: Path) -> Task:
    """Return the healthy days of the multi-zone unit, which lie in all seasons: of every four the first two train, the
    third chooses, the last is reported.
    """
    frame = hvac.read_unit(folder / "hvac_fdd" / hvac.UNITS["multi-zone"], *AIR_INPUTS, AIR_TARGET)
    frame = frame[frame[hvac.KIND] == hvac.HEALTHY]
    x, y, seconds = (frame[key].to_numpy() for key in (AIR_INPUTS, AIR_TARGET, hvac.SECOND))
    days = np.unique(seconds // SECONDS_PER_DAY, return_inverse=True)[1]
    part = np.array([TRAIN, TRAIN, CHOOSE, REPORT])[days % 4]
    missing = missing_before(seconds, step=60.0)
    missing[1:][np.diff(part) != 0] = NEW_SERIES  # no state goes from the days that train into those that choose
    return _regression(x, y, missing, part, np.concatenate([y[:1], y[:-1]]))


@lru_cache(maxsize=1)
def _bearing(folder: Path) -> Task:
    """Return seven recordings one after the other, each of them a class, cut in time."""
    from scipy.signal import decimate

    recordings, parts = bridges.join_setups(bridges.read_recordings("cwru", folder / "cwru_bearing")[2]), []
    for index, state in enumerate(BEARING_STATES):
        values = recordings[state][: BEARING_ROWS * BEARING_EVERY]
        thin = np.asarray(decimate(values - values.mean(axis=0), BEARING_EVERY, axis=0))
        count = len(thin) // BEARING_WINDOW
        part = np.repeat(cut_in_time(count), BEARING_WINDOW)
        parts.append((thin[: len(part)], np.full(len(part), index), part, missing_before(np.arange(len(part)))))
    x, y, part, missing = (np.concatenate(column) for column in zip(*parts, strict=True))
    x = x / x[part == TRAIN].std(axis=0)  # one scale for all: a gateway does not know the class
    return Task(x, np.eye(len(BEARING_STATES))[y], missing, part, np.arange(len(x)) // BEARING_WINDOW)


@lru_cache(maxsize=1)
def _room(folder: Path) -> Task:
    """Return the training file, of which the end chooses, and the test file, which is reported."""
    names = ("datatraining", "datatest")
    tables = [read_table(folder / f"uci_occupancy/{name}.csv.gz", *ROOM_INPUTS, ROOM_TARGET) for name in names]
    x, y = (np.concatenate([table[key].to_numpy() for table in tables]) for key in (ROOM_INPUTS, ROOM_TARGET))
    first, second = map(len, tables)
    chooses = np.arange(first) >= SHARES[0] * first
    part = np.concatenate([np.where(chooses, CHOOSE, TRAIN), np.full(second, REPORT)])
    missing = np.concatenate([missing_before(np.arange(count)) for count in (first, second)])
    return Task(_standard(x, part == TRAIN), np.eye(2)[y], missing, part, np.arange(len(x)))


@lru_cache(maxsize=1)
def _pump(folder: Path) -> Task:
    """Return the files one after the other, each in units of its own healthy head."""
    parts = []
    for index in range(skab.FILES):
        x, label, seconds = skab.read_pump(folder / f"skab_pump/valve1/{index}.csv.gz")
        use = TRAIN if index < PUMP_CHOOSE else CHOOSE if index < PUMP_REPORT else REPORT
        head = np.arange(len(x)) < skab.TRAIN
        parts.append((_standard(x, head), label, missing_before(seconds), np.full(len(x), use)))
    x, label, missing, part = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Task(x, np.eye(2)[label], missing, part, np.arange(len(x)))


_RECORDED: Mapping[Recorded, Callable[[Path], Task]] = {
    "supply air temperature": _air,
    "bearing condition": _bearing,
    "room occupied": _room,
    "pump valve closed": _pump,
}
