"""FedAvg by the median of each coordinate: one round against numpy on what the gateways ask for."""

from __future__ import annotations

import numpy as np

from fedgate.models.federated import build
from tests.support.robust_rounds import asked, one_round

SETTINGS = {"loss": "logistic", "components": 0}


def test_the_model_moves_by_the_median_of_the_changes() -> None:
    algorithm = build("fedavg-median", 3, SETTINGS)
    changes = asked(7)  # (n, 4)
    found = one_round(algorithm, changes)
    np.testing.assert_allclose(found, np.median(changes, axis=0), atol=1e-12)
    lies = np.concatenate([changes, np.full((6, 4), 400.0)])  # six of thirteen
    stood = one_round(algorithm, lies)
    assert (stood >= changes.min(axis=0)).all() and (stood <= changes.max(axis=0)).all()
