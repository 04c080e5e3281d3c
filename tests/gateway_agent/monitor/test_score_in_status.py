"""Goal: a status says how near the last score is to its level, where that is known and others may know it."""

from __future__ import annotations

from typing import Any

import pytest

from fedgate.config.protocol.messages import Score
from fedgate.gateway_agent.events import Publish
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from tests.gateway_agent.deployment.test_gateway_models import in_force
from tests.support.agents import after, changed, commissioned, heard
from tests.support.sites import WINDOWS, frame, samples


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
