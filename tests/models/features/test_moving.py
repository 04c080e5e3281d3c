"""Moving normalisation as a kind of feature."""

from __future__ import annotations

import numpy as np

from fedgate.models.features.spec import extract, feature_names
from tests.support.feature_specs import wrist

SAMPLES = 1920  # 30 s at 64 Hz


def test_moving_normalisation_is_where_the_latest_second_lies_in_its_window() -> None:
    values = np.random.default_rng(6).normal(3.0, 2.0, size=(SAMPLES, 2))
    values[-64:, 1] += 4.0
    found = extract(wrist({"kind": "moving"}), values)
    expected = (values[-64:].mean(axis=0) - values.mean(axis=0)) / values.std(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert feature_names(wrist({"kind": "moving", "latest_s": 0.5}))[0] == "eda.moving_0.5s"
    still = np.full((SAMPLES, 2), 7.0)
    assert extract(wrist({"kind": "moving"}), still).tolist() == [0.0, 0.0]
    still[-1] = 1e9
    assert extract(wrist({"kind": "moving", "latest_s": 1.0 / 64.0}), still).tolist() == [8.0, 8.0]
