"""Models that go wrong after all checks: they do no harm, go by themselves and never come back.

Goal: whatever a new model does, the one before goes on as if nothing had been, window by window, and is back in force
without anyone's help. Models are real ones; what is wrong with each is one thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from fedgate.config.protocol.messages import Manifest, name_audience
from fedgate.gateway_agent.deployment.probation import SLOW_STEPS, STORED_S
from fedgate.gateway_agent.pipeline.recurrence import Memory
from fedgate.gateway_agent.status import status
from fedgate.models.alarms.false_alarm_test import LEAST_BLOCKS
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.onnx_policy import ModelRefusedError
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import signed
from tests.support.agents import ME, TICK, after, chunks, heard
from tests.support.sites import SITE, WINDOWS, frame, samples
from tests.support.watchers import BLOCK, CALM, DEVIATION, FRAME, LEVEL, SENSITIVE, THIRD, Gateway, model


@pytest.mark.soak
def test_a_candidate_that_alarms_where_the_model_in_force_is_calm_is_refused_for_good() -> None:
    gateway, twin = Gateway(CALM), Gateway(CALM)
    for each in (gateway, twin):
        each.watch(5 * BLOCK, shift=4.0)
    gateway.offer(SENSITIVE)
    assert gateway.version == 1 and "it alarms in 5 of 5 blocks of 128 windows" in status(gateway.state).refusal
    assert status(gateway.state).rejected["2"] == status(gateway.state).refusal
    gateway.restart()
    twin.restart()
    gateway.offer(SENSITIVE)
    assert not gateway.state.downloads.receiver.incoming and "it alarms in 5 of 5" in status(gateway.state).refusal
    for each in (gateway, twin):
        each.watch(2 * BLOCK)
    assert gateway.scores == twin.scores and gateway.version == 1
    gateway.offer(THIRD)
    assert gateway.version == 3 and status(gateway.state).refusal == ""


@pytest.mark.soak
@pytest.mark.parametrize("why", ["damage", "few windows", "no model in force"])
def test_a_candidate_is_not_blamed_where_nothing_can_be_told(why: str) -> None:
    gateway = Gateway() if why == "no model in force" else Gateway(CALM)
    if why == "damage":  # that both see
        for _ in range(5 * BLOCK // FRAME):
            values = 6.0 * samples(gateway.window, FRAME) + 60.0
            gateway.took(*after(gateway.state, heard("sample", "deck", frame(values, float(gateway.window)))))
            gateway.window += FRAME
        assert gateway.state.monitor.pipeline.alarm.active
    else:
        gateway.watch((LEAST_BLOCKS - 1) * BLOCK if why == "few windows" else 5 * BLOCK, shift=4.0)
    gateway.offer(SENSITIVE)
    assert gateway.version == 2


@pytest.mark.soak
def test_windows_on_which_the_two_models_differ_are_counted_while_both_judge() -> None:
    """Where they are the same none differ; a sensitive one differs on each window that is at its level alone."""
    gateway, twin = Gateway(CALM, SENSITIVE), Gateway(CALM)
    for each in (gateway, twin):
        each.watch(BLOCK, shift=4.0)
    said = status(gateway.state)
    at_level = [
        (now[1] >= now[2]) != (before[1] >= before[2])
        for now, before in zip(gateway.state.monitor.trail[-BLOCK:], twin.state.monitor.trail[-BLOCK:], strict=True)
    ]
    assert said.compared_windows == BLOCK and said.differing_windows > 0
    assert len(at_level) == BLOCK and said.differing_windows == sum(at_level)
    assert status(twin.state).compared_windows == 0


@pytest.mark.soak
def test_a_model_that_breaks_the_promise_on_probation_goes_by_itself() -> None:
    """The one before has judged every window meanwhile, so its scores go on as if nothing had been."""
    gateway, twin = Gateway(CALM, SENSITIVE), Gateway(CALM)
    assert gateway.version == 2 and status(gateway.state).previous_version == 1
    gateway.watch(BLOCK)
    twin.watch(BLOCK)
    assert status(gateway.state).probation_s == pytest.approx(86_400 - BLOCK)
    gateway.watch(20 * BLOCK, shift=4.0, until=lambda: gateway.version == 1)
    twin.watch(gateway.window - twin.window, shift=4.0)
    assert 3 * BLOCK <= gateway.window - WINDOWS <= 6 * BLOCK
    assert (
        "model 2 rolled back: it alarms in" in status(gateway.state).refusal and "2" in status(gateway.state).rejected
    )
    gateway.scores.clear()
    twin.scores.clear()
    gateway.watch(BLOCK)
    twin.watch(BLOCK)
    assert gateway.scores == twin.scores and len(twin.scores) == BLOCK
    assert not gateway.state.monitor.pipeline.alarm.active  # what the bad model raised is cleared by the good one
    for _ in range(2):
        gateway.offer(SENSITIVE)
        gateway.offer(CALM)
        assert gateway.version == 1 and not gateway.state.downloads.receiver.incoming
        gateway.restart()
    gateway.offer(model(2, DEVIATION))
    assert "model 2 is not newer than 2, which was in force" in status(gateway.state).refusal
    gateway.offer(THIRD)
    assert (gateway.version, status(gateway.state).previous_version) == (3, 1)


@pytest.mark.soak
def test_after_its_probation_a_model_is_proven_also_across_restarts() -> None:
    gateway = Gateway(CALM, SENSITIVE, models={"probation_s": 3.0 * STORED_S})
    gateway.watch(round(STORED_S) + FRAME)
    gateway.restart()
    assert status(gateway.state).probation_s == 2.0 * STORED_S and gateway.state.deployment.trial is not None
    gateway.watch(round(2 * STORED_S))
    assert gateway.state.deployment.trial is None and "model 2 is proven: 0 of " in gateway.said()
    gateway.restart()
    assert gateway.state.deployment.trial is None and gateway.version == 2
    gateway.watch(20 * BLOCK, shift=4.0)
    assert gateway.version == 2 and gateway.state.monitor.pipeline.alarm.active


@pytest.mark.soak
def test_a_gateway_whose_power_fails_every_ten_minutes_comes_to_the_end_of_a_probation() -> None:
    probation_s, cut_s = 2_400.0, 600
    gateway = Gateway(CALM, SENSITIVE, models={"probation_s": probation_s})
    cuts = 0
    while gateway.state.deployment.trial is not None:
        gateway.watch(cut_s)
        gateway.restart()
        cuts += 1
        assert cuts <= probation_s / (cut_s - STORED_S) + 1
    assert gateway.version == 2


@pytest.mark.soak
def test_the_proven_model_stays_the_one_to_go_back_to() -> None:
    gateway = Gateway(CALM, SENSITIVE, model(3, LEVEL))
    assert (gateway.version, status(gateway.state).previous_version) == (3, 1)
    gateway.restart()
    gateway.watch(20 * BLOCK, shift=4.0, until=lambda: gateway.version == 1)
    assert gateway.version == 1
    gateway.restart()
    assert gateway.version == 1 and gateway.state.monitor.pipeline.judge is not None


class Wrong:
    """A model that scores well until it does not."""

    washout_rows = max_gap_rows = 0

    def __init__(self, answer: Callable[[], float]) -> None:
        self.answer = answer

    def __call__(self, x: Array) -> Floats:
        return np.full(len(x), self.answer())

    def carried(self, x: Array, memory: Arrays) -> tuple[Floats, Arrays]:
        return self(x), memory


def wrong(gateway: Gateway, answer: Callable[[], float]) -> None:
    judge = gateway.state.monitor.pipeline.judge
    assert judge is not None
    judge = judge._replace(model=Wrong(answer))
    gateway.state = replace(
        gateway.state,
        monitor=replace(
            gateway.state.monitor,
            pipeline=replace(gateway.state.monitor.pipeline, judge=judge, memory=Memory({}, 0, None)),
        ),
    )


def fails() -> float:
    raise ModelRefusedError("onnxruntime cannot run it: so it says")


@pytest.mark.parametrize(
    ("answer", "words"), [(lambda: float("inf"), "gave no finite score for 4"), (fails, "so it says")]
)
def test_a_model_that_cannot_score_any_more_goes_at_once_and_no_window_is_lost(
    answer: Callable[[], float], words: str
) -> None:
    gateway = Gateway(CALM, SENSITIVE)
    wrong(gateway, answer)
    gateway.watch(FRAME)
    assert gateway.version == 1 and words in status(gateway.state).refusal
    before = len(gateway.scores)
    gateway.watch(FRAME)
    assert len(gateway.scores) == before + FRAME
    if answer is fails:
        assert before == FRAME


def test_a_model_that_is_too_slow_is_refused_or_goes() -> None:
    def stopwatch(step_s: float) -> Callable[[], int]:
        ticks: Iterator[int] = count(0, round(step_s * NS))
        return lambda: next(ticks)

    gateway = Gateway(CALM)
    gateway.state = replace(gateway.state, context=replace(gateway.state.context, stopwatch=stopwatch(0.6 * WINDOWS)))
    gateway.offer(SENSITIVE)
    assert gateway.version == 1 and "it takes 0.6 s a window" in status(gateway.state).refusal
    gateway.state = replace(gateway.state, context=replace(gateway.state.context, stopwatch=stopwatch(0.4 * WINDOWS)))
    gateway.offer(THIRD)
    assert gateway.version == 3
    gateway.state = replace(gateway.state, context=replace(gateway.state.context, stopwatch=stopwatch(1.1 * FRAME)))
    gateway.watch((SLOW_STEPS - 1) * FRAME)
    assert gateway.version == 3
    gateway.watch(FRAME)
    assert gateway.version == 1 and "it took longer than from window to window" in status(gateway.state).refusal


def test_a_model_for_this_gateway_alone_stands_above_what_all_are_told() -> None:
    gateway = Gateway(CALM)
    body = SENSITIVE[1]
    manifest = signed(SENSITIVE[0], audience=name_audience(SITE, ME))
    gateway.took(*after(gateway.state, heard("manifest", "current", manifest.to_bytes()), *chunks(body), TICK))
    gateway.offer(CALM)
    assert gateway.version == 2 and status(gateway.state).refusal == ""
    gateway.took(*after(gateway.state, heard("manifest", "current", b"")))
    assert gateway.version == 2 and gateway.state.messages_dropped == 0
    gateway.offer(THIRD)
    assert gateway.version == 3


def test_what_nobody_signed_leaves_no_trace_in_the_store() -> None:
    gateway = Gateway(CALM)
    before = dict(gateway.shelf.blobs)
    forged: Manifest = SENSITIVE[0].model_copy(update={"version": 99})
    gateway.offer((forged, SENSITIVE[1]))
    assert gateway.shelf.blobs == before and gateway.state.deployment.models.newest == 1
