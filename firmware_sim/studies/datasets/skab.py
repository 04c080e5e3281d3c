"""Files of the Skoltech Anomaly Benchmark (Katser and Kozitsin 2020): a pump by the second, whose valve is closed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.datasets.files import Whole, read_table, seconds_of
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
TRAIN, CALIBRATE = 250, 400  # rows from the start of a file


def read_pump(path: Path) -> tuple[Floats, Whole, Whole]:
    """Return values (n, 8), labels (n,) and the second of each row; raises `StudyError` where a file is missing."""
    frame = read_table(path, "datetime", LABEL, *CHANNELS, separator=";")
    label = frame[LABEL].to_numpy().astype(np.int64)
    return frame[list(CHANNELS)].to_numpy(dtype=np.float64), label, seconds_of(frame["datetime"])
