"""A full disk ends no agent and loses no alarm: a reserve serves what comes first, and the rest waits in memory.

Goal: whoever fills the disk of a gateway, it goes on watching, and says so. Method: a small file system of its own that
somebody else fills to the last byte, where the test may mount one; and everywhere a file that may not grow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, Receipt, Status
from fedgate.config.runtime.sqlite import StoreDamagedError, StoreFullError
from fedgate.firmware_sim import children
from fedgate.gateway_agent.events import Connection, Enqueue, Outward, Received
from fedgate.gateway_agent.machine import DAMAGED, FULL
from fedgate.gateway_agent.outbox.outbox import is_tombstone
from fedgate.gateway_agent.runtime.commit_policy import REGAIN_S
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.storage import files
from fedgate.gateway_agent.storage.files import set_aside
from fedgate.gateway_agent.storage.store import Store
from tests.support.kept import ME, Small, give, item, names, opened, said, service, ticked
from tests.support.sites import T0_NS, WINDOWS, frame, samples, topic
from tests.support.waiting import PATIENCE_S

DISK_BYTES = 16 * 2**20
UPDATE_BYTES, CHUNK_BYTES = 1_300_000, 120_000
FOREVER_PAGES = 2**30


def limit(store: Store, *, is_full: bool = True) -> None:
    """Let the file grow no more, or again."""
    pages = store._db.execute("PRAGMA page_count").fetchone()[0] if is_full else FOREVER_PAGES
    store._db.execute(f"PRAGMA max_page_count = {pages}")


def full(path: Path) -> Service:
    """Return an agent with a link, telemetry in its store, and no room to grow."""
    agent = opened(path)
    give(agent, "old telemetry", item("old-telemetry", 4, 2_000))
    ticked(agent, 61)
    agent.step(agent.state.context.uptime_ns, Connection(up=True))
    ticked(agent, agent.state.context.settings.exchange.spread_s)
    limit(agent.store)
    return agent


def stuck(path: Path) -> tuple[Service, list[Outward]]:
    """Return an agent that has used up its reserve too, and what it said meanwhile."""
    agent, told = full(path), list[Outward]()
    number = 0
    while not agent.policy.is_stuck:
        told += give(agent, f"{number:03d}", item(f"{number:03d}", 0, 1_000))
        number += 1
        assert number < 100
    return agent, told


def test_the_reserve_serves_first_and_the_trouble_is_told(path: Path) -> None:
    agent = full(path)
    effects: list[Outward] = []
    while not agent.store.is_tight:
        name = f"{len(agent.state.outbox.items):03d}"
        effects += give(agent, name, item(name, 0, 1_000))
        assert name in agent.store.read().outbox
    (status,) = [Status.from_bytes(one.payload) for one in said(effects, "status")][-1:]
    assert status.store_problem == FULL == agent.state.context.store.problem
    (alarm,) = [
        Alarm.from_bytes(one.payloads[0]) for one in agent.store.read().outbox.values() if one.topic.endswith(FULL)
    ]
    assert alarm.kind == "sensor" and "reserve" in alarm.text
    assert names(agent.state, "telemetry") == []
    limit(agent.store, is_full=False)
    ticked(agent)
    assert agent.state.context.store.problem == FULL  # an alarm lasts a while, or two of one moment would share an id
    effects = ticked(agent, REGAIN_S)
    assert (
        not agent.store.is_tight
        and agent.state.context.store.problem == ""
        and FULL not in agent.state.monitor.alarms.active
    )
    agent.close()


def test_what_cannot_be_stored_is_not_told_and_is_told_when_it_can(path: Path) -> None:
    agent, told = stuck(path)
    stored = agent.store.read().outbox
    waiting = set(names(agent.state, "alarm")) - stored.keys()
    assert waiting
    for one in said(told, "alarm"):
        assert one.topic.endswith(FULL) or one.payload.decode().strip() not in waiting
    for _ in range(100):
        assert not [one for one in said(ticked(agent), "alarm") if one.payload.decode().strip() in waiting]
    assert said(ticked(agent, agent.state.context.settings.exchange.status_s), "status")  # which rests on nothing
    limit(agent.store, is_full=False)
    effects = ticked(agent)
    assert not agent.policy.is_stuck and waiting <= agent.store.read().outbox.keys()
    assert waiting & {one.payload.decode().strip() for one in said(effects, "alarm")}
    ticked(agent, REGAIN_S)
    assert agent.state.context.store.problem == ""
    agent.close()


@pytest.mark.soak
def test_sampling_goes_on_and_memory_is_bounded_while_nothing_can_be_stored(path: Path) -> None:
    agent, _ = stuck(path)
    agent.step(agent.state.context.uptime_ns, Received(topic(ME, "sample", "deck"), frame(samples(1, WINDOWS))))
    assert (
        agent.state.monitor.windows == WINDOWS and agent.state.monitor.pipeline.commissioned and agent.policy.is_stuck
    )
    before = len(agent.policy.batch.effects)
    for number in range(300):
        name = f"more-{number}"
        give(agent, name, item(name, 4))  # telemetry is refused, and told in a tombstone
        give(agent, "alarm", item("alarm", 0))
        agent.step(
            agent.state.context.now_ns, Received(topic(ME, "receipt", "alarm"), Receipt(accepted=True).to_bytes())
        )
        ticked(agent)
    assert len(agent.policy.batch.effects) <= before + 4 and len(agent.policy.held) < 100
    (stone,) = [
        Tombstone.from_bytes(one.payloads[0]) for name, one in agent.state.outbox.items.items() if is_tombstone(name)
    ]
    assert (stone.kind, stone.items) == ("telemetry", 301) and stone.why == ("disk-full",)
    limit(agent.store, is_full=False)
    ticked(agent)
    stored = agent.store.read()
    assert stored.outbox == agent.state.outbox.items and len(stored.baseline) == WINDOWS
    agent.close()


def test_what_was_given_up_meanwhile_is_not_sent_when_there_is_room(path: Path) -> None:
    agent, _ = stuck(path)
    held = [one for one in agent.policy.held if one in said([one], "alarm")]
    gone = next(
        name
        for name, one in agent.state.outbox.items.items()
        if held and one.payloads[0] == said(held, "alarm")[0].payload
    )
    agent.step(
        agent.state.context.now_ns, Received(topic(ME, "receipt", gone), Receipt(accepted=False, reason="x").to_bytes())
    )
    limit(agent.store, is_full=False)
    assert not [one for one in said(ticked(agent), "alarm") if one.payload.decode().strip() == gone]
    agent.close()


def test_an_agent_starts_on_a_full_disk(path: Path) -> None:
    agent = opened(path)
    agent.close()
    store = Small(path)
    store._db.execute("DELETE FROM reserve")  # the last one was used up
    store._db.commit()
    store.close()

    class Full(Small):
        reserve_bytes = 2**40  # more than any disk has

    agent = service(Full(path))
    assert (
        agent.store.is_tight and agent.state.context.store.problem == FULL and FULL in agent.state.monitor.alarms.active
    )
    agent.close()


def test_a_stop_tries_once_more_and_says_what_it_loses(path: Path) -> None:
    agent, _ = stuck(path)
    waiting = agent.state.outbox.items.keys() - agent.store.read().outbox.keys()
    (word,) = agent.close()
    assert word.level == "warning" and "lost with this agent: " in word.text and "of class alarm" in word.text
    assert waiting and all(name in word.text for name in waiting)


def test_a_stop_stores_what_was_held_where_there_is_room_again(path: Path) -> None:
    agent, _ = stuck(path)
    held = agent.state.outbox.items.keys()
    limit(agent.store, is_full=False)
    assert agent.close() == []
    store = Small(path)
    assert store.read().outbox.keys() == held
    store.close()


def test_a_damaged_store_without_room_for_a_new_one_ends_no_agent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = opened(path)
    ticked(agent, 61)
    written = files._write

    def full_disk(new: Path, _stored: object) -> None:
        new.write_bytes(b"the part for which there was room")
        raise StoreFullError("the disk is full")

    def damaged(_effects: object) -> None:
        raise StoreDamagedError("the page is not what was written")

    with monkeypatch.context() as patched:
        patched.setattr(files, "_write", full_disk)
        patched.setattr(agent.store, "commit", damaged)
        for name in ("a", "b"):
            assert not said(give(agent, name, item(name, 0)), "alarm")
            ticked(agent)
        assert agent.policy.is_stuck and agent.state.context.store.problem == FULL and set_aside(path) == []
    assert files._write is written
    ticked(agent)
    assert agent.store.damage and len(set_aside(path)) == 1 and {"a", "b"} <= agent.store.read().outbox.keys()
    assert DAMAGED in agent.state.monitor.alarms.active
    ticked(agent, REGAIN_S)
    assert agent.state.context.store.problem == ""
    assert agent.close() == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.db"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a small file system of this test's own."""
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "fedgate-test", str(where)]
    try:
        done = children.run(command, PATIENCE_S, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield where
    # Lazily: a test that failed may hold a file of it.
    done = children.run(["umount", "--lazy", str(where)], PATIENCE_S, text=True)
    assert done.returncode == 0, done.stderr


def fill(folder: Path) -> Path:
    """Let somebody else take all that is left."""
    other = folder / "somebody-else"
    with other.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return other


@pytest.mark.soak
def test_alarms_and_the_update_at_hand_fit_when_others_have_filled_the_disk(disk: Path) -> None:
    agent = service(Store(disk / "gateway.db"))
    ticked(agent, 61)
    other = fill(disk)
    update = item("update", 3, CHUNK_BYTES)
    update = type(update)(update.topic, update.payloads * (UPDATE_BYTES // CHUNK_BYTES + 1), False, 2, T0_NS)
    give(agent, "update", update)
    for number in range(200):
        give(agent, f"{number:03d}", item(f"{number:03d}", 0, 1_000))
    held = agent.store.read().outbox
    assert held["update"] == update and len(held) >= 201 and not agent.policy.is_stuck
    while not agent.policy.is_stuck:  # until the reserve is used up, and the log is full
        name = f"more-{len(agent.state.outbox.items)}"
        give(agent, name, item(name, 0, 60_000))
        assert len(agent.state.outbox.items) < 500
    assert agent.state.context.store.problem == FULL
    with pytest.raises(StoreFullError):
        agent.store.commit([Enqueue("x", item("x", 0, 60_000))])
    other.unlink()
    ticked(agent)
    assert not agent.policy.is_stuck and agent.store.read().outbox == agent.state.outbox.items
    ticked(agent, REGAIN_S)
    assert not agent.store.is_tight and agent.state.context.store.problem == ""
    agent.close()
    again = Store(disk / "gateway.db")
    assert again.damage == "" and again.read().outbox.keys() == agent.state.outbox.items.keys()
    again.close()


def test_a_start_on_a_disk_that_others_have_filled(disk: Path) -> None:
    agent = service(Store(disk / "gateway.db"))
    give(agent, "alarm", item("alarm", 0))
    agent.close()
    fill(disk)
    agent = service(Store(disk / "gateway.db"))
    assert "alarm" in agent.state.outbox.items
    give(agent, "next", item("next", 0))
    assert "next" in agent.state.outbox.items
    agent.store.close()
