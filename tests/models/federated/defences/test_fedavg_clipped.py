"""FedAvg of clipped updates: one round against scaling by hand what the gateways ask for."""

from __future__ import annotations

import numpy as np

from fedgate.models.federated import build
from tests.support.robust_rounds import asked, one_round

SETTINGS = {"loss": "logistic", "components": 0}


def test_the_model_moves_by_the_mean_of_changes_of_bounded_length() -> None:
    algorithm = build("fedavg-clipped", 3, SETTINGS)
    changes = asked(7)  # (n, 4)
    found = one_round(algorithm, changes)
    lengths = np.sqrt((changes**2).sum(axis=1))
    bound = sorted(lengths)[3]
    expected = np.mean([row * min(1.0, bound / length) for row, length in zip(changes, lengths, strict=True)], axis=0)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    loud = np.concatenate([changes[:6], 400.0 * changes[6:]])
    longest_pull = max(lengths) / 7
    assert np.linalg.norm(one_round(algorithm, loud) - found) <= 2.0 * longest_pull
