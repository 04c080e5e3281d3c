"""Goal: an hour of chosen features leaves a gateway as one item, whole, and nothing where none is chosen.

Method: the machine fed with frames over hours, beside the same numbers from numpy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.config.protocol.feature_summary import FeatureSummary
from fedgate.config.protocol.topics import parse
from fedgate.gateway_agent.events import TELEMETRY_PRIORITY, ClockSet, Effect, Enqueue
from fedgate.gateway_agent.outbox import summaries
from fedgate.gateway_agent.state import State
from fedgate.models.time_units import HOUR_NS, NS
from tests.support.agents import after, commissioned, heard, kinds
from tests.support.sites import T0_NS, WINDOW_SAMPLES, WINDOWS, frame, gateway_settings, samples

CHOSEN: dict[str, Any] = {"exchange": {"publish_features": ("load.level", "load.deviation")}}
HOUR_S = 100.0  # here, so that an hour needs no more than a hundred windows of a second


@pytest.fixture(autouse=True)
def _short_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "HOUR_NS", round(HOUR_S * NS))


def feed(state: State, seed: int, windows: int, start_s: float) -> tuple[State, list[Effect], np.ndarray[Any, Any]]:
    """Feed a gateway with whole windows; return what it does, and the windows (windows, samples)."""
    values = samples(seed, windows)
    now_ns = T0_NS + round((start_s + windows) * NS)
    state, effects = after(state, heard("sample", "deck", frame(values, start_s)), now_ns=now_ns)
    return state, effects, values.reshape(windows, WINDOW_SAMPLES)


def list_queued(effects: list[Effect]) -> list[FeatureSummary]:
    items = [one.item for one in kinds(effects, Enqueue) if parse(one.item.topic).channel == "summary"]
    assert all(one.priority == TELEMETRY_PRIORITY and not one.retain for one in items)
    return [FeatureSummary.from_bytes(one.payloads[0]) for one in items]


def hold(summary: FeatureSummary, values: np.ndarray[Any, Any], first_ns: int, last_ns: int) -> None:
    """Hold a summary against its windows."""
    level, deviation = values.mean(axis=1), values.std(axis=1)
    assert (summary.t_ns, summary.last_ns, summary.windows) == (first_ns, last_ns, len(values))
    assert summary.features == ("load.level", "load.deviation")
    for place, one in enumerate((level, deviation)):
        found = [getattr(summary, name)[place] for name in ("means", "deviations", "least", "most")]
        assert found == pytest.approx([one.mean(), one.std(), one.min(), one.max()], rel=1e-5)


def test_an_hour_is_one_item_as_soon_as_the_next_begins() -> None:
    state = commissioned(**CHOSEN)
    state, effects, values = feed(state, 2, WINDOWS, WINDOWS)
    (summary,) = list_queued(effects)
    whole = np.concatenate([samples(1, WINDOWS).reshape(WINDOWS, -1), values])
    ended = round(HOUR_S) - 1  # a window that ends with the hour is of the next
    hold(summary, whole[:ended], T0_NS + NS, T0_NS + ended * NS)
    assert (summary.clock, summary.boot_id) == (state.context.clock, state.context.boot_id)
    state, effects, more = feed(state, 3, round(HOUR_S), 2 * WINDOWS)
    (summary,) = list_queued(effects)
    whole = np.concatenate([whole, more])
    hold(summary, whole[ended : 2 * ended + 1], T0_NS + round(HOUR_S * NS), T0_NS + (2 * ended + 1) * NS)


def test_nothing_is_gathered_where_nothing_is_chosen() -> None:
    state, effects, _ = feed(commissioned(), 2, 2 * WINDOWS, WINDOWS)
    assert not list_queued(effects) and state.outbox.gathered is None
    assert not summaries.queue_gathered(state.outbox, state.context)[1]


def test_what_was_gathered_is_kept_at_the_end_and_where_the_clock_is_set() -> None:
    state = commissioned(**CHOSEN)
    (last,) = list_queued(summaries.queue_gathered(state.outbox, state.context)[1])
    assert last.windows == WINDOWS
    unset = replace(state, context=replace(state.context, clock="unsynchronised"))
    after_it, effects = after(unset, ClockSet(unset.context.anchor_ns + 5 * HOUR_NS))
    (before,) = list_queued(effects)
    assert before == last.model_copy(update={"clock": "unsynchronised"})  # of times that were not known to be right
    assert after_it.outbox.gathered is None


def test_a_clock_that_goes_back_begins_another() -> None:
    state = commissioned(**CHOSEN)
    outbox, effects = summaries.take_in(state.outbox, state.context, T0_NS + 5 * NS, np.ones(3, np.float32))
    assert [one.windows for one in list_queued(effects)] == [WINDOWS]
    assert outbox.gathered is not None and outbox.gathered.spreads[0].windows == 1


def test_windows_of_maintenance_are_in_none() -> None:
    state = commissioned(**CHOSEN)
    begun_ns = T0_NS + WINDOWS * NS
    pipeline = replace(state.monitor.pipeline, maintenance=((begun_ns + 2 * NS, begun_ns + 3 * NS),))
    state = replace(state, monitor=replace(state.monitor, pipeline=pipeline))
    state, _, _ = feed(state, 2, 5, WINDOWS)
    (last,) = list_queued(summaries.queue_gathered(state.outbox, state.context)[1])
    assert last.windows == WINDOWS + 4


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (("load.level", "load.hum"), "'load.hum' is no feature; expected some of load.level, load.deviation"),
        (("load.level", "load.level"), "expected names that differ"),
        (("load.level",) * 17, "at most 16"),
    ],
)
def test_names_that_are_no_features_are_refused(chosen: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        gateway_settings(exchange={"publish_features": chosen})
