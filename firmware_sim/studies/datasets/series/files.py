"""How recordings are read: arrays or columns by name, and means over steps of time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.models.arrays import NEW_SERIES, Floats

Whole = NDArray[np.int64]
SECONDS_PER_DAY = 86_400


def read_arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """Return arrays of an npz file.

    Raises:
        OSError: there is no such file.
        StudyError: one of the arrays is missing.
    """
    with np.load(path) as file:
        check_names(path, names, file.files)
        return [file[name] for name in names]


def read_table(path: Path, *columns: str, separator: str = ",") -> pd.DataFrame:
    """Return a packed table; raises `OSError` and `StudyError` as `read_arrays`."""
    frame = pd.read_csv(path, sep=separator)
    check_names(path, columns, frame.columns.tolist())
    return frame


def check_names(path: Path, wanted: tuple[str, ...], found: list[str]) -> None:
    """Raise `StudyError` where a name is missing."""
    if absent := [name for name in wanted if name not in found]:
        raise StudyError(f"{path}: {absent[0]!r} is missing; found {', '.join(found)}")


def seconds_of(stamps: Any) -> Whole:
    """Return times (n,) such as `2007-08-28T00:00` as seconds since 1970."""
    return np.asarray(pd.to_datetime(stamps).to_numpy().astype("datetime64[s]").astype(np.int64))


def binned(bins: NDArray[Any], x: Floats) -> tuple[Floats, Whole]:
    """Return the means (m, C) of rows (n, C) that are of the same step, and the number (m,) of each step with any."""
    steps, place = np.unique(bins, return_inverse=True)
    counts = np.bincount(place)
    return np.stack([np.bincount(place, column) / counts for column in x.T], axis=1), steps.astype(np.int64)


def missing_before(times: Whole, step: float = 1.0) -> Whole:
    """Return how many steps are missing before each time (n,); a series begins where time goes back."""
    between = np.round(np.diff(times) / step).astype(np.int64) - 1
    return np.concatenate([[NEW_SERIES], np.where(between < 0, NEW_SERIES, between)])
