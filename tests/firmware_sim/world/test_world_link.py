"""The line of a simulated machine: it carries what a line carries, by the real backlog, and loses what a line loses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedgate.config.transport.send_queue import MESSAGES_MAX, WAITING_BYTES_MAX, Limits, Outgoing, SendQueue
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.environment.faults import Capacity, Faults
from fedgate.firmware_sim.world.environment.link import Line
from fedgate.firmware_sim.world.environment.time import Scheduler
from tests.support.sites import topic

ALARM = Outgoing(topic("north", "alarm", "anomaly"), b"alarm", retain=True, qos=1)
SCORE = Outgoing(topic("north", "score", "window"), b"score", retain=False, qos=0)


def chunk(number: int, size: int = 1_000) -> Outgoing:
    return Outgoing(topic("north", "update", "d"), f"{number}".encode().ljust(size), retain=False, qos=1)


class Broker:
    """What came over a line, and what the witness said of it."""

    def __init__(self, **capacity: float) -> None:
        self.scheduler = Scheduler()
        self.came: list[Outgoing] = []
        self.violations: list[str] = []
        self.line = Line(self.scheduler, Capacity(**capacity), self.came.append, self.violations.append)
        self.line.opened()

    def run(self, duration_s: float) -> list[Outgoing]:
        self.scheduler.run(self.scheduler.elapsed_s + duration_s)
        return self.came


def test_an_alarm_goes_past_an_update_on_a_narrow_line() -> None:
    broker = Broker(bytes_per_s=1_000.0)
    for number in range(100):
        broker.line.publish(chunk(number))
    broker.run(0.5)
    broker.line.publish(ALARM)
    broker.run(30.0)
    assert ALARM in broker.came[: MESSAGES_MAX + 2] and len(broker.came) < 40
    broker.run(300.0)
    assert len(broker.came) == 101 and broker.line.queue.is_empty and not broker.violations


def test_what_the_broker_said_no_word_of_comes_again_and_what_asks_for_none_is_gone() -> None:
    broker = Broker()
    broker.line.died()
    for message in (chunk(1), SCORE, ALARM):
        broker.line.publish(message)
    assert broker.run(10.0) == [] and broker.line.queue.waiting_bytes > 0
    broker.line.cut()
    broker.line.mended(is_connected=False)
    broker.line.opened()
    assert broker.run(10.0) == [chunk(1), ALARM] and broker.line.queue.is_empty


def test_a_line_that_nobody_saw_die_goes_on_and_a_process_that_ends_takes_all_with_it() -> None:
    broker = Broker()
    broker.line.died()
    broker.line.publish(chunk(1))
    broker.line.mended(is_connected=True)
    assert broker.run(10.0) == [chunk(1)]
    broker.line.died()
    broker.line.publish(chunk(2))
    broker.line.ended()
    broker.line.mended(is_connected=False)
    broker.line.opened()
    assert broker.run(10.0) == [chunk(1)]


@pytest.mark.parametrize("bytes_per_s", [0.0, 1_000.0])
def test_what_asks_for_no_word_does_not_wait_for_one(bytes_per_s: float) -> None:
    """A line that died while nobody saw it holds nothing back for ever."""
    broker = Broker(bytes_per_s=bytes_per_s)
    broker.line.publish(SCORE)
    broker.line.died()
    for message in (SCORE, ALARM):
        broker.line.publish(message)
    broker.run(10.0)
    broker.line.mended(is_connected=True)
    assert ALARM in broker.run(10.0) and broker.line.queue.is_empty


def test_what_is_too_much_is_not_taken() -> None:
    broker = Broker()
    broker.line.died()
    for number in range(2 * WAITING_BYTES_MAX // 100_000):
        broker.line.publish(chunk(number, 100_000))
    assert broker.line.queue.waiting_bytes < 1.5 * WAITING_BYTES_MAX


def in_any_order(queue: type[SendQueue], patch: pytest.MonkeyPatch) -> None:
    add = queue.add
    patch.setattr(queue, "add", lambda self, message, urgency: add(self, message, 0))


def without_bound(queue: type[SendQueue], patch: pytest.MonkeyPatch) -> None:
    opened = queue.open
    patch.setattr(queue, "open", lambda self: opened(self, Limits(messages=10 * MESSAGES_MAX)))


@pytest.mark.parametrize("wrong", [in_any_order, without_bound])
def test_the_witness_sees(
    wrong: Callable[[type[SendQueue], pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(SendQueue, monkeypatch)
    broker = Broker()
    broker.line.died()
    for number in range(MESSAGES_MAX):
        broker.line.publish(chunk(number))
    broker.line.publish(chunk(0))
    broker.line.publish(ALARM)
    broker.line.mended(is_connected=True)
    broker.run(30.0)
    assert broker.violations


@pytest.mark.soak
def test_a_world_with_narrow_lines_keeps_its_promises() -> None:
    outcome = world.run(3, 0.3, Faults(capacity=Capacity(bytes_per_s=2_000.0, word_s=2.0)))
    assert outcome.violations == () and outcome.counts["models"] > 0
