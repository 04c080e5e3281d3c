"""SKAB: a water pump on a test bench, eight sensors a second; in each file but one the valve is closed once.

valve1/0.csv.gz ..      labelled; a column `anomaly` is 1 while the valve is closed
anomaly-free/anomaly-free.csv.gz
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.datasets.files import read_table
from fedgate.models.arrays import Floats

CHANNELS = (
    "Accelerometer1RMS",
    "Accelerometer2RMS",
    "Current",
    "Pressure",
    "Temperature",
    "Thermocouple",
    "Voltage",
    "Volume Flow RateRMS",
)
LABEL, TIME = "anomaly", "datetime"
FILES = 16  # with a valve that is closed
FREE = "anomaly-free/anomaly-free"
TRAIN, CALIBRATE = 250, 400  # rows from the start of a file


@lru_cache(maxsize=FILES + 1)
def read(folder: Path, name: str) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Return values (n, 8), labels (n,) and the second of each row; without a column of labels all are healthy.

    Raises:
        StudyError: the file or one of its columns is missing.
    """
    table = read_table(folder / f"{name}.csv.gz", *CHANNELS, TIME, separator=";")
    label = table[LABEL] if LABEL in table else np.zeros(len(table))
    seconds = table[TIME].to_numpy("datetime64[s]").astype(np.int64)
    return table[list(CHANNELS)].to_numpy(np.float64), np.asarray(label, dtype=np.int64), seconds
