"""Alarm rules on synthetic files and on sensors written down here: alarms are counted as the probe says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.firmware_sim.studies.datasets.series.sensors import Event, Sensor, SensorSet
from fedgate.firmware_sim.studies.datasets.tiny import ROOM_LOST, ROOM_ROWS, write_tiny
from fedgate.firmware_sim.studies.probes.buildings.building_alarms import (
    Alarm,
    Case,
    Guard,
    Method,
    Watched,
    count_false,
    count_found,
    find_begun,
    make_guard,
    make_scores,
    measure,
    walk,
)
from fedgate.models.arrays import Floats, generator

SUDDEN = {"sudden": {"kind": "point", "on": "values"}}
MERGE_S = 3_600.0


def sensor_of(x: Floats, begin: int, *events: Event) -> Sensor:
    return Sensor("s", x[:, None], 300 * np.arange(len(x)), ("a",), ("a",), begin // 2, begin, 300.0, events)


def method_of(rules: dict[str, Any], promised: float = 1.0, **more: Any) -> Method:
    given = {"promise": "alarms", "lags": 3, "rules": rules}
    return Method.model_validate({"alarm": {"false_alarms_per_day": promised, "rules": given}, **more})


def guard_of(method: Method, sensor: Sensor, merge_s: float = MERGE_S) -> Guard:
    return make_guard(method, sensor, merge_s, None)


@pytest.mark.soak
@pytest.mark.slow
def test_faults_of_rooms_are_found(tmp_path: Path) -> None:
    write_tiny(tmp_path, "streams/keti_rooms")
    rooms = SensorSet(data="keti", folder="streams/keti_rooms", watched=("CO2",), faults=1, merge_s=MERGE_S)
    rules = {**SUDDEN, "slow": {"kind": "slow", "time_s": 5400.0}, "stuck": {"kind": "stuck"}}
    network = method_of({"point": {"kind": "point"}}, 0.4, score="esn", settings={"network": {"units": 20}})
    rules_found, network_found = (
        measure(Case(sensors=rooms, part="reported", method=method), tmp_path)
        for method in (method_of(rules, 0.4), network)
    )
    assert rules_found["anomalies"] == network_found["anomalies"] == 3 * 6
    assert rules_found["recall.spike"] == 1.0 and rules_found["collective"] > 0.4
    assert rules_found["days"] == pytest.approx(3 * (ROOM_ROWS + ROOM_LOST - 6 * 288) / 288)
    assert rules_found["ratio"] == pytest.approx(rules_found["rate"] / 0.4)


@pytest.mark.soak
def test_a_copy_goes_on_from_the_state_before_its_fault() -> None:
    x = generator(0, 0, "copy").normal(size=1_500)
    fault = x[1_300:1_340] + 8.0
    spoiled = x.copy()
    spoiled[1_300:1_340] = fault
    method = method_of({"slow": {"kind": "slow", "time_s": 3_600.0}})
    event = Event("offset", 1_300, 1_340, fault[:, None])
    clean = guard_of(method, sensor_of(x, 1_000, event))
    whole, _ = walk(guard_of(method, sensor_of(spoiled, 1_000)))
    first = find_begun(clean, walk(clean)[1], event, fault[:, None])
    assert first is not None and first in {alarm.first for alarm in whole if alarm.first >= 1_300}


@pytest.mark.soak
def test_a_stuck_sensor_is_an_alarm_of_its_own_until_it_moves() -> None:
    x = generator(0, 0, "rest").normal(size=1_500)
    x[1_200:1_400] = x[1_200]
    x[1_250:1_300] += 1.0  # one change while it rests: the same alarm, as near ones are
    method = method_of({**SUDDEN, "stuck": {"kind": "stuck"}}, 0.01)
    alarms, states = walk(guard_of(method, sensor_of(x, 1_000), 3_900.0))
    assert (1_212, 1_399) in alarms
    still = [row for row in range(1_213, 1_420) if not states[row].is_stuck]
    assert still == [*range(1_250, 1_262), *range(1_300, 1_312), *range(1_400, 1_420)]


def test_an_alarm_that_stands_finds_nothing() -> None:
    x = generator(0, 0, "stand").normal(size=1_500)
    x[1_250:] += 30.0
    event = Event("offset", 1_300, 1_340, (x[1_300:1_340] + 9.0)[:, None])
    guard = guard_of(method_of({"level": {"kind": "point", "on": "level"}}), sensor_of(x, 1_000, event))
    alarms, states = walk(guard)
    assert any(alarm.first <= 1_250 and alarm.last == 1_499 for alarm in alarms)
    assert event.x is not None and find_begun(guard, states, event, event.x) is None


@pytest.mark.soak
def test_nothing_is_raised_in_the_baseline_and_no_later_row_calibrates() -> None:
    x = generator(0, 0, "baseline").normal(size=1_500)
    method = method_of(SUDDEN)
    later = x.copy()
    later[1_000:] *= 50.0
    one, other = (guard_of(method, sensor_of(values, 1_000)) for values in (x, later))
    assert one.judge.rules is not None and other.judge.rules is not None
    assert one.judge.rules.by_rule == other.judge.rules.by_rule
    assert all(alarm.first >= 1_000 for alarm in walk(other)[0]) and walk(other)[0]


def test_a_profile_is_of_the_watched_column_alone() -> None:
    rng = generator(0, 0, "profile")
    x, noise = rng.normal(size=(2_000, 1)), 1e3 * rng.normal(size=(2_000, 1))
    alarm = {
        "contextual": {"category": "thermostats", "days": "same", "least": 20},
        "rules": {"others": False, "rules": {"context": {"kind": "given"}}},
    }
    method = Method.model_validate({"alarm": alarm})
    plain = sensor_of(x[:, 0], 1_500)
    beside = plain._replace(x=np.concatenate([x, noise], axis=1), names=("a", "b"))
    rules = [guard_of(method, sensor).judge.rules for sensor in (plain, beside)]
    assert rules[0] is not None and rules[1] is not None
    assert rules[1].by_rule["context"] == pytest.approx(rules[0].by_rule["context"], rel=1e-12)


def test_so_many_times_the_largest() -> None:
    sensor = sensor_of(generator(0, 0, "largest").normal(size=1_200), 1_000)
    plain, times = (guard_of(method_of(SUDDEN, times_largest=times), sensor).judge.rules for times in (None, 1.2))
    assert plain is not None and times is not None
    assert times.by_rule["sudden"].level == 1.2 * plain.by_rule["sudden"].largest


def test_the_last_value_says_nothing_at_the_start() -> None:
    sensor = sensor_of(np.arange(100.0), 50)
    found = make_scores(method_of({"point": {"kind": "point"}}, score="last value"), [sensor], 0)["s"]
    scores = found(sensor.x, sensor.missing)
    assert np.isnan(scores[0]) and np.allclose(scores[1:], 1.0 / np.arange(25).std())


def test_the_error_of_a_recall_is_over_sensors_not_over_faults() -> None:
    found = generator(0, 0, "errors").random(40) < 0.7
    events = [Event("offset", 60, 70, np.zeros((10, 1)))] * 10
    sensors = [sensor_of(np.arange(100.0), 50, *events) for _ in found]
    watched = [Watched((), [60 if one else None] * 10) for one in found.tolist()]  # all ten are found, or none
    figures = count_found(sensors, watched, 0)
    assert figures["error.recall"] == pytest.approx(found.std() / np.sqrt(40), rel=0.1)
    assert figures["error.recall.offset"] == figures["error.recall"] and count_found(sensors, watched, 0) == figures
    assert np.isnan(count_found(sensors[:1], watched[:1], 0)["error.recall"])


def test_false_alarms_begin_in_no_documented_anomaly() -> None:
    sensor = sensor_of(np.arange(1_000.0), 136, Event("valve", 500, 520), Event("spike", 700, 702, np.zeros((2, 1))))
    watched = Watched([Alarm(505, 600), Alarm(490, 502), Alarm(800, 801), Alarm(700, 701)], [505, None])
    figures = count_false([sensor], [watched], 0.5)
    days = (1_000 - 136 - 20) * 300 / 86_400
    assert figures["false_alarms"] == 3.0 and figures["apart"] == pytest.approx(2 / days)
    assert figures["rate"] == pytest.approx(3 / days) and figures["ratio"] == pytest.approx(6 / days)
    found = count_found([sensor], [watched], 0)
    assert found["recall"] == 0.5 and found["recall.valve"] == 1.0 and found["delay_s"] == 6 * 300.0


def test_a_rule_on_context_needs_a_profile() -> None:
    with pytest.raises(ValidationError, match="of kind 'given'"):
        method_of({"context": {"kind": "given"}})
