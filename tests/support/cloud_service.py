"""A running aggregator without a network: the real service with a real store in a folder, and gateways made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from fedgate.cloud_aggregator.events import Connection, Event, Outward, Publish, Received
from fedgate.cloud_aggregator.runtime import defence
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Receipt, Status
from fedgate.config.protocol.transfer import split
from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, Role
from fedgate.models.time_units import NS
from tests.support.sites import KEY, T0_NS, aggregator_settings, topic

READY = Status(state="online", can_train=True, baseline_windows=60, baseline_needed=60)
NAMES = ("east", "north", "west")
CHUNK = 1_024


def mean_of(size: int, *, role: Role = "delta", remembers: bool = False) -> Algorithm:
    """Return an algorithm whose gateways send changes `w` (size,) and a count `n`: all that a round is, and no more."""

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        raise NotImplementedError("gateways are made by hand here")

    def advance(server: Server, total: Arrays) -> Server:
        return server._replace(
            global_state={"w": (server.global_state["w"] + total["w"] / total["n"]).astype(np.float32)}
        )

    def start(rng: np.random.Generator) -> Server:
        return Server({"w": np.zeros(size, dtype=np.float32)}, {})

    phase = Phase(learn, SUM, advance, {"w": Field((size,), role), "n": Field((), "weight")})
    return Algorithm("linear", start, (phase,), rounds=10**6, remembers=remembers)


class Cloud:
    """The service, what it says, and the time."""

    def __init__(self, folder: Path, algorithm: Algorithm, names: Iterable[str] = NAMES, **tables: Any) -> None:
        self.path, self.algorithm, self.names, self.now_ns = folder / "aggregator.db", algorithm, tuple(names), T0_NS
        self.anchor_ns = 0  # what a start believes of the time of day
        self.settings = aggregator_settings(**{"rounds": {"quorum": len(self.names)}, **tables})
        self.service = self._started()
        self.said: list[Outward] = []
        self.hear(*[heard(name, "status", READY.to_bytes()) for name in self.names], Connection(True))

    def _started(self) -> Service:
        # What is trained stands in for what the settings name, whose models are not of a size to choose.
        with patch.object(defence, "build_algorithm", lambda *_: self.algorithm):
            store, now_ns = Store(self.path), self.now_ns
            return Service(self.settings, store, KEY, uptime_ns=now_ns, anchor_ns=self.anchor_ns, beginning="first")

    def restart(self) -> None:
        """End as a kill does, without a word, and start again."""
        self.service.store.close()
        self.service = self._started()
        self.hear(Connection(True))

    def hear(self, *events: Event, at_once: bool = False, after_s: float = 0.0) -> list[Outward]:
        """Take in events, one by one or all in one commit, and return what is said."""
        self.now_ns += round(after_s * NS)
        said: list[Outward] = []
        for some in [events] if at_once else [[event] for event in events]:
            said += self.service.step_all(self.now_ns, list(some))
        self.said += said
        return said

    def body(self, value: float, round_index: int | None = None, **meta: Any) -> bytes:
        """Return an update whose change is `value` everywhere, of the present round where none is named."""
        state = self.service.state
        index = state.rounds.server.round_index if round_index is None else round_index
        arrays = {
            "w": np.full(state.rounds.server.global_state["w"].shape, value, dtype=np.float32),
            "n": np.array(1.0),
        }
        return wire.encode(arrays, {"run": state.rounds.run, "round_index": index, "phase": 0, **meta})

    def wrong(self) -> bytes:
        """Return an update of the present exchange that is refused."""
        state = self.service.state
        meta = {
            "run": state.rounds.run,
            "round_index": state.rounds.server.round_index,
            "phase": state.rounds.server.phase,
        }
        return wire.encode({"of another kind": np.ones(1)}, meta)

    def send(self, gateway: str, body: bytes, **how: Any) -> list[Receipt]:
        """Send an update whole and return its receipts."""
        return receipts(self.hear(*chunks_of(gateway, body), **how))

    @property
    def w(self) -> float:
        """What the model says, everywhere the same."""
        return float(self.service.state.rounds.server.global_state["w"][0])


@contextmanager
def cloud(folder: Path, algorithm: Algorithm, names: Iterable[str] = NAMES, **tables: Any) -> Iterator[Cloud]:
    """Run a service in a folder and close its store at the end."""
    made = Cloud(folder, algorithm, names, **tables)
    try:
        yield made
    finally:
        made.service.close()


def heard(gateway: str, channel: str, payload: bytes, item: str = "agent") -> Received:
    return Received(topic(gateway, channel, item), payload)


def chunks_of(gateway: str, body: bytes, size: int = CHUNK) -> list[Event]:
    return [heard(gateway, "update", piece, "x") for piece in split(body, size)]


def said_under(channel: str, said: Iterable[Outward]) -> list[Publish]:
    return [one for one in said if isinstance(one, Publish) and f"/{channel}/" in one.topic]


def receipts(said: Iterable[Outward]) -> list[Receipt]:
    return [Receipt.from_bytes(one.payload) for one in said_under("receipt", said)]
