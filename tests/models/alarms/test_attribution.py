"""Whether weather and supply account for an anomaly: where they are measured, unusual, and leave nothing over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.models.alarms.attribution import BLOCKS, FADING_WINDOWS, Columns, evidence_of
from fedgate.models.arrays import Floats

FEATURES = 4
COLUMNS = Columns(weather=(4,), power=(5,), calendar=(6,))
SLOPES = np.array([3.0, -2.0, 1.0, 0.5])
GAIN = np.array([1.0, 2.0, -1.0, 1.0])
COLD, DIP = -6.0, -6.0  # deviations of the baseline
CHANGE = np.array([0.0, 4.0, 0.0, 4.0])


def rows(
    seed: int, count: int, cold: float = 0.0, dip: float = 0.0, change: Floats | None = None, fading: float = 0.0
) -> Floats:
    """Return windows (count, 7) of four features, a temperature, a supply and a calendar's column."""
    rng = np.random.default_rng(seed)
    beside = rng.normal(size=(count, 2)) + np.array([cold, dip])
    x = beside @ np.array([SLOPES, GAIN]) + rng.normal(size=(count, FEATURES))
    x += 0.0 if change is None else change
    x += fading * np.exp(-np.arange(count) / 3.0)[:, None] * GAIN
    return np.column_stack([x, beside, rng.uniform(size=count)])


BASELINE = rows(0, 1_000)


def weather_of(columns: Columns, baseline: Floats, found: Floats) -> str:
    return evidence_of(columns, baseline, found, is_from_boot=None)[0]


def power_of(columns: Columns, baseline: Floats, found: Floats, *, is_from_boot: bool | None) -> str:
    return evidence_of(columns, baseline, found, is_from_boot=is_from_boot)[1]


def of_weather(found: Floats) -> str:
    return weather_of(COLUMNS, BASELINE, found)


def of_power(found: Floats, is_from_boot: bool | None = None) -> str:
    return power_of(COLUMNS, BASELINE, found, is_from_boot=is_from_boot)


@pytest.mark.soak
@pytest.mark.parametrize("count", [1, 5, 50, 300])
def test_what_the_cold_does_is_mostly_explained_and_a_change_beside_it_never(count: int) -> None:
    cold = [of_weather(rows(seed, count, cold=COLD)) for seed in range(1, 21)]
    dips = [of_power(rows(seed, count, dip=DIP)) for seed in range(1, 21)]
    assert cold.count("explained") >= 17 and dips.count("explained") >= 17
    for seed in range(1, 21):
        change = (2.0 if count > 1 else 3.0) * CHANGE
        assert of_weather(rows(seed, count, cold=COLD, change=change)) == "unusual"
        assert of_power(rows(seed, count, dip=DIP, change=change)) == "unusual"
        if count > 1:
            assert of_weather(rows(seed, count, change=change)) == "usual"


def test_of_two_that_are_unusual_the_one_with_the_larger_effect_explains() -> None:
    for cold, dip, said in ((COLD, -4.5, ("explained", "unusual")), (-4.5, -7.0, ("unusual", "explained"))):
        found = rows(1, 20, cold=cold, dip=dip)
        assert evidence_of(COLUMNS, BASELINE, found, is_from_boot=None) == said


def test_a_cold_that_does_nothing_explains_no_change() -> None:
    """The temperature is far out, and no feature depends on it."""
    idle = np.column_stack([np.random.default_rng(1).normal(size=(1_000, 4)), BASELINE[:, 4:]])
    found = np.column_stack([np.random.default_rng(2).normal(size=(20, 4)) + CHANGE, rows(3, 20, cold=COLD)[:, 4:]])
    assert weather_of(COLUMNS, idle, found) == "unusual"


def exact(cold: float, shifts: Floats) -> Floats:
    """Return windows (6, 7) in a cold that are where the regression expects them, but for shifts (6, 4)."""
    beside = np.tile([cold, 0.0], (6, 1))
    return np.column_stack([beside @ np.array([SLOPES, GAIN]) + shifts, beside, np.full(6, 0.5)])


def test_the_mean_is_judged_and_each_window_too() -> None:
    turns = np.array([1.0, -1.0] * 3)[:, None] * np.ones(4)
    assert of_weather(exact(-4.5, np.zeros((6, 4)))) == "explained"
    assert of_weather(exact(-4.5, 1.1 * np.abs(turns))) == "unusual"  # all to one side, none of them far
    assert of_weather(exact(-4.5, 1.1 * turns)) == "explained"
    assert of_weather(exact(-4.5, 3.0 * turns)) == "unusual"  # unrest with a calm mean


def test_a_slope_that_the_baseline_hardly_shows_explains_nothing() -> None:
    for seed in range(1, 11):
        mild = rows(seed, 60)
        found = exact(-40.0, np.zeros((6, 4)))
        found[:, :4] = np.linalg.lstsq(mild[:, 4:6], mild[:, :4] - mild[:, :4].mean(axis=0), rcond=None)[0][0] * -40.0
        assert weather_of(COLUMNS, mild, found) == "unusual"


def test_without_a_measurement_nothing_is_said() -> None:
    found = rows(1, 20, cold=COLD, dip=DIP)
    assert weather_of(Columns(), BASELINE, found) == ""
    assert power_of(Columns(), BASELINE, found, is_from_boot=None) == ""
    assert power_of(Columns(), BASELINE, found, is_from_boot=False) == ""
    assert power_of(Columns(weather=(4,)), BASELINE, found, is_from_boot=False) == ""
    assert weather_of(Columns(weather=tuple(range(7))), BASELINE, found) == ""
    assert weather_of(COLUMNS, BASELINE[: BLOCKS - 1], found) == weather_of(COLUMNS, BASELINE, found[:0]) == ""


def test_after_a_boot_only_what_goes_straight_back_is_explained() -> None:
    for seed in range(1, 6):
        warming = rows(seed, 8, fading=30.0)
        assert of_power(warming, is_from_boot=True) == "explained"
        assert of_power(warming, is_from_boot=False) != "explained"
        assert of_power(warming[: FADING_WINDOWS - 1], is_from_boot=True) == "unusual"
        assert of_power(rows(seed, 8, change=3.0 * CHANGE), is_from_boot=True) == "unusual"  # stays where it is
        assert of_power(rows(seed, 8, fading=30.0, change=3.0 * CHANGE), is_from_boot=True) == "unusual"
        # Smaller than what weather does to the baseline, and larger than what it leaves.
        assert of_power(rows(seed, 8, fading=30.0, change=2.0 * CHANGE), is_from_boot=True) == "unusual"
        assert (
            power_of(Columns(power=(5,)), BASELINE, warming, is_from_boot=True) == "unusual"
        )  # no weather is measured


@pytest.mark.parametrize("exponents", [(20,) * 7, (-20,) * 7, (20, -20, 3, 0, 15, -15, 7)])
@pytest.mark.parametrize("case", [{"cold": COLD}, {"cold": COLD, "change": CHANGE * 2}, {"dip": DIP}, {"fading": 30.0}])
def test_no_unit_decides(exponents: tuple[int, ...], case: dict[str, Any]) -> None:
    factors, found = np.ldexp(1.0, np.array(exponents)), rows(1, 8, **case)
    for is_from_boot in (None, True):
        assert weather_of(COLUMNS, BASELINE * factors, found * factors) == of_weather(found)
        said = power_of(COLUMNS, BASELINE * factors, found * factors, is_from_boot=is_from_boot)
        assert said == of_power(found, is_from_boot)


def test_features_that_stood_still_or_lie_on_the_covariate_break_nothing() -> None:
    baseline, found = BASELINE.copy(), rows(1, 20, cold=COLD)
    for each in (baseline, found):
        each[:, 0], each[:, 1] = 7.0, 2.0 * each[:, 4]
    assert weather_of(COLUMNS, baseline, found) == "explained"
    found[:, 0] = 8.0
    assert weather_of(COLUMNS, baseline, found) == "unusual"
    baseline[:, 4], found[:, 4] = 1.0, 2.0  # a covariate that never moved teaches nothing
    assert weather_of(COLUMNS, baseline, found) == "unusual"
