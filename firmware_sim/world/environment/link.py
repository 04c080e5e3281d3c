"""The line of a simulated machine: what waits for it in the real `SendQueue`, and what the network stack holds of it.

A line takes its time, as the settings of the world have it; the broker's word comes back after a while. What was handed
over while the line was dead, or what the broker's word did not come for, is sent again when there is a connection, as
paho does; what asks for no word is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count

from fedgate.config.protocol.topics import IDLE, urgency
from fedgate.config.transport.send_queue import MESSAGES_MAX, PASSES, WINDOW_BYTES_MAX, Outgoing, SendQueue
from fedgate.config.transport.session_conflict import RECONNECT_S_MAX, SessionConflict
from fedgate.firmware_sim.world.environment.faults import Capacity
from fedgate.firmware_sim.world.environment.time import Scheduler


class Line:
    """What one client has handed to its line, and what waits for it; `send` gives the broker a message."""

    def __init__(
        self, scheduler: Scheduler, capacity: Capacity, send: Callable[[Outgoing], None], violate: Callable[[str], None]
    ) -> None:
        self._scheduler, self._capacity, self._send, self._violate = scheduler, capacity, send, violate
        self._numbers = count(1)
        self._connection = 0  # counts them: what was under way on one before it comes to nothing
        self._free_s = 0.0  # when all that was handed over has left
        self._is_dead = False
        self.ended()

    def ended(self) -> None:
        """The process is gone, and all that it had in memory."""
        self.queue, self.conflict = SendQueue(), SessionConflict()
        self._waiting: list[int] = []  # urgency of each message that waits
        self._past = Counter[int]()  # urgency -> bytes that are more urgent, since one of it or less urgent went
        self._held: dict[int, Outgoing] = {}  # by the network stack, until the broker's word
        self._connection += 1

    def publish(self, message: Outgoing) -> None:
        """Take a message of the machine."""
        too_large = self.queue.too_large
        if self.queue.add(message, urgency(message.topic)):
            self._waiting.append(urgency(message.topic))
            self._hand_over()
        elif self.queue.too_large > too_large:
            self._violate(f"{message.topic} was to carry {message.size} bytes, more than a broker takes")

    def _hand_over(self) -> None:
        while (message := self.queue.take()) is not None:
            number = next(self._numbers)
            self.queue.note_handed_over(number, message, self._scheduler.elapsed_s)
            self._compare(message)
            if message.qos > 0:
                self._held[number] = message
            self._put(number, message)

    def _compare(self, message: Outgoing) -> None:
        """See that the most urgent goes first, but for the share of all else, and that the line is given no more than a
        moment's worth.
        """
        of_message = urgency(message.topic)
        if of_message != min(self._waiting) and self._past[of_message] < PASSES * message.size:
            self._violate(f"{message.topic} went before what is more urgent")
        for other in range(IDLE + 1):
            self._past[other] = self._past[other] + message.size if other > of_message else 0
        self._waiting.remove(of_message)
        sizes = [one.size for one in self._held.values()]
        if len(sizes) >= MESSAGES_MAX or (sizes and sum(sizes) + message.size > WINDOW_BYTES_MAX):
            self._violate(f"{len(sizes)} messages of {sum(sizes)} bytes were on a line that was given another")

    def _put(self, number: int, message: Outgoing) -> None:
        now_s, rate = self._scheduler.elapsed_s, self._capacity.bytes_per_s
        word_s = self._capacity.word_s
        if rate > 0:
            self._free_s = max(self._free_s, now_s) + message.size / rate
            word_s += self._free_s - now_s
            self._scheduler.after(self._free_s - now_s, partial(self._left, self._connection, message))
        elif not self._is_dead:
            self._send(message)
        self._scheduler.after(word_s, partial(self._acknowledged, self._connection, number, message.qos))

    def _left(self, connection: int, message: Outgoing) -> None:
        if connection == self._connection and not self._is_dead:
            self._send(message)

    def _acknowledged(self, connection: int, number: int, qos: int) -> None:
        # What asks for no word of the broker has left this machine, whether or not the line is dead.
        if qos > 0 and (connection != self._connection or self._is_dead):
            return
        self._held.pop(number, None)
        self.queue.acknowledge(number, self._scheduler.elapsed_s)
        self._hand_over()

    def opened(self) -> None:
        """A connection begins: what the broker said no word of is sent again."""
        self.conflict.begin(self._scheduler.elapsed_s)
        self._again()
        self.queue.open()
        self._hand_over()

    def _again(self) -> None:
        self._connection += 1
        self._free_s = self._scheduler.elapsed_s
        for number, message in list(self._held.items()):
            self._put(number, message)

    def cut(self) -> tuple[float, float]:
        """The connection is over; return the shortest and the longest pause before the next."""
        self.conflict.end(self._scheduler.elapsed_s)
        self._connection += 1
        self.queue.cut()
        return self.conflict.pauses_s(RECONNECT_S_MAX)

    def died(self) -> None:
        """Nothing goes through any more, and nobody has noticed yet."""
        self._is_dead = True

    def mended(self, *, is_connected: bool) -> None:
        """All goes through again; where nobody has noticed, what was handed over meanwhile goes on its way."""
        self._is_dead = False
        if is_connected:
            self._again()
            self._hand_over()
