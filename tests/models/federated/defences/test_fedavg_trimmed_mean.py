"""FedAvg by the trimmed mean: one round against sorting by hand what the gateways ask for."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import RoundFailedError
from tests.support.robust_rounds import asked, one_round

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


@pytest.mark.parametrize(("liars", "count", "enough"), [(0.2, 3, 5), (0.2, 4, 5), (0.01, 99, 100)])
def test_where_nobody_is_trimmed_the_round_fails_and_says_how_many_it_takes(
    liars: float, count: int, enough: int
) -> None:
    """Of four a fifth is nobody, and one lie of a thousand moved the mean by 250."""
    algorithm = build("fedavg-trimmed-mean", 3, {**SETTINGS, "liars": liars})
    changes = np.vstack([np.ones((enough - 1, 4)), np.full((1, 4), -500.0)])
    words = rf"trimmed-mean: a share of {liars:g} is nobody of {count} updates, .*; expected {enough} updates or more"
    with pytest.raises(RoundFailedError, match=words):
        one_round(algorithm, changes[-count:])
    for found in (one_round(algorithm, np.vstack([np.ones((more, 4)), changes])) for more in range(3)):
        np.testing.assert_allclose(found, 1.0, atol=1e-12)


def test_a_share_is_counted_as_decimals_have_it() -> None:
    """0.29 of 100 are 29, and not the 28 that a product of floats makes of it."""
    algorithm = build("fedavg-trimmed-mean", 3, {**SETTINGS, "liars": 0.29})
    changes = np.vstack([np.ones((71, 4)), np.full((29, 4), -500.0)])
    np.testing.assert_allclose(one_round(algorithm, changes), 1.0, atol=1e-12)


@pytest.mark.parametrize("liars", [0.0, 0.5, -0.1])
def test_a_share_of_nobody_or_of_half_is_refused(liars: float) -> None:
    with pytest.raises(ValueError, match="liars"):
        build("fedavg-trimmed-mean", 3, {**SETTINGS, "liars": liars})
