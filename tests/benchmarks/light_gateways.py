"""Gateways that speak the whole protocol of a round and train nothing: what remains is the exchange itself.

Each is a real link with a gateway's subscriptions. All answer a round with the same body, made before it is needed, so
that sixteen of them do not take the processor from the aggregator that is to be measured.

    python -m tests.benchmarks.light_gateways <port> <gateways> <rounds> <aggregator> <broker> [<CA file>]

prints as JSON when each round was opened, in seconds, how busy the processes of these two ids had been by then, the
bytes that went each way, the processor time of all, how many updates the aggregator said it has counted, and why it
refused others.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import STATUS, Receipt, RoundOpen, Status
from fedgate.config.protocol.topics import ALL, Topic, parse, topic_of, watch
from fedgate.config.protocol.transfer import parse_chunk, split
from fedgate.config.settings.settings import Broker
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim.children import wait_until
from fedgate.models.arrays import Arrays, generator
from fedgate.models.federated import build
from fedgate.models.federated.wrappers.error_feedback import Compression
from fedgate.models.packing import packed
from tests.benchmarks.usage import busy_s

SITE = "bench"
ALGORITHM = "recurrent-fedavg"
SETTINGS: dict[str, Any] = {"rounds": 1_000, "measure": "own", "network": {"hidden": 256, "dense": 232}}
FEATURES = 12
ONLINE = Status(state="online", can_train=True, libraries=("torch",), baseline_windows=60, baseline_needed=60)
LIMIT_BYTES = 120 * 1024
PATIENCE_S = 120.0


def contribution() -> Arrays:
    """Return an update as large as the model: 1.3 MB, float32, of one sample and almost no change."""
    shared = build(ALGORITHM, FEATURES, SETTINGS).start(generator(0, 0, "cloud")).global_state
    names = [name for name in shared if name.startswith(("cell.", "dense.", "output."))]
    return {**{name: np.full_like(shared[name], 1e-6) for name in names}, "samples": np.array(1.0)}


def as_sent(update: Arrays, settings: dict[str, Any]) -> Arrays:
    """Return an update as it travels by the settings of an invitation."""
    if "compression" not in settings:
        return update
    compression = Compression.model_validate(settings["compression"])
    return packed(update, [name for name in update if name != "samples"], compression.number, compression.share)


class Answers:
    """The chunks that answer each round, the same for all gateways."""

    def __init__(self) -> None:
        self._update, self._lock = contribution(), threading.Lock()
        self._made: dict[tuple[str, int], tuple[str, list[bytes]]] = {}

    def to(self, message: RoundOpen) -> tuple[str, list[bytes]]:
        """Return the digest and the chunks; those of the next round are made when nobody waits."""
        with self._lock:
            key = (message.run, message.round_index)
            if key not in self._made:
                meta = {"run": message.run, "round_index": message.round_index, "phase": 0}
                chunks = split(wire.encode(as_sent(self._update, message.settings), meta), LIMIT_BYTES)
                self._made = {**dict(list(self._made.items())[-4:]), key: (parse_chunk(chunks[0])[0].digest, chunks)}
            return self._made[key]


class Gateway:
    """One of them: fetches what a round shares, and answers."""

    def __init__(self, broker: Broker, name: str, answers: Answers, opened: Callable[[RoundOpen], None]) -> None:
        self.name, self._answers, self._opened = name, answers, opened
        self.counted, self.refused = set[str](), list[str]()  # digests of updates, and reasons
        self._round: RoundOpen | None = None
        self._missing: set[int] = set()
        topics = [watch(SITE, ALL, channel) for channel in ("round", "manifest", "chunk")]
        topics += [watch(SITE, name, channel) for channel in ("chunk", "receipt", "resend")]
        self.link = Link(broker, name, topics, self._heard, self._connection)

    def _connection(self, up: bool) -> None:
        if up:
            self.link.publish(topic_of(Topic(SITE, self.name, "status", "agent")), ONLINE.to_bytes(), retain=True)

    def _heard(self, topic: str, payload: bytes) -> None:
        where = parse(topic)
        if where.channel == "round" and payload:
            message = RoundOpen.from_bytes(payload)
            if self._round is None or message.round_index > self._round.round_index:
                self._round, self._missing = message, set(range(message.shared.chunks))
                self._opened(message)
        elif where.channel == "chunk" and self._round is not None:
            header, _ = parse_chunk(payload)
            if header.digest == self._round.shared.digest and self._missing:
                self._missing.discard(header.index)
                if not self._missing:
                    self._answer(self._round)
        elif where.channel == "receipt":
            self._settle(where.item, Receipt.from_bytes(payload))

    def _settle(self, item: str, receipt: Receipt) -> None:
        if not receipt.accepted:
            self.refused.append(receipt.reason)
        elif item != STATUS:
            self.counted.add(item)

    def _answer(self, message: RoundOpen) -> None:
        digest, chunks = self._answers.to(message)
        topic = topic_of(Topic(SITE, self.name, "update", digest))
        for chunk in chunks:
            self.link.publish(topic, chunk)


def main() -> None:
    """Take part in so many rounds, and tell when each was opened."""
    port, count, rounds, *pids = map(int, sys.argv[1:6])
    broker = Broker(port=port, ca_file=Path(sys.argv[6]) if len(sys.argv) > 6 else None)
    answers, opened_s, done = Answers(), dict[int, float](), threading.Event()
    servers_s = list[list[float]]()

    def opened(message: RoundOpen) -> None:
        if message.round_index not in opened_s:
            opened_s[message.round_index] = time.monotonic()
            servers_s.append([busy_s(pid) for pid in pids])
            if message.round_index >= rounds:
                done.set()

    began_s = time.process_time()
    gateways = [Gateway(broker, f"gateway-{number:04d}", answers, opened) for number in range(count)]
    for gateway in gateways:
        gateway.link.start()
    ended = done.wait(PATIENCE_S)
    ours_s = time.process_time() - began_s
    sent, received = (sum(getattr(one.link, way) for one in gateways) for way in ("bytes_sent", "bytes_received"))
    # The receipts of the last round may be behind the word that the next one is open.
    counted = ended and wait_until(lambda: all(len(one.counted) >= rounds for one in gateways), PATIENCE_S)
    printed = {
        "opened_s": [opened_s[key] for key in sorted(opened_s)],
        "sent": sent,
        "received": received,
        "busy_s": ours_s,
        "servers_s": servers_s,
        "counted": [len(one.counted) for one in gateways],
        "refused": [reason for one in gateways for reason in one.refused],
    }
    print(json.dumps(printed))
    for gateway in gateways:
        gateway.link.stop()
    sys.exit(0 if counted else 1)


if __name__ == "__main__":
    main()
