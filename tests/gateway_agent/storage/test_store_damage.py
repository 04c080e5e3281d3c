"""A damaged store never keeps an agent from starting: it is set aside, what is whole is kept, and all of it is said.

Goal: no gateway stands still under a bridge because a card forgot a page. Method: real files with something of every
kind in them, damaged at hundreds of random places, in their log as in themselves; every start is that of the service.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.messages import Alarm
from fedgate.config.runtime import sqlite
from fedgate.config.runtime.sqlite import StoreDamagedError, StoreError
from fedgate.gateway_agent.events import Connection, Enqueue, Item, Keep, Received, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.machine import DAMAGED
from fedgate.gateway_agent.monitor.monitor import ALARMS
from fedgate.gateway_agent.state import FEATURES, RESCUED
from fedgate.gateway_agent.storage.files import SET_ASIDE_MAX, set_aside
from fedgate.gateway_agent.storage.store import Store
from fedgate.gateway_agent.training.training import OWN
from tests.support.kept import ME, Small, give, item, opened, said, service, ticked
from tests.support.sites import T0_NS, WINDOWS, frame, samples, topic

CUTS, DAMAGES = 60, 80
ITEMS = {f"{priority}-{n}": item(f"{priority}-{n}", priority, 700) for priority in range(5) for n in range(5)}


@pytest.fixture(scope="module")
def commissioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the store of an agent with a whole baseline and items of every class, cleanly closed."""
    path = tmp_path_factory.mktemp("whole") / "gateway.db"
    agent = opened(path)
    agent.step(T0_NS, Received(topic(ME, "sample", "deck"), frame(samples(1, WINDOWS))))
    for name, one in ITEMS.items():
        give(agent, name, one)
    agent.close()
    return path


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the power never fails, and hundreds of stores are opened."""
    monkeypatch.setattr(sqlite, "SYNCHRONOUS", "OFF")


@pytest.fixture
def path(commissioned: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "gateway.db"
    shutil.copy(commissioned, copy)
    yield copy


def raised(agent_outbox: dict[str, Item]) -> list[Alarm]:
    found = [Alarm.from_bytes(one.payloads[0]) for one in agent_outbox.values() if one.topic.endswith(DAMAGED)]
    return [alarm for alarm in found if alarm.state == "raised"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["byte", "zeros", "rubbish", "short"])
def test_an_agent_starts_on_a_file_that_is_damaged_anywhere(commissioned: Path, tmp_path: Path, kind: str) -> None:
    whole, rng = commissioned.read_bytes(), np.random.default_rng(["byte", "zeros", "rubbish", "short"].index(kind))
    expected, noticed = Small(commissioned), 0
    held = expected.read()
    expected.close()
    for number in range(DAMAGES // 4):
        path = tmp_path / f"{number}" / "gateway.db"
        path.parent.mkdir()
        body, place, length = bytearray(whole), int(rng.integers(len(whole))), int(rng.integers(1, 3_000))
        if kind == "byte":
            body[place] ^= int(rng.integers(1, 256))
        elif kind == "short":
            del body[place:]
        else:
            spoilt = (
                bytes(len(body[place : place + length]))
                if kind == "zeros"
                else rng.bytes(len(body[place : place + length]))
            )
            body[place : place + length] = spoilt
        path.write_bytes(body)
        agent = opened(path)
        kept = agent.state.outbox.items
        for name, one in kept.items():
            assert ITEMS.get(name, one) == one  # whole or not there
        assert {seen.row.tobytes() for seen in agent.state.monitor.pipeline.baseline} <= {
            r.row.tobytes() for r in held.baseline
        }
        if agent.store.damage:
            noticed += 1
            assert len(raised(kept)) == 1 and len(set_aside(path)) == 1
        elif place >= 100:  # of the header some bytes mean nothing
            assert ITEMS.keys() <= kept.keys() and len(agent.state.monitor.pipeline.baseline) == WINDOWS
        for name in ITEMS:
            give(agent, name, ITEMS[name])  # it can be written, also where an index was damaged
        ticked(agent, 61)
        agent.close()
        again = opened(path)
        assert again.store.damage == "" and ITEMS.keys() <= again.state.outbox.items.keys()
        again.close()
        shutil.rmtree(path.parent)
    assert noticed > DAMAGES // 16


@pytest.mark.parametrize("body", [b"this is no database" * 100, bytes(5_000), b"\xff" * 70_000])
def test_what_is_no_database_is_set_aside(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "gateway.db"
    path.write_bytes(body)
    agent = opened(path)
    (aside,) = set_aside(path)
    assert aside.read_bytes() == body
    (alarm,) = raised(agent.state.outbox.items)
    assert "file is not a database" in alarm.text and aside.name in alarm.text and alarm.kind == "sensor"
    agent.close()


def test_the_alarm_ends_with_the_next_start(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE payload SET body = x'00' WHERE name = '0-3'")
    database.close()
    agent = opened(path)
    assert (
        DAMAGED in agent.state.monitor.alarms.active
        and "0-3" not in agent.state.outbox.items
        and "0-4" in agent.state.outbox.items
    )
    agent.close()
    agent = opened(path)
    assert DAMAGED not in agent.state.monitor.alarms.active
    assert [
        Alarm.from_bytes(one.payloads[0]).state
        for one in agent.state.outbox.items.values()
        if one.topic.endswith(DAMAGED)
    ] == [
        "raised",
        "cleared",
    ]
    agent.close()


def test_a_page_that_is_lost_takes_what_was_in_it_and_nothing_else(path: Path) -> None:
    """One row of the baseline is damaged: all others stay, and the gateway goes on, without being commissioned anew."""
    with sqlite3.connect(path) as database:
        database.execute("UPDATE baseline SET row = zeroblob(12) WHERE number = 7")
    database.close()
    agent = opened(path)
    assert "baseline: row (7,) is not what was written" in agent.store.damage
    assert f"kept: {WINDOWS - 1} windows of the baseline, 25 items to be sent" in agent.store.damage
    assert len(agent.state.monitor.pipeline.baseline) == WINDOWS - 1 and "center" in agent.state.training.own
    center = agent.state.training.own["center"]
    agent.step(T0_NS, Received(topic(ME, "sample", "deck"), frame(samples(2, 3), 500.0)))
    assert agent.state.monitor.pipeline.commissioned and np.array_equal(agent.state.training.own["center"], center)
    agent.close()
    agent = opened(path)
    assert len(agent.state.monitor.pipeline.baseline) == WINDOWS and agent.store.read().blobs[RESCUED] == b""
    agent.close()


def test_rows_behind_a_page_that_cannot_be_read_are_kept_in_their_order(path: Path) -> None:
    store = Small(path)
    rows = [seen.row.tobytes() for seen in store.read().baseline]
    store.close()
    body = bytearray(path.read_bytes())
    page = int.from_bytes(body[16:18], "big")  # its length, as the header of the file tells it
    first = body.index(rows[0]) // page * page
    whole = [row for row in rows if not first <= body.index(row) < first + page]
    body[first : first + page] = b"\xff" * page
    path.write_bytes(body)
    agent = opened(path)
    kept = [seen.row.tobytes() for seen in agent.state.monitor.pipeline.baseline]
    assert 0 < len(kept) < WINDOWS and kept == whole
    agent.close()


def test_few_damaged_files_are_kept(path: Path) -> None:
    for number in range(SET_ASIDE_MAX + 2):
        path.write_bytes(b"%d" % number * 100)
        Small(path).close()
    assert [file.read_bytes()[:1] for file in set_aside(path)] == [b"2", b"3"]


def test_damage_that_is_met_at_work_costs_nothing_that_the_agent_has_in_mind(path: Path) -> None:
    agent = opened(path)
    ticked(agent, 61)
    before = agent.state
    agent.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    body = bytearray(path.read_bytes())
    body[1_024:] = bytes(len(body) - 1_024)  # everything but the first page
    with path.open("r+b") as file:
        file.write(body)
    agent.store._db.execute("PRAGMA shrink_memory")  # or its pages would still be in the cache
    effects = give(agent, "new", item("new", 0))
    assert len(set_aside(path)) == 1
    stored = agent.store.read()
    assert before.outbox.items.items() <= stored.outbox.items() and "new" in stored.outbox
    assert len(stored.baseline) == WINDOWS and {OWN, ALARMS} <= stored.blobs.keys()
    assert len(raised(dict(stored.outbox))) == 1 and not said(effects, "alarm")  # there is no link
    agent.close()


def log_of(path: Path, rng: np.random.Generator) -> tuple[list[set[str]], list[int], bytes, bytes]:
    """Return what each of some commits left, how long the log was behind each, the file, and the log."""
    store, names, sizes, held = Small(path), list[set[str]](), list[int](), set[str]()
    log = path.with_name(path.name + "-wal")
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(12):
        name = f"n{number}"
        store.commit(
            [Enqueue(name, Item("t", (rng.bytes(int(rng.integers(1, 4_000))),), False, 0)), Save("last", name.encode())]
        )
        store.commit([Keep(FeatureRow(np.full(3, number, np.float32), number))])
        held = {*held, name}
        names.append(held)
        sizes.append(log.stat().st_size)
    files = path.read_bytes(), log.read_bytes()
    store.close()
    return names, sizes, *files


@pytest.mark.soak
def test_a_torn_log_leaves_the_commits_before_the_tear(tmp_path: Path) -> None:
    """Cut, garbled or blanked at any place: that is SQLite's own promise, here with our settings of it."""
    rng = np.random.default_rng(0)
    names, sizes, body, log = log_of(tmp_path / "gateway.db", rng)
    for number in range(CUTS):
        place = int(rng.integers(len(log)))
        spoilt = {0: b"", 1: rng.bytes(len(log) - place), 2: bytes(len(log) - place)}[number % 3]
        path = tmp_path / f"{number}.db"
        path.write_bytes(body)
        path.with_name(path.name + "-wal").write_bytes(log[:place] + spoilt)
        store = Small(path)
        held = store.read()
        store.close()
        whole = sum(size <= place for size in sizes)
        assert store.damage == "" and not set_aside(path)
        expected = names[whole - 1] if whole else set()
        assert expected <= set(held.outbox) <= names[min(whole, len(names) - 1)]
        assert held.blobs.get("last", b"") == (b"n%d" % (len(held.outbox) - 1) if held.outbox else b"")


def test_the_store_of_a_running_agent_is_not_looked_through_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a clean end the structure of the file is not checked anew; after a power cut it is."""
    asked: list[str] = []

    class Asked(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            asked.append(sql)
            return super().execute(sql, parameters)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **keys: connect(*args, factory=Asked, **keys))
    for was_cut in (False, True):
        if was_cut:
            path.with_name(path.name + "-wal").touch()
        asked.clear()
        Small(path).close()
        assert any("quick_check" in sql for sql in asked) == was_cut


def test_a_reader_shows_what_is_whole_and_says_what_is_not(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE blob SET body = x'00' WHERE key = ?", (FEATURES,))
    database.close()
    reader = Store(path, read_only=True)
    summary = reader.summarise(reader.look())
    assert (
        summary["damage"] == [f"blob: row ('{FEATURES}',) is not what was written"]
        and summary["baseline_windows"] == WINDOWS
    )
    reader.close()


def test_a_disk_that_damages_the_new_file_too_ends_the_agent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = service(Small(path))

    def damaged(_effects: object) -> None:
        raise StoreDamagedError("the page is not what was written")

    monkeypatch.setattr(agent.store, "commit", damaged)
    with pytest.raises(StoreError, match="not what was written"):
        give(agent, "a", item("a", 0))
    assert len(set_aside(path)) == 1
    agent.store.close()


def test_an_agent_with_a_link_tells_of_the_damage(path: Path) -> None:
    path.write_bytes(b"rubbish" * 1_000)
    agent = opened(path)
    agent.step(T0_NS, Connection(up=True))
    effects = ticked(agent, 100)
    assert [Alarm.from_bytes(one.payload).cause for one in said(effects, "alarm")] == [DAMAGED]
    agent.close()
