"""Alarm rules against slow twins that look at the whole past anew for every window, and what must not change them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.models.alarms import rules, threshold
from fedgate.models.alarms.expectation import BRIDGED_ROWS, FOLDS, expectation
from fedgate.models.alarms.rule_calibration import Baseline, calibrate
from fedgate.models.alarms.rules import Height, RuleSpec, RulesState, Still, step
from fedgate.models.alarms.threshold import CalibrationError, ScoreError
from fedgate.models.arrays import Floats, generator
from fedgate.models.time_units import NS
from tests.support.rule_twin import (
    ALARM,
    COUNT,
    HEAD,
    HOP_S,
    JUDGING,
    KINDS,
    MISSING,
    NAMES,
    SCORES,
    VALUES,
    Twin,
    calibrated,
    ridge_twin,
    spec_of,
    walked,
    walked_whole,
)

STRIDE = 3


@pytest.mark.soak
@pytest.mark.parametrize("name", JUDGING)
def test_a_rule_alone_is_its_definition(name: str) -> None:
    known = calibrated(spec_of(name))
    weights, spread = ridge_twin()
    twin, of = Twin(known, weights, spread), known.by_rule[name]
    heights, _ = walked(known, range(COUNT))
    spoke = 0
    for row in range(0, COUNT, STRIDE):
        height, expected = heights[row], twin.statistic(name, row)
        assert (height is None) == (expected is None), row
        if height is not None and expected is not None:
            spoke += 1
            assert height.statistic == pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert height.value == pytest.approx((expected - of.median) / (of.level - of.median), rel=1e-9, abs=1e-9)
            assert (height.rule, height.level) == (name, of.level)
            assert (height.feature in NAMES) == (name not in {"point", "slow score", "context"})
    assert spoke > COUNT / STRIDE / 2


def test_the_cost_of_what_is_expected_does_not_grow_with_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a system of equations for each of 240 features the agent's main process stood still for fourteen seconds."""
    calls: list[str] = []
    for name in ("inv", "solve"):
        whole = getattr(np.linalg, name)
        monkeypatch.setattr(np.linalg, name, partial(_noting, calls, name, whole))
    for count in (4, 12):
        z = np.random.default_rng(0).normal(size=(100, count))
        expectation(z, np.zeros(100, dtype=np.int64), tuple(range(count)), 2, others=True)
    assert calls.count("inv") == calls.count("solve") == 2 * (FOLDS + 1)


def _noting(calls: list[str], name: str, whole: Callable[..., Floats], *given: Floats) -> Floats:
    calls.append(name)
    return whole(*given)


@pytest.mark.soak
def test_the_largest_height_wins() -> None:
    together = calibrated(spec_of(*JUDGING))
    heights, _ = walked(together, range(COUNT))
    each: dict[str, list[float | None]] = {}
    for name in JUDGING:
        own = together.by_rule[name]
        alone = calibrated(spec_of(name))
        said, _ = walked(alone, range(COUNT))
        if name != "cumulative":  # whose sum is capped by its level, which is another with all shares
            each[name] = [None if h is None else (h.statistic - own.median) / (own.level - own.median) for h in said]
    for row, height in enumerate(heights):
        others = {name: value for name, values in each.items() if (value := values[row]) is not None}
        assert height is not None
        assert height.value == pytest.approx(max([*others.values(), height.value]))
        if height.rule != "cumulative":
            assert height.value == pytest.approx(others[height.rule])


@pytest.fixture(scope="module")
def uninterrupted() -> Walk:
    return walked_whole(KNOWN, range(COUNT))


@pytest.mark.soak
@given(cut=st.integers(0, COUNT))
@settings(max_examples=10, deadline=None)
def test_a_restart_changes_nothing(uninterrupted: Walk, cut: int) -> None:
    whole, end = uninterrupted
    before, state = walked_whole(KNOWN, range(cut))
    after, resumed = walked_whole(KNOWN, range(cut, COUNT), rules.load_state(rules.dump_state(state)))
    assert [*before, *after] == whole
    assert rules.dump_state(resumed) == rules.dump_state(end)


KNOWN = calibrated(spec_of(*KINDS))
Walk = tuple[list[tuple[Height | None, Still]], RulesState]


def test_a_long_gap_forgets_and_a_short_one_does_not() -> None:
    _, state = walked(KNOWN, range(200, 290))
    last_ns = state.last_ns or 0
    for missing in (0, BRIDGED_ROWS, BRIDGED_ROWS + 1, -1, -5):
        t_ns = last_ns + round((missing + 1) * HOP_S * NS)
        begun, *_ = step(KNOWN, RulesState(), t_ns, 0.0, VALUES[290], {})
        after, *_ = step(KNOWN, state, t_ns, 0.0, VALUES[290], {})
        assert (after == begun) == (not 0 <= missing <= BRIDGED_ROWS), missing


def test_what_cannot_be_said_interrupts_only_its_rule() -> None:
    known = calibrated(spec_of("slow", "slow score", "context"))
    _, state = walked(known, range(100))
    after, *_ = step(known, state, (state.last_ns or 0) + int(HOP_S * NS), None, VALUES[100], {"context": None})
    assert after.parts["slow"].seen == state.parts["slow"].seen + 1 and after.parts["slow score"].seen == 0


def test_a_score_alone_is_enough() -> None:
    spec = RuleSpec.model_validate(
        {"rules": {"point": KINDS["point"], "slow": KINDS["slow score"], "some": {"kind": "collective"}}}
    )
    baseline = Baseline(SCORES[:HEAD], np.zeros((HEAD, 0)), MISSING[:HEAD])
    known = calibrate(spec, ALARM, baseline, (), HOP_S)
    state, height, _ = step(known, RulesState(), 0, 100.0)
    assert height is not None and (height.rule, height.statistic, height.feature) == ("point", 100.0, None)
    assert height.value > 1.0 and step(known, state, int(HOP_S * NS), None)[1] is None


def test_the_point_rule_alone_is_the_threshold() -> None:
    known = calibrated(spec_of("point"))
    levels = threshold.calibrate(ALARM, SCORES[:HEAD], 86_400.0 / HOP_S)
    assert known.by_rule["point"].level == levels.raise_level and known.levels.raise_level == 1.0
    heights = [h.value for h in walked(known, range(COUNT))[0] if h is not None]
    assert [value >= 1.0 for value in heights] == [score >= levels.raise_level for score in SCORES.tolist()]
    assert 0.0 < known.levels.clear_level <= 0.8


def test_shares_divide_the_promise() -> None:
    spec = RuleSpec.model_validate({"rules": {**KINDS, "slow": {"kind": "slow", "share": 0.2}}})
    assert spec.shares["slow"] == 0.2 and "stuck" not in spec.shares
    assert sum(spec.shares.values()) == pytest.approx(1.0) and spec.shares["point"] == pytest.approx(0.8 / 8)
    alone, shared = calibrated(spec_of("sudden")), calibrated(spec_of("sudden", "slow"))
    assert shared.by_rule["sudden"].level > alone.by_rule["sudden"].level


@pytest.mark.parametrize("promise", ["windows", "alarms"])
def test_what_each_rule_is_for_it_finds(promise: str) -> None:
    names = ("sudden", "slow", "noise")
    known = calibrated(spec_of(*names, promise=promise, merge_s=300.0))
    rows, rng = range(HEAD, HEAD + 120), generator(0, 0, "wrong")
    at = slice(HEAD + 60, HEAD + 120)
    quiet = VALUES.copy()
    faults: dict[str, Floats] = {}
    for name in names:
        faults[name] = quiet.copy()
    faults["sudden"][at.start, 0] += 30.0
    faults["slow"][at, 0] += np.linspace(0.0, 40.0, 60)
    faults["noise"][at, 2] += 0.3 * rng.normal(size=60)
    clean = {h.rule for h in walked(known, rows)[0] if h is not None and h.value >= 1.0}
    for name, values in faults.items():
        raised = {h.rule for h in walked(known, rows, values=values)[0][60:] if h is not None and h.value >= 1.0}
        assert name in raised, name
    assert "slow" not in clean


def test_a_rule_without_a_level_is_silent_and_says_why() -> None:
    few = slice(45)
    baseline = Baseline(SCORES[few], VALUES[few], MISSING[few])
    known = calibrate(spec_of("point", "slow", "stuck"), ALARM, baseline, NAMES, HOP_S)
    assert list(known.by_rule) == ["point"] and "45 windows given, at least 60" in known.silent["slow"]
    broken = Baseline(SCORES[:HEAD], VALUES[:HEAD], np.full(HEAD, -1))
    known = calibrate(spec_of("point", "slow"), ALARM, broken, NAMES, HOP_S)
    assert "0 of 500 windows have 3 before them" in known.silent["slow"]
    with pytest.raises(CalibrationError, match="rule slow: 0 of 500"):
        calibrate(spec_of("slow"), ALARM, broken, NAMES, HOP_S)
    untold = calibrate(spec_of("point", "context"), ALARM, broken, NAMES, HOP_S)
    assert "context" in untold.silent


def test_wrong_input_is_named() -> None:
    with pytest.raises(CalibrationError, match="no feature is named 'd'; expected some of a, b, c"):
        calibrated(spec_of("slow", watched=("d",)))
    for score, values in ((math.nan, VALUES[0]), (0.0, np.array([1.0, math.inf, 0.0]))):
        with pytest.raises(ScoreError, match="expected finite"):
            step(KNOWN, RulesState(), 0, score, values)
    with pytest.raises(ScoreError, match="no features given"):
        step(KNOWN, RulesState(), 0, 1.0)
    for table, words in (
        ({"point": {"kind": "point", "share": 0.7}, "slow": {"kind": "slow", "share": 0.4}}, "shares of 1.1 in all"),
        ({"point": {"kind": "point", "share": 1.0}, "slow": {"kind": "slow"}}, "and slow have none"),
        ({"x": {"kind": "stuck", "share": 0.5}}, "Extra inputs"),
        ({"x": {"kind": "collective", "count": 7}}, "count 7 of the last 6"),
        ({}, "at least 1"),
    ):
        with pytest.raises(ValidationError, match=words):
            RuleSpec.model_validate({"rules": table})
