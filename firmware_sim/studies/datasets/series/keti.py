"""Rooms of an office building (Hong, Gu and Whitehouse, AISTATS 2017), about eight days: `room413.npz` and others.

Each file has the seconds t (n,) and x (n, 5): CO2, humidity, light, motion, temperature.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.series.files import Whole, binned, read_arrays
from fedgate.models.arrays import Floats

CHANNELS = ("CO2", "humidity", "light", "motion", "temperature")
LIGHT, MOTION, TEMPERATURE = 2, 3, 4
LEAST_ROOMS = 2


class Room(NamedTuple):
    """Means x (m, 5) of a room, light as log(1 + x) and motion as a share of time, the number of each step from the
    first on, of how many samples it is, and the second at which the first begins.
    """

    name: str
    x: Floats
    steps: Whole
    samples: Whole
    first_s: int


@lru_cache(maxsize=4)
def load_rooms(folder: Path, step_s: int, possible_c: tuple[float, float], least_steps: int) -> tuple[Room, ...]:
    """Return the rooms with so many steps; temperatures are clipped, since one sensor reports 394 degrees.

    Raises:
        StudyError: there are fewer than two, or a file is laid out otherwise.
    """
    every = [_room(path, step_s, possible_c) for path in sorted(folder.glob("room*.npz"))]
    found = tuple(room for room in every if len(room.steps) >= least_steps)
    if len(found) < LEAST_ROOMS:
        raise StudyError(f"{folder}: {len(found)} rooms of {least_steps} steps there; expected at least {LEAST_ROOMS}")
    return found


def _room(path: Path, step_s: int, possible_c: tuple[float, float]) -> Room:
    t_s, x = read_arrays(path, "t", "x")
    x = x.astype(np.float64)
    x[:, LIGHT] = np.log1p(np.maximum(x[:, LIGHT], 0.0))
    x[:, MOTION] = x[:, MOTION] > 0.0
    x[:, TEMPERATURE] = np.clip(x[:, TEMPERATURE], *possible_c)
    bins = (t_s - t_s[0]) // step_s
    means, steps = binned(bins, x)
    return Room(path.stem, means, steps, np.bincount(bins)[steps], int(t_s[0]))
