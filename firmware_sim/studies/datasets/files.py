"""Files of the data sets: arrays and tables, of which an error names what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedgate.firmware_sim.engine.spec import StudyError


def read_arrays(path: Path, *names: str) -> list[Any]:
    """Return arrays of a npz file; raises `StudyError` where it or one of them is missing."""
    _check_there(path)
    with np.load(path) as file:
        _check_names(path, names, file.files)
        return [file[name] for name in names]


def read_table(path: Path, *names: str, separator: str = ",") -> pd.DataFrame:
    """Return a table, packed or not, whose numbers are those that are printed; raises `StudyError` where the file or
    one of the named columns is missing.
    """
    _check_there(path)
    table = pd.read_csv(path, sep=separator, float_precision="round_trip")
    _check_names(path, names, [str(name) for name in table])
    return table


def _check_there(path: Path) -> None:
    if not path.is_file():
        raise StudyError(f"{path.name} is missing in {path.parent}; expected the recordings of this study there")


def _check_names(path: Path, names: tuple[str, ...], found: list[str]) -> None:
    missing = [name for name in names if name not in found]
    if missing:
        raise StudyError(f"{path}: {missing[0]!r} is missing; expected it among {', '.join(found)}")
