"""What each feature adds to a score, and how far it is from its healthy median."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

from fedgate.models.alarms.contributions import Healthy, contribute, measure_healthy, rank_contributions, select_named
from fedgate.models.detectors.base import linear, subspace

NAMES = ("a", "b", "c", "d")


def test_contributions_to_a_linear_score_are_exact_and_add_up() -> None:
    weights, median = np.array([2.0, -1.0, 0.0, 0.5]), np.array([1.0, 2.0, 3.0, 4.0])
    row = np.array([3.0, 1.0, 9.0, 2.0])
    score = partial(linear.score, {"weights": weights, "intercept": np.array(-0.7)})
    amounts = contribute(score, row, median)
    np.testing.assert_allclose(amounts, weights * (row - median))
    np.testing.assert_allclose(amounts.sum(), (score(row[None]) - score(median[None]))[0])


def test_a_feature_beside_a_subspace_contributes_what_it_is_farther_by() -> None:
    x = np.random.default_rng(1).normal(size=(200, 4)) * [10.0, 1.0, 1.0, 1.0]
    score = partial(subspace.score, subspace.fit(x, components=1, which="residual"))
    healthy = measure_healthy(x)
    row = healthy.median + np.array([0.0, 0.0, 8.0, 0.0])
    amounts = contribute(score, row, healthy.median)
    assert amounts.argmax() == 2
    np.testing.assert_allclose(amounts[2], (score(row[None]) - score(healthy.median[None]))[0])


def test_a_healthy_spread_is_no_matter_of_a_few_wild_windows_or_of_the_unit() -> None:
    x = np.random.default_rng(1).normal(5.0, 2.0, size=(2000, 1))
    wild = np.concatenate([x, np.full((20, 1), 1e6)])
    assert measure_healthy(wild).spread[0] == pytest.approx(2.0, rel=0.1)
    np.testing.assert_array_equal(measure_healthy(wild * 2.0**20).spread, measure_healthy(wild).spread * 2.0**20)


def test_what_stood_still_has_no_spread_and_a_switch_has_its_deviation() -> None:
    switch = (np.arange(100) % 10 == 0).astype(np.float32)
    flicker = np.where(np.arange(100) % 3 == 0, np.nextafter(np.float32(1e3), np.float32(2e3)), np.float32(1e3))
    x = np.column_stack([np.full(100, np.float32(0.1)), switch, flicker, np.zeros(100, np.float32)])
    np.testing.assert_allclose(measure_healthy(x).spread, [0.0, 0.3, 0.0, 0.0], rtol=1e-6)


def test_what_stands_out_is_named_in_order_with_its_distance() -> None:
    healthy = Healthy(np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.5, 0.0, 1.0, 1.0]))
    found = select_named(
        rank_contributions(NAMES, np.array([2.0, 1.0, 9.0, 5.0]), healthy, np.array([3.0, 4.0, -2.0, 1.0]))
    )
    assert [(one.feature, one.amount, one.deviation) for one in found] == [("b", 4.0, -math.inf), ("a", 3.0, 2.0)]


@pytest.mark.parametrize("amounts", [[0.0] * 4, [-1.0] * 4, [math.nan] * 4])
def test_where_no_feature_brings_the_score_down_none_is_named(amounts: list[float]) -> None:
    healthy = Healthy(np.zeros(4), np.zeros(4))
    assert select_named(rank_contributions(NAMES, np.ones(4), healthy, np.array(amounts))) == ()


def test_no_more_than_three_are_named() -> None:
    healthy = Healthy(np.zeros(4), np.ones(4))
    assert [one.feature for one in select_named(rank_contributions(NAMES, np.ones(4), healthy, np.ones(4)))] == [
        "a",
        "b",
        "c",
    ]
