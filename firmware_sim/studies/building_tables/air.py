"""Two air handling units (Granderson, Lin et al., Scientific Data (2020), doi 10.1038/s41597-020-0398-6) as streams.

Faults last whole days, and one unit has a single healthy day, which is cut into blocks of hours: there a healthy block
that is reported lies between two that train. The two units were recorded in different seasons, and so were healthy and
faulty days of the first: what a method finds may be the weather, so a baseline sees nothing else.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.building_tables.files import binned, table
from fedgate.firmware_sim.studies.building_tables.streams import FOLDS, REPORT, Steps, Stream, own_units
from fedgate.models.arrays import NEW_SERIES, Floats

UNITS = {"multi-zone": "mzvav_2_1.csv.gz", "single-zone": "szcav.csv.gz"}
POINTS = (
    "AHU: Outdoor Air Temperature",  # column 0: the weather
    "AHU: Supply Air Temperature",
    "AHU: Mixed Air Temperature",
    "AHU: Return Air Temperature",
    "AHU: Supply Air Fan Status",
    "AHU: Supply Air Fan Speed Control Signal",
    "AHU: Outdoor Air Damper Control Signal",
    "AHU: Return Air Damper Control Signal",
    "AHU: Exhaust Air Damper Control Signal",
    "AHU: Cooling Coil Valve Control Signal",
    "AHU: Heating Coil Valve Control Signal",
    "Occupancy Mode Indicator",
)
TRUTH, KIND, HEALTHY = "Fault Detection Ground Truth", "Fault Type", "none"
STEP_MIN, DAY_MIN, BLOCK_MIN = 3, 1_440, 120
CLIP = 8.0


@lru_cache(maxsize=2)
def air_streams(folder: Path, *, by_day: bool) -> tuple[Stream, ...]:
    """Return a stream for each unit, or `by_day` for each of its days: then no gateway has seen both classes."""
    streams: list[Stream] = []
    for unit, name in UNITS.items():
        whole = _unit(unit, folder / name)
        if not by_day:
            streams.append(whole)
            continue
        days = np.cumsum(whole.missing == NEW_SERIES)
        streams += [
            whole._replace(
                gateway=f"{unit}, {day}", z=whole.z[of], missing=whole.missing[of], y=whole.y[of], part=whole.part[of]
            )
            for day in np.unique(days)
            for of in [days == day]
        ]
    return tuple(streams)


def _unit(unit: str, path: Path) -> Stream:
    """Return the steps of a unit; a day whose two labels contradict each other is left out."""
    lines = table(path, ("Datetime", *POINTS, TRUTH, KIND))
    lines = [line for line in lines if (line[TRUTH] == "0") == (line[KIND] == HEALTHY)]
    minutes = np.array([np.datetime64(line["Datetime"], "m") for line in lines]).astype(np.int64)
    truth = np.array([float(line[TRUTH]) for line in lines])
    x = _held(np.array([[float(line[point] or "nan") for point in POINTS] for line in lines]))
    means, steps = binned(minutes // STEP_MIN, np.column_stack([x, truth]))
    means, y = means[:, :-1], means[:, -1]
    part, block = _parts(steps * STEP_MIN, y)
    missing = np.where(np.diff(block, prepend=-1) != 0, NEW_SERIES, np.diff(steps, prepend=steps[0]) - 1)
    z = own_units(means, (part != REPORT) & (y == 0.0), CLIP)
    return Stream(unit, unit, z, missing, y, part)


def _held(x: Floats) -> Floats:
    """Return rows whose empty cells hold the value before."""
    place = np.where(np.isfinite(x), np.arange(len(x))[:, None], 0)
    return np.asarray(np.take_along_axis(x, np.maximum.accumulate(place, axis=0), axis=0))


def _parts(minutes: Steps, y: Floats) -> tuple[Steps, Steps]:
    """Return the part of each step and the number of the series it belongs to: a day, or a block of a day that is the
    only one of its class.
    """
    days, day = np.unique(minutes // DAY_MIN, return_inverse=True)
    part, block = np.empty(len(y), dtype=np.int64), day * (DAY_MIN // BLOCK_MIN)
    for label in (0.0, 1.0):
        members = [each for each in range(len(days)) if y[day == each][0] == label]
        for rank, each in enumerate(members):
            of = day == each
            if len(members) == 1:
                hours = minutes[of] % DAY_MIN // BLOCK_MIN
                block[of] += hours
                rank_of = hours
            else:
                rank_of = np.full(int(of.sum()), rank)
            part[of] = np.where(rank_of % 2 == 0, rank_of // 2 % FOLDS, REPORT)
    return part, block
