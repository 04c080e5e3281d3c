"""What an evaluation runs on, and the first kind of it: a table of features with a label column.

Tables and folders of recordings both end as features and classes, because that is all a federated algorithm sees. How
the file was read is kept as a sentence, so that a result always says which class was called an anomaly.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.config.settings import extras
from fedgate.firmware_sim.recordings import ReadOptions, RecordingError
from fedgate.firmware_sim.recordings.readers.columns import Column, Numbers, with_groups
from fedgate.firmware_sim.recordings.readers.csv_file import read_csv_table
from fedgate.firmware_sim.recordings.readers.formats import SUFFIXES, check_options
from fedgate.firmware_sim.recordings.readers.npz_file import read_arrays
from fedgate.firmware_sim.recordings.readers.parquet_file import read_parquet_table
from fedgate.firmware_sim.recordings.recording import shortened
from fedgate.firmware_sim.recordings.source import Source, open_file, unpack
from fedgate.models.arrays import Floats

LABEL = "label"
CLASSES = "classes are written as 0 (normal) and 1 (anomaly)"
ROWS_OF_A_GROUP = 10  # on average and at least, where a column of words looks like one that names groups


class EvaluationError(ValueError):
    """An evaluation that cannot be run; the message is one line and names the file or the option at fault."""


class DataError(EvaluationError):
    """Data that cannot be evaluated: no labels, a cell that is no number, a gateway without its channel."""


class Labelled(NamedTuple):
    """Rows of features with their classes."""

    x: Floats  # (n, F)
    y: NDArray[np.int64]  # (n,) 1 anomaly or positive class, 0 normal or negative class


class Table(NamedTuple):
    """Rows that belong to no gateway yet, on columns that are scaled together, or to that of their group."""

    name: str
    rows: Labelled
    read_as: str
    groups: NDArray[np.str_] | None = None  # (n,) the gateway of each row


def load_table(path: Path, options: ReadOptions | None = None, groups: str | None = None) -> Table:
    """Read a table with one column `label`, of any format that `TABLES` names, also packed as .gz or .zip. Its columns
    mean what they mean in a recording, and `options` what they mean there; the column `groups` names gateways.

    Raises:
        DataError: the content is no table of numbers with two classes.
        RecordingError: the file cannot be opened or read; the message names the place in it.
    """
    options = ReadOptions() if options is None else options
    label = options.label or LABEL
    try:
        opened = open_file(path)
        source = unpack(opened, options, tuple(TABLES))
        if source.suffix not in TABLES:
            expected = f"a table ({', '.join(TABLES)}, also as .gz or .zip) or a folder of recordings"
            raise DataError(f"{path}: expected {expected}")
        check_options(options, SUFFIXES[source.suffix], source.suffix, is_zip=opened.suffix == ".zip")
        names, x, labels, found, words = TABLES[source.suffix](source, options, groups)
    except ModuleNotFoundError as error:
        raise DataError(f"{path}: needs the package {error.name}; {extras.advise_install(error.name)}") from None
    except RecordingError as error:
        error.file = str(path)
        if options.label is not None and f"column {label!r}: found" in str(error):
            raise DataError(f"{error}; {CLASSES}") from None
        raise
    if labels is None and label in words:
        raise DataError(f"{path}: column {label!r} holds words, such as {words[label][0]!r}; {CLASSES}")
    if labels is None or not names:
        expected = f"one column {label!r} and at least one feature"
        remedy = "--label-column says which column holds the classes"
        raise DataError(f"{path}: expected {expected} among the columns, got {shortened(names)}; {remedy}")
    _check_finite(path, [*names, label], np.column_stack([x, labels]))
    y, classes = _classes(path, labels, label)
    read_as = "; ".join([f"{len(x)} rows, {x.shape[1]} features", classes, *found])
    if groups is None:
        return Table(path.name, Labelled(x, y), "; ".join([read_as, *_offers(words)]))
    return Table(path.name, Labelled(x, y), read_as, _gateways(path, groups, words[groups]))


def _offers(words: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence for each column of words that looks as if it named gateways: few of them, with many rows."""
    counts = {name: (len(set(cells)), len(cells)) for name, cells in words.items()}
    return [
        f"column {name!r} names {count} groups and is left out: --groups {shlex.quote(name)} makes each one a gateway"
        for name, (count, rows) in counts.items()
        if 1 < count <= rows / ROWS_OF_A_GROUP
    ]


def _hint(name: str) -> str:
    return f"; where these words name the gateway of each row, say --groups {shlex.quote(name)}, else leave them out"


def _gateways(path: Path, groups: str, cells: Sequence[str]) -> NDArray[np.str_]:
    if "" in cells:
        raise DataError(
            f"{path}: data row {cells.index('') + 1}: column {groups!r} is empty; expected a gateway's name"
        )
    return np.array(cells, dtype=np.str_)


def _npz_table(source: Source, _options: ReadOptions, groups: str | None) -> Numbers:
    """Join all arrays of an npz: (n,) is a column of its name, (n, k) are k columns; that of groups may hold words."""
    arrays = read_arrays(source.data)
    words: dict[str, list[str]] = {}
    if groups is not None:
        with_groups([Column(name, "", "number") for name in arrays], groups)
        named = arrays.pop(groups)
        words[groups] = [str(name) for name in named.ravel().tolist()]
    count = len(arrays[LABEL]) if LABEL in arrays and arrays[LABEL].ndim == 1 else -1
    if groups is not None and named.shape != (count,):
        raise DataError(f"{source.title}: groups {groups!r} have shape {named.shape}; expected {LABEL!r} and them (n,)")
    names, columns = [], []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or len(array) != count:
            found = f"array {name!r} is {array.dtype} of shape {array.shape}"
            expected = f"expected {LABEL!r} (n,) and numbers (n,) or (n, k)"
            is_like_groups = array.dtype.kind in "SU" and array.shape == (count,) and name != LABEL and groups is None
            raise DataError(f"{source.title}: {found}; {expected}{_hint(name) if is_like_groups else ''}")
        if name != LABEL:
            columns.append(array.reshape(count, math.prod(array.shape[1:])).astype(np.float64))
            names += [name] if array.ndim == 1 else [f"{name}[{column}]" for column in range(array.shape[1])]
    x = np.concatenate([np.empty((max(count, 0), 0)), *columns], axis=1)
    return Numbers(tuple(names), x, arrays[LABEL].astype(np.float64) if count >= 0 else None, (), words)


TABLES: dict[str, Callable[[Source, ReadOptions, str | None], Numbers]] = {
    ".csv": read_csv_table,
    ".tsv": read_csv_table,
    ".txt": read_csv_table,
    ".npz": _npz_table,
    ".parquet": read_parquet_table,
}


def _check_finite(path: Path, names: Sequence[str], values: Floats) -> None:
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = bad[0]
        found = f"column {names[column]!r} holds {values[row, column]}"
        raise DataError(f"{path}: data row {row + 1}: {found}; fill or drop such rows")


def _classes(path: Path, values: Floats, label: str) -> tuple[NDArray[np.int64], str]:
    """Return the classes (n,) as 0 and 1, and how they were read."""
    found = sorted(set(values.tolist()))
    y = (values > 0).astype(np.int64)
    shares = f"{int(y.sum())} rows", f"{int((1 - y).sum())} rows"
    if found == [0.0, 1.0]:
        return y, f"label 1 read as anomaly ({shares[0]}), 0 as normal ({shares[1]})"
    if found == [-1.0, 1.0]:
        return y, f"label +1 read as positive class ({shares[0]}), -1 as negative class ({shares[1]})"
    expected = "0 and 1 (1 = anomaly), or -1 and +1 (+1 = positive class), both present"
    raise DataError(f"{path}: column {label!r} holds {shortened([f'{v:g}' for v in found], 5)}; expected {expected}")
