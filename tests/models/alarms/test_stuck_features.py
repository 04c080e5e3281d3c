"""Features that are stuck, and features that no rule should watch unless told to: what stands still or switches."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.models.alarms.rule_calibration import Baseline, calibrate
from fedgate.models.alarms.rule_statistics import STUCK_FACTOR
from fedgate.models.alarms.rules import Calibrated, RuleSpec, RulesState, Still, step
from fedgate.models.alarms.threshold import AlarmSpec, CalibrationError
from fedgate.models.arrays import Floats, generator
from fedgate.models.time_units import NS
from tests.support.rule_twin import (
    ALARM,
    COUNT,
    HEAD,
    HOP_S,
    MISSING,
    NAMES,
    SCORES,
    VALUES,
    calibrated,
    recording,
    runs_of,
    spec_of,
    walked_whole,
)

LEAST_ROWS = 5.0  # that KINDS["stuck"] asks for
FIVE_MIN_S, DAYS = 300.0, 14
BUILDING = ("temperature", "calendar.hour_sin", "workday", "switch")
PER_DAY = round(86_400 / FIVE_MIN_S)


def held(values: Floats, feature: int, rows: slice) -> Floats:
    """Return values of which one feature repeats itself."""
    found = values.copy()
    found[rows, feature] = values[rows.start, feature]
    return found


@pytest.mark.soak
def test_what_is_stuck_is_its_definition() -> None:
    values = held(held(VALUES, 1, slice(520, 560)), 0, slice(540, 546))
    known = calibrated(spec_of("stuck", "point"))
    said, _ = walked_whole(known, range(COUNT), values=values)
    for row, (_, still) in enumerate(said):
        runs = runs_of(values, row)
        assert still.stuck == tuple(n for n, run in zip(NAMES, runs, strict=True) if run >= LEAST_ROWS), row
        moves = row > 0 and 0 <= MISSING[row] <= 2
        assert still.moved == tuple(n for n, run in zip(NAMES, runs, strict=True) if run == 0 and moves), row
    assert said[559][1].stuck == ("b",) and said[545][1].stuck == NAMES[:2] and said[560][1].moved == NAMES


def test_each_feature_has_a_run_of_its_own() -> None:
    values = held(VALUES, 2, slice(200, 260))  # c rests for an hour while all is well
    known = calibrate(spec_of("stuck"), ALARM, Baseline(SCORES[:HEAD], values[:HEAD], MISSING[:HEAD]), NAMES, HOP_S)
    assert known.stuck["stuck"].tolist() == [LEAST_ROWS, LEAST_ROWS, STUCK_FACTOR * 59 + LEAST_ROWS]


def test_a_stuck_sensor_hides_no_damage() -> None:
    known = calibrated(spec_of("stuck", "point"))
    stuck, at = held(VALUES, 0, slice(HEAD, COUNT)), known.by_rule["point"]
    state, seen = RulesState(), list[tuple[float, Still]]()
    for row in range(HEAD, COUNT):
        score = 3.0 * at.level if row >= HEAD + 100 else at.median
        state, height, still = step(known, state, row * int(HOP_S * NS), score, stuck[row])
        assert height is not None and height.rule == "point"
        seen.append((height.value, still))
    assert all(value == 0.0 and still.stuck == ("a",) for value, still in seen[10:100])
    assert all(value > 1.0 and still.stuck == ("a",) for value, still in seen[100:])


def test_stuck_alone_needs_no_height() -> None:
    known = calibrated(spec_of("stuck"))
    said, _ = walked_whole(known, range(HEAD, HEAD + 40), values=held(VALUES, 1, slice(HEAD, COUNT)))
    assert all(height is None for height, _ in said) and said[-1][1].stuck == ("b",)
    assert known.levels.raise_level == 1.0 and not known.by_rule


def building(switch: float | None = None) -> Floats:
    """Return two weeks (n, 4) of a temperature, the hour, whether it is a workday, and something constant."""
    rows = np.arange(DAYS * PER_DAY)
    _, x = recording(len(rows), "building")
    hour, day = np.sin(2 * np.pi * rows / PER_DAY), rows // PER_DAY % 7 < 5
    switches = np.zeros(len(rows)) if switch is None else generator(0, 0, "switch").random(len(rows)) < switch
    return np.column_stack([x[:, 0], hour, day, switches])


def of_building(values: Floats, *watched: str) -> Calibrated:
    rules = {"sudden": {"kind": "point", "on": "values"}, "stuck": {"kind": "stuck"}}
    spec = RuleSpec.model_validate({"rules": rules, "promise": "alarms", "watched": watched})
    missing = np.concatenate([[-1], np.zeros(len(values) - 1, dtype=np.int64)])
    baseline = Baseline(np.full(len(values), np.nan), values, missing)
    return calibrate(spec, AlarmSpec(false_alarms_per_day=0.5), baseline, BUILDING, FIVE_MIN_S)


@pytest.mark.soak
@pytest.mark.parametrize("switch", [None, 0.01])
def test_by_default_the_calendar_and_what_only_switches_is_context(switch: float | None) -> None:
    known = of_building(building(switch))
    assert known.watched == ("temperature",)
    assert set(known.left_out) == set(BUILDING[1:]) and "calendar" in known.left_out["calendar.hour_sin"]
    assert "two values" in known.left_out["workday"]
    assert ("constant" if switch is None else "two values") in known.left_out["switch"]
    alone = of_building(building(switch), "temperature")
    assert known.by_rule["sudden"].level == alone.by_rule["sudden"].level < 6.0
    assert known.stuck["stuck"].tolist() == [12.0] and not alone.left_out


@pytest.mark.soak
def test_what_was_constant_all_along_is_never_stuck() -> None:
    values = building()
    for known in (of_building(values), of_building(values, "temperature", "switch")):
        state, found = RulesState(), set[str]()
        for row in range(30 * PER_DAY):
            now = values[row % len(values)] + [1e-6 * row, 0.0, 0.0, 0.0]
            state, _, still = step(known, state, row * round(FIVE_MIN_S * NS), None, now)
            found |= set(still.stuck)
        assert not found


@pytest.mark.soak
def test_what_is_named_is_watched() -> None:
    known = of_building(building(0.01), "workday", "switch", "calendar.hour_sin")
    assert known.watched == BUILDING[1:] and not known.left_out
    hour, workday, switch = known.stuck["stuck"].tolist()
    assert hour == 12.0 and workday == 1.5 * (5 * PER_DAY - 1) + 12 and 12 < switch < workday
    constant = of_building(building(), "temperature", "switch")
    assert constant.stuck["stuck"].tolist() == [12.0, np.inf] and set(constant.left_out) == {"switch"}


def test_nothing_to_watch_is_said() -> None:
    with pytest.raises(CalibrationError, match=r"rule stuck: no feature had three values .* name those"):
        of_building(building()[:, [1, 2, 2, 3]] * [0.0, 1.0, 1.0, 1.0])
    with pytest.raises(CalibrationError, match="rule stuck: every watched feature was constant"):
        spec = RuleSpec.model_validate({"rules": {"stuck": {"kind": "stuck"}}, "watched": ["a"]})
        calibrate(spec, ALARM, Baseline(SCORES, np.ones_like(VALUES), MISSING), NAMES, HOP_S)
