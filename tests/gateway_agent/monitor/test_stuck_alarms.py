"""A stuck sensor on a gateway: an alarm of its own, which hides no damage, and clears once the sensor moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol import topics
from fedgate.config.protocol.messages import Alarm
from fedgate.gateway_agent.events import Effect, Enqueue
from fedgate.gateway_agent.monitor import alarms
from fedgate.gateway_agent.pipeline import decision
from fedgate.gateway_agent.state import State
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import in_force
from tests.support.agents import Told, after, changed, heard, kinds
from tests.support.sites import T0_NS, WINDOWS, Shelf, agent, frame, gateway_settings, samples

RULES: dict[str, Any] = {"point": {"kind": "point"}, "still": {"kind": "stuck", "least_s": 5.0}}
ALARM: dict[str, Any] = {"alarm": {"rules": {"rules": RULES}}}
FEATURES = ("load.level", "load.deviation", "load.peak")
CAUSES = [f"stuck-{feature}" for feature in FEATURES]


def begun(**alarm: Any) -> State:
    return changed(in_force(**(alarm or ALARM)), "context", uptime_ns=T0_NS + WINDOWS * NS)


def fed(state: State, windows: int, start_s: int, *, repeats: bool) -> tuple[State, list[Effect]]:
    """Feed windows of a second each; where a bus repeats itself they are all the same."""
    effects: list[Effect] = []
    for k in range(windows):
        values = samples(99 if repeats else 1_000 + start_s + k, 1)
        event = heard("sample", "deck", frame(values, float(WINDOWS + start_s + k)))
        state, more = after(state, event, now_ns=T0_NS + (WINDOWS + start_s + k + 1) * NS)
        effects += more
    return state, effects


def told(effects: list[Effect]) -> list[Alarm]:
    return [Alarm.from_bytes(queued.item.payloads[0]) for queued in kinds(effects, Enqueue) if queued.item.retain]


def said(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(alarm.cause, alarm.state) for alarm in told(effects)]


def test_it_is_raised_after_its_time_and_cleared_when_it_moves() -> None:
    state, effects = fed(begun(), 5, 0, repeats=True)
    assert not told(effects)
    state, effects = fed(state, 10, 5, repeats=True)
    assert said(effects) == [(cause, "raised") for cause in CAUSES]
    first = told(effects)[0]
    assert (first.kind, first.rule, first.feature, first.severity) == ("sensor", "stuck", "load.level", "warning")
    assert first.t_ns == T0_NS + (WINDOWS + 6) * NS and "load.level has not changed" in first.text
    state, effects = fed(state, 1, 15, repeats=False)
    assert said(effects) == [(cause, "cleared") for cause in CAUSES] and not state.monitor.alarms.active


def test_damage_is_raised_while_a_sensor_is_stuck() -> None:
    state, _ = fed(begun(), 10, 0, repeats=True)
    judge = state.monitor.pipeline.judge
    assert (
        judge is not None
        and set(state.monitor.alarms.active) == set(CAUSES)
        and not state.monitor.pipeline.alarm.active
    )
    state = replace(
        state,
        monitor=replace(state.monitor, pipeline=replace(state.monitor.pipeline, judge=judge._replace(model=Told(1e6)))),
    )
    state, effects = fed(state, 5, 10, repeats=True)
    (anomaly,) = told(effects)
    assert (anomaly.cause, anomaly.kind, anomaly.state, anomaly.rule) == ("anomaly", "anomaly", "raised", "point")
    assert set(state.monitor.alarms.active) == {*CAUSES, "anomaly"} and state.monitor.pipeline.alarm.active


def test_what_was_not_seen_to_move_is_still_stuck() -> None:
    state, _ = fed(begun(), 10, 0, repeats=True)
    state, effects = fed(state, 3, 40, repeats=True)  # half a minute is missing
    assert not told(effects) and set(state.monitor.alarms.active) == set(CAUSES)
    judge = state.monitor.pipeline.judge
    assert judge is not None
    state = replace(
        state,
        monitor=replace(state.monitor, pipeline=replace(state.monitor.pipeline, watching=decision.DecisionState())),
    )  # as with another model
    state, effects = fed(state, 1, 43, repeats=False)
    assert not told(effects)  # the first that is remembered: it may have rested or moved
    state, effects = fed(state, 1, 44, repeats=False)
    assert said(effects) == [(cause, "cleared") for cause in CAUSES]


def test_rules_without_a_height_are_enough() -> None:
    _, effects = fed(begun(alarm={"rules": {"rules": {"still": RULES["still"]}}}), 10, 0, repeats=True)
    assert said(effects) == [(cause, "raised") for cause in CAUSES]


def test_windows_of_a_stuck_sensor_are_no_drift() -> None:
    drift = {"block_h": 2.0 / 3_600.0}  # of two windows
    state, _ = fed(begun(alarm={"rules": {"rules": RULES}, "drift": drift}), 6, 0, repeats=True)
    before = state.monitor.pipeline.watching.drift
    state, _ = fed(state, 6, 6, repeats=True)
    assert state.monitor.pipeline.watching.drift == before
    state, _ = fed(state, 6, 12, repeats=False)
    assert state.monitor.pipeline.watching.drift != before


@pytest.mark.parametrize(
    ("rules", "kept"),
    [
        (RULES, CAUSES),
        ({"point": RULES["point"]}, []),
        ({**RULES, "watched": ["load.peak"]}, CAUSES[2:]),
    ],
)
def test_a_restart_keeps_the_alarms_of_what_is_watched_still(rules: dict[str, Any], kept: list[str]) -> None:
    shelf = Shelf()
    state = changed(in_force(shelf, **ALARM), "context", uptime_ns=T0_NS + WINDOWS * NS)
    _, effects = fed(state, 10, 0, repeats=True)
    shelf.commit(effects)
    more = {"watched": rules["watched"]} if "watched" in rules else {}
    table = {"rules": {"rules": {name: rule for name, rule in rules.items() if name != "watched"}, **more}}
    state = agent(gateway_settings(alarm=table), shelf)
    assert sorted(state.monitor.alarms.active) == sorted(kept)


def test_the_levels_are_told_and_what_is_left_out() -> None:
    judge = begun().monitor.pipeline.judge
    assert judge is not None and judge.rules is not None
    rules = replace(
        judge.rules,
        stuck={"still": np.array([4.2, 12.0, np.inf])},
        left_out={"a": "not watched, a column of the calendar", "b": "not watched, a column of the calendar"},
    )
    lines = [line for _, line in decision.describe_rules(judge._replace(rules=rules), decision.DecisionState())]
    assert any(line.endswith("still 5 to 12 windows") for line in lines)
    assert "features not watched, a column of the calendar: a, b" in lines


NAMES = st.text(st.sampled_from("ab.[]_/+ ä#9"), min_size=1, max_size=80)


@given(one=NAMES, other=NAMES)
def test_a_cause_is_a_name_and_no_two_features_share_one(one: str, other: str) -> None:
    assert topics.ID.fullmatch(alarms.name_stuck_cause(one))
    assert (alarms.name_stuck_cause(one) == alarms.name_stuck_cause(other)) == (one == other)


def test_a_cause_can_be_read() -> None:
    assert alarms.name_stuck_cause("room.level") == "stuck-room.level"
    assert alarms.name_stuck_cause("room.sample[23]").startswith("stuck-room.sample_23_-")
