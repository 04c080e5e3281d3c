"""A sketch is a sum: merged in any way it is that of all values, and its quantiles are near theirs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.alarms.levels import CalibrationError
from fedgate.models.alarms.levels import level_of as ranked_level
from fedgate.models.alarms.site_thresholds import (
    ACCURACY,
    BINS,
    LARGEST,
    SIDE,
    SMALLEST,
    SketchError,
    level_of,
    levels_of,
    quantile,
    sketch,
)
from fedgate.models.alarms.threshold import AlarmSpec, calibrate
from fedgate.models.arrays import Floats

told_apart = st.floats(SMALLEST, LARGEST) | st.floats(-LARGEST, -SMALLEST)
tiny = st.floats(-SMALLEST, SMALLEST)
values = st.lists(told_apart | tiny | st.sampled_from([0.0, 1.0, -1.0, SMALLEST, LARGEST]), min_size=1, max_size=60)


def twin(value: float) -> int:
    """The bin of a value by trying all of them."""
    if abs(value) < SMALLEST:
        return SIDE
    growth = (1 + ACCURACY) / (1 - ACCURACY)
    below = math.floor(math.log(SMALLEST) / math.log(growth))
    for place in range(1, SIDE + 1):
        if abs(value) <= growth ** (place + below):
            return SIDE + place if value > 0 else SIDE - place
    return BINS - 1 if value > 0 else 0


@given(told_apart | tiny)
def test_a_value_is_counted_in_the_bin_that_a_search_finds(value: float) -> None:
    counts = sketch(np.array([value]))
    assert counts.sum() == 1
    near = {twin(value * (1 + change)) for change in (-1e-9, 0.0, 1e-9)}  # at the border of two bins either will do
    assert int(counts.argmax()) in near


@given(st.lists(values, min_size=1, max_size=5))
def test_merging_is_the_sketch_of_all(parts: list[list[float]]) -> None:
    merged = sum((sketch(np.array(part)) for part in parts), start=np.zeros(BINS))
    assert np.array_equal(merged, sketch(np.concatenate([np.array(part) for part in parts])))
    assert np.array_equal(sketch(np.zeros(0)), np.zeros(BINS))


@given(values, st.floats(0, 1))
def test_a_quantile_is_within_the_stated_error(given_values: list[float], share: float) -> None:
    ordered = sorted(given_values)
    true = ordered[max(math.ceil(round(share * len(ordered), 9)), 1) - 1]
    error = abs(quantile(sketch(np.array(given_values)), share) - true)
    assert error <= (ACCURACY * abs(true) if abs(true) > SMALLEST else SMALLEST) * (1 + 1e-9)


def test_magnitudes_beyond_the_range_count_at_its_ends() -> None:
    counts = sketch(np.array([-1e300, 1e9, 1e-300, -1e-9]))
    assert counts[[0, SIDE, BINS - 1]].tolist() == [1, 2, 1]
    assert quantile(counts, 1.0) == pytest.approx(LARGEST, rel=2 * ACCURACY)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.05, 0.01, 1 / 288]), st.floats(-3, 3))
def test_a_level_is_the_conformal_one_or_a_little_higher(seed: int, rate: float, shift: float) -> None:
    scores = np.random.default_rng(seed).gumbel(size=700) + shift
    exact = ranked_level("conformal", np.sort(scores), rate)
    found = level_of(sketch(scores), rate)
    assert exact <= found <= exact + 2.1 * ACCURACY * abs(exact) + 2 * SMALLEST


def test_a_level_of_a_site_keeps_the_promise_for_gateways_that_gave_nothing() -> None:
    rng = np.random.default_rng(1)
    rate, rates = 0.004, []
    for _ in range(100):
        merged: Floats = np.sum([sketch(rng.normal(size=50)) for _ in range(20)], axis=0)
        rates.append(math.erfc(level_of(merged, rate) / math.sqrt(2)) / 2)
    assert rate / 1.5 < np.mean(rates) < rate * 1.5


@pytest.mark.parametrize(("count", "rate"), [(286, 1 / 288), (0, 0.05), (19, 0.5), (98, 0.01)])
def test_no_level_is_finer_than_the_scores(count: int, rate: float) -> None:
    counts = sketch(np.linspace(1, 2, count)) if count else np.eye(BINS)[SIDE]
    needed = max(math.ceil(round(1 / rate, 9)) - 1, 20)
    with pytest.raises(CalibrationError, match=f"holds {max(count, 1)} scores, .* need at least {needed}"):
        level_of(counts, rate)
    assert math.isfinite(level_of(sketch(np.linspace(1, 2, needed)), rate))


def test_a_level_among_scores_out_of_range_is_refused() -> None:
    with pytest.raises(CalibrationError, match="does not tell apart"):
        level_of(sketch(np.append(np.ones(900), np.full(100, 1e7))), 0.05)


def test_levels_of_a_site_are_near_those_of_its_scores() -> None:
    scores = np.random.default_rng(2).normal(size=5000)
    spec = AlarmSpec(false_alarms_per_day=5.0)
    site, exact = levels_of(spec, sketch(scores), 288.0), calibrate(spec, scores, 288.0)
    assert site.raise_level == pytest.approx(exact.raise_level, rel=0.03)
    assert site.clear_level == pytest.approx(exact.clear_level, rel=0.03)
    assert site.median == pytest.approx(exact.median, abs=0.03)
    assert (site.samples, site.extrapolated) == (5000, False)
    assert site.median < site.clear_level < site.raise_level


def test_a_masked_sum_may_come_back_a_little_off() -> None:
    counts = sketch(np.random.default_rng(3).normal(size=499))
    for noise in (1e-5, -1e-5):
        assert level_of(counts + noise, 1 / 500) == level_of(counts, 1 / 500)


@pytest.mark.parametrize("wrong", [np.ones((2, 2)), np.array([1.0, np.nan]), np.array([np.inf])])
def test_values_that_are_none_are_refused(wrong: Floats) -> None:
    with pytest.raises(SketchError, match=r"expected \(n,\), all finite"):
        sketch(wrong)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.ones(BINS - 1), "expected"),
        (np.full(BINS, np.nan), "none below zero"),
        (-np.ones(BINS), "none below zero"),
        (np.zeros(BINS), "is empty"),
    ],
)
def test_counts_that_are_none_are_refused(counts: Floats, message: str) -> None:
    with pytest.raises(SketchError, match=message):
        quantile(counts, 0.5)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_must_be_one(share: float) -> None:
    with pytest.raises(SketchError, match="expected 0 to 1"):
        quantile(sketch(np.ones(3)), share)
