"""Subjects of the WESAD features as gateways: the means of 14 channels in time order, in the gateway's own units."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.studies.esn_wesad.options import CLASSES, Normalisation, Options
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator

MEAN = "_mean"
LEAST_DEVIATION = 1e-6


class Subject(NamedTuple):
    """One recording: rows (n, F) in their order, and classes (n,): 0 baseline, 1 stress, 2 amusement."""

    x: Floats
    y: NDArray[np.int64]


@lru_cache(maxsize=64)
def subject(path: Path) -> Subject:
    """Return the recording of one subject; raises `DataError` where the file is not as expected."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            names, x, y = archive["feature_names"], archive["X"], archive["y"]
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise DataError(f"{path}: expected an npz file with X, y and feature_names ({error})") from None
    columns = [index for index, name in enumerate(names) if str(name).endswith(MEAN)]
    classes = y.astype(np.int64) - 1
    if not columns or len(x) != len(y) or not np.isin(classes, np.arange(CLASSES)).all():
        raise DataError(f"{path}: expected columns named *{MEAN} and a class from 1 to {CLASSES} for each row")
    return Subject(x[:, columns].astype(np.float64), classes)


def gateway(options: Options, data: Path, name: str, normalisation: Normalisation) -> Arrays:
    """Return the rows of a subject in units of its whole recording, or of its beginning; no class is looked at."""
    recorded = subject(data / options.folder / f"{name}.npz")
    known = recorded.x if normalisation == "recording" else recorded.x[: options.commissioning_rows]
    x = (recorded.x - known.mean(axis=0)) / np.maximum(known.std(axis=0), LEAST_DEVIATION)
    return {FEATURES: x, LABELS: recorded.y}


class Fold(NamedTuple):
    """Who is scored, and who may train."""

    number: int
    scored: list[str]
    others: list[str]


def folds(options: Options) -> Iterator[Fold]:
    """Yield the subjects in turn, so many at a time."""
    from sklearn.model_selection import KFold

    names = np.array(options.subjects)
    for index, (others, scored) in enumerate(KFold(len(names) // options.held_out).split(names)):
        yield Fold(index, names[scored].tolist(), names[others].tolist())


def present(fold: Fold, share: float, seed: int) -> list[str]:
    """Return the share of the training subjects that are there, those of a smaller share among them."""
    order = generator(seed, fold.number, "present").permutation(len(fold.others))
    return sorted(fold.others[index] for index in order[: max(round(share * len(order)), 1)])
