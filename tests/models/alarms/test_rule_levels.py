"""Levels that promise alarms, not windows: near ones are one, and the promise is kept on a later period."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models.alarms.rule_levels import QUANTILES, level_of_alarms, peaks
from fedgate.models.alarms.threshold import CalibrationError
from fedgate.models.arrays import Floats, generator

PER_DAY = 288.0


def slow_peaks(values: list[float], threshold: float, merge: int) -> list[float]:
    """The peaks of runs, row by row."""
    found: list[float] = []
    last = -math.inf
    for row, value in enumerate(values):
        if value > threshold:
            if found and row - last <= max(merge, 1):
                found[-1] = max(found[-1], value)
            else:
                found.append(value)
            last = row
    return found


@given(values=st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan]), max_size=40), merge=st.integers(0, 5))
def test_peaks_are_those_of_runs(values: list[float], merge: int) -> None:
    assert peaks(np.array(values), 0.5, merge).tolist() == slow_peaks(values, 0.5, merge)


def dependent(rng: np.random.Generator, days: int, memory: float) -> Floats:
    """Return a statistic that remembers, as a mean over hours does, with a standard normal distribution."""
    noise = rng.normal(size=round(days * PER_DAY))
    found = np.zeros_like(noise)
    for row in range(1, len(noise)):
        found[row] = memory * found[row - 1] + math.sqrt(1.0 - memory**2) * noise[row]
    return np.abs(found)


@pytest.mark.parametrize(("memory", "days", "rate"), [(0.0, 6, 0.4), (0.9, 6, 0.4), (0.97, 14, 0.2), (0.9, 60, 1.0)])
def test_the_promise_of_alarms_is_kept_on_a_later_period(memory: float, days: int, rate: float) -> None:
    rng, ratios = generator(0, 0, f"{memory} {days}"), []
    later = dependent(rng, 200, memory)
    for _ in range(12):
        level, extrapolated = level_of_alarms(dependent(rng, days, memory), rate, PER_DAY, 12.0)
        ratios.append(len(peaks(later, level, 12.0)) / 200.0 / rate)
        assert extrapolated == (rate * days < 10)
    assert 1.0 / 1.5 < np.mean(ratios) < 1.5


@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-100.0, 100.0), rate=st.floats(0.05, 3.0))
@settings(max_examples=30, deadline=None)
def test_the_level_moves_with_the_statistic(scale: float, shift: float, rate: float) -> None:
    statistic = generator(0, 0, "moved").gumbel(size=2_000)
    level, _ = level_of_alarms(statistic, rate, PER_DAY, 12.0)
    moved, _ = level_of_alarms(shift + scale * statistic, rate, PER_DAY, 12.0)
    assert moved == pytest.approx(shift + scale * level, rel=1e-6, abs=1e-6 * (abs(shift) + scale))


def test_fewer_alarms_mean_a_higher_level() -> None:
    statistic = generator(0, 0, "rates").gumbel(size=5_000)
    levels = [level_of_alarms(statistic, rate, PER_DAY, 6.0)[0] for rate in (0.01, 0.1, 0.5, 1.0, 3.0)]
    assert levels == sorted(levels, reverse=True) and len(set(levels)) == 5


def test_a_level_that_is_read_off_gives_just_the_promised_runs() -> None:
    statistic = generator(0, 0, "read").normal(size=round(60 * PER_DAY))
    level, extrapolated = level_of_alarms(statistic, 1.0, PER_DAY, 0.0)
    assert not extrapolated and len(slow_peaks(statistic.tolist(), math.nextafter(level, -math.inf), 0)) == 60


def test_a_promise_of_more_alarms_than_there_are_runs_is_refused_with_both() -> None:
    statistic = generator(0, 0, "more").gumbel(size=round(10 * PER_DAY))
    with pytest.raises(CalibrationError, match=r"400 alarms are promised in 10 days.* more than \d+ runs, .*merge_s"):
        level_of_alarms(statistic, 40.0, PER_DAY, 12.0)
    seen = max(len(peaks(statistic, float(np.quantile(statistic, q)), 12.0)) for q in QUANTILES)
    with pytest.raises(CalibrationError, match=f"more than {seen} runs,"):
        level_of_alarms(statistic, 40.0, PER_DAY, 12.0)
    level, _ = level_of_alarms(statistic, 0.09 * seen, PER_DAY, 12.0)  # which no lower threshold shows
    assert level > np.median(statistic)


def test_what_shows_no_runs_is_refused() -> None:
    with pytest.raises(CalibrationError, match="more history than the baseline has"):
        level_of_alarms(np.full(100, np.nan), 1.0, PER_DAY, 12.0)
    with pytest.raises(CalibrationError, match=r"1 runs above the 0\.5 quantile"):
        level_of_alarms(np.arange(100.0), 1.0, PER_DAY, 12.0)
