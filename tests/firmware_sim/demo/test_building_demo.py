"""The building demo without its processes: rooms and faults are where they are said to be, the gateway's own pipeline
finds them, and every alarm is counted once, as found or as false.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fedgate.config.protocol.messages import Alarm, Score
from fedgate.config.settings.alarm import AlarmTable
from fedgate.firmware_sim.demo import building, building_picture, rooms
from fedgate.firmware_sim.demo.building import RoomAlarm
from fedgate.firmware_sim.demo.faults import SENSOR_FAULTS
from fedgate.firmware_sim.demo.rooms import Building, RoomsError
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.pipeline import pipeline as walk
from fedgate.gateway_agent.pipeline import recurrence
from fedgate.models.arrays import Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.federated.protocol.run import run
from fedgate.models.windows.grid import Block, StreamSpec

HOUR_S, DAY_S, NS = 3_600.0, 86_400.0, 10**9


@pytest.fixture(scope="module")
def shipped() -> Building:
    return rooms.shipped_rooms()


def test_five_rooms_begin_on_a_tuesday_and_have_a_fault_of_each_kind(shipped: Building) -> None:
    begun = datetime.fromtimestamp(shipped.story.t0_ns / NS, UTC)
    assert (begun.weekday(), begun.hour, begun.minute) == (1, 0, 0)
    assert sorted(room.fault for room in shipped.rooms) == sorted(set(SENSOR_FAULTS) - {"other time"})
    for room in shipped.rooms:
        wrong = np.flatnonzero(room.reported != room.healthy)
        assert (
            shipped.watched_s < room.start_s < room.end_s < shipped.story.length_s - shipped.story.features["window_s"]
        )
        assert room.start_s / HOUR_S <= wrong[0] <= wrong[-1] < room.end_s / HOUR_S
        assert np.isfinite(room.reported).all()


def test_the_settings_of_all_programs_are_right(shipped: Building) -> None:
    spec = FeatureSpec.model_validate(shipped.story.features)
    table = AlarmTable.model_validate(shipped.story.alarm)
    assert table.contextual_rule == "profile"
    assert set(table.rules.watched if table.rules else ()) <= set(feature_names(spec))
    build(rooms.ALGORITHM, len(feature_names(spec)), shipped.story.settings)
    assert shipped.story.baseline_windows == 313  # fourteen days of hours, less those before the first window is whole


class Watched(NamedTuple):
    raised: list[RoomAlarm]
    faulty: int


def watch(built: Building) -> dict[str, Watched]:
    """Play the building through the gateways' pipelines and the loop that defines a training, without processes."""
    spec, rate_hz = FeatureSpec.model_validate(built.story.features), built.story.sensors[0].rate_hz
    stream = StreamSpec.model_validate({"name": "s", "channels": spec.channels, **built.story.source})
    border, needed = round(built.watched_s * rate_hz), built.story.baseline_windows
    pipes, data = {}, {}
    for room in built.rooms:
        pipe = walk.start(spec, [stream], AlarmTable.model_validate(built.story.alarm), needed)
        pipe, _ = pushed(built, pipe, room.reported, slice(border))
        pipes[room.name], data[room.name] = pipe, walk.collect_data(pipe.baseline, spec.hop_s, needed // 3)
        assert pipe.commissioned
    algorithm = build(rooms.ALGORITHM, len(feature_names(spec)), built.story.settings)
    outcome = run(algorithm, data)
    model = DETECTORS[algorithm.detector].graph(outcome.server.global_state, algorithm.personal)
    return {
        room.name: watched(
            built, pipes[room.name], Scorer(model, outcome.local_states[room.name]), data[room.name], room.reported
        )
        for room in built.rooms
    }


def watched(built: Building, pipe: walk.Pipeline, scorer: Scorer, data: Arrays, said: Floats) -> Watched:
    units, _ = normalise({}, data, "own")
    scored = recurrence.score(scorer, walk.stack_rows(pipe.baseline), walk.count_gaps(pipe))
    pipe = walk.replace_model(
        pipe, *walk.calibrate_model(pipe, scorer, scored, built.story.baseline_windows // 3, units, {})
    )
    border = round(built.watched_s * built.story.sensors[0].rate_hz)
    _, readings = pushed(built, pipe, said, slice(border, None))
    raised, stuck = list[RoomAlarm](), set[str]()
    for reading in readings:
        at_s = built.story.seconds(reading.t_ns)
        if reading.height is not None and reading.transition is not None and reading.transition.kind == "raised":
            raised.append(RoomAlarm(at_s, None, reading.height.rule, "anomaly", "warning"))
        raised += [RoomAlarm(at_s, None, "stuck", "sensor", "warning") for _ in set(reading.stuck) - stuck]
        stuck = (stuck | set(reading.stuck)) - set(reading.moved)
    return Watched(raised, sum(bool(reading.faulty) for reading in readings))


def pushed(
    built: Building, pipe: walk.Pipeline, values: Floats, part: slice
) -> tuple[walk.Pipeline, list[walk.WindowResult]]:
    rate_hz, readings = built.story.sensors[0].rate_hz, []
    first, stop, _ = part.indices(len(values))
    count = round(built.place_s * rate_hz)
    for at in range(first, stop, count):
        t_ns = built.story.t0_ns + round(at / rate_hz * NS)
        pipe, more = walk.push(pipe, Block("s", t_ns, rate_hz, values[at : at + count, None]))
        readings += more
    return pipe, readings


@pytest.mark.soak
def test_the_gateways_find_the_faults_at_the_promised_rate(shipped: Building) -> None:
    seen = watch(shipped)
    verdicts = [building.judged(shipped, room, seen[room.name].raised) for room in shipped.rooms]
    assert [verdict.delay_s is not None for verdict in verdicts] == [True] * 5
    assert verdicts[0].found_by == "stuck"
    assert seen["room-1"].faulty > 0 == sum(seen[room.name].faulty for room in shipped.rooms[1:])
    alarms, days = sum(v.false_alarms for v in verdicts), sum(v.healthy_days for v in verdicts)
    assert alarms <= 1.5 * rooms.PROMISED * days
    assert sum(verdict.limits_delay_s is not None for verdict in verdicts) < 5


def alarm(at_s: float, **changes: object) -> RoomAlarm:
    return replace(RoomAlarm(at_s, None, "slow", "anomaly", "warning"), **changes)  # type: ignore[arg-type]  # by name


def test_an_alarm_is_found_or_false_and_never_both(shipped: Building) -> None:
    room, window_s = shipped.rooms[1], shipped.story.features["window_s"]
    early, late = alarm(room.start_s - HOUR_S), alarm(room.end_s + window_s + HOUR_S)
    first, second = alarm(room.start_s + 2 * HOUR_S, by="step", kind="sensor"), alarm(room.end_s + window_s)
    verdict = building.judged(shipped, room, [early, first, second, late])
    assert (verdict.delay_s, verdict.found_by, verdict.kind, verdict.false_alarms) == (7_200.0, "step", "sensor", 2)
    assert verdict.healthy_days == pytest.approx(14.0 - 4.0)  # three days of drift, and a window behind it
    missed = building.judged(shipped, room, [early, late])
    assert (missed.delay_s, missed.found_by, missed.false_alarms) == (None, "", 2)
    lines = building.table([verdict, missed]).splitlines()
    assert "2 h" in lines[-2]
    assert "not found" in lines[-1]


def test_raised_and_cleared_belong_together(shipped: Building) -> None:
    def told(state: str, at_s: float, **more: str) -> Alarm:
        t_ns = shipped.story.t0_ns + round(at_s * NS)
        keys = {"id": "a", "cause": "anomaly", "kind": "anomaly", "severity": "major", "text": ""}
        return Alarm.model_validate({**keys, "state": state, "onset_ns": t_ns, "t_ns": t_ns, **more})

    heard = [told("raised", 50.0, id="b", cause="faulty-temperature"), told("raised", 20.0, rule="slow")]
    found = building.alarms_of(shipped, [*heard, told("cleared", 70.0)])
    assert [(each.raised_s, each.cleared_s, each.by) for each in found] == [
        (20.0, 70.0, "slow"),
        (50.0, None, "faulty-temperature"),
    ]


def test_limits_are_the_range_of_the_commissioning(shipped: Building) -> None:
    border = round(shipped.watched_s / HOUR_S)
    values = np.sin(np.arange(len(shipped.rooms[0].reported)))
    for at in (3, 4, 20, 80):  # within a window of one another, and apart
        values[border + at] = -5.0
    found = building.beyond_limits(shipped, replace(shipped.rooms[0], reported=values))
    assert [at_s / HOUR_S - border for at_s in found] == [4, 81]


@pytest.mark.soak
def test_the_picture_is_drawn_the_same_twice_with_and_without_anything_heard(shipped: Building) -> None:
    nothing: dict[str, Sequence[RoomAlarm]] = {room.name: () for room in shipped.rooms}
    alarms = nothing | {"room-2": (alarm(shipped.watched_s + DAY_S), alarm(shipped.watched_s + 2 * DAY_S))}
    scores = {
        "room-2": [
            Score(t_ns=shipped.story.t0_ns + k * 10**14, score=k, level=1.0, alarm=False, model_version=1)
            for k in range(9)
        ]
    }
    verdicts = [building.judged(shipped, room, alarms[room.name]) for room in shipped.rooms]
    drawn = [building_picture.draw(shipped, scores, alarms, verdicts) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith(b"\x89PNG")
    assert building_picture.draw(shipped, {}, nothing, verdicts) not in drawn


def test_the_profile_is_what_is_usual_at_that_hour(shipped: Building) -> None:
    hours = (np.arange(len(shipped.rooms[0].reported)) + 1) % 24
    room = replace(shipped.rooms[0], healthy=np.where((hours >= 8) & (hours < 20), 23.0, 20.0))
    at_s, low, high = building_picture.find_expected(shipped, room)
    tuesday = (at_s >= 14 * DAY_S) & (at_s < 15 * DAY_S)
    at = np.round(at_s[tuesday] / HOUR_S).astype(int) % 24
    middle = (low + high)[tuesday] / 2
    np.testing.assert_allclose(middle[(at >= 9) & (at < 18)], 23.0, atol=0.01)
    np.testing.assert_allclose(middle[at < 6], 20.0, atol=0.01)


def own_rooms(folder: Path, count: int = 5, minutes: int = 12_000, period_s: int = 60) -> Path:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    start_s = 1_377_299_100  # a Friday evening of 2013
    for number in range(count):
        t = start_s + period_s * np.arange(minutes)
        warm = 22.0 + np.sin(2 * np.pi * t / DAY_S) + 0.1 * rng.normal(size=minutes)
        channels = np.array(["co2_ppm", "temperature_C"])
        np.savez(folder / f"room{number}.npz", t=t, x=np.column_stack([400.0 + 0 * warm, warm]), channels=channels)
    return folder


@pytest.mark.soak
def test_rooms_of_ones_own_keep_their_hours_and_become_quarters(tmp_path: Path) -> None:
    own = rooms.rooms_of(own_rooms(tmp_path, minutes=6_000), None)
    begun = datetime.fromtimestamp(own.story.t0_ns / NS, UTC)
    assert (begun.weekday(), begun.hour, begun.minute) == (4, 23, 5)
    assert begun.year >= 2023
    assert (own.place_s, own.story.source["aggregate"]) == (900.0, "mean")
    assert len(own.rooms) == 5
    assert own.story.sensors[0].channels[0].name == "temperature_C"
    seen = watch(own)
    assert seen["room-1"].faulty > 0 == seen["room-3"].faulty


@pytest.mark.parametrize(
    ("made", "channel", "reason"),
    [
        ({"count": 4}, None, r"4 recordings with the channel 'temp...'; expected 5 rooms. .* there are 'co2_ppm'"),
        ({}, "light", r"0 recordings with the channel 'light'"),
        ({"minutes": 900}, None, r"60 places of 900 s in the shortest recording; expected 240 or more"),
    ],
)
def test_a_folder_that_holds_no_rooms_says_why(
    tmp_path: Path, made: dict[str, int], channel: str | None, reason: str
) -> None:
    with pytest.raises(RoomsError, match=reason):
        rooms.rooms_of(own_rooms(tmp_path, **made), channel)


def test_rooms_of_different_rates_do_not_go_together(tmp_path: Path) -> None:
    own_rooms(own_rooms(tmp_path), count=1, period_s=30)
    with pytest.raises(RoomsError, match=r"expected rooms of one rate"):
        rooms.rooms_of(tmp_path, "temperature_C")
    with pytest.raises(RoomsError, match="0 recordings"):
        rooms.rooms_of(tmp_path / "nowhere", None)
