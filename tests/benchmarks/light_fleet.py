"""A fleet behind one connection: statuses and updates of any number of gateways, a few on their way at a time.

What the aggregator holds depends on how many gateways there are, and not on how many connections the broker has.
"""

from __future__ import annotations

import threading

from fedgate.config.protocol.messages import Receipt, RoundOpen
from fedgate.config.protocol.topics import ALL, Topic, parse, topic_of, watch
from fedgate.config.settings.settings import Broker
from fedgate.config.transport.mqtt import Link
from tests.benchmarks.light_gateways import ONLINE, SITE, Answers
from tests.support.waiting import until

AT_ONCE = 3  # updates on their way; a link refuses to hold more than 4 MiB of them
PATIENCE_S = 300.0


class Fleet:
    """All gateways of a site; `answer` takes part in one round with all of them."""

    def __init__(self, broker: Broker, count: int) -> None:
        self.names = [f"gateway-{number:04d}" for number in range(count)]
        self.refused: list[str] = []
        self._answers, self._round = Answers(), threading.Event()
        self._room, self._receipts = threading.Semaphore(AT_ONCE), 0
        self._all = threading.Event()
        self._message: RoundOpen | None = None
        topics = [watch(SITE, ALL, "round"), watch(SITE, "+", "receipt")]
        self.link = Link(broker, "fleet", topics, self._heard, lambda _up: None)

    def _heard(self, topic: str, payload: bytes) -> None:
        if parse(topic).channel == "receipt":
            receipt = Receipt.from_bytes(payload)
            self.refused += [] if receipt.accepted else [receipt.reason]
            self._receipts += 1
            self._room.release()
            if self._receipts == len(self.names):
                self._all.set()
        elif payload and self._message is None:
            self._message = RoundOpen.from_bytes(payload)
            self._round.set()

    def wait_for_round(self) -> None:
        """Wait until the aggregator works: it has opened a round."""
        assert self._round.wait(PATIENCE_S)

    def answer(self) -> None:
        """Tell of all gateways, wait for a round, answer it with each, and wait for the receipts of all."""
        self.wait_for_round()
        assert self._message is not None
        for name in self.names:
            assert self.link.publish(topic_of(Topic(SITE, name, "status", "agent")), ONLINE.to_bytes())
        until(lambda: self.link.drain(0.1))
        digest, chunks = self._answers.to(self._message)
        for name in self.names:
            assert self._room.acquire(timeout=PATIENCE_S), f"{self._receipts} receipts"
            for chunk in chunks:
                assert self.link.publish(topic_of(Topic(SITE, name, "update", digest)), chunk)
        assert self._all.wait(PATIENCE_S), f"{self._receipts} receipts"
        assert not self.refused, self.refused[:3]
