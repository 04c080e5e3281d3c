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
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedgate.config.settings.settings import GatewaySettings
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays
from fedgate.models.features import FeatureSpec, feature_names

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


def of(settings: GatewaySettings) -> Arrays:
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
    names, values = columns.split(","), array("d")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if file.readline().strip() != mark:
                raise LabelledError(
                    f"{path}:1: expected {mark!r}, the [features] of this gateway; measure the windows again with "
                    "firmware-sim label"
                )
            reader = csv.reader(file)
            header = next(reader, [])
            if GAP not in header:
                names.remove(GAP)
            if sorted(header) != sorted(names):
                wrong = sorted(set(names).symmetric_difference(header)) or "a column twice"
                raise LabelledError(f"{path}:2: expected a column for each feature and {LABEL!r}; differing: {wrong}")
            for row in _rows(path, reader, header):
                values.extend(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelledError(f"{path}: cannot be read ({error})") from None
    table = np.frombuffer(values, dtype=np.float64).reshape(-1, len(names))
    labels = table[:, header.index(LABEL)]
    if not labels.any():
        raise LabelledError(f"{path}: expected at least one window of a fault, label 1 or above")
    order = [header.index(name) for name in names if name not in (GAP, LABEL)]
    gaps = table[:, header.index(GAP)].astype(np.int64) if GAP in header else np.zeros(len(table), dtype=np.int64)
    gaps[0] = NEW_SERIES
    return {FEATURES: table[:, order], LABELS: labels.astype(np.int64), MISSING: gaps}


def _rows(path: Path, reader: Iterator[list[str]], header: list[str]) -> Iterator[list[float]]:
    """Yield the checked rows of a table, whose header is line 2, without its empty lines."""
    count = 0
    for line, row in enumerate(reader, start=3):
        if not row:
            continue
        try:
            values = [float(cell) for cell in row]
        except ValueError:
            values = []
        if len(values) != len(header) or not np.isfinite(values).all():
            raise LabelledError(f"{path}:{line}: expected {len(header)} finite numbers, got {','.join(row)[:80]!r}")
        label = values[header.index(LABEL)]
        if label not in range(LABEL_MAX + 1):
            raise LabelledError(f"{path}:{line}: label: expected a whole number from 0 to {LABEL_MAX}, got {label:g}")
        gap = values[header.index(GAP)] if GAP in header else 0.0
        if gap not in range(NEW_SERIES, ROWS_MAX):
            raise LabelledError(
                f"{path}:{line}: missing: expected a whole number of windows, or {NEW_SERIES} where a recording "
                f"begins, got {gap:g}"
            )
        count += 1
        if count > ROWS_MAX:
            raise LabelledError(f"{path}: expected at most {ROWS_MAX} windows, as many as a baseline may have")
        yield values
