"""A model that does not come to an end while it scores: it is ended, and the gateway goes on without it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from fedgate.gateway_agent import machine
from fedgate.gateway_agent.deployment.session import RUNNING, Scorer
from fedgate.gateway_agent.runtime import run_deadline
from fedgate.gateway_agent.state import State
from fedgate.models.onnx_policy import ModelRefusedError
from fedgate.models.windows.grid import Block
from tests.gateway_agent.deployment.test_gateway_models import FIRST, SECOND, in_force, offered
from tests.support.graph_tricks import WIDTH, hours
from tests.support.sites import FEATURES, samples
from tests.support.waiting import PATIENCE_S

SOON_S = 0.3
ENDLESS = hours(3, 1_000_000)


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the runs of this process watched, and ended soon."""
    monkeypatch.setattr(run_deadline, "_watching", list[threading.Thread]())
    run_deadline.watch_scoring(SOON_S, SOON_S / 10)


@pytest.mark.soak
@pytest.mark.usefixtures("watching")
def test_a_run_that_does_not_end_is_ended_and_the_next_one_is_not() -> None:
    endless, sound = Scorer(ENDLESS, {}), Scorer(FIRST[1], {})
    x, began_s = np.zeros((2, WIDTH), np.float32), time.monotonic()
    for _ in range(2):
        with pytest.raises(ModelRefusedError, match="it gave no score within 30 s"):
            endless.neutral(x)
        assert len(sound.neutral(x)) == 2 and not RUNNING
    assert time.monotonic() - began_s < PATIENCE_S
    until_s = time.monotonic() + 3 * SOON_S
    while time.monotonic() < until_s:  # many short runs are not one long one
        sound.neutral(x)


def sampled(state: State) -> State:
    """Return a gateway that has taken in a second of samples more."""
    return machine._push_samples(state, state.context.settings.source[0], block(state))[0]


def block(state: State) -> Block:
    """Return a second of samples behind those that a gateway has seen."""
    t_ns = max(seen.end_ns or 0 for seen in state.monitor.pipeline.recent)
    return Block("deck", t_ns, FEATURES["rate_hz"], samples(7, 2))


def stuck(state: State) -> State:
    """Return a gateway whose model in force does not come to an end any more."""
    judge = state.monitor.pipeline.judge
    assert judge is not None
    return replace(
        state,
        monitor=replace(
            state.monitor, pipeline=replace(state.monitor.pipeline, judge=judge._replace(model=Scorer(ENDLESS, {})))
        ),
    )


@pytest.mark.usefixtures("watching")
def test_on_probation_the_model_before_is_in_force_again() -> None:
    state, _ = offered(in_force(), SECOND)
    assert state.deployment.trial is not None
    state = sampled(stuck(state))
    assert state.deployment.manifest == FIRST[0]
    assert "model 2 rolled back: it gave no score within 30 s" in state.context.refusal
    assert state.deployment.models.why_not(state.deployment.models.rejected[-1].name)


@pytest.mark.usefixtures("watching")
def test_without_a_probation_the_stored_one_is_loaded_again_in_a_new_session() -> None:
    state = stuck(in_force())
    assert state.deployment.trial is None
    state = sampled(state)
    assert (
        state.deployment.manifest is None
        and state.deployment.reload_due == ""
        and "left: it gave no score within" in state.context.refusal
    )
    again = replace(state.deployment, manifest=FIRST[0])
    state = sampled(stuck(replace(state, deployment=again, monitor=in_force().monitor)))
    assert state.deployment.reload_due is not None and state.deployment.reload_due.startswith(
        "left: it gave no score"
    )  # the one before
