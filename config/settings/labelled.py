"""Windows of known condition: a table that `firmware-sim label` makes from recordings, for algorithms that learn from
labels, and for an aggregator that judges updates by data it trusts.

A gateway's baseline is normal by declaration and holds no fault; what faults look like, someone has to say. The first
line of the table names the features it was measured with, since columns of equal names may come from other windows. The
column `missing` says how many windows are missing before each, and where another recording begins; a table without it
is taken for one recording.
"""

from __future__ import annotations

import csv
import hashlib
import math
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedgate.config.settings.settings import GatewaySettings
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.features.spec import FeatureSpec, feature_names

LABEL, GAP = "label", "missing"
MARK = "# features "
ROWS_MAX = 20_000  # as many windows as a baseline may have
LABEL_MAX = 999
DIGEST_LENGTH = 16


class LabelledError(ValueError):
    """A table of windows that cannot be trained on; the message names the file, the line and what was expected."""


def head(spec: FeatureSpec) -> list[str]:
    """Return the two lines that such a table begins with: the features it is measured with, and its columns."""
    digest = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:DIGEST_LENGTH]
    return [MARK + digest, ",".join((*feature_names(spec), GAP, LABEL))]


def read_labelled(settings: GatewaySettings) -> Arrays:
    """Return the rows that the settings name, or nothing where they name none. Raises `LabelledError`."""
    path = settings.training.labelled
    return {} if path is None else read(path, settings.features)


def read(path: Path, spec: FeatureSpec) -> Arrays:
    """Return features (n, F) in the order of `spec`, labels (n,): 0 normal, 1 and above the kinds of fault, and how
    many windows are missing before each.

    Raises:
        LabelledError: the file cannot be read, is no such table, or was measured with other features.
    """
    mark, columns = head(spec)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if file.readline().strip() != mark:
                raise LabelledError(
                    f"{path}:1: expected {mark!r}, the [features] of this gateway; measure the windows again with "
                    "firmware-sim label"
                )
            header = next(csv.reader(file), [])
            names = [name for name in columns.split(",") if name != GAP or GAP in header]
            if sorted(header) != sorted(names):
                wrong = sorted(set(names).symmetric_difference(header)) or "a column twice"
                raise LabelledError(f"{path}:2: expected a column for each feature and {LABEL!r}; differing: {wrong}")
            lines, table = _parse_numbers(path, file, len(header))
    except (OSError, UnicodeDecodeError) as error:
        raise LabelledError(f"{path}: cannot be read ({error})") from None
    held = dict(zip(header, table.T, strict=True))
    labels, gaps = held[LABEL], held.get(GAP, np.zeros(len(table)))
    _check_whole(path, lines, labels, f"label: expected a whole number from 0 to {LABEL_MAX}", range(LABEL_MAX + 1))
    expected = f"missing: expected a whole number of windows, or {NEW_SERIES} where a recording begins"
    _check_whole(path, lines, gaps, expected, range(NEW_SERIES, ROWS_MAX))
    if not labels.any():
        raise LabelledError(f"{path}: expected at least one window of a fault, label 1 or above")
    missing = gaps.astype(np.int64)
    missing[0] = NEW_SERIES
    x = np.stack([held[name] for name in feature_names(spec)], axis=1)
    return {FEATURES: x, LABELS: labels.astype(np.int64), MISSING: missing}


def _parse_numbers(path: Path, file: Iterable[str], columns: int) -> tuple[Sequence[int], Floats]:
    """Return the finite numbers (n, columns) that stand behind the header, and the line of each row."""
    lines, values = array("q"), array("d")
    for line, row in enumerate(file, start=3):
        if not row.strip():
            continue
        try:
            numbers = [float(cell) for cell in row.split(",")]
        except ValueError:
            numbers = []
        if len(numbers) != columns or not all(map(math.isfinite, numbers)):
            raise LabelledError(f"{path}:{line}: expected {columns} finite numbers, got {row.strip()[:80]!r}")
        lines.append(line)
        values.extend(numbers)
        if len(lines) > ROWS_MAX:
            raise LabelledError(f"{path}: expected at most {ROWS_MAX} windows, as many as a baseline may have")
    return lines, np.frombuffer(values, dtype=np.float64).reshape(-1, columns)


def _check_whole(path: Path, lines: Sequence[int], values: Floats, expected: str, allowed: range) -> None:
    for line, value in zip(lines, values.tolist(), strict=True):
        if value not in allowed:
            raise LabelledError(f"{path}:{line}: {expected}, got {value:g}")
