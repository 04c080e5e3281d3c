"""What a gateway writes to its card in a day: flash wears out, so a quiet gateway must hardly write."""

from __future__ import annotations

from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from config.messages import Receipt
from config.topics import Topic, topic_of
from gateway_agent import alarms, machine
from gateway_agent.events import Connection, Durable, Effect, Heard, Queue
from gateway_agent.state import State
from gateway_agent.store import Store
from models.rules import Height
from models.threshold import Transition
from tests.benchmarks import station, usage
from tests.benchmarks.conftest import Note
from tests.benchmarks.station import GATEWAY, NS, SITE, T0_NS
from tests.benchmarks.timing import repeat

ALARMS_PER_DAY = 24
LASTS_S = 600.0


class Card:
    """The agent's store, which counts what is committed to it."""

    def __init__(self, path: Path) -> None:
        self.store, self.commits = Store(path), 0

    def take(self, effects: list[Effect]) -> None:
        """Commit as the shell does: the durable effects of one step in one transaction."""
        durable = [effect for effect in effects if isinstance(effect, Durable)]
        if durable:
            self.store.commit(durable)
            self.commits += 1


def told(card: Card, state: State, transition: Transition) -> State:
    """Raise or clear an alarm and receive the aggregator's word that it has it."""
    state, effects = alarms.of_transition(state, transition, Height(transition.score, "score", 2.0, 1.0, None))
    card.take(effects)
    name = next(effect.name for effect in effects if isinstance(effect, Queue))
    receipt = Heard(topic_of(Topic(SITE, GATEWAY, "receipt", name)), Receipt(accepted=True).to_bytes())
    state, effects = machine.step(state, transition.t_ns, receipt)
    card.take(effects)
    assert name not in state.outbox
    return state


def day(state: State, card: Card) -> None:
    """Live through a day with one alarm an hour."""
    for hour in range(ALARMS_PER_DAY):
        onset_ns = T0_NS + hour * 3_600 * NS
        cleared_ns = onset_ns + round(LASTS_S * NS)
        state = told(card, state, Transition("raised", onset_ns, onset_ns, 9.0, 5.0))
        state = told(card, state, Transition("cleared", onset_ns, cleared_ns, 12.0, 4.0))


def test_a_day_with_an_alarm_every_hour(tmp_path: Path, benchmark: BenchmarkFixture, note: Note) -> None:
    state, _ = machine.step(station.commissioned(), T0_NS, Connection(up=True))
    card, before_bytes = Card(tmp_path / "gateway.db"), usage.written_bytes()
    repeat(benchmark, day, state, card, rounds=1)
    written_bytes = usage.written_bytes() - before_bytes
    assert card.commits == 4 * ALARMS_PER_DAY
    note("store: written in a day with an alarm an hour", written_bytes / 2**20, "MiB")
    note("store: commits in a day with an alarm an hour", card.commits, "")


def test_watching_writes_nothing(tmp_path: Path) -> None:
    state, card = station.commissioned(), Card(tmp_path / "gateway.db")
    for arrival in station.arrivals(state.settings.features, 5):
        state, effects = machine.step(state, arrival.now_ns, arrival.event)
        card.take(effects)
    assert state.counts["windows"] == 5
    assert card.commits == 0
