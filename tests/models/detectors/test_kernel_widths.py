"""The rules for a width that nobody gave: few distances, many features, and every default path."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from fedgate.models.arrays import Floats
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.checks import (
    LEAST_SPREAD,
    NARROW,
    WIDE,
    Quantile,
    exact_width,
    map_width,
    quantile_of,
    squared_pair_distances,
)
from fedgate.models.detectors.base.random_features import WIDTH
from fedgate.models.federated.protocol.kernel_width import counted, quantile


def noise(seed: int, features: int, rows: int = 300) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, features))


def ways(x: Floats) -> list[Quantile]:
    """Return the quantiles of squared distances of rows as a detector finds them, and as gateways do."""
    return [quantile_of(x), partial(quantile, counted(squared_pair_distances(x)))]


def test_a_map_follows_the_quartiles() -> None:
    for known in ways(noise(0, 3)):
        assert map_width(known) == WIDE / (known(0.75) - known(0.25))


@pytest.mark.parametrize("rows", [[0, 0, 0, 1], [0, 1], [0, 1, 1, 1, 1, 1, 1, 1]])
def test_where_quartiles_fall_together_the_median_caps_the_width(rows: list[int]) -> None:
    """Rows of two kinds have one distance, and a difference of quartiles would ask for an endless γ, or in a bin of
    the counts for a kernel that no map can tell from zero.
    """
    for known in ways(np.eye(2)[rows]):
        assert map_width(known) == WIDE / (LEAST_SPREAD * known(0.5))
        assert known(0.5) == pytest.approx(2.0, rel=0.2)


def test_the_width_of_a_map_of_many_features_is_capped_by_the_median() -> None:
    """Distances of many features are nearly alike."""
    for known in ways(noise(1, 400)):
        assert map_width(known) == WIDE / (LEAST_SPREAD * known(0.5))


def test_a_kernel_over_rows_follows_the_median() -> None:
    for known in ways(noise(2, 2)):
        assert exact_width(known) == NARROW / (2.0 * known(0.5))


def test_a_detector_on_a_map_takes_the_same_rule() -> None:
    x = noise(6, 4)
    params = linear.fit(x, None, np.random.default_rng(0), loss="one-class", components=16)
    assert float(params[WIDTH]) == map_width(quantile_of(x))
