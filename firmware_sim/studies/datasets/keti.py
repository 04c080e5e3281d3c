"""KETI: rooms of an office building with sensors of CO2, humidity, light, motion and temperature (room413.npz ..).

A row is the mean of five minutes. Light is a logarithm, motion is left out, and a temperature that cannot be is set to
the nearest that can.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.files import read_arrays
from fedgate.models.arrays import Floats

STEP_S, PER_DAY = 300, 288
COLUMNS, LIGHT, TEMPERATURE = (0, 1, 2, 4), 2, 3  # CO2, humidity, light, temperature; no motion
POSSIBLE_C = (5.0, 45.0)  # one sensor reports 394 degrees
LEAST_ROWS = 1_800


def find_rooms(folder: Path) -> list[Path]:
    """Return the files of rooms that were measured for long enough; raises `StudyError` where there are not two."""
    rooms = [path for path in sorted(folder.glob("room*.npz")) if int(read(path)[1][-1]) >= LEAST_ROWS - 1]
    if len(rooms) < 2:
        raise StudyError(f"{folder}: {len(rooms)} rooms of {LEAST_ROWS} rows of 5 min there; expected at least 2")
    return rooms


@lru_cache(maxsize=32)
def read(path: Path) -> tuple[Floats, NDArray[np.int64]]:
    """Return the means (n, 4) and which five minutes each is of; those without a sample are left out."""
    t, values = read_arrays(path, "t", "x")
    x = values.astype(np.float64)[:, COLUMNS]
    x[:, TEMPERATURE] = np.clip(x[:, TEMPERATURE], *POSSIBLE_C)
    x[:, LIGHT] = np.log1p(np.maximum(x[:, LIGHT], 0.0))
    places, index = np.unique((t - t[0]) // STEP_S, return_inverse=True)
    means = [np.bincount(index, column) / np.bincount(index) for column in x.T]
    return np.stack(means, axis=1), places.astype(np.int64)
