"""Group commits: what waits does no harm where it is lost, and what may not wait takes along what does.

Goal: few writes, and the promise of the store as before. Method: the gathering against a shelf that takes every effect
at once; and services whose store is looked at, by a reader of its own, at the instant in which a power cut could come.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.messages import Receipt
from fedgate.gateway_agent.events import Connection, Dequeue, Durable, Enqueue, Item, Keep, Outward, Received, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.monitor.monitor import ALARMS
from fedgate.gateway_agent.pipeline.memory import MEMORY
from fedgate.gateway_agent.runtime.commit_policy import SPENT_COMMIT_S, WriteBatch, may_wait
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import LINK, Stored
from fedgate.gateway_agent.storage.store import Store
from fedgate.gateway_agent.training.training import COUNTED, OWN
from fedgate.models.time_units import NS
from tests.gateway_agent.storage.test_gateway_store import same
from tests.support.kept import ME, give, item, opened, said, ticked
from tests.support.sites import T0_NS, Shelf, frame, samples, topic

NAMES = st.sampled_from(["a", "b", "c"])
ITEMS = st.builds(Item, st.just("t"), st.tuples(st.binary(max_size=2)), st.just(False), st.integers(0, 3))
EFFECTS = st.one_of(
    st.builds(Keep, st.builds(FeatureRow, st.just(np.zeros(1, np.float32)), st.integers(0, 9))),
    st.builds(Save, NAMES, st.binary(max_size=2)),
    st.builds(Enqueue, NAMES, ITEMS),
    st.builds(Dequeue, NAMES),
)  # fmt: skip
ACCEPTED = Receipt(accepted=True).to_bytes()


@given(steps=st.lists(st.tuples(st.lists(EFFECTS, max_size=4), st.booleans()), max_size=12))
def test_what_was_gathered_is_what_each_effect_would_have_done(steps: list[tuple[list[Durable], bool]]) -> None:
    gathering, disk, shelf = WriteBatch(()), Shelf(blobs={}), Shelf(blobs={})
    for effects, is_flushed in [*steps, ([], True)]:
        gathering.add(effects, T0_NS)
        shelf.commit(effects)
        if is_flushed:
            disk.commit(gathering.effects)
            gathering.clear()
            assert same(disk.stored(), shelf.stored())
            assert gathering.effects == [] and not gathering.is_urgent


def test_what_may_wait_is_what_is_told_again_or_costs_a_moment() -> None:
    waiting: list[Durable] = [
        Keep(FeatureRow(np.zeros(1, np.float32), 1)),
        Dequeue("a"),
        Save(MEMORY, b""),
        Save(COUNTED, b""),
        Enqueue("a", item("a", 4)),
        Enqueue("a.tombstone", item("a", 0)),
    ]
    urgent: list[Durable] = [
        Save(OWN, b""),
        Save(ALARMS, b""),
        Save("model", b""),
        *(Enqueue("a", item("a", n)) for n in (0, 1, 2, 3)),
    ]
    assert [may_wait(effect) for effect in [*waiting, *urgent]] == [True] * 6 + [False] * 7


def test_a_link_that_comes_and_goes_is_stored_once_a_minute(path: Path) -> None:
    agent = opened(path)
    for up in (True, False, True, False):
        agent.step(agent.state.context.uptime_ns, Connection(up))
        assert LINK not in on_disk(path).blobs
        ticked(agent, 10)
    ticked(agent, 25)
    assert json.loads(on_disk(path).blobs[LINK])["is_up"] is False
    before = on_disk(path)
    ticked(agent, 300)
    assert same(on_disk(path), before)
    agent.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


def on_disk(path: Path) -> Stored:
    """Return what is left where the power fails now."""
    reader = Store(path, read_only=True)
    try:
        return reader.read()
    finally:
        reader.close()


def hear(agent: Service, start_s: float) -> list[Outward]:
    return agent.step(
        agent.state.context.uptime_ns, Received(topic(ME, "sample", "deck"), frame(samples(1, 5), start_s))
    )


def test_windows_of_the_baseline_wait_a_minute_an_alarm_or_the_end(path: Path) -> None:
    agent = opened(path)
    hear(agent, 0.0)
    assert len(agent.state.monitor.pipeline.baseline) == 5 and len(on_disk(path).baseline) == 0
    ticked(agent, 59)
    assert len(on_disk(path).baseline) == 0
    ticked(agent, 2)
    assert len(on_disk(path).baseline) == 5
    hear(agent, 5.0)
    assert len(on_disk(path).baseline) == 5
    give(agent, "alarm", item("alarm", 0))
    assert len(on_disk(path).baseline) == 10 and "alarm" in on_disk(path).outbox
    hear(agent, 10.0)
    agent.close()
    agent = opened(path)
    assert len(agent.state.monitor.pipeline.baseline) == 15
    agent.close()


def test_telemetry_whose_receipt_comes_in_time_is_never_written(path: Path) -> None:
    agent = opened(path)
    agent.step(T0_NS, Connection(up=True))
    ticked(agent, 100)
    agent.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    log = path.with_name(path.name + "-wal")
    give(agent, "b" * 64, item("b" * 64, 4))
    assert "b" * 64 in agent.state.outbox.items
    agent.step(agent.state.context.uptime_ns, Received(topic(ME, "receipt", "b" * 64), ACCEPTED))
    assert agent.state.outbox.items == {}
    before = on_disk(path).outbox
    ticked(agent, 61)
    assert before == on_disk(path).outbox == {} and log.stat().st_size < 3_000  # but for the count of items
    agent.close()


def test_a_tombstone_is_on_disk_before_it_is_told(path: Path) -> None:
    agent = opened(path, store={"max_bytes": 64 * 1024})
    for number in range(9):
        give(agent, f"t{number}", item(f"t{number}", 4, 9_000))
    assert on_disk(path).outbox == {}  # all of it may wait
    agent.step(agent.state.context.uptime_ns, Connection(up=True))
    told: list[Outward] = []
    while not said(told, "tombstone"):
        told = ticked(agent)
    (stone,) = {one.payload for one in said(told, "tombstone")}
    assert stone in [one.payloads[0] for one in on_disk(path).outbox.values()]
    agent.close()


def test_no_time_to_wait_is_a_commit_a_step(path: Path) -> None:
    agent = opened(path, store={"group_commit_s": 0.0})
    hear(agent, 0.0)
    assert len(on_disk(path).baseline) == 5
    agent.close()


def test_where_the_budget_is_spent_what_may_wait_waits_longer_and_alarms_do_not(path: Path) -> None:
    agent = opened(path, store={"flash_bytes_per_day": 2**20})
    agent.commit(agent.state.context.uptime_ns, [Save("a model", bytes(1_500_000))])
    ticked(agent, 1)
    assert agent.state.context.store.written_bytes > 2**20
    give(agent, "telemetry", item("telemetry", 4))
    assert "telemetry" not in agent.state.outbox.items
    hear(agent, 0.0)
    ticked(agent, 600)
    assert len(on_disk(path).baseline) == 0
    give(agent, "update", item("update", 3))
    assert "update" in on_disk(path).outbox and len(on_disk(path).baseline) == 5
    hear(agent, 5.0)
    ticked(agent, SPENT_COMMIT_S + 1)
    assert len(on_disk(path).baseline) == 10
    agent.close()
    agent = opened(path, agent.state.context.now_ns, store={"flash_bytes_per_day": 2**20})
    assert agent.state.context.store.written_bytes > 2**20  # a restart is no new day
    ticked(agent, 86_400)
    give(agent, "telemetry", item("telemetry", 4))
    assert "telemetry" in agent.state.outbox.items
    agent.close()


ACTS: dict[str, Callable[[Service, int], list[Outward]]] = {
    "tick": lambda agent, n: ticked(agent, 1 + n % 40),
    "alarm": lambda agent, n: give(agent, f"{n}.raised", item(f"{n}.raised", n % 2, 300)),
    "update": lambda agent, n: give(agent, f"{n:064d}", item(f"{n:064d}", 3, 2_000)),
    "telemetry": lambda agent, n: give(agent, f"{n:063d}t", item(f"{n:063d}t", 4, 20_000)),
    "window": lambda agent, n: hear(agent, 5.0 * n),
    "receipt": lambda agent, n: [
        effect
        for name in list(agent.state.outbox.items)[:1]
        for effect in agent.step(agent.state.context.uptime_ns, Received(topic(ME, "receipt", name), ACCEPTED))
    ],
    "link": lambda agent, n: agent.step(agent.state.context.uptime_ns, Connection(up=n % 3 > 0)),
}


@pytest.mark.soak
@settings(max_examples=12, deadline=None)
@given(acts=st.lists(st.sampled_from(sorted(ACTS)), min_size=10, max_size=40))
def test_a_power_cut_at_any_step_takes_back_no_word_and_a_minute_at_most(
    tmp_path_factory: pytest.TempPathFactory, acts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("cut") / "gateway.db"
    agent, since_ns = opened(path, store={"max_bytes": 64 * 1024}), T0_NS
    for number, act in enumerate(acts):
        effects = ACTS[act](agent, number)
        left = on_disk(path)
        held = {payload for one in left.outbox.values() for payload in one.payloads}
        for channel in ("alarm", "update", "tombstone"):
            assert all(one.payload in held for one in said(effects, channel))
        for name, one in agent.state.outbox.items.items():
            if one.priority < 4 and not name.endswith(".tombstone"):
                assert name in left.outbox
        if len(left.baseline) == len(agent.state.monitor.pipeline.baseline) and left.outbox == agent.state.outbox.items:
            since_ns = agent.state.context.now_ns
        assert agent.state.context.now_ns - since_ns <= 101 * NS or not agent.policy.batch.effects
    agent.close()
    assert len(on_disk(path).baseline) == len(agent.state.monitor.pipeline.baseline)
