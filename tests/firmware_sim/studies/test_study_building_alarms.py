"""The study of alarm rules on the tiny data: it runs, looks at nothing it may not, and counts alarms as it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.firmware_sim.studies.building_alarms.data import CALENDAR, Event, Part, Sensor, load, missing_before, runs
from fedgate.firmware_sim.studies.building_alarms.options import AlarmSet, Method, Options
from fedgate.firmware_sim.studies.building_alarms.study import STUDY, _Count, cells
from fedgate.firmware_sim.studies.building_alarms.watch import Alarm, begun, guarded, scores_of, watched
from fedgate.firmware_sim.studies.datasets.tiny import HEALTHY_DAYS, ROOM_LOST, ROOM_ROWS, ROOMS, write_tiny
from fedgate.firmware_sim.studies.engine.study import StudyError, load_options
from fedgate.firmware_sim.studies.runner import measured
from fedgate.models.arrays import Floats, generator
from tests.support.syntax import ROOT

EXPERIMENT = ROOT / "firmware_sim" / "experiments" / "building-alarms.toml"
RULES = {"promise": "alarms", "lags": 3, "rules": {"sudden": {"kind": "point", "on": "values"}}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("keti_rooms", "skab_pump", "nab", "hvac_fdd")
    return write_tiny(tmp_path_factory.mktemp("data"), *(f"streams/{name}" for name in names))


@pytest.mark.soak
def test_the_study_runs_in_small(data: Path, tmp_path: Path) -> None:
    options = load_options(EXPERIMENT, STUDY, "short")
    outcome = measured(
        "building-alarms", options, data, results=tmp_path, profile="short", command="test", jobs=1, say=lambda _: None
    )
    found = {(one.cell["set"], one.cell["part"], one.cell["method"]): one.figures for one in outcome.measured}
    rooms = found["rooms", "reported", "three rules"]
    assert rooms["anomalies"] == ROOMS // 2 * 2 * 6 and rooms["recall.spike"] == 1.0 and rooms["recall.stuck"] >= 0.75
    assert rooms["days"] == pytest.approx(ROOMS // 2 * 2 * (ROOM_ROWS + ROOM_LOST - 6 * 288) / 288, rel=0.01)
    assert found["rooms", "development", "network's score and context"]["anomalies"] == ROOMS // 2 * 2 * 6
    assert found["pump", "reported", "cumulative alone"]["standing"] == 1.0
    assert found["NAB temperatures", "reported", "point and level"]["recall"] == 1.0
    leaks = found["air handler", "reported", "three rules"]["recall.heating coil valve leaking"]
    assert leaks == 0.5  # the alarm of the first day still stands on the second
    for words in ("## Beside the paper's table", "paper: FSLSTM", "## air handler", "None in this profile"):
        assert words in outcome.text
    for name in ("recall", "promises"):
        assert (tmp_path / f"building-alarms-short-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_experiment_has_every_target_and_a_thousand_instances() -> None:
    options = load_options(EXPERIMENT, STUDY, "full")
    assert isinstance(options, Options)
    every = cells(options)
    for target in options.targets:
        wanted = {"set": target.set, "part": "reported", "method": target.method, "promised": target.promised}
        assert wanted in every
    rooms, air = options.sets["rooms"], options.sets["air handler"]
    assert 12 * 2 * 6 * rooms.faults + 2 * 6 * air.faults + 2 * 2 + 8 + 2 >= 998


def chosen(name: str, **more: object) -> AlarmSet:
    folder = {"keti": "keti_rooms", "skab": "skab_pump", "nab": "nab", "hvac": "hvac_fdd"}[name]
    base = {"data": name, "folder": f"streams/{folder}", "false_alarms_per_day": [1.0], "merge_s": 3600.0}
    return AlarmSet.model_validate({**base, "methods": {"one": {"rules": RULES}}, **more})


def test_parts_share_nothing_and_faults_lie_behind_the_baseline(data: Path) -> None:
    parts: tuple[Part, ...] = ("development", "reported")
    for name in ("keti", "skab", "nab"):
        halves = [load(chosen(name), data, part, 0) for part in parts]
        assert not {each.name for each in halves[0]} & {each.name for each in halves[1]}
    for sensor in load(chosen("keti", watched=["CO2"], faults=3), data, "reported", 0):
        assert sensor.watched == ("CO2",) and len(sensor.events) == 18
        for event in sensor.events:
            assert sensor.begin < event.start < event.stop <= len(sensor.x)
            assert event.x is not None and event.x.shape == (event.stop - event.start, len(sensor.names))
            healthy = sensor.x[event.start : event.stop]
            assert np.array_equal(event.x[:, 1:], healthy[:, 1:]) and not np.array_equal(event.x[:, 0], healthy[:, 0])


def test_the_air_handler_begins_healthy_and_leaves_out_what_is_disputed(data: Path) -> None:
    (sensor,) = load(chosen("hvac"), data, "reported", 0)
    assert {"AHU: Supply Air Temperature", "AHU: Mixed Air Temperature", *CALENDAR} < set(sensor.names)
    assert not any("Set Point" in name for name in sensor.names)  # which never move
    healthy = len(HEALTHY_DAYS)
    assert (sensor.begin, sensor.trained, len(sensor.x)) == (6 * 288, 4 * 288, (healthy + 2) * 288)
    leak = "heating coil valve leaking"
    found = [(each.kind, each.start // 288, each.stop // 288) for each in sensor.events]
    assert found == [(leak, healthy, healthy + 1), (leak, healthy + 1, healthy + 2)]
    assert sensor.days == healthy - 6


def test_missing_rows_are_counted_and_time_that_goes_back_begins_a_series() -> None:
    assert missing_before(np.array([0, 60, 240, 0, 60]), 60.0).tolist() == [-1, 0, 2, -1, 0]
    assert runs(np.array([True, False, True, True])) == [(0, 1), (2, 4)]


def sensor_of(x: Floats, begin: int, *events: Event) -> Sensor:
    count = np.arange(len(x))
    missing = np.where(count == 0, -1, 0)
    return Sensor("s", x[:, None], missing, 300 * count, ("a",), ("a",), begin // 2, begin, 300.0, events)


def test_a_copy_goes_on_from_the_state_before_its_fault() -> None:
    rng = generator(0, 0, "copy")
    x = rng.normal(size=1_500)
    fault = x[1_300:1_340] + 8.0
    spoiled = x.copy()
    spoiled[1_300:1_340] = fault
    method = Method.model_validate({"rules": {**RULES, "rules": {"slow": {"kind": "slow", "time_s": 3_600.0}}}})
    clean = sensor_of(x, 1_000, Event("offset", 1_300, 1_340, fault[:, None]))
    guard = guarded(method, clean, 1.0, 3_600.0, None)
    _, states, _ = watched(guard, clean)
    whole, _, _ = watched(guard, sensor_of(spoiled, 1_000))
    first = begun(guard, clean, states, clean.events[0])
    assert first is not None and first.first in {alarm.first for alarm in whole if alarm.first >= 1_300}


def test_a_stuck_sensor_is_an_alarm_of_its_own_until_it_moves() -> None:
    x = generator(0, 0, "rest").normal(size=1_500)
    x[1_200:1_400] = x[1_200]
    x[1_250:1_300] += 1.0  # one change while it rests: the same alarm, as near ones are
    rules = {"rules": {"sudden": {"kind": "point", "on": "values"}, "stuck": {"kind": "stuck"}}}
    sensor = sensor_of(x, 1_000)
    guard = guarded(Method.model_validate({"rules": rules}), sensor, 0.01, 3_900.0, None)
    alarms, states, _ = watched(guard, sensor)
    assert [(alarm.first, alarm.last) for alarm in alarms if alarm.rule == "stuck"] == [(1_212, 1_399)]
    assert [row for row in range(1_200, 1_420) if not states[row].is_stuck and row > 1_212] == [
        *range(1_250, 1_262),
        *range(1_300, 1_312),
        *range(1_400, 1_420),
    ]


def test_the_error_of_a_recall_is_over_sensors_not_over_faults() -> None:
    count, sensor, rng = _Count(), sensor_of(np.arange(100.0), 50), generator(0, 0, "errors")
    found = rng.random(40) < 0.7
    for one in found.tolist():  # on a sensor all ten are found, or none is
        event = Event("offset", 60, 70, np.zeros((10, 1)))
        count.sensor(sensor, [], [(event, Alarm(60, 60, "sudden") if one else None)] * 10)
    figures = count.figures(0)
    assert figures["error.recall"] == pytest.approx(found.std() / np.sqrt(40), rel=0.1)
    assert figures["error.recall.offset"] == figures["error.recall"] and count.figures(0) == pytest.approx(figures)
    alone = _Count()
    alone.sensor(sensor, [], [])
    assert np.isnan(alone.figures(0)["error.recall"])


def test_an_alarm_that_stands_finds_nothing() -> None:
    x = generator(0, 0, "stand").normal(size=1_500)
    x[1_250:] += 30.0
    event = Event("offset", 1_300, 1_340, (x[1_300:1_340] + 9.0)[:, None])
    level = {"rules": {"level": {"kind": "point", "on": "level"}}}
    sensor = sensor_of(x, 1_000, event)
    guard = guarded(Method.model_validate({"rules": level}), sensor, 1.0, 3_600.0, None)
    alarms, states, _ = watched(guard, sensor)
    assert any(alarm.first <= 1_250 and alarm.last == 1_499 for alarm in alarms)
    assert begun(guard, sensor, states, event) is None


def test_so_many_times_the_largest() -> None:
    sensor = sensor_of(generator(0, 0, "largest").normal(size=1_200), 1_000)
    plain = guarded(Method.model_validate({"rules": RULES}), sensor, 1.0, 3_600.0, None)
    times = guarded(Method.model_validate({"rules": RULES, "times_largest": 1.2}), sensor, 1.0, 3_600.0, None)
    assert times.rules.by_rule["sudden"].level == 1.2 * plain.rules.by_rule["sudden"].largest


def test_the_last_value_says_nothing_at_the_start() -> None:
    sensor = sensor_of(np.arange(100.0), 50)
    method = Method.model_validate({"score": "last value", "rules": {"rules": {"point": {"kind": "point"}}}})
    found = scores_of(method, [sensor], 0)["s"](sensor.x, sensor.missing)
    assert np.isnan(found[0]) and np.allclose(found[1:], 1.0 / np.arange(25).std())


def test_wrong_options_and_files_are_named(tmp_path: Path) -> None:
    for name, words in (
        ("keti", "0 rooms of 1800 rows"),
        ("nab", "is missing"),
        ("hvac", "mzvav_2_1.csv.gz is missing"),
    ):
        with pytest.raises(StudyError, match=words):
            load(chosen(name), tmp_path, "reported", 0)
    with pytest.raises(ValidationError, match="expected one named 'context' exactly where profile is set"):
        Method.model_validate({"rules": {"rules": {"context": {"kind": "given"}}}})
    target = {"set": "a", "method": "two", "promised": 1.0, "least": 1.0, "false_alarms_per_day": 1.0, "words": "x"}
    base = {"study": "building-alarms", "title": "x", "sets": {"a": chosen("keti").model_dump()}, "targets": [target]}
    with pytest.raises(ValidationError, match="targets: 'a' has no 'two' at 1 a day"):
        Options.model_validate(base)
