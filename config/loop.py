"""The heart of both services: one thread that takes events from a queue, and time, to a step function.

What the network brings may be dropped where it comes too fast, for its sender sends it again. What happens once (a
connection, the end of a training) never is: the machine would wait for it for ever.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from config.supervisor import Supervisor

LOG = logging.getLogger("fedgate.loop")
TICK_S = 1.0
EVENTS_MAX = 20_000  # many minutes of sample frames; beyond that the newest messages are dropped and counted
BYTES_MAX = 32 * 1024 * 1024  # of messages that wait; updates of many gateways at once are asked for again later
AT_ONCE_MAX = 256  # events that are worked off in one go: more would make the first of them wait

Event = TypeVar("Event")


class Loop(Generic[Event]):
    """A queue of events and the loop that empties it; everything but `run` may be called from any thread."""

    def __init__(self) -> None:
        # A SimpleQueue, because `stop` is called by signal handlers, which another queue's lock could catch.
        self._events: queue.SimpleQueue[tuple[Event, int] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._offering = threading.Lock()  # no signal handler offers
        self._dropped = 0
        # Two counters that only grow, each written by one side, for no lock may stand between offer and run.
        self._offered_bytes = 0
        self._taken_bytes = 0

    def put(self, event: Event) -> None:
        """Hand over an event that must not be lost."""
        self._events.put((event, 0))

    def offer(self, event: Event, size_bytes: int = 0) -> None:
        """Hand over a message; where `EVENTS_MAX` or `BYTES_MAX` wait already it is dropped, counted and, now and then,
        logged.
        """
        with self._offering:
            waiting_bytes = self._offered_bytes - self._taken_bytes
            # One that is larger than all that may wait is taken by an idle loop, or it would never be.
            is_room = waiting_bytes == 0 or waiting_bytes + size_bytes <= BYTES_MAX
            if is_room and self._events.qsize() < EVENTS_MAX:
                self._offered_bytes += size_bytes
                self._events.put((event, size_bytes))
                return
            self._dropped += 1
            dropped = self._dropped
        if dropped.bit_count() == 1:  # at 1, 2, 4, 8, ...: a flood must not flood the log too
            LOG.warning("%d messages dropped: they come faster than they are worked off", dropped)

    def stop(self) -> None:
        """Ask `run` to return after the step at hand."""
        self._stopping.set()
        self._events.put(None)

    def run(self, step: Callable[[Event], None], tick: Callable[[], Event]) -> None:
        """Step through events as they come, and through a tick every `TICK_S`, until stopped."""
        self._run(lambda events: step(events[0]), tick, at_once=1)

    def run_all(self, step_all: Callable[[list[Event]], None], tick: Callable[[], Event]) -> None:
        """Do so with all events that wait, `AT_ONCE_MAX` at most: what is stored of them is written once."""
        self._run(step_all, tick, at_once=AT_ONCE_MAX)

    def _run(self, step_all: Callable[[list[Event]], None], tick: Callable[[], Event], at_once: int) -> None:
        next_tick_s, supervisor = time.monotonic(), Supervisor()
        while not self._stopping.is_set():
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                step_all([tick()])
                supervisor.works()
            if events := self._waiting(max(next_tick_s - time.monotonic(), 0.0), at_once):
                step_all(events)
        supervisor.stopping()

    def _waiting(self, timeout_s: float, at_once: int) -> list[Event]:
        """Return the events that wait, after so long at most where none does; none, too, where it is to stop."""
        events: list[Event] = []
        try:
            while len(events) < at_once:
                taken = self._events.get(timeout=timeout_s) if not events else self._events.get_nowait()
                if taken is None:
                    break
                event, size_bytes = taken
                self._taken_bytes += size_bytes
                events.append(event)
        except queue.Empty:
            pass
        return events
