"""What IncFed is compared with: an answer without a look, no memory, nobody else's rows, all rows in one place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.esn_wesad.data import Fold, gateway
from fedgate.firmware_sim.studies.esn_wesad.methods import Outputs, figures_of
from fedgate.firmware_sim.studies.esn_wesad.options import CLASSES, Normalisation, Options
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats, generator
from fedgate.models.detectors.esn import esn
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run

MAJORITY, LOGISTIC, LOCAL, POOLED = "majority answer", "logistic without memory", "local only", "all rows in one place"
BASELINES = (MAJORITY, LOGISTIC, LOCAL, POOLED)
OF_A_NETWORK = (LOCAL, POOLED)
CLIP = 8.0


def baseline(
    options: Options, data: Path, normalisation: Normalisation, method: str, network: str, seed: int
) -> Figures:
    """Return the figures of a baseline, trained on all training subjects of each fold."""

    def train(fold: Fold) -> Outputs:
        clients = {name: gateway(options, data, name, normalisation) for name in fold.others}
        if method in OF_A_NETWORK:
            return _of_network(options, clients, network, seed, alone=method == LOCAL)
        y = np.concatenate([rows[LABELS] for rows in clients.values()])
        if method == MAJORITY:
            answer = np.eye(CLASSES)[np.bincount(y, minlength=CLASSES).argmax()]
            return lambda rows: np.tile(answer, (len(rows[FEATURES]), 1))
        return _logistic(np.concatenate([rows[FEATURES] for rows in clients.values()]), y)

    return figures_of(options, data, normalisation, train)


def _logistic(x: Floats, y: Floats) -> Outputs:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1_000).fit(np.clip(x, -CLIP, CLIP), y)
    return lambda rows: np.asarray(model.predict_proba(np.clip(rows[FEATURES], -CLIP, CLIP)))


def _of_network(options: Options, clients: dict[str, Arrays], network: str, seed: int, *, alone: bool) -> Outputs:
    """Return the outputs of one IncFed of all rows, or `alone` of every subject's own, one after another."""
    names = [*clients]
    parts = (
        [{name: clients[name]} for name in names] if alone else [{"all": _joined([clients[name] for name in names])}]
    )
    settings = {"network": options.network(network).model_dump(), "normalisation": "none", "unit": "feature"}
    algorithm = build("incfed", clients[names[0]][FEATURES].shape[1], settings)
    start = algorithm.start(generator(seed, 0, "cloud"))  # one for all
    ready = algorithm._replace(start=lambda _: start)
    models = [run(ready, part, seed=seed).server.global_state for part in parts]
    return lambda rows: np.concatenate([esn.outputs(model, rows[FEATURES]) for model in models])


def _joined(parts: list[Arrays]) -> Arrays:
    """Return several series as one that says where each begins."""
    missing = np.concatenate([np.where(np.arange(len(part[FEATURES])) == 0, NEW_SERIES, 0) for part in parts])
    joined = {name: np.concatenate([part[name] for part in parts]) for name in (FEATURES, LABELS)}
    return {**joined, MISSING: missing}
