"""FedAvg by Multi-Krum: one round takes the mean of the n - f - 2 updates nearest to their neighbours."""

from __future__ import annotations

import numpy as np

from fedgate.models.federated import build
from tests.support.robust_rounds import asked, one_round

SETTINGS = {"loss": "logistic", "components": 0, "liars": 0.3}


def test_the_model_moves_by_the_mean_of_the_changes_nearest_to_others() -> None:
    algorithm = build("fedavg-multi-krum", 3, SETTINGS)
    changes = asked(10)  # (n, 4)
    found = one_round(algorithm, changes)
    squares = [sorted(((row - other) ** 2).sum() for other in changes)[1:6] for row in changes]  # n - f - 2 = 5 others
    best = np.argsort([sum(each) for each in squares])[:5]
    np.testing.assert_allclose(found, changes[best].mean(axis=0), atol=1e-12)
    lies = np.concatenate([changes[:7], np.full((3, 4), 400.0)])
    stood = one_round(algorithm, lies)
    assert (stood >= changes[:7].min(axis=0)).all() and (stood <= changes[:7].max(axis=0)).all()
