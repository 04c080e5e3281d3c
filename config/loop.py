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

LOG = logging.getLogger("fedgate.loop")
TICK_S = 1.0
EVENTS_MAX = 20_000  # many minutes of sample frames; beyond that the newest messages are dropped and counted

Event = TypeVar("Event")


class Loop(Generic[Event]):
    """A queue of events and the loop that empties it; everything but `run` may be called from any thread."""

    def __init__(self) -> None:
        # A SimpleQueue, because `stop` is called by signal handlers, which another queue's lock could catch.
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._dropped = 0

    def put(self, event: Event) -> None:
        """Hand over an event that must not be lost."""
        self._events.put(event)

    def offer(self, event: Event) -> None:
        """Hand over a message; where `EVENTS_MAX` wait already it is dropped, counted and, now and then, logged."""
        if self._events.qsize() < EVENTS_MAX:
            self._events.put(event)
            return
        self._dropped += 1
        if self._dropped.bit_count() == 1:  # at 1, 2, 4, 8, ...: a flood must not flood the log too
            LOG.warning("%d messages dropped: they come faster than they are worked off", self._dropped)

    def stop(self) -> None:
        """Ask `run` to return after the step at hand."""
        self._stopping.set()
        self._events.put(None)

    def run(self, step: Callable[[Event], None], tick: Callable[[], Event]) -> None:
        """Step through events as they come, and through a tick every `TICK_S`, until stopped."""
        next_tick_s = time.monotonic()
        while not self._stopping.is_set():
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                step(tick())
            try:
                event = self._events.get(timeout=max(next_tick_s - time.monotonic(), 0.0))
            except queue.Empty:
                continue
            if event is not None:
                step(event)
