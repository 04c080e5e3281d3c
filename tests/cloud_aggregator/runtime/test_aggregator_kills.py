"""A kill at any instant: nothing counted twice or lost, no round decided twice, and the bytes that the updates make.

Goal: the promise of `fedgate.cloud_aggregator.runtime.service`. Method: three rounds of real gateways and the real
service with its store on disk are run once; at every instant at which a kill can make a difference (before each commit,
after it, and between every two of the words that follow) the files are copied as a kill would leave them, a second
service starts on the copy, and the rounds go on to the end. All instants are tried, not a sample. The oracle adds up
the updates that were seen on the wire, in the order that the stored rounds name.
"""

from __future__ import annotations

import copy
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator import events as cloud_events
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.storage import sqlite
from fedgate.cloud_aggregator.storage.store import Store, choose_database
from fedgate.config.protocol import topics, wire
from fedgate.config.protocol.transfer import parse_chunk
from fedgate.config.settings.database import DatabaseUrl
from fedgate.gateway_agent import events, machine
from fedgate.gateway_agent import state as agent_state
from fedgate.gateway_agent.runtime import training_worker
from fedgate.models.arrays import Arrays, equal, generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.time_units import NS
from tests.support import postgresql
from tests.support.sites import KEY, T0_NS, Shelf, Site, aggregator_settings, gateway_settings
from tests.support.soak import some

Place = Path | DatabaseUrl
ROUNDS = 3
EACH = 12  # of the instants on a server
NAMES = ("east", "north", "west")
SEED = 5
CHOICES: dict[str, dict[str, Any]] = {
    "fedavg": {"rounds": ROUNDS, "components": 16, "loss": "logistic"},
    "incfed": {"rounds": ROUNDS, "network": {"units": 12, "leak": 0.5, "washout": 4}},
}
UP = {"status", "update", "alarm", "want"}
Seen = dict[tuple[str, int], Arrays]  # gateway and round -> what it sent


@dataclass
class Fleet:
    """The gateways and the broker: everything but the aggregator; a copy of it goes its own way."""

    agents: dict[str, agent_state.State]
    shelves: dict[str, Shelf]
    way: deque[tuple[str, str, bytes]] = field(default_factory=deque)  # receiver, topic, payload
    jobs: list[tuple[str, bytes]] = field(default_factory=list)
    seen: Seen = field(default_factory=dict)
    now_ns: int = T0_NS

    def copied(self) -> Fleet:
        way, seen = deque(self.way), dict(self.seen)
        return Fleet(dict(self.agents), copy.deepcopy(self.shelves), way, list(self.jobs), seen, self.now_ns)

    def step(self, who: str, event: events.Event) -> None:
        self.agents[who], effects = machine.step(self.agents[who], self.now_ns, event)
        self.shelves[who].commit(effects)
        for effect in effects:
            if isinstance(effect, events.Publish):
                self.told(effect.topic, effect.payload)
            elif isinstance(effect, events.Train):
                self.jobs.append((who, effect.job))

    def told(self, where: str, payload: bytes) -> None:
        parts = topics.parse(where)
        if parts.channel in UP:
            self.way.append(("cloud", where, payload))
            if parts.channel == "update":  # of one chunk each
                arrays, meta = wire.decode(parse_chunk(payload)[1])
                self.seen[parts.gateway, meta["round_index"]] = arrays
        else:
            self.way += [(who, where, payload) for who in self.agents if parts.gateway in (who, topics.ALL)]


@cache
def answered(job: bytes) -> bytes:
    """Return what the training child makes of a job; the same after every kill."""
    return training_worker.answer(job)


class Run:
    """The rounds from somewhere to their end; with `keep` each instant of the aggregator is kept."""

    def __init__(self, name: str, place: Place, fleet: Fleet, keep: Callable[[int], Place] | None = None) -> None:
        self.fleet, self.instants, self.keep = fleet, 0, keep
        self.copies: list[tuple[Place, Fleet]] = []
        choice = {"name": name, "seed": SEED, "settings": CHOICES[name]}
        settings = aggregator_settings(algorithm=choice, rounds={"quorum": len(NAMES), "rest_s": 1e6})
        self.service = Service(settings, Store(place), KEY, uptime_ns=fleet.now_ns, anchor_ns=0, beginning="first")
        self.store_commit = self.service.store.commit
        self.service.store.commit = self._commit  # type: ignore[method-assign]  # to be there at every commit
        self.event: tuple[str, str, bytes] | None = None
        self.hear(cloud_events.Connection(True))

    def _commit(self, effects: Any) -> None:
        self._instant(again=True)
        self.store_commit(effects)
        self._instant()

    def hear(self, event: cloud_events.Event) -> None:
        for effect in self.service.step(self.fleet.now_ns, event):
            if isinstance(effect, cloud_events.Publish):
                self.fleet.told(effect.topic, effect.payload)
                self._instant()
        self.event = None

    def _instant(self, *, again: bool = False) -> None:
        """Keep the store and the rest of the world as they are now; `again`: the broker has the message still."""
        self.instants += 1
        if self.keep is None:
            return
        fleet = self.fleet.copied()
        if again and self.event is not None:
            fleet.way.appendleft(self.event)
        self.copies.append((self.keep(self.instants), fleet))

    def finish(self) -> None:
        fleet = self.fleet
        for _ in range(2_000):
            if fleet.way:
                who, where, payload = fleet.way.popleft()
                if who == "cloud":
                    self.event = (who, where, payload)
                    self.hear(cloud_events.Received(where, payload))
                else:
                    fleet.step(who, events.Received(where, payload))
            elif fleet.jobs:
                who, job = fleet.jobs.pop(0)
                fleet.step(who, events.Trained(answered(job)))
            elif self.service.state.rounds.server.round_index >= ROUNDS and not any(
                state.outbox.items for state in fleet.agents.values()
            ):
                return
            else:
                fleet.now_ns += NS
                self.hear(cloud_events.Tick())
                for who in fleet.agents:
                    fleet.step(who, events.Tick("synchronised", 0, 0))
        raise AssertionError(f"round {self.service.state.rounds.server.round_index} of {ROUNDS} after a kill")

    def rounds(self) -> list[tuple[int, list[str]]]:
        rows = self.service.store.read_rows("rounds", "round_index", "gateways")
        return [(row["round_index"], row["gateways"].split()) for row in rows]


def started(name: str) -> Fleet:
    """Return gateways whose baselines are whole, as they connect."""
    made = Site(aggregator_settings(algorithm={"name": name}), [gateway_settings(one) for one in NAMES])
    made.commission()
    fleet = Fleet(made.agents, made.shelves)
    for who in NAMES:
        fleet.step(who, events.Connection(True))
    return fleet


def oracle(algorithm: Algorithm, rounds: list[tuple[int, list[str]]], seen: Seen) -> Server:
    """Return the server after these rounds, by the definition of a round."""
    server = algorithm.start(generator(SEED, 0, "cloud"))
    for index, gateways in rounds:
        assert index == server.round_index and sorted(gateways) == sorted(NAMES)  # each once, each of them
        phase, total = algorithm.phases[server.phase], Arrays()
        for gateway in gateways:
            update = seen[gateway, index]
            total = phase.reducer.merge(total, phase.admit(server, update)) if update else total
        server = close_round(algorithm, server, total)
    return server


def checked(run: Run) -> Server:
    server = run.service.state.rounds.server
    expected = oracle(run.service.state.rounds.algorithm, run.rounds(), run.fleet.seen)
    assert equal(server.global_state, expected.global_state) and equal(
        server.server_state, expected.server_state
    )  # to the last bit
    assert len(run.service.store.read_rows("models")) == 1
    return server


@pytest.mark.soak
@pytest.mark.parametrize(("name", "each"), some([("fedavg", 3), *((name, 1) for name in CHOICES)]))
def test_a_kill_at_any_instant_leaves_the_model_that_its_updates_make(name: str, each: int, tmp_path: Path) -> None:
    def keep(instant: int) -> Path:
        folder = tmp_path / f"cut-{instant}"
        folder.mkdir()
        for file in tmp_path.glob("aggregator.db*"):
            shutil.copy(file, folder)
        return folder / "aggregator.db"

    whole = Run(name, tmp_path / "aggregator.db", started(name), keep)
    whole.finish()
    assert len(whole.copies) > 40  # instants
    judge_kills(name, whole, whole.copies[::each])


@pytest.mark.soak
def test_a_kill_leaves_the_same_on_a_server(tmp_path: Path, server: postgresql.Server) -> None:
    """Some instants: a commit that the server has taken is there whoever is killed then."""
    url = server.new_schema()

    def keep(instant: int) -> Path:
        file = tmp_path / f"{instant}.db"
        if instant % EACH == 0:
            with choose_database(url).open_snapshot() as db:
                sqlite.make_copy(db, file, lambda _: None)
        return file

    whole = Run("fedavg", url, started("fedavg"), keep)
    whole.finish()
    copies: list[tuple[Place, Fleet]] = []
    for file, fleet in whole.copies:
        if isinstance(file, Path) and file.exists():
            url_of_copy = server.new_schema()
            choose_database(url_of_copy).put(file)
            copies.append((url_of_copy, fleet))
    judge_kills("fedavg", whole, copies)


def judge_kills(name: str, whole: Run, copies: Sequence[tuple[Place, Fleet]]) -> None:
    """Let a service go on from each copy, and see that it ends where the one does that was not killed."""
    model, order, same_order = checked(whole), whole.rounds(), 0
    for place, fleet in copies:
        killed = Run(name, place, fleet)
        killed.finish()
        server = checked(killed)
        assert equal(server.global_state, model.global_state, 1e-12)
        if killed.rounds() == order:  # sums of floats show the order in which they were made
            same_order += 1
            assert equal(server.global_state, model.global_state) and equal(server.server_state, model.server_state)
        killed.service.close()
    whole.service.close()
    assert same_order > len(copies) / 2
