"""What a simulated power cut leaves of a store: the commit at hand whole or not at all, and everything before it.

Goal: the world tears what a real disk may tear, and no more. Method: real SQLite files, hundreds of cuts.
"""

from __future__ import annotations

import itertools
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import RecordCount
from fedgate.firmware_sim.world.environment import disk as world_disk
from fedgate.firmware_sim.world.environment.disk import (
    CloudStore,
    Disk,
    GatewayStore,
    Image,
    PowerCutError,
    complaint,
    cut_in_checkpoint,
    image,
    restore,
    torn,
)
from fedgate.gateway_agent.events import Save
from tests.support.soak import some

CUTS = 60


def committed(path: Path, count: int) -> None:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE IF NOT EXISTS one (number INTEGER, body BLOB)")
    for number in range(count):
        with database:
            database.execute("INSERT INTO one VALUES (?, ?)", (number, bytes([number]) * 3_000))
    held = image(path)
    database.close()
    restore(path, held)


def one_more(path: Path, count: int) -> tuple[Image, Image]:
    committed(path, count)
    before = image(path)
    database = sqlite3.connect(path)
    with database:
        database.execute("INSERT INTO one VALUES (?, ?)", (count, bytes(9_000)))
    after = image(path)
    database.close()
    return before, after


def numbers(path: Path) -> list[int]:
    database = sqlite3.connect(path)
    found = [row[0] for row in database.execute("SELECT number FROM one ORDER BY number")]
    database.close()
    return found


@pytest.mark.soak
@pytest.mark.parametrize("cut", range(CUTS))
def test_a_torn_commit_is_there_or_not_and_takes_none_before_it_along(tmp_path: Path, cut: int) -> None:
    path, rng = tmp_path / "one.db", np.random.default_rng(cut)
    before, after = one_more(path, 5)
    restore(path, torn(before, after, rng))
    assert numbers(path) in ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5])
    assert complaint(path) == ""


def test_a_torn_commit_is_lost_now_and_kept_then(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    before, after = one_more(path, 3)
    lengths = set()
    for cut in range(CUTS):
        restore(path, torn(before, after, np.random.default_rng(cut)))
        lengths.add(len(numbers(path)))
    assert lengths == {3, 4}


@pytest.mark.parametrize("cut", range(10))
def test_a_cut_in_a_checkpoint_loses_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "one.db"
    committed(path, 20)
    left = cut_in_checkpoint(path, image(path), np.random.default_rng(cut))
    restore(path, left)
    assert numbers(path) == list(range(20)) and complaint(path) == ""


@pytest.mark.soak
@pytest.mark.parametrize("kind", some([GatewayStore, CloudStore]))
def test_of_a_cut_commit_that_repeats_what_was_there_all_or_nothing_is_found(
    tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the witness knows whether a commit is there by what it changed, in real files."""
    turn = itertools.count()

    def leave(before: Image, after: Image, rng: np.random.Generator) -> Image:
        return (before, after, torn(before, after, rng))[next(turn) % 3]

    monkeypatch.setattr(world_disk, "torn", leave)
    written: dict[Any, list[list[Any]]] = {
        GatewayStore: [[Save("counted", b"1"), Save("own", bytes([value]) * 9_000)] for value in (1, 2)],
        CloudStore: [[RecordCount("counted", 1), RecordCount("own", value)] for value in (1, 2)],
    }
    found = set()
    for cut in range(CUTS):
        disk = Disk(tmp_path / f"{cut}.db", np.random.default_rng(cut), lambda effects: None)
        store = kind(disk)
        store.commit(written[kind][0])
        disk.is_cut_armed = True
        with pytest.raises(PowerCutError):
            store.commit(written[kind][1])
        disk.fail(store.close, in_checkpoint=False)
        store, doubt = kind(disk), disk.resolved()
        assert doubt is not None and disk.resolved() is None
        found.add(tuple(doubt.there(store.contents())))
        store.close()
    assert found == {(True,), (False,)}


@pytest.mark.soak
@pytest.mark.parametrize(("share", "kept"), [(0.0, {False}), (0.5, {False, True}), (1.0, {True})])
def test_a_cut_that_is_not_torn_leaves_what_was_there_before(tmp_path: Path, share: float, kept: set[bool]) -> None:
    found = set()
    for cut in range(CUTS // 3):
        disk = Disk(tmp_path / f"{cut}.db", np.random.default_rng(cut), lambda effects: None, torn=share)
        store = GatewayStore(disk)
        store.commit([Save("one", b"1")])
        held = image(disk.path)
        disk.is_cut_armed = True
        with pytest.raises(PowerCutError):
            store.commit([Save("two", bytes(9_000))])
        disk.fail(store.close, in_checkpoint=False)
        found.add(image(disk.path) != held)
    assert found == kept


def test_the_stores_of_a_world_share_what_is_made_of_each_statement(tmp_path: Path) -> None:
    disks = [Disk(tmp_path / name, np.random.default_rng(0), lambda effects: None) for name in ("a.db", "b.db")]
    stores = [CloudStore(disk) for disk in disks]
    assert stores[0]._db.engine is stores[1]._db.engine
    for store in stores:
        store.close()


def test_a_damaged_file_is_complained_of(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    committed(path, 3)
    numbers(path)
    path.write_bytes(path.read_bytes()[:4_096] + b"\xff" * 8_192)
    assert complaint(path) != ""
