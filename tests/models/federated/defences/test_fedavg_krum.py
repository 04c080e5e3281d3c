"""FedAvg by Krum: one round takes the update that lies nearest to its neighbours, as it is."""

from __future__ import annotations

import numpy as np

from fedgate.models.federated import build
from tests.support.robust_rounds import asked, one_round

SETTINGS = {"loss": "logistic", "components": 0, "liars": 0.3}


def test_the_model_moves_by_the_one_change_nearest_to_others() -> None:
    algorithm = build("fedavg-krum", 3, SETTINGS)
    changes = asked(10)  # (n, 4)
    found = one_round(algorithm, changes)
    squares = [sorted(((row - other) ** 2).sum() for other in changes)[1:6] for row in changes]  # n - f - 2 = 5 others
    expected = changes[int(np.argmin([sum(each) for each in squares]))]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    lies = np.concatenate([changes[:7], np.full((3, 4), 400.0)])  # near to one another
    assert np.isclose(one_round(algorithm, lies), changes[:7]).all(axis=1).sum() == 1
