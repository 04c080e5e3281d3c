"""The loop of both services and their clock: what must not be lost is not, and the end comes when it is asked for."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from fedgate.config.runtime import clock, loop
from fedgate.config.runtime.loop import Loop


def collected(made: Loop[str], count: int) -> list[str]:
    """Run the loop until it has stepped through so many events, ticks aside."""
    seen: list[str] = []

    def step(events: list[str]) -> None:
        (event,) = events
        if event != "tick":
            seen.append(event)
        if len(seen) >= count:
            made.stop()

    made.run(step, lambda: "tick")
    return seen


def collected_until(made: Loop[str], last: str) -> list[str]:
    """Run the loop until it comes to an event, and return those before it, ticks aside."""
    seen: list[str] = []

    def step(events: list[str]) -> None:
        (event,) = events
        if event == last:
            made.stop()
        elif event != "tick":
            seen.append(event)

    made.run(step, lambda: "tick")
    return seen


def test_events_come_in_their_order() -> None:
    made: Loop[str] = Loop()
    for number in range(100):
        (made.put if number % 2 else made.offer)(str(number))
    assert collected(made, 100) == [str(number) for number in range(100)]


def test_a_flood_of_messages_is_bounded_counted_and_never_drops_what_happens_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "EVENTS_MAX", 20)  # half of it of one sender
    made: Loop[str] = Loop()
    for number in range(30):
        made.offer(f"message {number}")
    made.put("connection lost")
    made.put("training ended")
    assert collected(made, 12) == [f"message {number}" for number in range(10)] + ["connection lost", "training ended"]
    told = [record.getMessage() for record in caplog.records]
    assert [text.split()[0] for text in told] == ["1", "2", "4", "8", "16"]
    assert all("messages dropped" in text for text in told)


def test_who_floods_delays_itself_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by the number and by the bytes of its messages."""
    for bound, size_bytes in (("EVENTS_MAX", 0), ("BYTES_MAX", 1)):
        monkeypatch.setattr(loop, bound, 20)
        made: Loop[str] = Loop()
        for number in range(1_000):
            made.offer(f"west {number}", size_bytes, "west")
        for number in range(3):
            made.offer(f"north {number}", size_bytes, "north")
        made.put("end")
        seen = collected_until(made, "end")
        assert seen[:6] == [f"{name} {number}" for number in range(3) for name in ("west", "north")]
        assert len(seen) == 10 + 3
        monkeypatch.undo()


def test_ticks_come_also_under_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    made: Loop[str] = Loop()
    seen: list[str] = []
    for _ in range(50):
        made.put("message")

    def step(events: list[str]) -> None:
        (event,) = events
        seen.append(event)
        if seen.count("message") == 50:
            made.stop()

    clock = SimpleNamespace(monotonic=lambda: len(seen) * loop.TICK_S / 10)
    monkeypatch.setattr(loop, "time", clock)
    made.run(step, lambda: "tick")
    assert [at for at, event in enumerate(seen) if event == "tick"] == [0, 10, 20, 30, 40, 50]


def test_a_signal_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "TICK_S", 60.0)
    made: Loop[str] = Loop()
    before = signal.signal(signal.SIGUSR1, lambda *_: made.stop())
    threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGUSR1]).start()
    started_s = time.monotonic()
    made.run(lambda _events: None, lambda: "tick")
    signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - started_s < 5.0


def test_the_timeline_never_steps_and_says_when_the_wall_clock_has_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway without a clock of its own starts in the past, and its wall clock jumps when the network comes."""
    monkeypatch.setattr(clock, "ask_quality", lambda: "synchronised")
    made = clock.Clock()
    before_ns = made.now_ns()
    assert made.quality() == "synchronised"
    wall_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + 86_400 * 10**9)
    assert 0 <= made.now_ns() - before_ns < 5 * 10**9
    assert made.quality() == "unsynchronised"


def test_the_kernel_is_asked_for_the_quality_of_its_clock() -> None:
    assert clock.ask_quality() in ("synchronised", "unsynchronised", "unknown")
    assert clock.boot_id() == clock.boot_id() != ""
