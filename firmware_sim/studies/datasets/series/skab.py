"""Files of the Skoltech Anomaly Benchmark (Katser and Kozitsin 2020): a pump by the second, whose valve is closed once
in each file but one.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.datasets.series.files import Whole, read_table, seconds_of
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
LABEL = "anomaly"
FILES = 16  # with an anomaly; the first half is for development
FREE = "anomaly-free/anomaly-free.csv.gz"  # has no column of labels
TRAIN, CALIBRATE = 250, 400  # rows from the start of a file


@lru_cache(maxsize=FILES + 1)
def read_pump(path: Path) -> tuple[Floats, Whole, Whole]:
    """Return values (n, 8), labels (n,) and the second of each row.

    Raises:
        OSError: there is no such file.
        StudyError: a column is missing.
    """
    frame = read_table(path, "datetime", *CHANNELS, *[LABEL] * (path.name != Path(FREE).name), separator=";")
    label = frame[LABEL].to_numpy().astype(np.int64) if LABEL in frame else np.zeros(len(frame), dtype=np.int64)
    return frame[list(CHANNELS)].to_numpy(dtype=np.float64), label, seconds_of(frame["datetime"])
