"""Each way to a level keeps its promise where its assumption holds, and says what it needs where it cannot."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.alarms import threshold
from fedgate.models.alarms.levels import CalibrationError, Method, beyond, least_scores, level_of, pareto_tail
from fedgate.models.alarms.threshold import AlarmSpec, calibrate
from fedgate.models.arrays import Floats

METHODS: tuple[Method, ...] = get_args(Method)
TAILS = {
    "exponential": scipy.stats.expon(),
    "normal": scipy.stats.norm(),
    "uniform": scipy.stats.uniform(),
    "gumbel": scipy.stats.gumbel_r(),
    "lognormal": scipy.stats.lognorm(0.5),
    "student": scipy.stats.t(4),
    "pareto": scipy.stats.genpareto(0.2),
}
BASELINES = 200
FACTOR = 1.5


def true_rates(method: Method, tail: str, rate: float, scores: int) -> Floats:
    drawn = TAILS[tail].rvs((BASELINES, scores), random_state=np.random.default_rng(7))
    return np.array(TAILS[tail].sf([level_of(method, row, rate) for row in np.sort(drawn, axis=1)]))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("method", METHODS)
def test_the_promise_is_kept_where_a_method_has_what_it_needs(method: Method, tail: str) -> None:
    """Four times the least number of scores, so that a rate of every baseline scatters by little."""
    rate = 0.004
    scores = 4 * least_scores("quantile" if method == "automatic" else method, rate)
    mean = true_rates(method, tail, rate, scores).mean()
    assert mean < rate * FACTOR
    if (method, tail) != ("peaks", "uniform"):  # a shape of -1 is beyond what the fit is made for: rarer than promised
        assert mean > rate / FACTOR


@pytest.mark.parametrize("tail", ["exponential", "normal", "gumbel", "lognormal", "student", "pareto"])
@pytest.mark.parametrize("rate", [1 / 288, 1 / 2880])
def test_peaks_keep_the_promise_with_no_more_scores_than_they_need(tail: str, rate: float) -> None:
    """The true rates are lognormal with a deviation of e - 1 at most, so their mean scatters by less than 0.13."""
    mean = true_rates("peaks", tail, rate, least_scores("peaks", rate)).mean()
    assert rate / FACTOR < mean < rate * FACTOR


@pytest.mark.parametrize("shape", [-0.2, 0.0, 0.2])
def test_peaks_find_the_level_of_a_pareto_tail(shape: float) -> None:
    tail, rate = scipy.stats.genpareto(shape), 1e-4
    drawn = np.sort(tail.rvs((50, 20_000), random_state=np.random.default_rng(3)), axis=1)
    levels = [level_of("peaks", row, rate) for row in drawn]
    assert np.median(levels) == pytest.approx(tail.isf(rate), rel=0.06)


@given(st.lists(st.integers(0, 300), min_size=21, max_size=120), st.floats(0.01, 0.05))
def test_conformal_levels_hold_for_every_score_left_out(values: list[int], rate: float) -> None:
    """Of n + 1 scores each is the further one in turn: no more than the promised share exceeds the others' level."""
    ordered = np.sort(np.array(values, dtype=np.float64))
    raised = 0
    for index, score in enumerate(ordered):
        try:
            raised += score >= level_of("conformal", np.delete(ordered, index), rate)
        except CalibrationError:
            return
    assert raised <= rate * len(ordered) + 1e-9
    if len(set(values)) == len(values):
        assert raised > rate * len(ordered) - 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rate", [0.05, 0.01, 1 / 288, 0.001])
def test_one_score_less_than_a_method_needs_is_refused(method: Method, rate: float) -> None:
    needed = least_scores(method, rate)
    scores = np.sort(np.random.default_rng(0).normal(size=needed))
    assert math.isfinite(level_of(method, scores, rate))
    with pytest.raises(CalibrationError, match=f"{needed - 1} scores given, method '{method}' needs at least {needed}"):
        level_of(method, scores[1:], rate)


def test_methods_need_the_less_the_more_they_assume() -> None:
    for rate in (1 / 288, 1 / 2880, 1 / 34560):
        needed = [least_scores(method, rate) for method in ("automatic", "peaks", "conformal", "quantile")]
        assert needed == sorted(needed)
    spec = AlarmSpec(method="conformal", false_alarms_per_day=2)
    assert threshold.least_scores(spec, 1000.0) == 499
    assert [least_scores(method, 0.01) for method in METHODS] == [20, 1000, 120, 99]


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.25, 8.0]), shift=st.sampled_from([-1024.0, 0.0, 3.0]))
def test_levels_follow_gain_and_offset(method: Method, seed: int, scale: float, shift: float) -> None:
    scores = np.sort(np.random.default_rng(seed).gumbel(size=600))
    level = level_of(method, scores, 1 / 60)
    assert level_of(method, scale * scores + shift, 1 / 60) == pytest.approx(scale * level + shift, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 2**32 - 1), first=st.floats(1 / 550, 0.0165), second=st.floats(1 / 550, 0.0165))
def test_a_rarer_alarm_never_has_a_lower_level(method: Method, seed: int, first: float, second: float) -> None:
    scores = np.sort(np.random.default_rng(seed).gumbel(size=600))
    if method == "quantile":
        first, second = first + 0.0168, second + 0.0168
    low, high = (level_of(method, scores, rate) for rate in sorted([first, second], reverse=True))
    assert low <= high


@pytest.mark.parametrize("shape", [-0.4, -0.1, 0.0, 0.3])
def test_a_pareto_tail_is_recovered(shape: float) -> None:
    middles = (np.arange(20_000) + 0.5) / 20_000
    found = pareto_tail(np.asarray(scipy.stats.genpareto(shape, scale=3.0).ppf(middles)))
    assert found == pytest.approx((shape, 3.0), abs=0.02)


@given(st.lists(st.floats(0.1, 100.0), min_size=3, max_size=15, unique=True))
def test_the_fit_equals_moments_over_all_pairs(values: list[float]) -> None:
    """E[X (1 - F)] is half the mean of the smaller of two: the same moment without ranks."""
    excesses = np.sort(values)
    first = float(np.mean(excesses))
    second = float(np.mean([min(pair) for pair in itertools.combinations(values, 2)])) / 2
    scale = 2 * first * second / (first - 2 * second)
    shape, found = pareto_tail(excesses)
    assert found == pytest.approx(scale, rel=1e-6)
    assert shape == pytest.approx(max(2 - first / (first - 2 * second), -scale / max(values)), rel=1e-6, abs=1e-6)
    if shape < 0:
        assert found / -shape >= excesses[-1] * (1 - 1e-9)  # the tail reaches as far as what was seen


def test_a_tail_of_equal_scores_has_no_shape() -> None:
    scores = np.append(np.linspace(0, 1, 400), np.full(400, 2.0))
    with pytest.raises(CalibrationError, match=r"scores all equal 2\.0: the score is saturated"):
        level_of("peaks", scores, 1 / 288)
    with pytest.raises(CalibrationError, match="the highest 5 scores are all equal"):
        pareto_tail(np.full(5, 1.5))
    for method in METHODS:
        with pytest.raises(CalibrationError, match="saturated"):
            level_of(method, scores, 0.02)


@given(st.integers(0, 2**32 - 1), st.integers(20, 200), st.floats(1, 6), st.floats(0.01, 1e4))
def test_reach_bounds_extrapolated_levels_only(seed: int, count: int, reach: float, per_day: float) -> None:
    scores = np.random.default_rng(seed).gumbel(size=count)
    free = calibrate(AlarmSpec(false_alarms_per_day=per_day), scores, 43_200.0)
    bound = calibrate(AlarmSpec(false_alarms_per_day=per_day, reach=reach), scores, 43_200.0)
    farthest = free.median + reach * (scores.max() - free.median)
    assert bound.extrapolated == free.extrapolated == beyond(np.sort(scores), min(per_day / 43_200, 0.05))
    assert bound.raise_level == (min(free.raise_level, farthest) if free.extrapolated else free.raise_level)
    assert bound.capped == (bound.raise_level < free.raise_level)
    assert bound.median <= bound.clear_level < bound.raise_level


@pytest.mark.soak
@pytest.mark.parametrize(("reach", "scores"), [(1.0, 30), (2.0, 30), (3.0, 30), (2.0, 60)])
def test_what_a_bound_costs_is_as_stated(reach: float, scores: int) -> None:
    drawn = np.random.default_rng(5).exponential(size=(20_000, scores))
    spec = AlarmSpec(reach=reach, false_alarms_per_day=1e-6)
    levels = [calibrate(spec, row, 43_200.0) for row in drawn[:3000]]
    assert all(level.capped for level in levels)
    median, highest = np.median(drawn, axis=1), drawn.max(axis=1)
    assert [level.raise_level for level in levels] == pytest.approx((median + reach * (highest - median))[:3000])
    rate = np.exp(-median - reach * (highest - median)).mean()
    exactly = math.gamma(reach + 1) * math.exp(math.lgamma(scores + 1) - math.lgamma(scores + 1 + reach))
    assert rate == pytest.approx(2 ** (reach - 1) * exactly, rel=0.15)  # the median scatters too
    assert rate < 2 ** (reach - 1) * math.gamma(reach + 1) / scores**reach
