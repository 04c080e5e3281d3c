"""From samples to alarms: damage is an anomaly, a broken sensor is a sensor fault, and neither is told twice.

Goal: no value, gap, silence or jump of a clock stops the agent, is learned as normal or reads as damage.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.messages import Alarm, Score
from fedgate.gateway_agent.context import StoreHealth
from fedgate.gateway_agent.events import SENSOR_PRIORITY, Effect, Enqueue, Log, Received
from fedgate.gateway_agent.pipeline.decision import ScoringModel
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.models.alarms.threshold import Levels
from fedgate.models.arrays import Floats
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import FIRST, in_force
from tests.support.agents import TICK, Told, after, changed, commissioned, heard, kinds, sent
from tests.support.sites import FEATURES, T0_NS, WINDOW_SAMPLES, WINDOWS, Shelf, agent, frame, gateway_settings, samples

SILENT_S = 10.0
WATCHED: dict[str, Any] = {
    "source": [{"name": "deck", "kind": "frames", "channels": [{"role": "load"}], "silent_after_s": SILENT_S}]
}
TWO: dict[str, Any] = {
    "source": [{"name": "deck", "kind": "frames", "channels": [{"role": "a"}, {"role": "b"}], "silent_after_s": 5.0}],
    "features": {**FEATURES, "channels": ["a", "b"]},
}


def feed(state: State, values: Floats, start_s: float) -> tuple[State, list[Effect]]:
    """Feed one window a frame, as time passes on the gateway alike."""
    effects: list[Effect] = []
    for first in range(0, len(values), WINDOW_SAMPLES):
        at_s = start_s + first / FEATURES["rate_hz"]
        event = heard("sample", "deck", frame(values[first : first + WINDOW_SAMPLES], at_s))
        state, more = after(state, event, now_ns=T0_NS + round((at_s + 1.0) * NS))
        effects += more
    return state, effects


def queued_alarms(effects: list[Effect]) -> list[Alarm]:
    queued = [one.item for one in kinds(effects, Enqueue) if one.item.retain]
    return [Alarm.from_bytes(item.payloads[0]) for item in queued]


def told(effects: list[Effect]) -> list[tuple[str, str]]:
    alarms = queued_alarms(effects)
    return [(alarm.cause, alarm.state) for alarm in alarms]


def watched(shelf: Shelf | None = None) -> State:
    return changed(in_force(shelf, **WATCHED), "context", uptime_ns=T0_NS + WINDOWS * NS)


START_S = float(WINDOWS)


def test_damage_is_raised_once_and_cleared_once_and_can_be_traced() -> None:
    state, effects = watched(), []
    for start, shift in ((0, 0.0), (10, 50.0), (30, 0.0)):
        state, more = feed(state, samples(start, 10 if start != 10 else 20, shift), START_S + start)
        effects += more
    assert told(effects) == [("anomaly", "raised"), ("anomaly", "cleared")]
    raised, cleared = queued_alarms(effects)
    assert raised.id == cleared.id and raised.kind == "anomaly"
    assert raised.onset_ns == raised.t_ns == T0_NS + round((START_S + 11) * NS)  # the end of the first damaged window
    assert raised.score is not None and raised.level is not None and raised.score > raised.level
    assert (raised.model_version, raised.model_digest) == (1, FIRST[0].model.digest)
    assert (raised.window_s, raised.baseline_windows, raised.boot_id) == (1.0, WINDOWS, "boot")
    scores = [Score.from_bytes(one.payload) for one in sent(effects, "score")]
    assert [score.alarm for score in scores].index(True) == 10 and len(scores) == 40
    assert all(one.qos == 0 and not one.retain for one in sent(effects, "score"))


def test_an_anomaly_names_the_features_that_stand_out_and_its_message_stays_small() -> None:
    _, effects = feed(watched(), samples(0, 5, 50.0), START_S)
    queued, _ = kinds(effects, Enqueue)
    alarm = Alarm.from_bytes(queued.item.payloads[0])
    assert alarm.feature == "load.level" and alarm.rule == "score"
    said = (
        r"^load: mean is [45]\d\.\d+, usually [^ ]+.* since \d\d:\d\d UTC"
        r" \(score [^ ]+, level [^ ]+ of this gateway's own"
    )
    assert re.match(said, alarm.text)
    assert len(queued.item.payloads[0]) < 1_024


LEVEL = ["load.level"]
BESIDE: dict[str, tuple[dict[str, Any], float, tuple[str, str], str]] = {
    "before the boot, by the clock of its node": ({}, -3_600.0, ("", ""), "of this gateway's own baseline"),
    "no boot for long": ({}, 3_600.0, ("", ""), "of this gateway's own baseline"),
    "calm windows since the boot": ({}, 60.0, ("", ""), "of this gateway's own baseline"),
    "what moved is the weather": (
        {"weather": LEVEL},
        3_600.0,
        ("explained", ""),
        "; weather is out of the ordinary and",
    ),
    "what moved is the supply": (
        {"power": LEVEL},
        3_600.0,
        ("", "explained"),
        "power is out of the ordinary and accounts",
    ),
    "the weather did not move": ({"weather": ["load.peak"]}, 3_600.0, ("usual", ""), "own baseline"),
    "unrest beside it": (
        {"weather": LEVEL},
        3_600.0,
        ("unusual", ""),
        "weather is out of the ordinary and goes beyond what the baseline shows of its effect",
    ),
}


@pytest.mark.parametrize("case", BESIDE)
def test_a_gateway_says_what_it_measured_beside_an_anomaly(case: str) -> None:
    covariates, booted_s, said, words = BESIDE[case]
    unrest = 5.0 if case == "unrest beside it" else 1.0
    state = changed(in_force(**WATCHED, alarm={"covariates": covariates}), "context", uptime_ns=T0_NS + WINDOWS * NS)
    uptime_ns = round(booted_s * NS)
    state = changed(state, "context", uptime_ns=uptime_ns, anchor_ns=state.context.now_ns - uptime_ns)
    state, effects = feed(state, np.concatenate([samples(0, 10), samples(10, 5) * unrest + 2.0]), START_S)
    (raised,) = queued_alarms(effects)
    assert (raised.weather, raised.power) == said and words in raised.text
    _, effects = feed(state, samples(30, 10), START_S + 15)
    (cleared,) = queued_alarms(effects)
    assert (cleared.state, cleared.weather, cleared.power) == ("cleared", "", "")


def test_what_began_with_a_start_is_said_as_that_where_no_supply_is_measured() -> None:
    state = changed(in_force(**WATCHED), "context", uptime_ns=T0_NS + WINDOWS * NS)
    uptime_ns = 60 * NS
    state = changed(state, "context", uptime_ns=uptime_ns, anchor_ns=state.context.now_ns - uptime_ns)
    nothing_yet = replace(state.monitor.pipeline, recent=())
    state = changed(state, "monitor", pipeline=nothing_yet)
    _, effects = feed(state, samples(10, 5) + 2.0, START_S)
    (raised,) = queued_alarms(effects)
    assert raised.power == "unusual" and "power" not in raised.text
    assert raised.text.endswith("; it began with a start of this gateway")


def test_an_anomaly_from_the_first_window_after_a_boot_is_told_from_one_that_came_later() -> None:
    """A sensor that warms up comes back; what has changed for good does not."""
    for fading, said in ((np.exp(-np.arange(8) / 2.0), "explained"), (np.ones(8), "unusual")):
        alarm = {"minimum_duration_s": 5.0, "covariates": {"weather": ["load.peak"]}}
        state = changed(in_force(**WATCHED, alarm=alarm), "context", uptime_ns=T0_NS + WINDOWS * NS)
        pipeline = replace(state.monitor.pipeline, recent=())  # as of an agent that has just started
        state = changed(state, "monitor", pipeline=pipeline)
        state = changed(state, "context", uptime_ns=30 * NS, anchor_ns=state.context.now_ns - 30 * NS)
        shifts = np.repeat(500.0 * fading, WINDOW_SAMPLES)[:, None]
        _, effects = feed(state, samples(0, 8) + shifts, START_S)
        (raised,) = queued_alarms(effects)
        assert raised.power == said


def test_covariates_that_are_no_features_or_named_twice_are_refused() -> None:
    for covariates, words in (
        ({"weather": ["wind.level"]}, "alarm.covariates.weather: 'wind.level' is no feature"),
        ({"weather": ["load.level"], "power": ["load.level"]}, "'load.level' is named under weather and power"),
    ):
        with pytest.raises(ValueError, match=words):
            gateway_settings(alarm={"covariates": covariates})


BROKEN = {
    "NaN": (np.full((WINDOW_SAMPLES, 1), np.nan), SILENT_S),
    "infinite": (np.full((WINDOW_SAMPLES, 1), np.inf), SILENT_S),
    "mostly NaN": (np.where(np.arange(WINDOW_SAMPLES)[:, None] % 5 == 0, 1.0, np.nan), SILENT_S),
    "constant": (np.full((WINDOW_SAMPLES, 1), 0.25), 0.0),
    "clipped": (np.clip(samples(3, 1), -0.4, 0.4), 0.0),
    "beyond all range": (samples(3, 1) * 1e30, 0.0),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_sensor_is_its_own_alarm_and_never_damage(fault: str) -> None:
    values, patience_s = BROKEN[fault]
    state, effects = feed(watched(), samples(0, 3), START_S)
    assert told(effects) == []
    state, effects = feed(state, np.tile(values, (30, 1)), START_S + 3)
    assert told(effects) == [("faulty-load", "raised")]
    (queued,) = kinds(effects, Enqueue)
    alarm = Alarm.from_bytes(queued.item.payloads[0])
    assert alarm.kind == "sensor" and "load" in alarm.text and queued.item.priority == SENSOR_PRIORITY
    assert patience_s <= (alarm.t_ns - T0_NS) / NS - START_S - 3 <= patience_s + 2
    assert status(state).alarms_active == 1 and not sent(effects, "score")[1:]
    state, effects = feed(state, samples(1, 5), START_S + 33)
    assert told(effects) == []  # a while of health is needed: one that breaks and mends all the time is one fault
    state, effects = feed(state, np.concatenate([values, samples(1, 12)]), START_S + 38)
    assert told(effects) == [("faulty-load", "cleared")]
    assert status(state).alarms_active == 0


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_sensor_is_not_learned_as_normal(fault: str) -> None:
    state = agent(gateway_settings(), Shelf())
    state, _ = feed(state, np.tile(BROKEN[fault][0], (10, 1)), 0.0)
    assert len(state.monitor.pipeline.baseline) == 0
    state, _ = feed(state, samples(0, WINDOWS + 1), 10.0)
    assert state.monitor.pipeline.commissioned and np.isfinite(state.training.own["scale"]).all()


def test_only_the_channel_that_is_broken_is_named() -> None:
    values = np.random.default_rng(0).normal(size=(20 * WINDOW_SAMPLES, 2))
    values[:, 1] = np.nan
    _, effects = feed(agent(gateway_settings(**TWO), Shelf()), values, 0.0)
    assert told(effects) == [("faulty-b", "raised")]
    values[:, 0] = 1.0
    values[:, 1] = np.tile(BROKEN["clipped"][0][:, 0], 20)
    _, effects = feed(agent(gateway_settings(**TWO), Shelf()), values, 0.0)
    assert told(effects) == [("faulty-a", "raised"), ("faulty-b", "raised")]


def test_a_score_that_is_no_number_is_a_lost_window_and_not_the_end() -> None:
    levels = Levels(1.0, 0.5, 0.0, 20, False)
    state = watched()
    state = replace(
        state,
        monitor=replace(
            state.monitor, pipeline=replace(state.monitor.pipeline, judge=ScoringModel(Told(np.nan), levels))
        ),
    )
    state, effects = feed(state, samples(0, 15), START_S)
    assert state.monitor.windows_lost == 15 and told(effects) == [("faulty-load", "raised")]
    assert any("the model's score for it is nan" in log.text for log in kinds(effects, Log))


def test_silence_is_an_alarm_until_the_sensor_speaks() -> None:
    state, effects = feed(watched(), samples(0, 1), START_S - 1)
    for at_s in range(1, 30):
        state, more = after(state, TICK, now_ns=T0_NS + round((START_S + at_s) * NS))
        effects += more
        assert bool(told(effects)) == (at_s >= SILENT_S)
    assert told(effects) == [("silent-deck", "raised")]
    state, effects = after(state, heard("sample", "deck", b"noise is not speaking"))
    assert told(effects) == []
    _, effects = feed(state, samples(0, 2), START_S + 30)
    assert told(effects) == [("silent-deck", "cleared")]


def test_alarms_outlive_a_restart_and_are_told_once() -> None:
    shelf = Shelf()
    state, effects = feed(watched(shelf), samples(0, 5, 50.0), START_S)
    shelf.commit(effects)
    state, effects = feed(state, np.ones((5 * WINDOW_SAMPLES, 1)), START_S + 5)
    shelf.commit(effects)
    ids = {Alarm.from_bytes(item.payloads[0]).id for item in shelf.outbox.values() if item.retain}
    state = agent(gateway_settings(**WATCHED), shelf, T0_NS)
    assert status(state).alarms_active == 2 and list(state.outbox.items) == list(shelf.outbox)
    state, effects = feed(state, samples(0, 15, 50.0), START_S + 10)
    assert told(effects) == [("faulty-load", "cleared")]
    state, effects = feed(state, samples(0, 5), START_S + 25)
    assert told(effects) == [("anomaly", "cleared")]
    assert {Alarm.from_bytes(item.payloads[0]).id for item in state.outbox.items.values() if item.retain} == ids


def test_alarms_of_two_boots_that_begin_at_the_same_time_are_two_alarms() -> None:
    """Goal: the aggregator takes none for one that it has, and knows which is later. Without a clock every boot begins
    in 1970.
    """
    shelf, ids, sequences = Shelf(), list[str](), list[int]()
    for boot_id in ("one", "two"):
        state = changed(agent(gateway_settings(**WATCHED), shelf, 0), "context", boot_id=boot_id)
        state, raised = after(state, TICK, now_ns=round(SILENT_S * NS))
        shelf.commit(raised)
        state = changed(agent(gateway_settings(**WATCHED), shelf, 0), "context", boot_id="any other")
        state, cleared = after(state, heard("sample", "deck", frame(samples(0, 1))), now_ns=NS)
        shelf.commit(cleared)
        assert told([*raised, *cleared]) == [("silent-deck", "raised"), ("silent-deck", "cleared")]
        alarms = queued_alarms([*raised, *cleared])
        assert alarms[0].id == alarms[1].id
        ids.append(alarms[0].id)
        assert alarms[0].sequence == alarms[1].sequence
        sequences.append(alarms[0].sequence)
    assert ids[0] != ids[1] and sequences[0] < sequences[1] and not state.monitor.alarms.active


@pytest.mark.parametrize("is_unstored", [False, True])
def test_only_the_number_of_an_alarm_that_can_be_stored_orders_it(is_unstored: bool) -> None:
    """A full disk's own alarm is told all the same, and after a power cut the store counts anew from before."""
    state = changed(
        agent(gateway_settings(**WATCHED), Shelf(), 0), "context", store=StoreHealth(is_unstored=is_unstored)
    )
    _, raised = after(state, TICK, now_ns=round(SILENT_S * NS))
    (queued,) = kinds(raised, Enqueue)
    assert (Alarm.from_bytes(queued.item.payloads[0]).sequence == 0) is is_unstored


def test_a_fault_of_what_is_no_longer_in_the_settings_is_cleared_at_the_start() -> None:
    shelf = Shelf()
    _, effects = feed(watched(shelf), np.ones((3 * WINDOW_SAMPLES, 1)), START_S)
    shelf.commit(effects)
    renamed: dict[str, Any] = {
        "source": [{"name": "deck", "kind": "frames", "channels": [{"role": "force"}]}],
        "features": {**FEATURES, "channels": ["force"]},
    }
    shelf.baseline.clear()
    state = agent(gateway_settings(**renamed), shelf)
    assert status(state).alarms_active == 0 and len(state.outbox.items) == 2
    assert [name.split(".")[1] for name in shelf.outbox] == ["raised", "cleared"]


def test_cut_repeated_and_late_frames_count_nothing_twice() -> None:
    values, state = samples(0, 20), commissioned(**WATCHED)
    frames = [frame(values[at : at + 30], START_S + at / 20) for at in range(0, len(values), 30)]
    once, _ = after(state, *[heard("sample", "deck", payload) for payload in frames])
    events = [heard("sample", "deck", part) for payload in frames for part in (payload[:-7], payload, payload)]
    twice, _ = after(state, *events, heard("sample", "deck", frames[2]))
    assert twice.monitor.windows == once.monitor.windows == WINDOWS + 20
    assert twice.messages_dropped == len(frames)


@pytest.mark.parametrize("jump_s", [-86_400.0 * 365, 86_400.0 * 365])
def test_a_clock_that_jumps_costs_a_window_and_raises_nothing(jump_s: float) -> None:
    state, effects = feed(watched(), samples(0, 5), START_S)
    now_ns = state.context.now_ns
    for first in range(0, 200, WINDOW_SAMPLES):
        payload = frame(samples(1, 10)[first : first + WINDOW_SAMPLES], START_S + 5 + jump_s + first / 20)
        state, more = after(state, heard("sample", "deck", payload), now_ns=now_ns)
        effects += more
    assert told(effects) == [] and state.monitor.windows_lost == 1
    assert state.monitor.windows >= WINDOWS + 5 + 9


def json_site(**change: Any) -> State:
    channel: dict[str, Any] = {"kind": "json", "topic": "zigbee2mqtt/deck", "fill": "hold", "gap_s": 60.0}
    sources = [
        {"name": "heat", "channels": [{"role": "heat", "path": "heat"}], **channel},
        {"name": "wet", "channels": [{"role": "wet", "path": "wet"}], **channel},
    ]
    features = {"rate_hz": 1.0, "window_s": 10.0, "channels": ["heat", "wet"], "steps": [{"kind": "level"}]}
    return agent(gateway_settings(source=sources, features=features, **change), Shelf())


def test_sources_that_share_a_topic_each_take_what_is_theirs() -> None:
    """Zigbee2MQTT sends what has changed: a message without one value must not keep the other source waiting."""
    state = json_site()
    for second in range(60):
        payload = b'{"heat": %d}' % second if second % 2 else b'{"wet": %d}' % second
        state, _ = after(state, Received("zigbee2mqtt/deck", payload), now_ns=T0_NS + second * NS)
    assert state.messages_dropped == 60
    assert state.monitor.windows >= 4 and state.monitor.windows_lost == 0
    said = []
    for _ in range(3):
        state, effects = after(state, Received("zigbee2mqtt/deck", b"not JSON"))
        said += [told.text for told in kinds(effects, Log)]
    assert state.messages_dropped == 66
    assert len(said) == 1 and "(64 so far)" in said[0]  # at 1, 2, 4, ...: a flood must not flood the journal too


def test_bridged_values_and_lost_windows_are_counted_in_the_status() -> None:
    values = samples(3, 6)
    values[3:5], values[-30:-20] = np.nan, np.nan  # two are bridged, ten are too many
    state, _ = feed(agent(gateway_settings(**WATCHED), Shelf()), values, START_S)
    told_now = status(state)
    assert (told_now.values_filled, told_now.windows_lost) == ({"load": 2}, 1)
    strict = {**WATCHED["source"][0], "gap_s": 0.0}
    state, _ = feed(agent(gateway_settings(source=[strict]), Shelf()), values, START_S)
    assert (status(state).values_filled, status(state).windows_lost) == ({}, 2)
