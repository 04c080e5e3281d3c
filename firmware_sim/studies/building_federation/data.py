"""The sensors of a building as gateways of a federation: one channel of one room each, cut into windows.

    keti_rooms     room413.npz ..: CO2, humidity, light and temperature of each room, means of 5 minutes

A row is a window: so many steps that are heard, and so many more up to the one to be told. Beside its own values a
sensor hears the time of day and of which kind it is, since what is likely next differs by kind. Each sensor trains on
the head of its recording and is judged on what came later, in units of its own head. Where a fleet is to be larger than
the building has sensors, each head is cut in time, and the parts count as sensors of their own.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.building_tables.files import arrays, binned
from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.models.arrays import FEATURES, Arrays, Floats, generator

STEP_S, LEAST_STEPS = 300, 288
CHANNELS = {"CO2": 0, "humidity": 1, "light": 2, "temperature": 4}  # motion is no number that could be foretold
POSSIBLE_C = (5.0, 45.0)  # one sensor reports 394 degrees
CLIP = 6.0  # of a sensor's own deviations
LEAST_DEVIATION = 1e-6  # of a sensor that never moved
SECONDS_PER_DAY = 86_400
INPUTS = 3 + len(CHANNELS)  # value, sine and cosine of the time of day, kind


class Windows(NamedTuple):
    """How recordings are cut: steps heard, steps from the last of them to the one told, steps from row to row, and the
    share of a recording that trains.
    """

    heard: int
    horizon: int
    every: int
    trains: float


class Sensor(NamedTuple):
    """One sensor: rows (n, INPUTS * T) that train and (m, INPUTS * T) of later, T = heard + horizon, and how many raw
    samples the former were made of.
    """

    name: str
    train: Floats
    later: Floats
    samples: int


@lru_cache(maxsize=2)
def load(folder: Path, cut: Windows) -> tuple[Sensor, ...]:
    """Return the sensors of a building; raises `StudyError` where there are none."""
    found = [sensor for path in sorted(folder.glob("room*.npz")) for sensor in _sensors(path, cut)]
    if len(found) < 2:
        raise StudyError(f"{folder}: {len(found)} sensors of {LEAST_STEPS} steps of 5 min there, expected at least 2")
    return tuple(found)


def _sensors(path: Path, cut: Windows) -> list[Sensor]:
    file = arrays(path, ("t", "x"))
    t_s, x = file["t"].astype(np.float64), file["x"].astype(np.float64)[:, list(CHANNELS.values())]
    x[:, list(CHANNELS).index("light")] = np.log1p(np.maximum(x[:, list(CHANNELS).index("light")], 0.0))
    x[:, list(CHANNELS).index("temperature")] = np.clip(x[:, list(CHANNELS).index("temperature")], *POSSIBLE_C)
    means, steps = binned((t_s - t_s[0]) // STEP_S, x)
    last = int(cut.trains * (steps[-1] + 1))
    head, found = steps < last, list[Sensor]()
    if steps[-1] + 1 < LEAST_STEPS:
        return found
    angle = 2.0 * np.pi * (t_s[0] + steps * STEP_S) / SECONDS_PER_DAY
    samples = int((t_s - t_s[0] < last * STEP_S).sum())
    for column, channel in enumerate(CHANNELS):
        series = means[:, column]
        center, deviation = float(series[head].mean()), float(series[head].std())
        if deviation < LEAST_DEVIATION:
            continue
        z = np.zeros((len(series), INPUTS))
        z[:, 0] = np.clip((series - center) / deviation, -CLIP, CLIP)
        z[:, 1], z[:, 2], z[:, 3 + column] = np.sin(angle), np.cos(angle), 1.0
        train, later = (windows(z[part], steps[part], cut) for part in (head, ~head))
        found.append(Sensor(f"{path.stem}/{channel}", train, later, samples))
    return found


def windows(z: Floats, steps: NDArray[np.int64], cut: Windows) -> Floats:
    """Return rows (n, C * T) of values (m, C), one channel after the other, only such without a missing step."""
    size = cut.heard + cut.horizon
    starts = np.arange(0, len(z) - size + 1, cut.every)
    whole = starts[steps[starts + size - 1] - steps[starts] == size - 1]
    return np.asarray(z[whole[:, None] + np.arange(size)].transpose(0, 2, 1).reshape(len(whole), z.shape[1] * size))


def fleet(sensors: tuple[Sensor, ...], count: int, seed: int) -> dict[str, Arrays]:
    """Return the training data of so many sensors by name, a random choice; of more than there are, parts in time."""
    parts = -(-count // len(sensors))
    cut = {
        f"{sensor.name}/{part}" if parts > 1 else sensor.name: {FEATURES: rows}
        for sensor in sensors
        for part, rows in enumerate(np.array_split(sensor.train, parts))
    }
    names = sorted(cut)
    chosen = generator(seed, 0, "fleet").permutation(len(names))[:count]
    return {names[index]: cut[names[index]] for index in sorted(chosen)}
