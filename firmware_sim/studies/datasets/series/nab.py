"""Two documented temperatures of the Numenta Anomaly Benchmark (Lavin and Ahmad 2015, arXiv 1510.03336).

machine    of a large machine, 5 minutes; ambient   of an office, 1 hour
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.datasets.series.files import Whole, read_table, seconds_of
from fedgate.models.arrays import Floats


class Series(NamedTuple):
    """Values (n,), the second of each, and the first and last row of each documented failure."""

    values: Floats
    seconds: Whole
    failures: list[list[int]]


def load_series(folder: Path, name: str) -> Series:
    """Return the temperature of `machine` or `ambient`; raises `StudyError` where its file is missing.

    Raises:
        OSError: there is no `anomaly_windows.json`.
    """
    stem = f"realKnownCause_{name}_temperature_system_failure.csv"
    frame = read_table(folder / f"{stem}.gz", "timestamp", "value")
    seconds = seconds_of(frame["timestamp"])
    is_later: NDArray[np.bool_] = np.diff(seconds, prepend=-1) > 0  # an hour occurs twice
    seconds, values = seconds[is_later], frame["value"].to_numpy()[is_later]
    windows = json.loads((folder / "anomaly_windows.json").read_text(encoding="utf-8"))[stem]
    return Series(values, seconds, [np.searchsorted(seconds, seconds_of(window)).tolist() for window in windows])
