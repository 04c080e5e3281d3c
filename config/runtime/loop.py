"""The heart of both services: one thread that takes events from a queue, and time, to a step function.

What the network brings may be dropped where it comes too fast, for its sender sends it again. What happens once (a
connection, the end of a training) never is: the machine would wait for it for ever. Each sender has its turn and may
have as much waiting as is free for all others, so whoever floods delays itself.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedgate.config.runtime.supervisor import Supervisor

LOG = logging.getLogger("fedgate.loop")
TICK_S = 1.0
# Of messages that wait, half of them of one sender: many minutes of sample frames. Beyond that the newest are dropped
# and counted; updates of many gateways at once are asked for again later.
EVENTS_MAX = 40_000
BYTES_MAX = 64 * 1024 * 1024

Event = TypeVar("Event")


@dataclass
class _Sent(Generic[Event]):
    """What waits of one sender, oldest first."""

    events: deque[tuple[Event, int]] = field(default_factory=deque)  # with their bytes
    size_bytes: int = 0


class Loop(Generic[Event]):
    """A queue of events and the loop that empties it; everything but `run` may be called from any thread."""

    def __init__(self) -> None:
        # A SimpleQueue, because `stop` is called by signal handlers, which another queue's lock could catch. In it
        # stands what must not be lost, and for each message the place at which the next sender has its turn.
        self._events: queue.SimpleQueue[tuple[Event] | tuple[()] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._offering = threading.Lock()  # no signal handler offers or takes
        self._senders: dict[str, _Sent[Event]] = {}  # with something that waits, in the order of their turns
        self._offered = self._offered_bytes = self._dropped = 0

    def put(self, event: Event) -> None:
        """Hand over an event that must not be lost."""
        self._events.put((event,))

    def offer(self, event: Event, size_bytes: int = 0, sender: str = "") -> None:
        """Hand over a message; where as much waits of its sender as is free of `EVENTS_MAX` or `BYTES_MAX` it is
        dropped, counted and, now and then, logged.
        """
        with self._offering:
            sent = self._senders.get(sender) or _Sent()
            # One that is larger than all that may wait is taken by an idle loop, or it would never be.
            is_room = not self._offered_bytes or sent.size_bytes + size_bytes <= BYTES_MAX - self._offered_bytes
            if is_room and len(sent.events) < EVENTS_MAX - self._offered:
                sent.events.append((event, size_bytes))
                sent.size_bytes += size_bytes
                self._senders[sender] = sent
                self._offered, self._offered_bytes = self._offered + 1, self._offered_bytes + size_bytes
                self._events.put(())
                return
            self._dropped += 1
            dropped = self._dropped
        if dropped.bit_count() == 1:  # at 1, 2, 4, 8, ...: a flood must not flood the log too
            LOG.warning("%d messages dropped: they come faster than they are worked off", dropped)

    def stop(self) -> None:
        """Ask `run` to return after the step at hand."""
        self._stopping.set()
        self._events.put(None)

    def run(self, step: Callable[[list[Event]], None], tick: Callable[[], Event], at_once: int = 1) -> None:
        """Step through the events that wait, so many at a time at most, and through a tick every `TICK_S`, until
        stopped.
        """
        next_tick_s, supervisor = time.monotonic(), Supervisor()
        while not self._stopping.is_set():
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                step([tick()])
                supervisor.report_work()
            if events := self._take_waiting(max(next_tick_s - time.monotonic(), 0.0), at_once):
                step(events)
        supervisor.report_stop()

    def _take_waiting(self, timeout_s: float, at_once: int) -> list[Event]:
        """Return the events that wait, after so long at most where none does; none, too, where it is to stop."""
        events: list[Event] = []
        try:
            while len(events) < at_once:
                taken = self._events.get(timeout=timeout_s) if not events else self._events.get_nowait()
                if taken is None:
                    break
                events.append(taken[0] if taken else self._take_offered())
        except queue.Empty:
            pass
        return events

    def _take_offered(self) -> Event:
        """Return the oldest message of the sender whose turn it is, who then waits for all others."""
        with self._offering:
            sender = next(iter(self._senders))
            sent = self._senders.pop(sender)
            event, size_bytes = sent.events.popleft()
            sent.size_bytes -= size_bytes
            if sent.events:
                self._senders[sender] = sent
            self._offered, self._offered_bytes = self._offered - 1, self._offered_bytes - size_bytes
        return event
