"""One training on one set and what it is worth: the federated methods, their central counterparts, the trivial one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.evaluate.datasets import Labelled, load_table
from fedgate.firmware_sim.evaluate.splits import partition
from fedgate.firmware_sim.metrics import roc_auc
from fedgate.firmware_sim.studies.engine.study import Cell
from fedgate.firmware_sim.studies.engine.unit_range import to_unit_range
from fedgate.firmware_sim.studies.federated_svdd.options import (
    DISTANCE,
    FEDERATED,
    Form,
    Options,
    fitted_sphere,
    settings_of,
)
from fedgate.models.arrays import FEATURES, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.svm import ocsvm, svdd
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run

FOLDER = "tabular"
ALL_SCORES_EQUAL = 0.5  # the area of a model that nobody could train
Rows = NDArray[np.int64]


@lru_cache(maxsize=8)
def table(data: Path, name: str) -> Labelled:
    """Return the rows of one set; raises `DataError` or `RecordingError` where there is no such table."""
    return load_table(data / FOLDER / name).rows


@lru_cache(maxsize=512)
def owners(data: Path, name: str, taken: bytes, clients: int, split: str, seed: int) -> Rows:
    """Return the owner of each row that trains; `taken` are their places in the table, as bytes to be remembered by."""
    x = table(data, name).x[np.frombuffer(taken, dtype=np.int64)]
    return partition(to_unit_range(x, x), clients, "iid" if split == "iid" else "biased", seed)


def names(clients: int) -> list[str]:
    return [f"client-{index + 1:02d}" for index in range(clients)]


def dealt(options: Options, data: Path, cell: Cell, rows: Rows, seed: int) -> dict[str, Arrays]:
    """Return the training rows of each client of a cell, scaled together."""
    name = options.sets[cell["set"]]
    x = table(data, name).x[rows]
    of_row = owners(data, name, rows.tobytes(), cell["clients"], cell["split"], seed)
    z = to_unit_range(x, x)
    return {client: {FEATURES: z[of_row == index]} for index, client in enumerate(names(cell["clients"]))}


def auc_of(options: Options, data: Path, cell: Cell, value: float, train: Rows, test: Rows, seed: int) -> float:
    """Train the method of a cell on some rows of its set and return the area over others (or the same).

    Columns are scaled by the rows that train. `seed` deals the rows, draws the clients and makes the noise.
    """
    rows = table(data, options.sets[cell["set"]])
    form = options.forms[cell["form"]]
    if form.train_on == "normal":
        train = train[rows.y[train] == 0]
    x = to_unit_range(rows.x[test], rows.x[train])
    if cell["method"] in FEDERATED:
        scores = _federated(options, data, cell, value, train, x, seed)
    else:
        scores = _central(options, form, cell["method"], value, to_unit_range(rows.x[train], rows.x[train]), x)
    return ALL_SCORES_EQUAL if scores is None else roc_auc(rows.y[test], scores)


def _federated(
    options: Options, data: Path, cell: Cell, value: float, train: Rows, x: Floats, seed: int
) -> Floats | None:
    chosen = settings_of(options, options.forms[cell["form"]], cell["method"], value, anonymise=cell["anonymise"])
    chosen |= {"tau": cell["tau"]} if "tau" in cell else {}
    algorithm = build(cell["method"], x.shape[1], chosen)
    clients = dealt(options, data, cell, train, seed)
    shared = run(algorithm, clients, seed=seed, fraction=cell["fraction"]).server.global_state
    return DETECTORS[algorithm.detector].score(shared, x) if shared else None


def _central(options: Options, form: Form, method: str, value: float, z: Floats, x: Floats) -> Floats:
    if method == DISTANCE:
        return np.asarray(np.linalg.norm(x - z.mean(axis=0), axis=1))
    if method == "ocsvm":  # there the paper's values are ν whatever they are elsewhere
        return ocsvm.OCSVM.score(ocsvm.fit(z, nu=value, gamma=options.gamma, most_rows=len(z)), x)
    return svdd.SVDD.score(fitted_sphere(options, form, value, z), x)


def stratified_folds(y: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Return the fold (n,) of each row; each fold has its share of each class."""
    fold = np.empty(len(y), dtype=np.int64)
    for value in (0, 1):
        members = rng.permutation(np.flatnonzero(y == value))
        fold[members] = np.arange(len(members)) % count
    return fold
