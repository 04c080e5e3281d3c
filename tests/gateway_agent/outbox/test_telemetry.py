"""Scores of a time without a link: none is missing afterwards, none has another time, nobody has to listen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.messages import MessageError, Receipt, Score
from fedgate.config.protocol.scores import Scores, gather
from fedgate.gateway_agent.events import TELEMETRY_PRIORITY, Connection, Effect, Enqueue
from fedgate.gateway_agent.outbox import scores as telemetry
from fedgate.gateway_agent.outbox.scores import WINDOWS
from fedgate.gateway_agent.state import State
from fedgate.models.time_units import NS
from tests.support.agents import after, commissioned, heard, kinds, sent
from tests.support.batches import spread
from tests.support.sites import T0_NS

HOP_S = 5.0
AT_ONCE: dict[str, Any] = {"exchange": {"spread_s": 0.0}}
A_SCORE = st.builds(
    Score,
    t_ns=st.just(0),
    score=st.floats(-1e6, 1e6),
    level=st.just(2.5),
    alarm=st.booleans(),
    model_version=st.just(3),
    rule=st.sampled_from(["score", "shift", "spread"]),
)


def score(place: int, **change: Any) -> Score:
    given_values = {"t_ns": T0_NS + round(place * HOP_S * NS), "score": place + 0.5, "level": 9.0, "alarm": False}
    return Score.model_validate({**given_values, "model_version": 1, **change})


def told(state: State, *scores: Score) -> tuple[State, list[Effect]]:
    effects: list[Effect] = []
    for one in scores:
        outbox, more = telemetry.publish(state.outbox, state.context, one)
        state, effects = replace(state, outbox=outbox), [*effects, *more]
    return state, effects


def batches(effects: list[Effect]) -> list[Scores]:
    return [Scores.from_bytes(one.item.payloads[0]) for one in kinds(effects, Enqueue)]


@given(st.lists(st.tuples(A_SCORE, st.integers(1, 10**12)), min_size=1, max_size=80))
def test_a_batch_says_what_its_windows_said(drawn: list[tuple[Score, int]]) -> None:
    t_ns, scores = T0_NS, list[Score]()
    for one, pause_ns in drawn:
        t_ns += pause_ns
        scores.append(one.model_copy(update={"t_ns": t_ns}))
    batch = gather(scores, "synchronised", "boot")
    assert batch == Scores.from_bytes(batch.to_bytes()) and (batch.clock, batch.boot_id) == ("synchronised", "boot")
    for before, later in zip(scores, spread(batch), strict=True):
        assert abs(later.t_ns - before.t_ns) <= 500_000
        assert later.score == pytest.approx(before.score, rel=1e-5)
        assert later.model_copy(update={"t_ns": before.t_ns, "score": before.score}) == before


@pytest.mark.parametrize(
    "change",
    [
        {"scores": [1.0]},
        {"after_ms": []},
        {"alarms": [2]},
        {"rules": {"shift": [7]}},
        {"after_ms": [0, -1]},
        {"level": None},
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    good = gather([score(0), score(1)], "unknown", "").model_dump(mode="json")
    with pytest.raises(MessageError):
        Scores.from_bytes(json.dumps({**good, **change}).encode())


def test_sixty_windows_take_little_more_than_a_kilobyte() -> None:
    """What a day without a link costs: 288 batches at a hop of 5 s."""
    batch = gather([score(place, score=0.123456 * place) for place in range(WINDOWS)], "synchronised", "b" * 36)
    assert len(batch.to_bytes()) < 1_300


def test_scores_are_told_live_while_there_is_a_link_and_kept_while_there_is_none() -> None:
    state, effects = told(commissioned(**AT_ONCE), *map(score, range(20)))
    assert len(sent(effects, "score")) == 20 and not kinds(effects, Enqueue)
    state, _ = after(state, Connection(False))
    state, effects = told(state, *map(score, range(20, 80)))
    assert not sent(effects, "score")
    state, more = after(state, Connection(True))
    found = [place.score - 0.5 for batch in batches(effects + more) for place in spread(batch)]
    assert found == [float(place) for place in range(11, 80)]  # from 1.5 keep-alives before the end was noticed
    assert all(len(batch.scores) <= WINDOWS for batch in batches(effects + more))
    assert {item.priority for item in state.outbox.items.values()} == {TELEMETRY_PRIORITY}
    assert len(sent(more, "telemetry")) == 2 and not state.outbox.scores
    for name in list(state.outbox.items):
        state, _ = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
    assert not state.outbox.items


def test_another_model_or_a_clock_that_went_back_begins_another_batch() -> None:
    state, _ = after(commissioned(**AT_ONCE), Connection(False))
    series = [score(0), score(1), score(2, model_version=2), score(3, model_version=2, level=1.0), score(1, level=1.0)]
    state, _ = told(state, *series, score(0, level=1.0))
    _, effects = after(state, Connection(True))
    assert [len(batch.scores) for batch in batches(effects)] == [2, 1, 1, 1, 1]


def test_a_stop_without_a_link_stores_what_was_kept_and_one_with_a_link_nothing() -> None:
    state, _ = told(commissioned(**AT_ONCE), score(0))
    assert not telemetry.save_unsent(state.outbox, state.context)
    assert len(batches(telemetry.save_unsent(state.outbox, replace(state.context, is_connected=False)))) == 1


def test_nothing_is_kept_where_that_is_not_wanted() -> None:
    state = commissioned(exchange={"keep_scores": False})
    state, effects = told(state, score(0))
    assert len(effects) == 1 and not state.outbox.scores
    state, effects = told(after(state, Connection(False))[0], score(1))
    assert not effects and not state.outbox.scores
