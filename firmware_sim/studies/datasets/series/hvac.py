"""Two air handling units by the minute (Granderson, Lin et al., Scientific Data (2020), doi 10.1038/s41597-020-0398-6).

Faults were put in for whole days, which the ground truth and the type of the fault both tell.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedgate.firmware_sim.studies.datasets.series.files import read_table, seconds_of

UNITS = {"multi-zone": "mzvav_2_1.csv.gz", "single-zone": "szcav.csv.gz"}
TIME, TRUTH, KIND, INTENSITY = "Datetime", "Fault Detection Ground Truth", "Fault Type", "Fault Intensity"
HEALTHY = "none"
SECOND = "second"


def read_unit(path: Path, *points: str) -> pd.DataFrame:
    """Return the minutes of a unit with the `second` of each, without days whose two labels contradict each other.

    Raises:
        StudyError: the file or one of these points is missing.
    """
    frame = read_table(path, TIME, TRUTH, KIND, *points)
    frame = frame[(frame[TRUTH] == 0) == (frame[KIND] == HEALTHY)]
    return frame.assign(**{SECOND: seconds_of(frame[TIME])}).reset_index(drop=True)
