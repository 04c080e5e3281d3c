"""Whole numbers from a share of a count, as decimals have it: in the helper and wherever a share decides on one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.alarms.levels import level_of
from fedgate.models.arrays import select
from fedgate.models.federated.defences.robust_mean import Robust
from fedgate.models.federated.robust_svm.ball import Ball
from fedgate.models.federated.robust_svm.open_support import best_lambda
from fedgate.models.packing import entries_sent
from fedgate.models.whole import round_down, round_up, settled


@given(st.integers(0, 1_000), st.integers(0, 10_000_000))
def test_a_share_in_thousandths_of_a_count_is_rounded_as_integers_are(thousandths: int, count: int) -> None:
    product = thousandths / 1_000 * count
    assert round_down(product) == thousandths * count // 1_000
    assert round_up(product) == -(-thousandths * count // 1_000)


@given(st.floats(1e-300, 1e12))
def test_only_rounding_is_settled(product: float) -> None:
    assert settled(product) == pytest.approx(product, rel=1e-12) and settled(product) > 0.0
    assert round_down(product) in (math.floor(product), round(product))
    assert round_up(product) in (math.ceil(product), round(product))


def test_what_computers_make_of_shares_is_not_seen() -> None:
    assert int(0.29 * 100) == 28 and math.ceil(0.07 * 100) == 8  # which is what this is about
    assert len(select(0, 0, map(str, range(100)), 0.29)) == 29
    assert entries_sent(100, 0.07) == 7
    assert Robust(rule="trimmed-mean", liars=0.29).liars_of(100) == 29
    assert level_of("conformal", np.arange(374.0), 0.072) == np.nextafter(374.0 - 27.0, np.inf)  # 27 of 375
    w, z = np.array([0.2, 0.1]), np.random.default_rng(0).normal(size=(100, 2))
    ends = np.sort(2.0 * (z @ w))[::-1]  # of a changed label where no margin is beyond 1
    assert np.abs(z @ w).max() < 1.0 and ends[28] > ends[29] > 0.2
    assert best_lambda(w, z, Ball(0.29, 1.0, "1")) == pytest.approx(ends[29], rel=1e-12)
