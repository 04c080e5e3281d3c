"""One method on all folds: a federated training each, scored on subjects that took no part, with every byte counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.esn_wesad.data import Fold, folds, gateway, present
from fedgate.firmware_sim.studies.esn_wesad.listed import with_paper_ridge
from fedgate.firmware_sim.studies.esn_wesad.options import CLASSES, Normalisation, Options
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator
from fedgate.models.detectors.esn import esn
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Server
from fedgate.models.federated.protocol.run import run

Classes = NDArray[np.int64]
Outputs = Callable[[Arrays], Floats]  # (n, classes) of a gateway's rows, or (k n, classes) of k models in turn


def figures_of(options: Options, data: Path, normalisation: Normalisation, train: Callable[[Fold], Outputs]) -> Figures:
    """Return what a method is worth over all subjects, each scored by a training that it took no part in: `accuracy`
    and `macro_f1` over all rows, the `error` Σ (output - class)² of a row, and the deviation between subjects.
    """
    from sklearn.metrics import f1_score

    truth: list[Classes] = []
    said: list[Classes] = []
    errors: list[Floats] = []
    for fold in folds(options):
        outputs = train(fold)
        for name in fold.scored:
            rows = gateway(options, data, name, normalisation)
            found = outputs(rows)
            y = np.tile(rows[LABELS], len(found) // len(rows[LABELS]))
            truth.append(y)
            said.append(found.argmax(axis=1))
            errors.append(np.square(found - np.eye(CLASSES)[y]).sum(axis=1))
    single = [float(np.mean(y == found)) for y, found in zip(truth, said, strict=True)]
    y, found = np.concatenate(truth), np.concatenate(said)
    return {
        "accuracy": float(np.mean(y == found)),
        "macro_f1": float(f1_score(y, found, labels=range(CLASSES), average="macro", zero_division=0.0)),
        "error": float(np.concatenate(errors).mean()),
        "subject_deviation": float(np.std(single, ddof=1)),
    }


def federated(
    options: Options,
    data: Path,
    normalisation: Normalisation,
    *,
    algorithm: str,
    settings: dict[str, Any],
    share: float,
    seed: int,
    by_cohort: bool = False,
    has_paper_ridge: bool = False,
) -> Figures:
    """Return the figures of a federated training, and the bytes that a gateway sends and receives for it."""
    up: list[int] = []
    down: list[int] = []
    conditions: list[float] = []
    begun: list[Server] = []  # one for all folds: it takes half the time of a fold

    def train(fold: Fold) -> Outputs:
        names = present(fold, share, seed)
        clients = {name: gateway(options, data, name, normalisation) for name in names}
        chosen = settings | ({"cohort": len(names)} if by_cohort else {}) | {"normalisation": "none", "unit": "feature"}
        made = build(algorithm, clients[names[0]][FEATURES].shape[1], chosen)
        made = with_paper_ridge(made) if has_paper_ridge else made
        if not begun:
            begun.append(made.start(generator(seed, 0, "cloud")))
        start = begun[0]
        sent: list[int] = []
        ready = made._replace(start=lambda _: start)
        shared = run(
            ready, clients, seed=seed, on_update=lambda _, update: sent.append(len(encode(update)))
        ).server.global_state
        up.append(round(sum(sent) / len(names)))
        down.append(len(encode(start.global_state)) + made.setup * len(encode(shared)))
        conditions.append(float(shared["condition"]))
        return lambda rows: esn.outputs(shared, rows[FEATURES])

    figures = figures_of(options, data, normalisation, train)
    return figures | {
        "bytes_up": float(np.mean(up)),
        "bytes_down": float(np.mean(down)),
        "condition": float(np.median(conditions)),
    }
