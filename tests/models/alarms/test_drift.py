"""Drift is said as rarely as promised while nothing changes, and soon where something did."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedgate.models.alarms.drift import (
    ALLOWANCE,
    DriftSpec,
    DriftState,
    Reference,
    begin,
    limit_for,
    standard_step,
    update,
)
from fedgate.models.alarms.levels import CalibrationError
from fedgate.models.arrays import Floats

WINDOWS_PER_DAY = 24.0
STORED = TypeAdapter(DriftState)
DAYS = 365.25


def days_until(reference: Reference, state: DriftState, scores: Floats) -> tuple[float, DriftState]:
    for index, score in enumerate(scores.tolist()):
        state, drifted = update(reference, state, score)
        if drifted:
            return (index + 1) / WINDOWS_PER_DAY, state
    return math.inf, state


@pytest.mark.soak
def test_false_drifts_are_as_rare_as_promised() -> None:
    """Run lengths are about exponential, so the mean of 150 scatters by 8 %; the theory itself is good to 20 %."""
    rng = np.random.default_rng(1)
    promised = 30.0
    lengths = []
    for _ in range(150):
        reference, state = begin(DriftSpec(years_between_false=promised / DAYS), rng.exponential(size=24 * 7), 24.0)
        lengths.append(days_until(reference, state, rng.exponential(size=24 * 400))[0])
    assert promised / 1.5 < np.mean(np.minimum(lengths, 400)) < promised * 1.5


@pytest.mark.parametrize("per_block", [20.0, 100.0, 1461.0])
def test_the_limit_is_that_of_a_simulated_sum(per_block: float) -> None:
    """Four independent sums, as if nothing had to be learned: the run length in blocks, by simulation in rows."""
    limit = limit_for(per_block)
    rng = np.random.default_rng(2)
    sums, alive, lengths = np.zeros((4, 400)), np.ones(400, dtype=bool), np.zeros(400)
    while alive.any():
        steps = rng.normal(size=(2, 400))
        sums = np.maximum(0.0, sums + np.concatenate([steps, -steps]) - ALLOWANCE)
        lengths += alive
        alive &= (sums <= limit).all(axis=0)
    assert lengths.mean() == pytest.approx(per_block, rel=0.2)


CHANGES = {
    "higher": lambda scores: scores + 1.0,
    "lower": lambda scores: scores - 1.0,
    "wider": lambda scores: 2.5 * scores,
    "narrower": lambda scores: 0.2 * scores,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_lasting_change_is_found_within_days_and_named(change: str) -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(20):
        reference, state = begin(DriftSpec(), rng.normal(size=24 * 21), WINDOWS_PER_DAY)
        days, state = days_until(reference, state, CHANGES[change](rng.normal(size=24 * 60)))
        found.append(days)
        assert state.change == change
    assert np.median(found) < 7


def test_what_repeats_daily_is_no_drift_and_what_creeps_is_one() -> None:
    rng = np.random.default_rng(4)
    hours = np.arange(24 * 200)
    daily = 3 * np.sin(2 * np.pi * hours / 24) + rng.normal(size=len(hours))
    reference, state = begin(DriftSpec(years_between_false=20), daily[: 24 * 30], WINDOWS_PER_DAY)
    assert days_until(reference, state, daily[24 * 30 :])[0] == math.inf
    creeping = daily[24 * 30 :] + 0.01 * np.arange(24 * 170) / 24
    days, state = days_until(reference, state, creeping)
    assert 5 < days < 170
    assert state.change == "higher"


def test_a_single_excursion_is_no_drift_and_a_drift_stays_said() -> None:
    rng = np.random.default_rng(5)
    reference, state = begin(DriftSpec(), rng.normal(size=24 * 21), WINDOWS_PER_DAY)
    for score in [*rng.normal(size=10), 1e12, *rng.normal(size=24 * 5)]:
        state, drifted = update(reference, state, float(score))
        assert not drifted
    days, state = days_until(reference, state, rng.normal(size=24 * 60) + 3)
    assert days < 10
    for score in rng.normal(size=24 * 30):
        state, drifted = update(reference, state, float(score))
        assert drifted


class Twin:
    """The same from the definitions, over the whole past."""

    def __init__(self, baseline: Floats, block: int) -> None:
        count = min(len(baseline), 199)
        self.quantiles = np.quantile(baseline, (np.arange(count) + 0.5) / count)
        self.block, self.past = block, len(baseline) // block
        self.found = self.blocks(baseline)

    def blocks(self, scores: Floats) -> Floats:
        """(blocks, 2) mean and cube root of the mean square of normal scores of ranks."""
        ranks = [((self.quantiles < s).sum() + (self.quantiles <= s).sum() + 1) / 2 for s in scores]
        normal = scipy.stats.norm.ppf(np.array(ranks) / (len(self.quantiles) + 1))
        rows = normal[: len(normal) // self.block * self.block].reshape(-1, self.block)
        return np.stack([rows.mean(axis=1), np.cbrt(np.square(rows).mean(axis=1))], axis=1)

    def sums(self, scores: Floats) -> tuple[list[float], list[float]]:
        found = np.concatenate([self.found, self.blocks(scores)])
        up, down = np.zeros(2), np.zeros(2)
        for index in range(self.past, len(found)):
            before = found[:index]
            if len(before) >= 3:
                spread = np.maximum(before.std(axis=0, ddof=1), 1e-6) * math.sqrt(1 + 1 / len(before))
                t, freedom = (found[index] - before.mean(axis=0)) / spread, len(before) - 1
                size = (8 * freedom + 1) / (8 * freedom + 3) * np.sqrt(freedom * np.log1p(t**2 / freedom))
                step = np.copysign(size, t)
            else:
                step = np.zeros(2)
            up, down = np.maximum(0, up + step - ALLOWANCE), np.maximum(0, down - step - ALLOWANCE)
        return up.tolist(), down.tolist()


@pytest.mark.soak
@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(20, 250), st.integers(0, 120), st.integers(1, 9), st.booleans())
def test_constant_memory_equals_the_whole_past_and_survives_a_restart(
    seed: int, baseline: int, later: int, block: int, coarse: bool
) -> None:
    scores = np.random.default_rng(seed).normal(size=baseline + later)
    scores = np.round(scores, 1) if coarse else scores  # ties
    reference, state = begin(DriftSpec(), scores[:baseline], float(block))
    for score in scores[baseline:].tolist():
        restored = STORED.validate_json(json.dumps(asdict(state)))
        assert restored == state
        state, _ = update(reference, restored, score)
    up, down = Twin(scores[:baseline], block).sums(scores[baseline:])
    assert state.up == pytest.approx(up, abs=1e-6)
    assert state.down == pytest.approx(down, abs=1e-6)


def test_the_step_from_students_to_the_normal_distribution_is_close() -> None:
    for blocks in (4, 10, 100):
        values = np.linspace(-4, 4, 17)
        spread = math.sqrt(1 + 1 / blocks)
        steps = [standard_step(value * spread, 0.0, float(blocks - 1), blocks) for value in values.tolist()]
        exact = scipy.stats.norm.ppf(scipy.stats.t(blocks - 1).cdf(values))
        assert steps == pytest.approx(exact, abs=0.06)


@pytest.mark.parametrize(
    "scores", [np.arange(19.0), np.full(30, 2.0), np.append(np.arange(30.0), np.nan), np.ones((30, 2))]
)
def test_a_baseline_that_says_nothing_is_refused(scores: Floats) -> None:
    with pytest.raises(CalibrationError, match="expected at least 20 finite ones that differ"):
        begin(DriftSpec(), scores, 24.0)


@pytest.mark.parametrize("windows", [0.0, -1.0, math.nan, math.inf])
def test_windows_per_day_must_be_positive(windows: float) -> None:
    with pytest.raises(CalibrationError, match="windows per day given"):
        begin(DriftSpec(), np.arange(30.0), windows)


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_refused(score: float) -> None:
    reference, state = begin(DriftSpec(), np.arange(30.0), 24.0)
    with pytest.raises(CalibrationError, match="expected a finite number"):
        update(reference, state, score)
