"""FedAvg by the trimmed mean: one round against sorting by hand what the gateways ask for."""

from __future__ import annotations

import numpy as np

from models.federated import build
from tests.robust_rounds import asked, one_round

SETTINGS = {"loss": "logistic", "components": 0, "liars": 0.3}


def test_the_model_moves_by_the_mean_without_either_end() -> None:
    algorithm = build("fedavg-trimmed-mean", 3, SETTINGS)
    changes = asked(10)  # (n, 4)
    found = one_round(algorithm, changes)
    expected = [np.mean(sorted(column)[3:7]) for column in changes.T]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    lies = np.concatenate([changes[:7], np.full((3, 4), -400.0)])
    stood = one_round(algorithm, lies)
    assert (stood >= changes[:7].min(axis=0)).all() and (stood <= changes[:7].max(axis=0)).all()
    without = build("fedavg-trimmed-mean", 3, {**SETTINGS, "liars": 0.0})
    np.testing.assert_allclose(one_round(without, changes), changes.mean(axis=0), atol=1e-12)
