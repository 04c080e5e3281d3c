"""Ensemble SVDD and Support Vector Election beside their central counterparts (Frasson and Malchiodi, "Support Vector
Based Anomaly Detection in Federated Learning", Tables 1 and 2, Figures 1 to 3).

Table 1 trains and scores on all rows, outliers included; Table 2 is nested cross-validation. A cell is one
configuration, with all values of C or ν inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from sklearn.model_selection import StratifiedKFold

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.evaluate.methods import Method
from fedgate.firmware_sim.metrics import roc_auc
from fedgate.firmware_sim.studies.datasets.outliers import FOLDER, Places, Split, deal, load
from fedgate.firmware_sim.studies.datasets.unit_range import to_unit_range
from fedgate.models.arrays import Floats, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.svm import ocsvm, svdd
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run

OCSVM, CENTRE = "ocsvm", "centre"
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class SphereMethod(Method):
    """A federated method, or all rows in one place: a detector on them, or the distance from their centre."""

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        return {OCSVM: ocsvm.fit, "svdd": svdd.fit, CENTRE: _distances}


class Form(settings.Table):
    """One way to train: which setting takes the values, between which bounds they are drawn, and on which rows."""

    caps: Literal["c", "nu"]
    low: Share
    high: Share
    train_on: Literal["all", "normal"]


class Case(settings.Table):
    """What is measured.

    :param table: the file of a set.
    :param clients, fraction, split: how many there are, which share of them takes part, how rows are dealt to them.
    :param draws: how many values of C or ν are drawn.
    :param folds: of nested cross-validation; where not given, all rows train and all are scored.
    """

    table: str
    method: SphereMethod
    form: Form
    clients: Count = 1
    fraction: Share = 1.0
    split: Split = "iid"
    draws: Count = 10
    folds: Annotated[int, Field(ge=2)] | None = None
    seed: int = 0


def draw_values(case: Case) -> list[float]:
    """Return the values of C or ν, uniform between the form's bounds and the same for every method."""
    return [
        float(value) for value in generator(case.seed, 0, "values").uniform(case.form.low, case.form.high, case.draws)
    ]


def settings_of(case: Case, value: float) -> dict[str, Any]:
    """Return the settings of the method at a value, which a one-class SVM takes as ν whatever it is elsewhere."""
    return {**case.method.settings, "nu" if case.method.algorithm == OCSVM else case.form.caps: value}


def reads(case: Case, data: Path) -> list[Path]:
    """Return the file of the table."""
    return [data / FOLDER / case.table]


def measure(case: Case, data: Path) -> Figures:
    """Return `auc.i` for each value, or for each outer fold, where `value.i` is the value that was chosen for it."""
    path = data / FOLDER / case.table
    y, values = load(path).y, draw_values(case)
    if case.folds is None:
        every = np.arange(len(y))
        areas = (area(case, path, value, every, every, case.seed + index) for index, value in enumerate(values))
        return {f"auc.{index}": found for index, found in enumerate(areas)}
    figures = {}
    for fold, (train, test) in enumerate(deal_folds(y, case.folds, case.seed)):
        value = _choose(case, path, values, train, case.seed + fold)
        figures[f"auc.{fold}"] = area(case, path, value, train, test, case.seed + fold)
        figures[f"value.{fold}"] = value
    return figures


def _choose(case: Case, path: Path, values: list[float], rows: Places, seed: int) -> float:
    """Return the value with the largest mean area on inner folds of rows; nothing else takes part."""
    inner = [(rows[train], rows[test]) for train, test in deal_folds(load(path).y[rows], case.folds or 0, seed)]
    return max(values, key=lambda value: float(np.mean([area(case, path, value, *part, seed) for part in inner])))


def deal_folds(y: Places, count: int, seed: int) -> Iterator[tuple[Places, Places]]:
    """Yield the places of the rows that train and of those that are scored; each fold has its share of each class."""
    yield from StratifiedKFold(count, shuffle=True, random_state=seed).split(y, y)


def area(case: Case, path: Path, value: float, train: Places, test: Places, seed: int) -> float:
    """Train on some rows of a set and return the area over others, or the same: 0.5 where nobody could train.

    Columns are scaled by the rows that train. `seed` deals the rows, draws the clients and makes the noise.
    """
    rows = load(path)
    if case.form.train_on == "normal":
        train = train[rows.y[train] == 0]
    return roc_auc(rows.y[test], _score(case, path, value, train, to_unit_range(rows.x[test], rows.x[train]), seed))


def _score(case: Case, path: Path, value: float, train: Places, x: Floats, seed: int) -> Floats:
    """Return the scores (m,) of rows x (m, F), all alike where nobody had enough rows to train."""
    name, given = case.method.algorithm, settings_of(case, value)
    if name in case.method.others():
        rows = load(path).x[train]
        z = to_unit_range(rows, rows)
        if name == CENTRE:
            return _distances(z, x)
        return DETECTORS[name].score(DETECTORS[name].fit(z, **given), x)
    algorithm = build(name, x.shape[1], given)
    clients = deal(path, train, case.clients, case.split, seed)
    shared = run(algorithm, clients, seed=seed, fraction=case.fraction).server.global_state
    return DETECTORS[algorithm.detector].score(shared, x) if shared else np.zeros(len(x))


def _distances(z: Floats, x: Floats) -> Floats:
    """Return the distances (m,) of rows x (m, F) from the mean of rows z (n, F)."""
    return np.asarray(np.linalg.norm(x - z.mean(axis=0), axis=1))
