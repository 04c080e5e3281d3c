"""What waits for the line: the most urgent first, and only as much of it on the line as that carries in a moment.

Whatever the network stack was given cannot be overtaken any more: a megabyte of an update on a line of 20 kB/s would
hold up an alarm for a minute. So no more is handed to it than the broker has lately acknowledged within `SLOW_S`; the
rest waits here, where an alarm goes past it. A single message can not be divided: what it takes, an alarm waits. Only
what filled the line shows what it carries: small messages are acknowledged soon on any. And each connection begins
anew, for it may go over another line.

Of one urgency each party (`fedgate.config.protocol.topics.party`) has its turn, by bytes, and may have as much waiting
as is free for all others: whoever asks for the most delays itself. Nor does what is urgent without end hold up all else
for ever: of the bytes a quarter goes to what is less urgent, where that waits. What a broker would end the connection
for never waits: what is larger than it takes, by our settings and by its own word where it speaks MQTT 5.
"""

from __future__ import annotations

import heapq
import logging
import sys
from collections import Counter
from itertools import count, pairwise
from typing import NamedTuple

from fedgate.config.protocol.topics import channel_of, party
from fedgate.config.protocol.transfer import (
    FRAMING_BYTES,
    PACKET_BYTES_MAX,
    PAYLOAD_BYTES_MIN,
    PAYLOAD_BYTES_START,
    TOPIC_BYTES_MAX,
)

LOG = logging.getLogger("fedgate.mqtt")
# Of one urgency, half of it of one party; then a slow line is not asked to carry the same again.
WAITING_BYTES_MAX = 8 * 1024 * 1024
WINDOW_BYTES_START = PAYLOAD_BYTES_START
WINDOW_BYTES_MIN = 16 * 1024
WINDOW_BYTES_MAX = 1024 * 1024
MESSAGES_MAX = 20  # on the line at once
QUICK_S, SLOW_S = 0.3, 1.0  # until the broker's word: sooner and more is handed over at once, later and less
PASSES = 3  # of its own size a message may see go past it that is more urgent, then it goes


class Outgoing(NamedTuple):
    """A message on its way out."""

    topic: str
    payload: bytes
    retain: bool
    qos: int

    @property
    def size(self) -> int:
        """Bytes that it takes on the line, a few more for the protocol aside."""
        return len(self.topic) + len(self.payload)


class HandedOver(NamedTuple):
    """A message on the line, when it was handed over and how many bytes were on the line then, itself among them."""

    message: Outgoing
    at_s: float | None = None  # none where that says nothing: before a lost connection
    line_bytes: int = 0


class Limits(NamedTuple):
    """What a broker takes: bytes of a packet, and messages that it has not acknowledged yet."""

    packet_bytes: int = sys.maxsize
    messages: int = MESSAGES_MAX


UNKNOWN = Limits()


class SendQueue:
    """Not for several threads at once."""

    def __init__(self, packet_bytes_max: int = PACKET_BYTES_MAX) -> None:
        self._our_packet_bytes_max = packet_bytes_max
        self._limits = UNKNOWN  # of the broker
        self.too_large = 0  # messages that the broker would not have taken
        self.refused: dict[str, str] = {}  # kind of topic -> why the broker passed the last message of it on to nobody
        self._heaps: dict[int, list[tuple[int, int, Outgoing]]] = {}  # urgency -> turn, number and message; none empty
        self._passed = Counter[int]()  # urgency -> bytes that went while something less urgent waited
        self._numbers = count()
        self._waiting = Counter[int]()  # urgency -> bytes
        self._of_party = Counter[tuple[int, str]]()  # urgency and party -> bytes
        # Turns are counted in bytes: that of a message lies its size behind the last of its party, and behind what
        # was handed over last.
        self._turns: dict[tuple[int, str], int] = {}
        self._handed_turn: dict[int, int] = {}
        # Id -> what was handed over; under `None` what `take` gave out and has no id yet.
        self._on_line: dict[int | None, HandedOver] = {}
        self.is_open = False  # while there is a connection
        self.window_bytes = WINDOW_BYTES_START

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the broker has not acknowledged."""
        return sum(self._waiting.values()) + self._on_line_bytes

    @property
    def _on_line_bytes(self) -> int:
        return sum(handed.message.size for handed in self._on_line.values())

    @property
    def _packet_bytes_max(self) -> int:
        return min(self._limits.packet_bytes, self._our_packet_bytes_max)

    @property
    def payload_bytes(self) -> int:
        """How long a piece of a body should be: what the line carries in a moment, and the broker takes. One that does
        not say what it takes, and ends the connection for more, is given no more than was always sent.
        """
        most = self._packet_bytes_max - TOPIC_BYTES_MAX - FRAMING_BYTES
        if self._limits.packet_bytes == UNKNOWN.packet_bytes:
            most = min(most, PAYLOAD_BYTES_START)
        return max(min(self.window_bytes, most), PAYLOAD_BYTES_MIN)

    @property
    def is_empty(self) -> bool:
        """True where the broker has acknowledged everything."""
        return not self._heaps and not self._on_line

    def add(self, message: Outgoing, urgency: int) -> bool:
        """Let a message wait for its turn among those of its urgency (0 is the highest); False where it may not.

        One that is larger than the broker takes is logged; it would come again after each connection that it ended.
        """
        if self._is_too_large(message):
            return False
        flow = (urgency, party(message.topic))
        if self._of_party[flow] > WAITING_BYTES_MAX - self._waiting[urgency]:
            return False
        self._waiting[urgency] += message.size
        self._of_party[flow] += message.size
        turn = max(self._turns.get(flow, 0), self._handed_turn.get(urgency, 0)) + message.size
        self._turns[flow] = turn
        heapq.heappush(self._heaps.setdefault(urgency, []), (turn, next(self._numbers), message))
        return True

    def _is_too_large(self, message: Outgoing) -> bool:
        if message.size + FRAMING_BYTES <= self._packet_bytes_max:
            return False
        self.too_large += 1
        if self.too_large.bit_count() == 1:  # at 1, 2, 4, 8, ...: it may be said again every minute
            is_ours = self._packet_bytes_max == self._our_packet_bytes_max
            whose = "broker.max_packet_bytes" if is_ours else "as it says itself"
            words = (message.topic, message.size, self._packet_bytes_max, whose, self.too_large)
            LOG.error("%s: %d bytes are not sent, the broker takes %d (%s; number %d)", *words)
        return True

    def open(self, limits: Limits = UNKNOWN) -> None:
        """A connection begins, to a broker that takes so much."""
        self.is_open = True
        self._limits = limits
        self.refused.clear()  # its rules may have changed

    def wake(self) -> None:
        """Nothing is new, but that something waits."""

    def take(self) -> Outgoing | None:
        """Return the message to hand over now, None where the line has enough; `note_handed_over` is to follow."""
        while (message := self._take_due()) is not None and self._is_too_large(message):  # the broker before took more
            del self._on_line[None]
        return message

    def _take_due(self) -> Outgoing | None:
        if not self.is_open or not self._heaps or len(self._on_line) >= self._limits.messages:
            return None
        urgency = self._choose_urgency()
        turn, _, message = self._heaps[urgency][0]
        if self._on_line and self._on_line_bytes + message.size > self.window_bytes:
            return None
        self._count(urgency, message.size)
        heapq.heappop(self._heaps[urgency])
        if not self._heaps[urgency]:
            del self._heaps[urgency]
        flow = (urgency, party(message.topic))
        self._waiting[urgency] -= message.size
        self._of_party[flow] -= message.size
        self._handed_turn[urgency] = turn
        if not self._of_party[flow]:  # its next one comes behind this turn anyway
            del self._of_party[flow], self._turns[flow]
        self._on_line[None] = HandedOver(message)
        return message

    def _choose_urgency(self) -> int:
        """Return the urgency whose turn it is."""
        waiting = sorted(self._heaps)
        for urgency, less in pairwise(waiting):
            if self._passed[urgency] < PASSES * self._heaps[less][0][-1].size:
                return urgency
        return waiting[-1]

    def _count(self, urgency: int, size: int) -> None:
        """Remember what goes past the less urgent, and that those went past which were more so."""
        for other in range(urgency):
            self._passed[other] = 0
        self._passed[urgency] = self._passed[urgency] + size if max(self._heaps) > urgency else 0

    def note_handed_over(self, number: int, message: Outgoing, now_s: float) -> None:
        """Remember that a message was handed over, and under which id."""
        self._on_line.pop(None, None)
        self._on_line[number] = HandedOver(message, now_s, self._on_line_bytes + message.size)

    def acknowledge(self, number: int, now_s: float, refusal: str = "") -> None:
        """Take in the broker's word for a message, and learn from it how much the line carries.

        With MQTT 5 that word may be a refusal: nobody got the message, and who waits for its receipt sends it again.
        """
        handed = self._on_line.pop(number, None)
        if handed is None:
            return
        message, handed_s, line_bytes = handed
        if message.qos == 0:  # nobody's word: it only left this machine
            return
        self._note_refusal(message.topic, refusal)
        if handed_s is None:
            return
        if now_s - handed_s < QUICK_S and 2 * line_bytes >= self.window_bytes:
            self.window_bytes = min(self.window_bytes + message.size, WINDOW_BYTES_MAX)
        elif now_s - handed_s > SLOW_S:
            self.window_bytes = max(self.window_bytes // 2, WINDOW_BYTES_MIN)

    def _note_refusal(self, topic: str, refusal: str) -> None:
        """Log a refusal once for each kind of topic, until the broker takes one of that kind again."""
        kind = channel_of(topic) or topic
        if not refusal:
            self.refused.pop(kind, None)
        elif self.refused.get(kind) != refusal:
            self.refused[kind] = refusal
            LOG.error("%s: the broker refuses it and passes none of its kind on: %s", topic, refusal)

    def cut(self) -> None:
        """The connection is lost: what asks for no word of the broker is gone, how long the rest takes says nothing."""
        self.is_open = False
        kept = {number: handed.message for number, handed in self._on_line.items() if handed.message.qos > 0}
        self._on_line = {number: HandedOver(message) for number, message in kept.items()}
        self.window_bytes = min(self.window_bytes, WINDOW_BYTES_START)
