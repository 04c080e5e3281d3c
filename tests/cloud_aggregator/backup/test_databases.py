"""Goal: a backup moves a site from one kind of database to the other and back, and loses nothing of any table.

Method: a store whose every table is filled; real commands beside a service that has the store.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.commands import doctor
from fedgate.cloud_aggregator.commands import store as store_commands
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import Durable, Enqueue, Post, RecordService, SaveTraining
from fedgate.cloud_aggregator.storage.store import BackupNote, Store, choose_database
from fedgate.cloud_aggregator.storage.tables import META
from fedgate.config.settings.database import DatabaseUrl
from tests.cloud_aggregator.test_quotas import CLOUD
from tests.support.postgresql import Server
from tests.support.sites import T0_NS

Capture = pytest.CaptureFixture[str]
SET_ANEW = {"training", "rollout", "orders", "passes", "backup", "held"}  # by a restore, on purpose
PLACES = ("sqlite", "postgresql")
COMMANDS = (
    ("status",),
    ("gateways", "list"),
    ("models",),
    ("alarms",),
    ("rounds",),
    ("losses",),
    ("orders",),
    ("samples",),
)


def settings_of(folder: Path, place: Path | DatabaseUrl) -> Path:
    """Make a site whose store is there."""
    assert main(["init", str(folder), "--loopback"]) == 0
    file = folder / "aggregator.toml"
    file.write_text(file.read_text().replace('store = "aggregator.db"', f"store = {json.dumps(str(place))}"))
    return file


def place_of(kind: str, folder: Path, server: Server) -> Path | DatabaseUrl:
    return server.new_schema() if kind == "postgresql" else folder / "aggregator.db"


def filled(store: Store) -> dict[str, list[dict[str, Any]]]:
    """Fill every table and return what stands in them."""
    training = SaveTraining({"shared.w": np.arange(9.0), "kept.n": np.array(3)}, {"run": "a.b", "training": 5})
    for number in range(3):
        for name, made in CLOUD.items():
            effects: Sequence[Durable] = [training] if name.startswith("training") else made(number)
            if name == "orders":
                store.order("token", {"gateway": f"é{number}"})
            store.commit(effects)
    store.commit([Enqueue("id", Post("id", b"\0\xff")), RecordRegistry((Certificate("a1", "west", "key", 1, 2**62),))])
    store.note_backup(BackupNote(1, "/mnt/b", True))
    found = {name: store.read_rows(name) for name in META.tables}
    assert all(found.values()), [name for name, rows in found.items() if not rows]
    return found


@pytest.mark.soak
@pytest.mark.parametrize(
    ("source", "target"), [("sqlite", "postgresql"), ("postgresql", "sqlite"), ("postgresql", "postgresql")]
)
def test_every_row_of_every_table_comes_back_on_either_kind(
    source: str, target: str, tmp_path: Path, server: Server, capsys: Capture
) -> None:
    from_place, to_place = (
        place_of(kind, tmp_path / name, server) for kind, name in ((source, "old"), (target, "new"))
    )
    old, new = settings_of(tmp_path / "old", from_place), settings_of(tmp_path / "new", to_place)
    with closing(Store(from_place, program="aggregator")) as store:
        before = filled(store)
        assert main(["backup", str(tmp_path / "b"), "-c", str(old)]) == 0
        assert [row["file"] for row in store.read_rows("backup")] == [str(tmp_path / "b")]
    with closing(Store(to_place)) as there:
        there.commit([RecordRegistry((Certificate("c3", "east", "key", 1, 2**62, "revoked", 2),))])
    assert main(["restore", str(tmp_path / "b"), "-c", str(new)]) == 2
    assert "a store, or its log, is here already; give --replace" in capsys.readouterr().err
    with closing(Store(to_place, program="aggregator")):
        assert main(["restore", str(tmp_path / "b"), "-c", str(new), "--replace"]) == 1
        assert "another aggregator runs on this store" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "b"), "-c", str(new), "--replace"]) == 0
    said = capsys.readouterr().out
    assert "1 certificates more are over, by the store that was there: east" in said and "set aside: " in said
    with closing(Store(to_place, create=False)) as back:
        for name in META.tables.keys() - SET_ANEW - {"certificates"}:
            assert back.read_rows(name) == before[name], name
        assert [row["serial"] for row in back.read_rows("certificates")][-1] == "c3"
        training = back.read_training()
        assert training is not None and training.meta == {"run": "set-back.b", "training": 5}
        assert np.array_equal(training.arrays["shared.w"], np.arange(9.0)) and training.arrays["kept.n"] == 3
        back.commit([*CLOUD["rounds"](7), *CLOUD["scores"](7)])  # numbers go on behind those that were copied
        assert back.order("token", {}) == before["orders"][-1]["number"] + 1


@pytest.mark.soak
@pytest.mark.parametrize("kind", PLACES)
def test_every_command_reads_and_orders_beside_a_service(
    kind: str, tmp_path: Path, server: Server, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_commands, "WAIT_S", 0.0)
    place = place_of(kind, tmp_path / "site", server)
    settings = settings_of(tmp_path / "site", place)
    for command in COMMANDS:
        assert main([*command, "-c", str(settings)]) == 2
        assert "there is no store yet" in capsys.readouterr().err, command
    assert not choose_database(place).exists()
    with closing(Store(place, program="aggregator")) as store:
        filled(store)
        store.commit([RecordService(T0_NS, T0_NS, True, T0_NS), SaveTraining({}, CLOUD_META)])
        for command in COMMANDS:
            assert main([*command, "-c", str(settings), "--json"]) == 0
            assert json.loads(capsys.readouterr().out), command
        before = len(store.read_orders())
        assert main(["gateways", "remove", "west", "-c", str(settings)]) == 0
        assert len(store.read_orders()) == before + 1
        whole, last = doctor._store(place)
        assert f"{choose_database(place).name} is whole: 3 models" in whole.text and "of 1970" in last.text


CLOUD_META = {"run": "a.b", "round_index": 1, "phase": 0, "counted": {}}
