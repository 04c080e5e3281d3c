"""The heart of both services: one thread that takes events from a queue, and time, to a step function."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

LOG = logging.getLogger("fedgate.loop")
TICK_S = 1.0
EVENTS_MAX = 100_000  # many minutes of sample frames; beyond that the newest are dropped and counted

Event = TypeVar("Event")


class Loop(Generic[Event]):
    """A bounded queue of events and the loop that empties it. `put` and `stop` may be called from any thread."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event] = queue.Queue(EVENTS_MAX)
        self._stopping = threading.Event()
        self._dropped = 0

    def put(self, event: Event) -> None:
        """Hand over an event; where the queue is full it is dropped, counted and, now and then, logged."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._dropped += 1
            if self._dropped.bit_count() == 1:  # at 1, 2, 4, 8, ...: a flood must not flood the log too
                LOG.warning("%d events dropped: they come faster than they are worked off", self._dropped)

    def stop(self) -> None:
        """Ask `run` to return after the step at hand."""
        self._stopping.set()

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
            step(event)
