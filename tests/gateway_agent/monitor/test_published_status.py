"""Goal: a status says how near the last scores are to their level and how the sensors were received, as far as that is
known and others may know it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.messages import SENSORS_MAX, Score, Status
from fedgate.gateway_agent.events import Publish, Received
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import TRAIL_SHOWN, status
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import in_force
from tests.support.agents import after, changed, commissioned, heard
from tests.support.sites import FEATURES, T0_NS, WINDOWS, Shelf, agent, frame, gateway_settings, samples


def new(**tables: Any) -> State:
    """Return an agent that has seen nothing yet."""
    return agent(gateway_settings(**tables), Shelf())


def room(names: Sequence[str] = ("temperature",)) -> State:
    """Return an agent that reads JSON, and publishes values."""
    channels = [{"role": name, "path": name, "unit": "K"} for name in names]
    source = {"name": "room", "kind": "json", "topic": "sensor/room", "time_path": "time", "channels": channels}
    features = {**FEATURES, "channels": list(names)}
    return new(source=[source], features=features, exchange={"publish_values": True})


def judged(**tables: Any) -> tuple[State, list[Score]]:
    """Return an agent after some windows more, and the scores that it published of them."""
    state = in_force(**tables)
    state, effects = after(state, heard("sample", "deck", frame(samples(2, 3), float(WINDOWS))))
    sent = [one for one in effects if isinstance(one, Publish) and "/score/" in one.topic]
    return state, [Score.from_bytes(one.payload) for one in sent]


def test_it_is_that_of_the_last_window_that_was_judged() -> None:
    assert status(commissioned()).score_over_level is None  # no model yet
    assert status(in_force()).score_over_level is None  # nothing judged yet
    state, scores = judged()
    assert scores and status(state).score_over_level == pytest.approx(scores[-1].score / scores[-1].level, rel=1e-5)


def test_it_is_no_way_around_a_gateway_that_publishes_no_scores() -> None:
    state, scores = judged(exchange={"publish_scores": False})
    assert state.monitor.trail and not scores and status(state).score_over_level is None


@pytest.mark.parametrize(("height", "level"), [(0.5, 0.0), (0.5, -2.0), (1e300, 1e-300)])
def test_over_a_level_that_gives_no_number_there_is_none(height: float, level: float) -> None:
    state = changed(judged()[0], "monitor", trail=((1, height, level),))
    assert status(state).score_over_level is None
    assert b'"score_over_level":null' in status(state).to_bytes()


def test_the_latest_windows_go_with_it_and_no_more() -> None:
    state, scores = judged()
    trail = status(state).trail
    assert trail is not None and len(trail.scores) == len(scores)
    assert trail.first_ns == scores[0].t_ns and trail.list_levels()[-1] == pytest.approx(scores[-1].level, rel=1e-3)
    state = changed(state, "monitor", trail=tuple((place, float(place), 1.0) for place in range(2 * TRAIL_SHOWN)))
    trail = status(state).trail
    assert trail is not None and trail.scores == tuple(map(float, range(TRAIL_SHOWN, 2 * TRAIL_SHOWN)))
    assert status(judged(exchange={"publish_scores": False})[0]).trail is None


def test_a_sample_leaves_with_it_only_where_the_settings_say_so() -> None:
    quiet, spoken = new(), new(exchange={"publish_values": True})
    before = status(spoken).sources["deck"]
    assert (before.age_s, before.rate_hz, before.values) == (None, None, ())
    values = samples(3, 1)
    reports = []
    for before_it in (quiet, spoken):
        state, _ = after(before_it, heard("sample", "deck", frame(values)))
        reports.append(Status.from_bytes(status(state).to_bytes()).sources["deck"])
    assert not reports[0].values and not reports[0].units and reports[0].channels == reports[1].channels
    assert reports[0].age_s == 0.0 and reports[0].rate_hz == spoken.context.settings.features.rate_hz
    assert reports[1].values == pytest.approx(values[-1].tolist(), rel=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_value_that_is_no_number_of_a_sensor_is_none(bad: float) -> None:
    values = samples(3, 1)
    values[-1, 0] = bad
    state, _ = after(new(exchange={"publish_values": True}), heard("sample", "deck", frame(values)))
    assert Status.from_bytes(status(state).to_bytes()).sources["deck"].values[0] is None


def test_a_block_that_comes_late_is_not_the_newest_unless_that_is_of_the_future() -> None:
    later_ns = T0_NS + 9 * NS
    first, late = (heard("sample", "deck", frame(samples(seed, 1), start_s)) for seed, start_s in ((3, 1.0), (4, 0.0)))
    state, _ = after(new(), first, now_ns=later_ns)
    newest = state.monitor.latest["deck"]
    state, _ = after(state, late, now_ns=later_ns + NS)
    assert state.monitor.latest["deck"] == newest and status(state).sources["deck"].age_s == 1.0
    ahead, _ = after(new(), heard("sample", "deck", frame(samples(5, 1), 3_600.0)), now_ns=later_ns)
    ahead, _ = after(ahead, first, now_ns=later_ns)
    assert ahead.monitor.latest["deck"].values == newest.values


def test_single_readings_have_the_rate_of_the_last_two() -> None:
    state = room()
    for seconds in (0, 30, 50):
        payload = json.dumps({"temperature": 20 + seconds, "time": 1_700_000_000 + seconds}).encode()
        state, _ = after(state, Received("sensor/room", payload))
    report = status(state).sources["room"]
    assert report.rate_hz == pytest.approx(1 / 20) and report.values == (70.0,) and report.units == ("K",)


def test_of_very_many_channels_the_first_are_reported() -> None:
    names = [f"c{number}" for number in range(SENSORS_MAX + 9)]
    found = status(room(names)).sources["room"].channels
    assert found == tuple(names[:SENSORS_MAX])
