"""Air handling units of LBNL's fault detection data: all points of a unit, a row a minute, with documented faults."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.datasets.files import read_table
from fedgate.models.arrays import Floats

FILE, TIME, FAULT, HEALTHY = "mzvav_2_1.csv.gz", "Datetime", "Fault Type", "none"
SUPPLY = "AHU: Supply Air Temperature"
POINTS = (
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


@lru_cache(maxsize=1)
def read_healthy(folder: Path) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the rows of the multi-zone unit without a fault: the minute of each, the points x (n, 13) and the
    temperature of the supply air (n,).

    Raises:
        StudyError: the file or one of its columns is missing.
    """
    table = read_table(folder / FILE, *POINTS, SUPPLY, FAULT, TIME)
    healthy = table[table[FAULT] == HEALTHY]
    minutes = healthy[TIME].to_numpy("datetime64[m]").astype(np.int64)
    return minutes, healthy[list(POINTS)].to_numpy(np.float64), healthy[SUPPLY].to_numpy(np.float64)
