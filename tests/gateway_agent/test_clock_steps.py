"""Clocks that step: the time of day follows one that was set and can be believed, no wait does, alarms keep their ids.

A gateway boots in 1970, an alarm is raised, the network comes and with it the time, weeks or decades later; or the
clock had run ahead and goes back.
"""

from __future__ import annotations

import re
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from fedgate.config.protocol import backoff
from fedgate.config.protocol.messages import Alarm, Receipt, Status
from fedgate.config.runtime import clock
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent import machine
from fedgate.gateway_agent.events import UPDATE_PRIORITY, ClockSet, Connection, Effect, Item, Keep, Tick
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.models.time_units import NS
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.agents import after, changed, clear_fault, commissioned, deliver, heard, kinds, raise_fault, sent
from tests.support.sites import FEATURES, SITE, T0_NS, Shelf, agent, frame, samples, topic

BOOT_S = 100  # from the boot to what the tests do
DAY_S = 86_400
STEPS_S = {"boot in 1970": T0_NS // NS, "weeks ahead": 21 * DAY_S, "back by an hour": -3_600, "a little": 2}
UNSET = Tick("unsynchronised", 0, 0)
YEAR_S = 365 * DAY_S
SOURCE = {"name": "deck", "kind": "frames", "channels": [{"role": "load"}]}


def gateway(silent_after_s: float) -> GatewaySettings:
    source = {**SOURCE, "silent_after_s": silent_after_s}
    tables = {"gateway": {"id": "north", "site": SITE}, "source": [source], "features": FEATURES}
    return GatewaySettings.model_validate({**tables, "baseline": {"windows": 1_000}})


def booted(by_s: int, silent_after_s: float = 30.0) -> tuple[State, int]:
    """Return a gateway whose clock is wrong by so much, and what it takes for the present."""
    anchor_ns = T0_NS - by_s * NS
    state = agent(gateway(silent_after_s), Shelf(), 0, anchor_ns=anchor_ns)
    state = changed(state, "context", clock="unsynchronised")
    return after(state, Connection(True), now_ns=anchor_ns + BOOT_S * NS)[0], anchor_ns + BOOT_S * NS


def windows(state: State, now_ns: int, seconds: int) -> tuple[State, list[int]]:
    """Feed so many seconds of samples by the clock of the node, which counts from its boot."""
    effects: list[Effect] = []
    for second in range(0, seconds, 5):
        payload = frame(samples(second, 5), second, clock="boot", boot="node")
        state, more = after(state, heard("sample", "deck", payload), UNSET, now_ns=now_ns + (second + 5) * NS)
        effects += more
    return state, [one.seen.end_ns for one in kinds(effects, Keep)]


@pytest.mark.parametrize("name", STEPS_S)
def test_windows_go_on_at_the_new_time_and_no_silence_is_made_up(name: str) -> None:
    by_s = STEPS_S[name]
    state, now_ns = booted(by_s)
    state, before_ns = windows(state, now_ns, 60)
    now_ns += 60 * NS
    true_ns = now_ns + by_s * NS
    state, effects = after(state, ClockSet(T0_NS), now_ns=now_ns)
    assert Status.from_bytes(sent(effects, "status")[0].payload).monotonic_ns == (BOOT_S + 60) * NS
    made_ns: list[int] = []
    for second in range(0, 120, 5):
        at_ns = true_ns + (second + 5) * NS
        payload = frame(samples(second, 5), 60 + second, clock="boot", boot="node")
        state, effects = after(state, heard("sample", "deck", payload), Tick("synchronised", 0, 0), now_ns=at_ns)
        made_ns += [one.seen.end_ns for one in kinds(effects, Keep)]
    assert len(before_ns) >= 55 and len(made_ns) >= 90  # a few are lost where time stepped
    assert all(true_ns - NS <= end_ns <= true_ns + 120 * NS for end_ns in made_ns[-60:])
    assert not state.monitor.alarms.active and status(state).clock == "synchronised"


@pytest.mark.parametrize("by_s", STEPS_S.values(), ids=list(STEPS_S))
def test_an_alarm_keeps_its_id_and_says_enough_to_correct_its_time(by_s: int) -> None:
    state, wrong_ns = booted(by_s)
    state, raised = raise_fault(state, "silent-deck", "nothing comes", wrong_ns)
    true_ns = wrong_ns + by_s * NS
    state, effects = after(state, ClockSet(T0_NS), now_ns=wrong_ns)
    told = Status.from_bytes(sent(effects, "status")[0].payload)
    state, cleared = clear_fault(state, "silent-deck", true_ns + 5 * NS)
    first, last = (Alarm.from_bytes(sent(each, "alarm")[0].payload) for each in (raised, cleared))
    assert first.id == last.id and (first.onset_ns, last.onset_ns) == (wrong_ns, wrong_ns)
    assert (first.clock, last.clock) == ("unsynchronised", "synchronised") and first.boot_id == told.boot_id
    assert told.t_ns is not None and told.monotonic_ns is not None and first.monotonic_ns is not None
    assert first.t_ns + (told.t_ns - told.monotonic_ns) - (first.t_ns - first.monotonic_ns) == true_ns


@pytest.mark.parametrize("by_s", STEPS_S.values(), ids=list(STEPS_S))
def test_patience_goes_on_as_if_nothing_had_happened(by_s: int) -> None:
    state, now_ns = booted(by_s, silent_after_s=1e6)
    state, _ = raise_fault(state, "faulty-load", "stuck", now_ns)
    state, effects = after(state, ClockSet(T0_NS), now_ns=now_ns)
    assert not sent(effects, "alarm")
    now_ns += by_s * NS
    assert not sent(after(state, Tick("synchronised", 0, 0), now_ns=now_ns + 29 * NS)[1], "alarm")
    assert len(sent(after(state, Tick("synchronised", 0, 0), now_ns=now_ns + 38 * NS)[1], "alarm")) == 1
    (name,) = state.outbox.items
    assert not after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))[0].outbox.items


def test_the_timeline_follows_a_clock_that_can_be_believed_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made, wall_ns = clock.Clock(), time.time_ns
    by_ns = 30 * DAY_S * NS
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + by_ns)
    for quality in ("unsynchronised", "unknown"):
        monkeypatch.setattr(clock, "ask_quality", lambda quality=quality: quality)
        assert not made.follow() and made.quality() == "unsynchronised"
    monkeypatch.setattr(clock, "ask_quality", lambda: "synchronised")
    before_ns = made.now_ns()
    assert made.follow() and not made.follow()
    assert made.now_ns() - before_ns == pytest.approx(by_ns, abs=NS) and made.quality() == "synchronised"


def shape(effect: Effect) -> tuple[str, str]:
    """Return an effect without the times in it, and the names that are made of times."""
    name = str(getattr(effect, "topic", "") or getattr(effect, "key", "") or getattr(effect, "name", ""))
    return type(effect).__name__, re.sub(r"[0-9a-f]{32,}|\d+", "#", name)


def waited(steps: dict[int, int]) -> list[list[tuple[str, str]]]:
    """Return what an hour comes to, by half minutes, for an agent that waits for everything, where its clock is set at
    some of them.
    """
    state = commissioned(source=[{**SOURCE, "silent_after_s": 300.0}], exchange={"resend_s": 60.0})
    state = changed(state, "deployment", candidate=FIRST[0])
    item = Item(topic("north", "update", "u"), (b"update",), False, UPDATE_PRIORITY)
    state, _ = deliver(state, "u", item)
    state, _ = raise_fault(state, "faulty-load", "stuck", state.context.now_ns)
    state, _ = after(state, UNSET)
    uptime_ns, found = state.context.uptime_ns, list[list[tuple[str, str]]]()
    for half in range(120):
        if half in steps:
            state, _ = machine.step(state, uptime_ns, ClockSet(steps[half] * NS))
        uptime_ns += 30 * NS
        state, effects = machine.step(state, uptime_ns, Tick("synchronised", 0, 0))
        told = [shape(effect) for effect in effects]
        found.append([one for one in told if "/status/" not in one[1]])
    return found


@pytest.mark.soak
@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(
    steps=st.dictionaries(st.integers(0, 119), st.integers(-50 * YEAR_S, 50 * YEAR_S), min_size=1, max_size=4)
)
def test_no_wait_goes_by_the_wall_clock(steps: dict[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backoff, "JITTER", 0.0)  # it follows from the names of alarms, and these from their times
        straight, stepped = waited({}), waited(steps)
    assert {kind for one in straight for kind, _ in one} >= {"Publish", "Enqueue", "Save"}
    assert stepped == straight
