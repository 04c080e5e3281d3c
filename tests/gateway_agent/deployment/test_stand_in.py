"""A model that was proven and cannot be loaded or run now: tried again, stood in for, and never given up for that.

Goal: one bad moment of a processor, a library or a disk costs a gateway no model, and a gateway without one says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgate.gateway_agent.deployment import reloading, validation
from fedgate.gateway_agent.deployment.deployment import (
    LOADS_MAX,
    STARTS_MAX,
    LoadAttempts,
    mark_at_start,
    restore_models,
    save,
    save_at_stop,
)
from fedgate.gateway_agent.deployment.probation import AGAIN_S, STEADY_S
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.monitor.alarms import NO_MODEL
from fedgate.gateway_agent.pipeline.recurrence import Memory
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.models.onnx_policy import ModelRefusedError
from tests.gateway_agent.deployment.test_probation import Wrong, fails, wrong
from tests.support.agents import heard
from tests.support.kept import Small, service, ticked
from tests.support.sites import Shelf, agent, frame, gateway_settings, samples
from tests.support.watchers import BLOCK, CALM, FRAME, SENSITIVE, THIRD, Gateway

SHORT = {"probation_s": float(BLOCK)}


@pytest.fixture
def gateway() -> Gateway:
    """Return a gateway whose second model is proven."""
    made = Gateway(CALM, SENSITIVE, models=SHORT)
    made.watch(BLOCK)
    made.tick(STEADY_S + 1)
    assert made.state.deployment.trial is None and made.version == 2
    return made


def test_a_proven_model_that_fails_once_is_back_at_once_in_a_new_session(gateway: Gateway) -> None:
    wrong(gateway, fails)
    gateway.watch(FRAME)
    assert gateway.version == 2 and status(gateway.state).refusal == ""
    assert "model 2 left" in gateway.said() and "in force again, in a new session" in gateway.said()
    before = len(gateway.scores)
    gateway.watch(FRAME)
    assert len(gateway.scores) == before + FRAME and not gateway.state.deployment.models.rejected


def test_a_proven_model_that_fails_again_is_stood_in_for_until_the_next_start(gateway: Gateway) -> None:
    judged = gateway.state.deployment.models.windows
    for _ in range(2):
        wrong(gateway, fails)
        gateway.watch(FRAME)
    assert (
        gateway.version == 1
        and gateway.state.deployment.models.current.version == 2
        and not gateway.state.deployment.models.rejected
    )
    before = len(gateway.scores)
    gateway.watch(2 * FRAME)
    assert len(gateway.scores) == before + 2 * FRAME and gateway.state.deployment.models.windows == judged
    gateway.restart()
    assert gateway.version == 2


def test_the_one_that_stands_in_is_kept_where_a_new_model_comes(gateway: Gateway) -> None:
    for _ in range(2):
        wrong(gateway, fails)
        gateway.watch(FRAME)
    gateway.offer(THIRD)
    assert (gateway.version, status(gateway.state).previous_version) == (3, 1)
    gateway.restart()
    assert (
        gateway.version == 3
        and gateway.state.deployment.trial is not None
        and gateway.state.deployment.trial.manifest == CALM[0]
    )


def test_a_gateway_without_a_model_raises_an_alarm_and_tries_again_within_the_hour() -> None:
    gateway = Gateway(CALM)
    for _ in range(2):
        wrong(gateway, fails)
        gateway.watch(FRAME)
    gateway.tick()
    assert gateway.version == 0 and NO_MODEL in gateway.state.monitor.alarms.active
    gateway.tick(AGAIN_S)
    assert gateway.version == 1
    gateway.tick()
    assert NO_MODEL not in gateway.state.monitor.alarms.active and "a model is in force again" in gateway.said()


def test_a_gateway_that_never_had_a_model_does_not_complain() -> None:
    gateway = Gateway()
    gateway.tick()
    assert not gateway.state.monitor.alarms.active


def test_a_model_that_its_start_refuses_once_is_in_force_after_the_next(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined, calls = validation.examine_model, list[int]()

    def once(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise ModelRefusedError("its golden scores differ on this processor")
        return examined(*given)

    monkeypatch.setattr(reloading, "examine_model", once)
    gateway.restart()
    assert gateway.version == 1 and "stored model 2 refused: its golden" in status(gateway.state).refusal
    gateway.offer(SENSITIVE)
    assert gateway.version == 1 and not gateway.state.downloads.receiver.incoming  # not again before the next start
    gateway.restart()
    assert gateway.version == 2


def test_how_fast_the_processor_is_at_a_start_is_no_reason_against_a_stored_model(gateway: Gateway) -> None:
    clock = iter(range(0, 10**18, 10**12))
    blank = _blank(gateway, lambda: next(clock))
    pipeline = blank.monitor.pipeline
    found, *_ = reloading.reload(blank.deployment, blank.context, pipeline, blank.training.own, gateway.shelf.blobs)
    assert found.manifest == SENSITIVE[0]


def _blank(gateway: Gateway, stopwatch: Callable[[], int]) -> State:
    state = agent(gateway_settings(**gateway.tables), gateway.shelf, gateway.state.context.now_ns)
    pipeline = replace(state.monitor.pipeline, judge=None)
    return replace(
        state,
        deployment=replace(state.deployment, manifest=None),
        monitor=replace(state.monitor, pipeline=pipeline),
        context=replace(state.context, stopwatch=stopwatch),
    )


@pytest.mark.soak
def test_a_proven_model_that_ends_the_process_rests_for_a_start_and_is_tried_again(gateway: Gateway) -> None:
    settings = gateway_settings(models=SHORT)

    def start() -> int:
        begun = mark_at_start(gateway.shelf.blobs, "boot", settings)
        assert begun is not None
        gateway.shelf.commit([begun])
        manifest = agent(settings, gateway.shelf, gateway.state.context.now_ns).deployment.manifest
        return 0 if manifest is None else manifest.version

    assert [start() for _ in range(STARTS_MAX + 4)] == [2, 2, 2, 1, 2, 1, 2]
    assert not restore_models(gateway.shelf.blobs).rejected
    state = agent(settings, gateway.shelf)
    gateway.shelf.commit(save_at_stop(state.deployment))
    assert [start() for _ in range(2)] == [2, 2]


def on_disk(path: Small, shelf: Shelf) -> Service:
    path.commit([*map(Keep, shelf.baseline), *(Save(key, body) for key, body in shelf.blobs.items())])
    return service(path)


def test_the_service_gives_the_machine_its_stored_model(tmp_path: Path) -> None:
    made = Gateway(CALM)
    agent_ = on_disk(Small(tmp_path / "gateway.db"), made.shelf)
    judge = agent_.state.monitor.pipeline.judge
    assert judge is not None
    pipeline = replace(
        agent_.state.monitor.pipeline, judge=judge._replace(model=Wrong(fails)), memory=Memory({}, 0, None)
    )
    agent_.state = replace(agent_.state, monitor=replace(agent_.state.monitor, pipeline=pipeline))
    ticked(agent_, 1.0, heard("sample", "deck", frame(samples(made.window, FRAME), float(made.window))))
    assert agent_.state.deployment.manifest == CALM[0] and agent_.state.deployment.reload_due is None
    assert (
        agent_.state.monitor.pipeline.judge is not None and agent_.state.monitor.pipeline.judge.model is not judge.model
    )
    agent_.close()


def test_the_only_model_rests_for_an_hour_and_is_tried_again_behind_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a gateway does not go without a model until its next start, which may be months away; and a model that does
    end the process ends it once an hour at most.
    """
    made, path = Gateway(CALM), tmp_path / "gateway.db"
    digest, examined, marks = CALM[0].model.digest, validation.examine_model, list[LoadAttempts]()
    made.shelf.commit([save(replace(made.state.deployment.models, trying={digest: LoadAttempts(0, "", LOADS_MAX)}))])

    def loaded(*given: Any) -> Any:
        marks.append(restore_models(agent_.store.read().blobs).find_attempts(digest))  # on the disk
        return examined(*given)

    monkeypatch.setattr(reloading, "examine_model", loaded)
    agent_ = on_disk(Small(path), made.shelf)
    assert (
        agent_.state.deployment.manifest is None
        and agent_.state.deployment.models.find_attempts(digest).rests
        and not marks
    )
    ticked(agent_, AGAIN_S - 1.0)
    assert agent_.state.deployment.manifest is None and not marks
    ticked(agent_, 1.0)
    assert agent_.state.deployment.manifest == CALM[0] and [(one.in_all, one.rests) for one in marks] == [
        (LOADS_MAX, False)
    ]
    ended = mark_at_start(agent_.store.read().blobs, "boot", agent_.state.context.settings)  # had it ended the process
    assert ended is not None and restore_models({ended.key: ended.body}).find_attempts(digest).rests
    ticked(agent_, STEADY_S)
    assert not agent_.state.deployment.models.trying
    agent_.close()
