"""How the recordings of smart buildings are read: arrays or columns by name, and a message for what is not there."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.building_tables.streams import Steps
from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.models.arrays import NEW_SERIES, Floats


def arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return arrays of a file; raises `StudyError` where it or one of them is missing."""
    _check_there(path)
    with np.load(path) as file:
        absent = [name for name in names if name not in file.files]
        if absent:
            raise StudyError(f"{path}: array {absent[0]!r} is missing; expected {', '.join(names)}")
        return {name: file[name] for name in names}


def table(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Return the lines of a packed table by column; raises `StudyError` where it or a column is missing."""
    _check_there(path)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    names = header if not lines or len(lines[0]) == len(header) else ["row", *header]  # one names no column of numbers
    absent = [name for name in columns if name not in names]
    if absent:
        raise StudyError(f"{path}: column {absent[0]!r} is missing; found {', '.join(names)}")
    return [dict(zip(names, line, strict=True)) for line in lines]


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise StudyError(f"{path.name} is missing in {path.parent}; expected the recordings of this study there")


def binned(bins: Steps, x: Floats) -> tuple[Floats, Steps]:
    """Return the means (m, C) of rows x (n, C) that are of the same step, and the number (m,) of each step that has
    any.
    """
    steps, place = np.unique(bins, return_inverse=True)
    counts = np.bincount(place)
    return np.stack([np.bincount(place, column) / counts for column in x.T], axis=1), steps.astype(np.int64)


def gaps(steps: Steps) -> Steps:
    """Return how many steps are missing before each of them."""
    return np.concatenate([[NEW_SERIES], np.diff(steps) - 1])
