"""What the gradient-trained readout has to be compared with, trained on the same gateways without an attack."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.esn_readout.data import Roles, rows_of
from fedgate.firmware_sim.studies.esn_readout.figures import NAMES, curve_figures
from fedgate.firmware_sim.studies.esn_readout.options import Options
from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats
from fedgate.models.detectors.esn import esn
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run

CONSTANT, INCFED, LOCAL, LOGISTIC = (
    "always not stressed",
    "IncFed, one round",
    "local only",
    "pooled logistic, no memory",
)
BESIDE = (CONSTANT, INCFED, LOCAL, LOGISTIC)

Scored = Callable[[Array], Floats]


def beside_figures(options: Options, data: Path, who: Roles, method: str, seed: int) -> Figures:
    """Return the figures of a method; of `local only` the mean over the gateways' own models."""
    clients = {name: rows_of(options, data, name) for name in who.gateways}
    models = _models(options, clients, method, seed)
    scored = [rows_of(options, data, name) for name in who.scored]
    labels = np.concatenate([rows[LABELS] for rows in scored])
    found = []
    for model in models:
        scores = np.concatenate([model(rows[FEATURES]) for rows in scored])
        found.append(curve_figures(scores[:, None], labels))
    return {name: float(np.mean([figures[name] for figures in found])) for name in NAMES}


def _models(options: Options, clients: dict[str, Arrays], method: str, seed: int) -> list[Scored]:
    if method == CONSTANT:
        return [lambda x: np.full(len(x), -1.0)]
    if method == LOGISTIC:
        return [_logistic(options, clients)]
    parts = [{name: rows} for name, rows in clients.items()] if method == LOCAL else [clients]
    return [_incfed(options, part, seed) for part in parts]


def _incfed(options: Options, clients: dict[str, Arrays], seed: int) -> Scored:
    """Return IncFed with its defaults; over one gateway it is that gateway's own ridge regression."""
    settings = {"network": options.network_of(), "normalisation": "none", "unit": "feature"}
    algorithm = build("incfed", next(iter(clients.values()))[FEATURES].shape[1], settings)
    shared = run(algorithm, clients, seed=seed).server.global_state
    return lambda x: esn.score(shared, x)


def _logistic(options: Options, clients: dict[str, Arrays]) -> Scored:
    from sklearn.linear_model import LogisticRegression

    clip = options.network_of().clip
    x = np.clip(np.concatenate([rows[FEATURES] for rows in clients.values()]), -clip, clip)
    y = np.concatenate([rows[LABELS] for rows in clients.values()])
    model = LogisticRegression(max_iter=1_000, class_weight="balanced").fit(x, y)
    return lambda rows: np.asarray(model.decision_function(np.clip(rows, -clip, clip)))
