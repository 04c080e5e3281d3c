"""The agent's store: what was committed is there, whole and in order, whatever happened to the power.

Goal: the durability that receipts and alarms are built on. Method: the real SQLite file; the power cut is a child
process that is killed while it commits as fast as it can.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.runtime.sqlite import StoreError
from fedgate.firmware_sim import children
from fedgate.gateway_agent.events import Dequeue, Durable, Enqueue, Item, Keep, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.state import Stored
from fedgate.gateway_agent.storage.files import APPLICATION
from fedgate.gateway_agent.storage.store import SCHEMA_VERSION, Store
from tests.support.sites import Shelf

NAMES = st.sampled_from(["a", "b", "c.raised", "c.cleared"])
ITEMS = st.builds(
    Item,
    topic=st.sampled_from(["t/1", "t/2"]),
    payloads=st.lists(st.binary(max_size=5), max_size=3).map(tuple),
    retain=st.booleans(),
    priority=st.integers(0, 1),
)
EFFECTS = st.one_of(
    st.builds(
        Keep,
        st.builds(
            FeatureRow,
            st.lists(st.floats(width=32), min_size=2, max_size=2).map(lambda row: np.array(row, np.float32)),
            st.one_of(st.none(), st.integers(-(2**62), 2**62)),
        ),
    ),
    st.builds(Save, NAMES, st.binary(max_size=9)),
    st.builds(Enqueue, NAMES, ITEMS),
    st.builds(Dequeue, NAMES),
)
KILLS = 4
# Every commit counts one up in all four tables; a store that shows different counts shows half a commit.
COMMITTER = """
import sys
from pathlib import Path
import numpy as np
from fedgate.gateway_agent.events import Item, Keep, Enqueue, Save, Dequeue
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.storage.store import Store
store = Store(Path(sys.argv[1]))
number = len(store.read().baseline)
while True:
    number += 1
    item = Item("t", (b"%d" % number, b"x" * 9_000), False, 1)
    store.commit([Keep(FeatureRow(np.full(3, number, np.float32), number)), Save("count", b"%d" % number),
                  Enqueue(str(number), item), Dequeue(str(number - 1))])
    print("committed", flush=True)
"""


def same(stored: Stored, other: Stored) -> bool:
    rows = zip(stored.baseline, other.baseline, strict=True)
    return (
        all(np.array_equal(one.row, two.row, equal_nan=True) and one.end_ns == two.end_ns for one, two in rows)
        and stored.blobs == other.blobs
        and list(stored.outbox.items()) == list(other.outbox.items())  # in order
    )


@pytest.mark.soak
@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.lists(EFFECTS, max_size=4), max_size=5))
def test_the_store_is_the_shelf_after_every_step_and_after_opening_it_again(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[Durable]]
) -> None:
    path, shelf = tmp_path_factory.mktemp("store") / "gateway.db", Shelf(blobs={})
    store = Store(path)
    for effects in steps:
        store.commit(effects)
        shelf.commit(effects)
        assert same(store.read(), shelf.stored())
    store.close()
    again = Store(path)
    assert same(again.read(), shelf.stored())
    again.close()


def test_a_commit_that_cannot_be_whole_is_not_there_at_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "gateway.db")
    store.commit([Save("own", b"before")])
    broken = Enqueue("name", Item("topic", (None,), False, 0))  # type: ignore[arg-type]  # what the database refuses
    with pytest.raises(StoreError, match=r"gateway\.db: cannot be written \(.*NOT NULL.*\); check the disk"):
        store.commit([Save("own", b"after"), Keep(FeatureRow(np.zeros(2, np.float32), 1)), broken])
    assert (store.read().blobs, store.read().baseline, store.read().outbox) == ({"own": b"before"}, (), {})


@pytest.mark.soak
def test_a_power_cut_leaves_whole_commits_in_their_order(tmp_path: Path) -> None:
    path, last = tmp_path / "gateway.db", 0
    for _ in range(KILLS):
        command = [sys.executable, "-c", COMMITTER, str(path)]
        with children.start(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"committed\n"
            time.sleep(0.1)  # while it goes on
            child.kill()
        store = Store(path)
        held = store.read()
        store.close()
        count = int(held.blobs["count"])
        assert [int(seen.row[0]) for seen in held.baseline] == list(range(1, count + 1))
        assert held.outbox == {str(count): Item("t", (b"%d" % count, b"x" * 9_000), False, 1)}
        assert count > last
        last = count


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    store = Store(path)
    store.commit([Save("own", b"secret")])
    for file in tmp_path.iterdir():  # the log of the database beside it, too
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    store.close()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("schema", "application", "reason"),
    [
        (SCHEMA_VERSION + 1, APPLICATION + SCHEMA_VERSION + 1, f"this agent knows {SCHEMA_VERSION}; update the agent"),
        (2, 0, r"an older fedgate made it \(schema 2\); move .*/gateway.db away"),
        (
            SCHEMA_VERSION - 1,
            APPLICATION + SCHEMA_VERSION - 1,
            r"\(schema \d\); move .*/gateway.db away",
        ),
    ],
)
def test_a_store_of_another_agent_is_refused_and_left_as_it_is(
    tmp_path: Path, read_only: bool, schema: int, application: int, reason: str
) -> None:
    path = tmp_path / "gateway.db"
    Store(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {schema}")
        database.execute(f"PRAGMA application_id = {application}")
        database.execute("CREATE TABLE from_the_future (x)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=reason):
        Store(path, read_only=read_only)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE gateways (x)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="it is the database of another program; name another file"):
        Store(path)
    assert path.read_bytes() == before


def test_a_power_cut_while_a_damaged_store_is_made_anew_leaves_one_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    Store(path).close()
    path.rename(tmp_path / "gateway.db.new")  # all that is left where the power fails between the two names
    store = Store(path)
    store.commit([Save("own", b"x")])
    store.close()
    path.with_name("gateway.db.new").write_bytes(b"half a file")  # where it fails before that
    store = Store(path)
    assert store.read().blobs == {"own": b"x"}
    store.close()
    assert not path.with_name("gateway.db.new").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/gateway\.db: cannot be opened as the agent's store"):
        Store(tmp_path / "nowhere" / "gateway.db")


@pytest.mark.parametrize("name", ["with space.db", "per%20cent.db", "question?.db", "hash#.db", "no-utf8-\udcff.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name)
    store.commit([Save("own", b"x")])
    reader = Store(tmp_path / name, read_only=True)
    assert reader.read().blobs == {"own": b"x"}
    reader.close()
    store.close()
    assert (tmp_path / name).exists()


def test_a_link_to_a_store_that_is_yet_to_be_made_will_do(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "far.db")
    Store(tmp_path / "link.db").close()
    assert (tmp_path / "far.db").stat().st_size


def test_the_summary_is_read_beside_a_running_agent_and_after_it(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    store = Store(path)
    alarms = b'{"active": [{"cause": "anomaly", "kind": "anomaly"}, {"cause": "x", "kind": "sensor", "onset_ns": 5}]}'
    store.commit(
        [
            Keep(FeatureRow(np.zeros(2, np.float32), 1)),
            Save("alarms", alarms),
            Enqueue("u", Item("t", (b"ab", b"c"), True, 1)),
        ]
    )
    none = {"items": 0, "bytes": 0}
    waiting = {
        "alarm": none,
        "sensor-alarm": {"items": 1, "bytes": 2 + 256 + 3 + 2 * 256},
        "evidence": none,
        "update": none,
    }
    expected: dict[str, Any] = {
        "store": str(path),
        "waiting": {**waiting, "telemetry": none, "tombstone": none},
        "flash_bytes_written": 0,
        "damage": [],
        "set_aside": [],
        "baseline_windows": 1,
        "outbox": {"u": 3},
        "anomaly_active": True,
        "sensor_alarms": {"x": 5},
        "link": None,
        "model": None,
        "privacy_epsilon": None,
    }
    for still_open in (True, False):
        if not still_open:
            store.close()
        reader = Store(path, read_only=True)
        summary = reader.summarise(reader.look())
        with pytest.raises(StoreError, match="cannot be written"):
            reader.commit([Save("own", b"x")])
        reader.close()
        assert summary.pop("store_bytes") > 0 and summary == expected


def test_a_store_at_rest_is_read_where_nothing_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the unit of the gateway's page sees it; SQLite would make a log, or fail."""
    path = tmp_path / "gateway.db"
    with closing(Store(path)) as store:
        store.commit([Save("kept", b"value")])
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda place, _mode: place != tmp_path)
    with closing(Store(path, read_only=True)) as store:
        assert store.read().blobs == {"kept": b"value"} and sorted(tmp_path.iterdir()) == before


def test_an_empty_store_has_a_summary(tmp_path: Path) -> None:
    store = Store(tmp_path / "gateway.db")
    assert (
        store.summarise(store.look())["sensor_alarms"] == {}
        and store.summarise(store.look())["anomaly_active"] is False
    )
    store.close()
