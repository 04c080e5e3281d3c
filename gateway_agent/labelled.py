"""Windows of known condition: a table that `firmware-sim label` makes from recordings, for algorithms that learn from
labels.

A gateway's baseline is normal by declaration and holds no fault; what faults look like, someone has to say.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from config.settings import GatewaySettings
from models.arrays import FEATURES, LABELS, Arrays
from models.features import feature_names

LABEL = "label"
NORMAL = 0


class LabelledError(ValueError):
    """A table of windows that cannot be trained on; the message names the file, the line and what was expected."""


def of(settings: GatewaySettings) -> Arrays:
    """Return the rows that the settings name, or nothing where they name none. Raises `LabelledError`."""
    path = settings.training.labelled
    return {} if path is None else read(path, feature_names(settings.features))


def read(path: Path, names: tuple[str, ...]) -> Arrays:
    """Return features (n, F) in the order of `names` and labels (n,): 0 normal, 1 and above the kinds of fault.

    Raises:
        LabelledError: the file cannot be read, or is no such table.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LabelledError(f"{path}: cannot be read ({error})") from None
    except ValueError:
        raise LabelledError(f"{path}: is empty; make it with firmware-sim label") from None
    expected = {*names, LABEL}
    if set(header) != expected or len(header) != len(expected):
        wrong = sorted(expected.symmetric_difference(header)) or "a column twice"
        raise LabelledError(f"{path}:1: expected a column for each feature and {LABEL!r}; what differs: {wrong}")
    values = np.array([_numbers(path, line, row, len(header)) for line, row in enumerate(rows, start=2)])
    labels = values[:, header.index(LABEL)] if len(values) else np.zeros(0)
    if not len(values) or not (labels > NORMAL).any() or (labels != np.abs(np.round(labels))).any():
        raise LabelledError(f"{path}: expected labels 0, 1, 2 ... and at least one window of a fault, 1 or above")
    features = values[:, [header.index(name) for name in names]]
    return {FEATURES: features, LABELS: labels.astype(np.int64)}


def _numbers(path: Path, line: int, row: list[str], count: int) -> list[float]:
    try:
        values = [float(cell) for cell in row]
    except ValueError:
        values = []
    if len(values) != count or not np.isfinite(values).all():
        raise LabelledError(f"{path}:{line}: expected {count} finite numbers, got {','.join(row)[:80]!r}")
    return values
