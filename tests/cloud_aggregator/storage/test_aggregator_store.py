"""The aggregator's store: the registry is told everything once, whatever arrives twice, late or in the wrong order."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy.exc import IntegrityError

from fedgate.cloud_aggregator.events import (
    DropHeld,
    Durable,
    Enqueue,
    HoldUpdate,
    Post,
    RecordAlarm,
    RecordGateway,
    RecordModel,
    RecordRound,
    SaveTraining,
)
from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.cloud_aggregator.storage.tables import SCHEMA_VERSION
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import LARGEST, Alarm, Status
from fedgate.config.settings.database import DatabaseUrl
from fedgate.firmware_sim import children
from tests.gateway_agent.deployment.test_gateway_models import FIRST, SECOND

Place = Path | DatabaseUrl
RAISED = Alarm(
    id="north.anomaly.5",
    cause="anomaly",
    kind="anomaly",
    state="raised",
    severity="warning",
    text="score 2 is above the level 1",
    onset_ns=5,
    t_ns=6,
    score=2.0,
    level=1.0,
    model_version=1,
)
CLEARED = RAISED.model_copy(update={"state": "cleared", "t_ns": 9, "score": 3.0, "severity": "major"})
ORDERS = list(dict.fromkeys(permutations([RAISED, CLEARED, RAISED, CLEARED])))
ROUND = RecordRound("run", 0, "fedavg", ("east", "north"), 1, 77, update_bytes=272, uncompressed_bytes=2_064)
KILLS = 3
COMMITTER = """
import sys
from pathlib import Path
import numpy as np
from fedgate.cloud_aggregator.events import RecordRound, SaveTraining
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.settings.database import DatabaseUrl
store = Store(DatabaseUrl(sys.argv[1]) if "://" in sys.argv[1] else Path(sys.argv[1]))
number = len(store.read_rows("rounds"))
while True:
    number += 1
    training = SaveTraining({"number": np.full(2_000, number)})
    store.commit([RecordRound("run", number, "fedavg", ("a",), 0, number), training])
    print("committed", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "aggregator.db"


def said(store: Store) -> Any:
    """Return what the stored training says."""
    training = store.read_training()
    return training and training.meta["said"]


def told(*alarms: Alarm) -> list[RecordAlarm]:
    return [RecordAlarm("north", alarm, 100 + number, alarm.onset_ns) for number, alarm in enumerate(alarms)]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(one.state for one in order))
def test_an_alarm_is_one_row_whatever_the_order_and_the_repeats(place: Place, order: tuple[Alarm, ...]) -> None:
    store = Store(place)
    for record in told(*order):
        store.commit([record])
    (row,) = store.read_rows("alarms")
    store.close()
    assert (row["id"], row["gateway"], row["onset_ns"], row["raised_ns"], row["cleared_ns"]) == (
        RAISED.id,
        "north",
        5,
        6,
        9,
    )
    assert (row["score"], row["severity"]) == (3.0, "major")  # the end knows the peak
    assert row["received_ns"] == 100 + order.index(CLEARED)  # and was received when it came first


def test_alarms_are_kept_apart_by_gateway_and_id(place: Place) -> None:
    store = Store(place)
    other = RAISED.model_copy(update={"id": "north.anomaly.7"})
    store.commit([RecordAlarm(gateway, alarm, 1, 1) for gateway, alarm in product(("north", "south"), (RAISED, other))])
    assert len(store.read_rows("alarms", "id")) == 4
    store.close()


def test_the_largest_numbers_a_message_can_hold_fit(place: Place) -> None:
    store = Store(place)
    huge = {"onset_ns": -LARGEST, "t_ns": LARGEST, "model_version": LARGEST, "score": 1e308, "text": "x" * 100_000}
    store.commit(told(RAISED.model_copy(update=huge)))
    (row,) = store.read_rows("alarms")
    assert (row["onset_ns"], row["raised_ns"], row["model_version"]) == (-LARGEST, LARGEST, LARGEST)
    store.close()


def test_everything_is_there_when_it_is_opened_again(place: Place) -> None:
    store = Store(place)
    assert (store.read_training(), store.models.read_latest(), store.read_statuses()) == (None, None, {})
    online = Status(state="online", baseline_windows=5)
    store.commit([SaveTraining({}, {"said": "one"}), ROUND, RecordModel(*SECOND), RecordGateway("north", online, 1)])
    store.commit([SaveTraining({}, {"said": "two"}), RecordModel(*FIRST), RecordGateway("north", online, 2)])
    store.close()
    store = Store(place, create=False)
    assert said(store) == "two"
    assert store.models.read_latest() == SECOND  # the highest version, in whatever order they were stored
    assert store.read_statuses() == {"north": online}
    assert store.read_rows("rounds", "gateways", "refused", "update_bytes", "uncompressed_bytes") == [
        {"gateways": "east north", "refused": 1, "update_bytes": 272, "uncompressed_bytes": 2_064}
    ]
    assert [row["version"] for row in store.read_rows("models", "version")] == [1, 2]
    assert store.read_rows("gateways", "gateway", "online", "seen_ns") == [
        {"gateway": "north", "online": True, "seen_ns": 2}
    ]
    store.close()


def test_a_commit_that_cannot_be_whole_is_not_there_at_all(place: Place) -> None:
    store = Store(place)
    store.commit([SaveTraining({}, {"said": "before"})])
    broken: Any = RecordRound("run", 1, None, (), 0, 1)  # type: ignore[arg-type]  # what the database refuses
    with pytest.raises(IntegrityError, match=r"NOT NULL|not-null"):
        store.commit([SaveTraining({}, {"said": "after"}), ROUND, broken])
    assert said(store) == "before" and store.read_rows("rounds") == []
    store.commit([ROUND])  # and it goes on working
    store.close()


def held(gateway: str, round_index: int, size: int = 2) -> HoldUpdate:
    return HoldUpdate(gateway, "run", round_index, "digest", wire.encode({"a": np.zeros(size)}))


@pytest.mark.parametrize("together", [False, True])
def test_updates_that_a_close_drops_are_gone_whether_it_shares_their_commit_or_not(
    place: Place, together: bool
) -> None:
    store = Store(place)
    store.commit([held("north", 0), held("west", 0)])
    effects: list[Durable] = [
        held("north", 1),
        held("east", 1),
        DropHeld(),
        held("east", 2),
        held("south", 2),
        DropHeld(7),
    ]
    for batch in [effects] if together else [[effect] for effect in effects]:
        store.commit(batch)
    assert {gateway: one.round_index for gateway, one in store.read_held().items()} == {"east": 2, "south": 2}
    store.close()


def test_updates_that_the_same_commit_drops_are_not_written(path: Path) -> None:
    store = Store(path)
    before = store.database.size_bytes()
    store.commit([held("north", 0, 1_000_000), held("east", 0, 1_000_000), DropHeld()])
    assert store.database.size_bytes() - before < 1_000_000  # of 16 MB
    store.close()


@pytest.mark.soak
def test_a_power_cut_leaves_whole_commits_in_their_order(place: Place) -> None:
    last = 0
    for _ in range(KILLS):
        with children.start([sys.executable, "-c", COMMITTER, str(place)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None and child.stdout.readline() == b"committed\n"
            time.sleep(0.1)  # while it goes on
            child.kill()
        store = Store(place)
        numbers = [row["round_index"] for row in store.read_rows("rounds", "round_index")]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > last
        last = len(numbers)
        training = store.read_training()
        assert training is not None and np.array_equal(training.arrays["number"], np.full(2_000, last))
        store.close()


def test_nobody_else_may_read_it(path: Path) -> None:
    store = Store(path)
    store.commit([SaveTraining({}, {"said": "secret"})])
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    store.close()


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (SCHEMA_VERSION + 1, f"it has schema {SCHEMA_VERSION + 1}, this aggregator knows {SCHEMA_VERSION}; update"),
        (SCHEMA_VERSION - 1, rf"an older fedgate made it \(schema {SCHEMA_VERSION - 1}\); move it away"),
    ],
)
def test_a_store_of_another_aggregator_is_refused_and_left_as_it_is(
    path: Path, create: bool, schema: int, reason: str
) -> None:
    Store(path).close()
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {schema}")
    database.execute("DROP TABLE alarms")
    database.commit()
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=reason):
        Store(path, create=create)
    assert path.read_bytes() == before


@pytest.mark.parametrize("create", [True, False])
def test_what_is_no_database_is_refused_in_one_line(path: Path, create: bool) -> None:
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(
        StoreError,
        match=r"^[^\n]*cannot be opened as the aggregator's store \(file is not a database; .*FILE --replace\)$",
    ):
        Store(path, create=create)


def test_a_damaged_store_is_named(path: Path) -> None:
    store = Store(path)
    store.commit([SaveTraining({"zeros": np.zeros(5_000)})])
    store.close()
    body = path.read_bytes()
    path.write_bytes(body[:4_096] + b"\xff" * (len(body) - 4_096))
    with pytest.raises(StoreError, match=r"aggregator\.db: cannot be (read|opened)"):
        Store(path).read_training()


def test_what_is_not_there_is_named_and_looking_does_not_make_it(path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no store yet; the aggregator has not run with these settings"):
        Store(path, create=False)
    assert not path.exists()
    with pytest.raises(StoreError, match=r"nowhere/aggregator\.db: cannot be opened as the aggregator's store"):
        Store(path.parent / "nowhere" / path.name)


@pytest.mark.parametrize("name", ["with space.db", "per%20cent.db", "question?.db", "hash#.db", "no-utf8-\udcff.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name)
    store.commit([SaveTraining({}, {"said": "x"})])
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_link_to_a_store_that_is_yet_to_be_made_and_a_path_of_two_slashes_will_do(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "far.db")
    Store(tmp_path / "link.db").close()
    with closing(Store(Path(f"/{tmp_path}/far.db"), is_read_only=True)) as store:
        assert store.read_training() is None
    assert {file.name for file in tmp_path.iterdir()} == {"link.db", "far.db"}


def test_a_change_that_comes_again_waits_once_and_in_its_place(path: Path) -> None:
    with closing(Store(path)) as store:
        for name, body in (("first", b"1"), ("second", b"2"), ("first", b"3")):
            store.commit([Enqueue(name, Post(name, body, "west"))])
        assert [(row["id"], row["body"]) for row in store.read_rows("posts", "id", "body")] == [
            ("first", b"3"),
            ("second", b"2"),
        ]
