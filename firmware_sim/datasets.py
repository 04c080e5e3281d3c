"""What an evaluation runs on, and the first kind of it: a table of features with a label column.

Tables and folders of recordings both end as features and classes, because that is all a federated algorithm sees. How
the file was read is kept as a sentence, so that a result always says which class was called an anomaly.
"""

from __future__ import annotations

import csv
import io
import math
import zlib
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from firmware_sim.recordings import ReadOptions, RecordingError
from firmware_sim.recordings.recording import shortened
from firmware_sim.recordings.source import Source, open_file, unpack
from models.arrays import Array, Floats

LABEL = "label"
DELIMITERS = ",;\t"
TABLE_SUFFIXES = (".csv", ".npz")
ZIP_START = b"PK"


class EvaluationError(ValueError):
    """An evaluation that cannot be run; the message is one line and names the file or the option at fault."""


class DataError(EvaluationError):
    """Data that cannot be evaluated: no labels, a cell that is no number, a gateway without its channel."""


class Labelled(NamedTuple):
    """Rows of features with their classes."""

    x: Floats  # (n, F)
    y: NDArray[np.int64]  # (n,) 1 anomaly or positive class, 0 normal or negative class


class Table(NamedTuple):
    """Rows that belong to no gateway yet, on columns that are scaled together."""

    name: str
    rows: Labelled
    read_as: str


def load_table(path: Path) -> Table:
    """Read a table (.csv or .npz, also packed as .gz or .zip) with one column `label`.

    Raises:
        DataError: the content is no table of numbers with two classes.
        RecordingError: the file cannot be opened or unpacked.
    """
    try:
        source = unpack(open_file(path), ReadOptions(), TABLE_SUFFIXES)
    except RecordingError as error:
        error.file = str(path)
        raise
    if source.suffix not in TABLE_SUFFIXES:
        raise DataError(f"{path}: expected a table (.csv or .npz, also as .gz or .zip) or a folder of recordings")
    names, values = _csv_columns(source) if source.suffix == ".csv" else _npz_columns(source)
    if names.count(LABEL) != 1 or len(names) < 2:
        expected = f"one column {LABEL!r} and at least one feature"
        raise DataError(f"{path}: expected {expected} among the columns, got {shortened(names)}")
    _check_finite(path, names, values)
    at = names.index(LABEL)
    y, classes = _classes(path, values[:, at])
    x = np.delete(values, at, axis=1)
    return Table(path.name, Labelled(x, y), f"{len(x)} rows, {x.shape[1]} features; {classes}")


def _csv_columns(source: Source) -> tuple[list[str], Floats]:
    try:
        text = source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{source.title}: byte {error.start} is not UTF-8; save the table as UTF-8") from None
    delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        names = [cell.strip() for cell in next(reader, [])]
        rows = [_numbers(f"{source.title}:{reader.line_num}", names, row) for row in reader if row]
    except csv.Error as error:
        raise DataError(f"{source.title}:{reader.line_num}: cannot be split into cells ({error})") from None
    return names, np.array(rows, dtype=np.float64).reshape(len(rows), len(names))


def _numbers(place: str, names: list[str], row: list[str]) -> list[float]:
    if len(row) != len(names):
        raise DataError(f"{place}: {len(row)} cells given, {len(names)} expected from the header")
    try:
        return [float(cell) for cell in row]
    except ValueError:
        name, cell = next((n, c) for n, c in zip(names, row, strict=True) if not _is_number(c))
        raise DataError(f"{place}: column {name!r}: expected a number, got {cell[:40]!r}") from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _npz_columns(source: Source) -> tuple[list[str], Floats]:
    """Join the arrays of an npz: (n,) is a column of its name, (n, k) are k columns."""
    if not source.data.startswith(ZIP_START):
        raise DataError(f"{source.title}: no npz file; write it with numpy.savez")
    try:
        with np.load(io.BytesIO(source.data), allow_pickle=False) as archive:
            arrays: dict[str, Array] = {name: archive[name] for name in archive}
    except (OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise DataError(f"{source.title}: no npz file of plain arrays ({error})") from None
    count = len(arrays[LABEL]) if LABEL in arrays and arrays[LABEL].ndim == 1 else -1
    names, columns = [], []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or len(array) != count:
            found = f"array {name!r} is {array.dtype} of shape {array.shape}"
            raise DataError(f"{source.title}: {found}; expected {LABEL!r} (n,) and numbers (n,) or (n, k)")
        columns.append(array.reshape(count, math.prod(array.shape[1:])).astype(np.float64))
        names += [name] if array.ndim == 1 else [f"{name}[{column}]" for column in range(array.shape[1])]
    return names, np.concatenate(columns, axis=1)


def _check_finite(path: Path, names: list[str], values: Floats) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        found = f"column {names[column]!r} holds {values[row, column]}"
        raise DataError(f"{path}: data row {row + 1}: {found}; fill or drop such rows")


def _classes(path: Path, values: Floats) -> tuple[NDArray[np.int64], str]:
    """Return the classes (n,) as 0 and 1, and how they were read."""
    found = sorted(set(values.tolist()))
    y = (values > 0).astype(np.int64)
    shares = f"{int(y.sum())} rows", f"{int((1 - y).sum())} rows"
    if found == [0.0, 1.0]:
        return y, f"label 1 read as anomaly ({shares[0]}), 0 as normal ({shares[1]})"
    if found == [-1.0, 1.0]:
        return y, f"label +1 read as positive class ({shares[0]}), -1 as negative class ({shares[1]})"
    expected = "0 and 1 (1 = anomaly), or -1 and +1 (+1 = positive class), both present"
    raise DataError(f"{path}: column {LABEL!r} holds {shortened([f'{v:g}' for v in found], 5)}; expected {expected}")
