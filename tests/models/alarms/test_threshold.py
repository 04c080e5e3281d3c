"""Levels keep their promise on known distributions; the state machine equals a simulation that looks back."""

import math
from dataclasses import dataclass
from itertools import accumulate, product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.models.alarms.threshold import (
    MINIMUM_SCORES,
    AlarmSpec,
    AlarmState,
    CalibrationError,
    Levels,
    ScoreError,
    Transition,
    calibrate,
    severity,
    update,
)
from tests.support.soak import some

LEVELS = Levels(raise_level=3.0, clear_level=1.0, median=0.5, samples=100, extrapolated=False)
WINDOWS_PER_DAY = 43_200.0  # one every two seconds
SECOND_NS = 10**9


def run(spec: AlarmSpec, times_ns: list[int], scores: list[float]) -> list[Transition | None]:
    state = AlarmState()
    transitions = []
    for t_ns, score in zip(times_ns, scores, strict=True):
        state, transition = update(LEVELS, spec, state, t_ns, score)
        if transition:
            assert state.active == (transition.kind == "raised")
        transitions.append(transition)
    return transitions


@dataclass
class Naive:
    """Looks back over the whole past at every score."""

    spec: AlarmSpec
    times_ns: list[int]
    scores: list[float]

    def run_start(self, at: int, low: float, high: float) -> int | None:
        """First of the unbroken run of scores within low..high that ends here, no step of it backwards in time."""
        start = None
        for i in range(at, -1, -1):
            if not low <= self.scores[i] <= high or (i < at and self.times_ns[i] > self.times_ns[i + 1]):
                break
            start = i
        return start

    def transitions(self) -> list[Transition | None]:
        found: list[Transition | None] = []
        onset: int | None = None
        for at, t_ns in enumerate(self.times_ns):
            start = self.run_start(at, LEVELS.raise_level, math.inf) if onset is None else None
            quiet = self.run_start(at, -math.inf, LEVELS.clear_level) if onset is not None else None
            transition = None
            if start is not None and t_ns - self.times_ns[start] >= self.spec.minimum_duration_s * SECOND_NS:
                onset = start
                peak = max(self.scores[onset : at + 1])
                transition = Transition("raised", self.times_ns[onset], t_ns, peak, LEVELS.raise_level)
            elif (
                onset is not None
                and quiet is not None
                and t_ns - self.times_ns[quiet] >= self.spec.clear_duration_s * SECOND_NS
            ):
                peak = max(self.scores[onset : at + 1])
                transition = Transition("cleared", self.times_ns[onset], t_ns, peak, LEVELS.clear_level)
                onset = None
            found.append(transition)
        return found


scores = st.sampled_from([0.0, 1.0, 1.5, 2.9, 3.0, 3.1, 7.0])
durations_s = st.sampled_from([0.0, 1.0, 2.5, 4.0])
steps_s = st.lists(st.sampled_from([0, 1, 1, 1, 2, 5, -1, -100]), min_size=1, max_size=8)
walks = st.lists(st.tuples(scores, steps_s), max_size=12)  # each score stays for some steps of time


@pytest.mark.soak
@settings(max_examples=300)
@given(durations_s, durations_s, walks)
def test_machine_equals_the_naive_simulation(
    minimum_s: float, clear_s: float, walk: list[tuple[float, list[int]]]
) -> None:
    spec = AlarmSpec(minimum_duration_s=minimum_s, clear_duration_s=clear_s)
    times_ns = [t_s * SECOND_NS for t_s in accumulate(step for _, steps in walk for step in steps)]
    values = [score for score, steps in walk for _ in steps]
    found = run(spec, times_ns, values)
    assert found == Naive(spec, times_ns, values).transitions()
    kinds = [transition.kind for transition in found if transition]
    assert kinds == ["raised", "cleared"] * (len(kinds) // 2) + ["raised"] * (len(kinds) % 2)


@pytest.mark.soak
@pytest.mark.parametrize("minimum_s", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("clear_s", [0.0, 1.0, 2.0])
def test_machine_equals_the_naive_simulation_on_all_short_sequences(minimum_s: float, clear_s: float) -> None:
    """Every sequence of seven scores below, between and above the levels, a second apart."""
    spec = AlarmSpec(minimum_duration_s=minimum_s, clear_duration_s=clear_s)
    times_ns = [index * SECOND_NS for index in range(7)]
    for values in map(list, product([0.5, 2.0, 4.0], repeat=7)):
        assert run(spec, times_ns, values) == Naive(spec, times_ns, values).transitions()


@pytest.mark.parametrize("minimum_s", [0.0, 1.0])
@pytest.mark.parametrize("clear_s", [0.0, 1.0])
@pytest.mark.parametrize("count", some([4, 5]))
def test_machine_equals_the_naive_simulation_on_all_short_clocks(count: int, minimum_s: float, clear_s: float) -> None:
    """Every sequence of so many scores with every clock that stands, goes on or goes back between them."""
    spec = AlarmSpec(minimum_duration_s=minimum_s, clear_duration_s=clear_s)
    for steps_taken in product([0, 1, -1], repeat=count - 1):
        times_ns = [t_s * SECOND_NS for t_s in accumulate(steps_taken, initial=0)]
        for values in map(list, product([0.5, 2.0, 4.0], repeat=count)):
            assert run(spec, times_ns, values) == Naive(spec, times_ns, values).transitions()


def test_an_alarm_from_onset_to_clearing() -> None:
    spec = AlarmSpec(minimum_duration_s=2.0, clear_duration_s=1.0)
    values = [0.0, 3.0, 9.0, 4.0, 2.0, 5.0, 1.0, 1.2, 0.9, 1.0]
    found = run(spec, [i * SECOND_NS for i in range(10)], values)
    assert [(i, transition) for i, transition in enumerate(found) if transition] == [
        (3, Transition("raised", 1 * SECOND_NS, 3 * SECOND_NS, 9.0, 3.0)),
        (9, Transition("cleared", 1 * SECOND_NS, 9 * SECOND_NS, 9.0, 1.0)),
    ]


@given(st.integers(1, 10**6), st.lists(scores, min_size=1, max_size=20))
def test_a_clock_that_goes_backwards_neither_raises_nor_clears(jump_s: int, values: list[float]) -> None:
    spec = AlarmSpec(minimum_duration_s=0.5, clear_duration_s=0.5)
    times_ns = [-i * jump_s * SECOND_NS for i in range(len(values))]
    assert run(spec, times_ns, values) == [None] * len(values)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused(score: float) -> None:
    with pytest.raises(ScoreError, match="expected a finite number"):
        update(LEVELS, AlarmSpec(), AlarmState(), 0, score)


def test_severity_counts_heights_of_the_level_over_the_median() -> None:
    at = [severity(LEVELS, score) for score in (3.0, 5.49, 5.5, 10.49, 10.5, 1e9)]
    assert at == ["warning", "warning", "major", "major", "critical", "critical"]


DISTRIBUTIONS = {"exponential": scipy.stats.expon(), "normal": scipy.stats.norm(), "uniform": scipy.stats.uniform()}


@pytest.mark.soak
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("rate", [0.05, 0.002])
def test_an_observed_quantile_keeps_its_promise(name: str, rate: float) -> None:
    """Each level has about 20 scores above it, so the mean of 300 true rates scatters by rate / √(20 · 300)."""
    rng = np.random.default_rng(1)
    spec = AlarmSpec(false_alarms_per_day=rate * WINDOWS_PER_DAY)
    drawn = DISTRIBUTIONS[name].rvs((300, round(20 / rate)), random_state=rng)
    levels = [calibrate(spec, sample, WINDOWS_PER_DAY) for sample in drawn]
    assert not any(level.extrapolated for level in levels)
    rates = DISTRIBUTIONS[name].sf([level.raise_level for level in levels])
    assert rates.mean() == pytest.approx(rate, rel=4 / math.sqrt(20 * 300))


@pytest.mark.soak
@pytest.mark.parametrize("count", [20, 72, 300, 2000])
def test_an_extrapolated_level_keeps_its_promise_for_exponential_tails(count: int) -> None:
    """A rate not much rarer than one score in a sample: the mean of rarer ones would take millions of samples."""
    rng = np.random.default_rng(2)
    rate = 1 / (1.5 * count)  # less than one score in a sample
    spec = AlarmSpec(false_alarms_per_day=rate * WINDOWS_PER_DAY)
    levels = [calibrate(spec, sample, WINDOWS_PER_DAY) for sample in rng.exponential(size=(2000, count))]
    assert all(level.extrapolated for level in levels)
    rates = np.exp([-level.raise_level for level in levels])
    assert rates.mean() == pytest.approx(rate, rel=0.1)


@pytest.mark.soak
@pytest.mark.parametrize(("count", "factor"), [(20, 5.0), (72, 2.5), (300, 1.6), (2000, 1.3)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_an_extrapolated_level_is_near_the_true_one(name: str, count: int, factor: float) -> None:
    """One alarm a day from a short baseline: the median level is above the true one, by less than `factor`."""
    drawn = DISTRIBUTIONS[name].rvs((200, count), random_state=np.random.default_rng(3))
    levels = np.array([calibrate(AlarmSpec(), sample, WINDOWS_PER_DAY).raise_level for sample in drawn])
    true_level = DISTRIBUTIONS[name].isf(1 / WINDOWS_PER_DAY)
    assert true_level < np.median(levels) < factor * true_level


@given(
    st.integers(0, 2**32 - 1),
    st.integers(MINIMUM_SCORES, 400),
    st.floats(0.01, 1e5),
    st.floats(0.5, 0.95),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_levels_are_ordered_and_follow_gain_and_offset(
    seed: int, count: int, per_day: float, quantile: float, step: float
) -> None:
    values = np.random.default_rng(seed).gumbel(size=count)
    values = np.round(values / step) * step if step else values  # coarse scores have ties
    spec = AlarmSpec(false_alarms_per_day=per_day, clear_quantile=quantile)
    levels = calibrate(spec, values, WINDOWS_PER_DAY)
    assert levels.samples == count
    assert levels.median == pytest.approx(np.median(values))
    assert levels.median <= levels.clear_level < levels.raise_level
    highest = levels.median + 0.8 * (levels.raise_level - levels.median)
    assert levels.clear_level == pytest.approx(min(np.quantile(values, quantile), highest))
    assert np.mean(values >= levels.raise_level) <= 0.05 if not levels.extrapolated else True
    moved = calibrate(spec, 8 * values[::-1] - 3, WINDOWS_PER_DAY)
    assert moved.raise_level == pytest.approx(8 * levels.raise_level - 3, rel=1e-9, abs=1e-9)
    assert moved.clear_level == pytest.approx(8 * levels.clear_level - 3, rel=1e-9, abs=1e-9)


def test_a_promise_of_too_many_alarms_is_cut() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    often = calibrate(AlarmSpec(false_alarms_per_day=1e9), values, WINDOWS_PER_DAY)
    assert often == calibrate(AlarmSpec(false_alarms_per_day=0.05 * WINDOWS_PER_DAY), values, WINDOWS_PER_DAY)
    assert np.mean(values >= often.raise_level) == pytest.approx(0.05, abs=0.002)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(0), r"shape \(0,\) given, at least 20 needed"),
        (np.arange(19.0), r"shape \(19,\) given, at least 20 needed"),
        (np.zeros((20, 20)), r"shape \(20, 20\) given"),
        (np.append(np.arange(30.0), [math.nan, math.inf]), r"2 of 32 scores are not finite"),
        (np.full(50, 4.0), r"the highest 11 of 50 scores all equal 4.0: the score is saturated"),
        (np.append(np.arange(80.0), np.full(20, 99.0)), r"the highest 11 of 100 scores all equal 99.0"),
    ],
)
def test_scores_that_allow_no_level(values: np.ndarray, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        calibrate(AlarmSpec(), values, WINDOWS_PER_DAY)


@pytest.mark.parametrize("windows_per_day", [0.0, -1.0, math.nan, math.inf])
def test_windows_per_day_must_be_positive(windows_per_day: float) -> None:
    with pytest.raises(CalibrationError, match="windows per day given; expected a positive number"):
        calibrate(AlarmSpec(), np.arange(100.0), windows_per_day)


@pytest.mark.parametrize(
    "bad",
    [
        {"false_alarms_per_day": 0.0},
        {"minimum_duration_s": -1.0},
        {"clear_duration_s": -1.0},
        {"clear_quantile": 0.99},
        {"false_alarms_per_day": math.inf},
        {"clear_fraction": 0.8},
        {"method": "guess"},
        {"reach": 0.5},
    ],
)
def test_settings_out_of_range_name_the_key(bad: dict[str, float | str]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        AlarmSpec.model_validate(bad)
