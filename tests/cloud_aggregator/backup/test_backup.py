"""Goal: one file, made while the aggregator works, from which a site comes back; and no other file does.

Method: real commands on a site that `init` made, its store written to meanwhile; files that are cut, bent or exchanged.
"""

from __future__ import annotations

import getpass
import io
import itertools
import json
import os
import re
import sqlite3
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.backup import archive, sealing
from fedgate.cloud_aggregator.backup.scratch import scratch_file
from fedgate.cloud_aggregator.commands import backup as backup_command
from fedgate.cloud_aggregator.commands import restore as restore_command
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry, Token
from fedgate.cloud_aggregator.events import Effect, RecordAlarm, RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases.releases import ModelRelease, Releases, Rollout, dump
from fedgate.cloud_aggregator.releases.releases import restore as restored_releases
from fedgate.cloud_aggregator.rounds.rounds import number_training, save_training
from fedgate.cloud_aggregator.state import Stored
from fedgate.cloud_aggregator.storage.sqlite import PAGE_BYTES, SqliteDatabase
from fedgate.cloud_aggregator.storage.store import BackupNote, Store
from fedgate.cloud_aggregator.storage.tables import SCHEMA_VERSION
from fedgate.config.protocol.messages import Alarm
from fedgate.config.runtime import store_lock
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import OPEN
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.site_folders import Folder, aggregator_of, founded, until
from tests.support.sites import T0_NS, start_cloud

Capture = pytest.CaptureFixture[str]
LIFE_NS = 9_000 * 86_400 * NS
KEYS = ("release.key", "ca.key", "server.key", "cloud.key")
MODEL = ModelRelease(*FIRST)


@pytest.fixture(autouse=True)
def _quick_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "SCRYPT_N", 2)  # `test_sealing` looks at the real number, which makes a guess dear


def alarm(number: int) -> RecordAlarm:
    one = Alarm(
        id=str(number),
        cause="anomaly",
        kind="anomaly",
        state="raised",
        severity="major",
        text="t",
        onset_ns=T0_NS + number,
        t_ns=T0_NS + number,
    )
    return RecordAlarm("west", one, T0_NS + number, one.onset_ns)


def certificate(serial: str, name: str, **more: Any) -> RecordRegistry:
    return RecordRegistry((Certificate(serial, name, f"key of {name}", T0_NS, T0_NS + LIFE_NS, **more),))


@contextmanager
def opened(site: Folder, *effects: Effect) -> Iterator[Store]:
    with closing(Store(site.path / "aggregator.db")) as made:
        made.commit(cast(Any, effects))
        yield made


def noted(site: Folder) -> BackupNote | None:
    with opened(site) as store:
        return store.read_backup_note()


@cache
def _filled_store() -> bytes:
    people = (certificate("a1", "east"), certificate("a2", "west"))
    with TemporaryDirectory() as folder:
        made = Folder(Path(folder), 0)
        with opened(made, *people, save_training(OPEN.rounds, 0), RecordModel(*FIRST), *map(alarm, range(500))):
            pass
        return (made.path / "aggregator.db").read_bytes()


def filled(folder: Path) -> Folder:
    """Return a site with a store that has 500 alarms, two gateways, a model and a training."""
    made = founded(folder)
    (made.path / "aggregator.db").write_bytes(_filled_store())
    return made


@pytest.fixture
def site(tmp_path: Path) -> Folder:
    return filled(tmp_path / "site")


@pytest.fixture
def passphrase(tmp_path: Path) -> Path:
    path = tmp_path / "passphrase"
    path.write_text("correct horse battery\n")
    path.chmod(0o600)
    return path


def backup(site: Folder, file: Path, *more: str | Path, code: int = 0) -> None:
    words = ["backup", str(file), "-c", str(site.path / "aggregator.toml"), *map(str, more)]
    assert cloud_aggregator(words) == code


def restore(file: Path, folder: Path, *more: str | Path, code: int = 0) -> None:
    words = ["restore", str(file), "-c", str(folder / "aggregator.toml"), *map(str, more)]
    assert cloud_aggregator(words) == code


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder but locks, which say nothing."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


# --- the way there and back -------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_backup_of_a_running_store_brings_back_what_a_copy_of_its_file_loses(
    site: Folder, tmp_path: Path, passphrase: Path, capsys: Capture
) -> None:
    file, new = tmp_path / "site.fedgate", tmp_path / "new"
    with opened(site, *map(alarm, range(500, 1_000))):  # in the log alone: nobody has folded it in
        backup(site, file, "--passphrase-file", passphrase)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "sealed, with the keys" in capsys.readouterr().out
    restore(file, new, "--passphrase-file", passphrase)
    said = capsys.readouterr().out
    assert "1000 alarms" in said and "MISSING" not in said and "set anew: the training begins anew" in said
    for name in (*KEYS, "ca.pem", "release.pub", "aggregator.toml", "revoked.crl", "mosquitto.acl", "gateway.toml"):
        assert (new / name).read_bytes() == (site.path / name).read_bytes(), name
    assert all(stat.S_IMODE((new / name).stat().st_mode) == 0o600 for name in (*KEYS, "aggregator.db"))
    conf = (new / "mosquitto.conf").read_text()
    assert str(site.path) not in conf and conf == (site.path / "mosquitto.conf").read_text().replace(
        str(site.path), str(new)
    )
    with closing(Store(new / "aggregator.db", create=False)) as back:
        assert len(back.read_rows("alarms")) == 1_000 and back.read_registry().admitted == {"east", "west"}
        assert back.models.read_latest() == FIRST
    assert not [
        path
        for path in (*site.path.iterdir(), *new.iterdir())
        if path.name.startswith((".restor", ".aggreg")) and path.suffix != ".lock"
    ]
    with aggregator_of(Folder(new, site.port)) as aggregator:  # and it starts
        until(lambda: aggregator.service.state.releases.manifest is not None)


def test_writing_goes_on_meanwhile_and_the_copy_is_of_one_moment(site: Folder, tmp_path: Path) -> None:
    """A writer that commits as fast as it can would have a copy in steps begin anew for ever."""
    path, copy, stop, waits_s = site.path / "aggregator.db", tmp_path / "copy.db", threading.Event(), list[float]()
    with opened(site) as filled:
        for version in range(2, 42):  # 20 MiB are kept, so that there are many steps
            manifest = FIRST[0].model_copy(update={"version": version})
            filled.commit([RecordModel(manifest, os.urandom(1 << 20))])
    steps: list[int] = []

    def write() -> None:
        with closing(Store(path)) as writing:
            for number in itertools.count(1_000, 2):
                if stop.is_set():
                    return
                writing.commit([alarm(number), alarm(number + 1)])
                waits_s.append(number)

    class Counted(backup_command.Progress):
        def advance(self, size_bytes: int) -> None:
            steps.append(len(waits_s))
            until(lambda: len(waits_s) > steps[-1])  # each step sees a commit that the one before did not

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup_command, "Progress", Counted)
        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: waits_s)
            backup_command.copy_store(SqliteDatabase(path), copy)
        finally:
            stop.set()
            writer.join()
    assert len(steps) >= 15 and steps[-1] > steps[0]
    with closing(sqlite3.connect(copy)) as db:
        held = {int(name) for (name,) in db.execute("SELECT id FROM alarms")} - set(range(500))
        assert {number + 1 - 2 * (number % 2) for number in held} == held  # whole commits
        assert len(held) <= 2 * (steps[0] + 1)  # as it was when the copy began


def test_keys_are_in_a_sealed_file_alone(site: Folder, tmp_path: Path, passphrase: Path, capsys: Capture) -> None:
    plain, sealed, without = (tmp_path / name for name in ("plain.tar", "sealed", "without"))
    backup(site, plain)
    assert "WITHOUT release.key and ca.key" in capsys.readouterr().out
    backup(site, sealed, "--passphrase-file", passphrase)
    backup(site, without, "--passphrase-file", passphrase, "--without-keys")
    for file in (plain, sealed, without):
        assert not [name for name in KEYS if (site.path / name).read_bytes().splitlines()[1] in file.read_bytes()]
    assert b"CREATE TABLE" in plain.read_bytes() and b"CREATE TABLE" not in sealed.read_bytes()
    with tarfile.open(plain) as tar:
        names = tar.getnames()
        assert names[0] == "manifest.json" and names[-1] == "aggregator.db" and not set(KEYS) & set(names)
    for file, more in ((plain, ()), (without, ("--passphrase-file", passphrase))):
        capsys.readouterr()
        restore(file, tmp_path / f"new {file.name}", *more)
        said = capsys.readouterr().out
        assert all(f"MISSING: {tmp_path / f'new {file.name}' / name}" in said for name in KEYS)


def test_both_commands_speak_json(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    capsys.readouterr()
    backup(site, tmp_path / "b.tar", "--json")
    said = json.loads(capsys.readouterr().out)
    assert (said["alarms"], said["model_version"], said["enrolled"], said["has_keys"]) == (500, 1, 2, False)
    restore(tmp_path / "b.tar", tmp_path / "new", "--check", "--json")
    assert json.loads(capsys.readouterr().out)["is_changed"] is False and not (tmp_path / "new").exists()
    restore(tmp_path / "b.tar", tmp_path / "new", "--json")
    said = json.loads(capsys.readouterr().out)
    assert said["is_changed"] and said["set_anew"] and said["lost"] and said["made"].startswith("20")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_nothing_that_was_bent_cut_or_exchanged_is_restored(
    site: Folder, tmp_path: Path, passphrase: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "PIECE_BYTES", 1 << 14)
    file, bad, new = tmp_path / "good", tmp_path / "bad", tmp_path / "new"
    backup(site, file, "--passphrase-file", passphrase)
    good = file.read_bytes()
    whole, head = (1 << 14) + sealing.TAG_BYTES, len(sealing.MAGIC) + sealing.SALT_BYTES
    pieces = [good[at : at + whole] for at in range(head, len(good), whole)]
    assert len(pieces) > 3
    wrong = {
        f"byte {at}": good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in (3, 20, 40, 5_000, len(good) - 1)
    }
    wrong |= {f"cut at {at}": good[:at] for at in (0, 5, 30, head, head + whole, head + 2 * whole, len(good) - 1)}
    wrong |= {
        "more behind": good + b"x",
        "a piece left out": good[:head] + b"".join([pieces[0], *pieces[2:]]),
        "two exchanged": good[:head] + b"".join([pieces[1], pieces[0], *pieces[2:]]),
        "the last left out": good[:head] + b"".join(pieces[:-1]),
    }
    for what, body in wrong.items():
        bad.write_bytes(body)
        restore(bad, new, "--passphrase-file", passphrase, code=2)
        assert not new.exists(), what
    passphrase.write_text("another long passphrase")
    restore(file, new, "--passphrase-file", passphrase, code=2)
    assert not new.exists()


def test_a_plain_file_that_was_bent_is_not_restored(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    file, new = tmp_path / "good.tar", tmp_path / "new"
    backup(site, file)
    good = file.read_bytes()
    store_at = good.index(b"SQLite format 3")
    for at in (30, 600, 2_000, store_at + 5_000):  # none of them in what fills a block, which says nothing
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        restore(file, new, code=2)
        assert not new.exists(), at
    file.write_bytes(good[: len(good) // 2])
    restore(file, new, code=2)
    assert not new.exists() and "take another backup" in capsys.readouterr().err


def test_a_plain_file_in_the_place_of_a_sealed_one_is_refused(
    site: Folder, tmp_path: Path, passphrase: Path, capsys: Capture
) -> None:
    """Who can exchange the file has no passphrase, and needs none where it is not asked for."""
    backup(site, tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "new", "--passphrase-file", passphrase, code=2)
    assert "it is not sealed, so anybody can have written it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, f"this one knows {SCHEMA_VERSION}; take that version, or an update"),
        ({"format": 2}, "it has format 2, this version reads 1"),
        ({"site": "tower"}, "the backup of 'tower'; name another folder"),
        ({"schema_version": 3}, f"(schema 3), this one knows {SCHEMA_VERSION}; take that version"),
    ],
)
def test_another_version_or_site_is_refused(
    change: dict[str, Any], words: str, site: Folder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = archive.write
    monkeypatch.setattr(archive, "write", lambda file, made, *more: write(file, made.model_copy(update=change), *more))
    backup(site, tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "new", code=2)
    assert words in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_a_store_that_is_there_or_runs_is_not_touched(
    site: Folder, tmp_path: Path, passphrase: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup(site, tmp_path / "b", "--passphrase-file", passphrase)
    before = everything(site.path)
    restore(tmp_path / "b", site.path, code=2)
    assert "a store, or its log, is here already; give --replace" in capsys.readouterr().err
    lock = store_lock.hold(site.path / "aggregator.db", "aggregator")
    with monkeypatch.context() as patch:
        patch.setattr(getpass, "getpass", lambda _: pytest.fail("it asks for a passphrase that it has no use for"))
        restore(tmp_path / "b", site.path, "--replace", code=1)
    said = capsys.readouterr().err
    assert f"another aggregator runs on this store: process {os.getpid()}" in said and "stop it first" in said
    monkeypatch.setattr(restore_command, "_refuse_beside", lambda _: None)  # one that starts after that look
    restore(tmp_path / "b", site.path, "--replace", "--passphrase-file", passphrase, code=1)
    assert f"another aggregator runs on this store: process {os.getpid()}" in capsys.readouterr().err
    store_lock.release(lock)
    assert everything(site.path) == before


def test_what_is_given_wrongly_is_named(site: Folder, tmp_path: Path, passphrase: Path, capsys: Capture) -> None:
    def said(act: Callable[..., None], *words: Any) -> str:
        capsys.readouterr()
        act(*words, code=2)
        return capsys.readouterr().err

    assert "it is there and no backup" in said(backup, site, site.path / "aggregator.db")
    assert "it is there and no backup" in said(backup, site, site.path / "ca.pem")
    assert "it is a folder" in said(backup, site, tmp_path)
    assert "there is no folder" in said(backup, site, tmp_path / "nowhere" / "b")
    assert "it is no backup of an aggregator" in said(restore, site.path / "ca.pem", tmp_path / "new")
    passphrase.write_text("short")
    assert "expected at least 12 characters, got 5" in said(
        backup, site, tmp_path / "b", "--passphrase-file", passphrase
    )
    passphrase.chmod(0o644)
    assert "everybody can read the passphrase" in said(backup, site, tmp_path / "b", "--passphrase-file", passphrase)
    assert not (tmp_path / "b").exists()


def test_a_backup_is_written_whole_or_not_at_all(
    site: Folder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "to" / "b"
    file.parent.mkdir()
    backup(site, file)
    before, note = file.read_bytes(), noted(site)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        backup(site, file, code=1)
    assert "no space left on device" in capsys.readouterr().err
    assert noted(site) == note
    damaged = (site.path / "aggregator.db").read_bytes()
    middle = len(damaged) // 2 // PAGE_BYTES * PAGE_BYTES
    (site.path / "aggregator.db").write_bytes(damaged[:middle] + bytes(PAGE_BYTES) + damaged[middle + PAGE_BYTES :])
    backup(site, file, code=1)
    assert "an older backup is the better one" in capsys.readouterr().err
    assert [path.name for path in file.parent.iterdir()] == ["b"] and file.read_bytes() == before
    assert not (site.path / ".aggregator.db.copy").exists()


def test_one_backup_at_a_time_and_one_that_was_killed_is_in_nobodys_way(
    site: Folder, tmp_path: Path, capsys: Capture
) -> None:
    (site.path / ".aggregator.db.copy").write_bytes(b"half of it")
    (tmp_path / ".b.part").write_bytes(b"half of it")
    with scratch_file(site.path):
        backup(site, tmp_path / "b", code=1)
    assert "another backup or restore is at work here" in capsys.readouterr().err
    (site.path / ".aggregator.db.copy").write_bytes(b"half of it")
    backup(site, tmp_path / "b")
    assert not (site.path / ".aggregator.db.copy").exists() and not (tmp_path / ".b.part").exists()


# --- what is set anew -------------------------------------------------------------------------------------------------


@pytest.fixture
def put_back(site: Folder, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Yield what puts back a backup that was made when some effects more were stored, and opens the store."""
    with_store: list[Store] = []

    def act(*effects: Effect, orders: int = 0) -> Store:
        with opened(site, *effects) as held:
            for _ in range(orders):
                held.order("revoke", {"gateway": "west"})
        backup(site, tmp_path / "b")
        restore(tmp_path / "b", tmp_path / "new")
        with_store.append(Store(tmp_path / "new" / "aggregator.db"))
        return with_store[0]

    yield act
    for one in with_store:
        one.close()


def test_a_training_begins_anew_under_a_higher_number(site: Folder, put_back: Callable[..., Store]) -> None:
    back = put_back().read_training()
    assert back is not None
    assert back.meta["run"] != OPEN.rounds.run and back.meta["training"] == OPEN.rounds.training
    now_ns = T0_NS + 5 * NS
    state = start_cloud(site.settings, Stored(back), now_ns, "later")
    assert state.rounds.run.endswith(".later") and state.rounds.server.round_index == 0
    assert state.rounds.training == number_training(now_ns, OPEN.rounds.training) > OPEN.rounds.training


def test_a_release_that_was_under_way_waits_for_the_operator(put_back: Callable[..., Store]) -> None:
    back = put_back(SaveRollout(dump(Releases(None, Rollout("watching", 1, canaries=("east",)), MODEL)), T0_NS))
    found = restored_releases(back.models.read_rollout(), back.models.read_version, back.models.read_latest())
    assert (found.rollout.stage, found.candidate) == ("paused", MODEL) and "put back" in found.rollout.why


def test_tokens_and_orders_that_waited_count_no_more(put_back: Callable[..., Store], capsys: Capture) -> None:
    far_ns = 2 * (T0_NS + LIFE_NS)
    back = put_back(
        RecordRegistry((), (Token("d1", "north", far_ns, replaces=False),)),
        RecordRegistry((), (Token("d2", "east", far_ns, replaces=False, key="key of east"),)),
        orders=1,
    )
    said = capsys.readouterr().out
    ends = {one.gateway: one.expires_ns for one in back.read_registry().passes.values()}
    assert ends["north"] < far_ns == ends["east"]
    assert "tokens that were not used are void, make new ones where they are wanted: north" in said
    assert back.read_orders() == [] and "may be done; order it again" in back.read_rows("orders")[0]["problem"]
    assert 'order 1 waited and is refused, it may be done: revoke {"gateway": "west"}' in said


def test_whom_the_store_that_was_there_has_shut_out_stays_out(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    """The one that is set aside is whole, with what stood in its log."""
    backup(site, tmp_path / "b")
    over = certificate("a2", "west", reason="revoked", ended_ns=T0_NS + 9)
    later = certificate("b7", "south", reason="revoked", ended_ns=T0_NS + 9)
    with opened(site, over, later, alarm(777), RecordModel(FIRST[0].model_copy(update={"version": 10**7}), FIRST[1])):
        pass
    capsys.readouterr()
    restore(tmp_path / "b", site.path, "--replace")
    said = capsys.readouterr().out
    assert "2 certificates more are over, by the store that was there: south, west" in said
    assert f"by the store that was here: {10**7 - 1} versions, " in said
    with opened(site) as back:
        registry = back.read_registry()
        assert registry.admitted == {"east"} and registry.barred == {"west", "south"}
    (aside,) = (path for path in site.path.glob("aggregator.db.before-*") if not path.name.endswith(("-wal", "-shm")))
    with closing(Store(aside, create=False)) as before:
        assert len(before.read_rows("alarms")) == 501


def test_a_store_that_cannot_be_read_is_set_aside_all_the_same(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    backup(site, tmp_path / "b")
    (site.path / "aggregator.db").write_bytes(b"rubbish" * 1_000)
    (site.path / "aggregator.toml").write_text((site.path / "aggregator.toml").read_text() + "\n# of today\n")
    revoked = (site.path / "revoked.crl").read_bytes()
    restore(tmp_path / "b", site.path, "--replace")
    said = capsys.readouterr().out
    assert "the store that was here cannot be read" in said and "kept as it is, and not as in the backup" in said
    assert (site.path / "revoked.crl").read_bytes() == revoked and "# of today" in (
        site.path / "aggregator.toml"
    ).read_text()
    with opened(site) as back:
        assert len(back.read_rows("alarms")) == 500


def test_a_log_that_was_left_is_never_taken_for_that_of_the_new_store(
    site: Folder, tmp_path: Path, capsys: Capture
) -> None:
    """SQLite would write what is in it over the store."""
    backup(site, tmp_path / "b")
    database, log = site.path / "aggregator.db", site.path / "aggregator.db-wal"
    with opened(site, *map(alarm, range(500, 600))):
        left = log.read_bytes()
    database.unlink()
    log.write_bytes(left)
    restore(tmp_path / "b", site.path, code=2)
    assert "a store, or its log, is here already" in capsys.readouterr().err
    restore(tmp_path / "b", site.path, "--replace")
    (aside,) = site.path.glob("aggregator.db.before-*-wal")
    assert aside.read_bytes() == left
    with opened(site) as back:
        assert len(back.read_rows("alarms")) == 500


def test_a_newer_list_of_revocations_is_kept_and_counts(site: Folder, tmp_path: Path) -> None:
    backup(site, tmp_path / "b")
    site.authority.write_revoked([(0xA2, datetime(2026, 1, 1, tzinfo=UTC))])
    (site.path / "aggregator.db").unlink()
    restore(tmp_path / "b", site.path)
    with aggregator_of(site) as aggregator:
        until(lambda: (registry := aggregator.service.state.access.registry) and registry.barred == {"west"})


def test_a_site_without_certificates_has_a_way_back_too(tmp_path: Path) -> None:
    old, new = tmp_path / "site", tmp_path / "new"
    assert cloud_aggregator(["init", str(old), "--loopback"]) == 0
    with closing(Store(old / "aggregator.db")) as made:
        made.commit([alarm(1)])
    backup(Folder(old, 0), tmp_path / "b")
    restore(tmp_path / "b", new)
    with closing(Store(new / "aggregator.db", create=False)) as back:
        assert len(back.read_rows("alarms")) == 1
    assert (new / "gateway.toml").exists() and not (new / "release.key").exists()


def test_a_passphrase_is_asked_for_twice_and_never_shown(
    site: Folder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["one long passphrase", "another passphrase", *["one long passphrase"] * 3])
    monkeypatch.setattr(getpass, "getpass", lambda _: next(typed))
    backup(site, tmp_path / "b", "--encrypt", code=2)
    assert "the two are not the same" in capsys.readouterr().err
    backup(site, tmp_path / "b", "--encrypt")
    restore(tmp_path / "b", tmp_path / "new")  # a file that is sealed asks by itself
    said = capsys.readouterr()
    assert "long passphrase" not in said.out + said.err and next(typed, "") == ""
    monkeypatch.setattr(getpass, "getpass", Mock(side_effect=EOFError))
    backup(site, tmp_path / "c", "--encrypt", code=2)
    assert "nobody is here to type it; give --passphrase-file" in capsys.readouterr().err


def test_long_work_says_how_far_it_is(
    site: Folder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_command, "WORD_S", 0.0)
    backup(site, tmp_path / "b")
    said = capsys.readouterr().err
    assert all(re.search(f"cloud-aggregator: {what}: 100% of [01] MiB", said) for what in ("digesting", "writing"))
    assert "cloud-aggregator: copying: 100% of 50" in said and " rows\n" in said


@pytest.mark.soak
@pytest.mark.parametrize(
    "change", [{"folder": ""}, {"made_ns": "now"}, {"facts": {}}, {"parts": 7}, {"schema_version": -1}]
)
def test_a_manifest_that_somebody_made_up_is_refused(
    change: dict[str, Any], site: Folder, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_bytes = archive.Manifest.to_bytes
    monkeypatch.setattr(
        archive.Manifest, "to_bytes", lambda self: json.dumps({**json.loads(to_bytes(self)), **change}).encode()
    )
    backup(site, tmp_path / "b")
    restore(tmp_path / "b", tmp_path / "new", code=2)
    assert "its manifest cannot be read (" in capsys.readouterr().err


@pytest.mark.soak
def test_no_bytes_make_it_fall_over(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    """Each is refused in words, or restores what was there: the padding of an archive is nobody's."""
    file, new = tmp_path / "b", tmp_path / "new"
    backup(site, file)
    good, rng = file.read_bytes(), np.random.default_rng(5)
    for _ in range(60):
        bad = bytearray(good)
        for at in rng.integers(0, 6_000, size=3):
            bad[at] = rng.integers(256)
        file.write_bytes(bad)
        capsys.readouterr()
        assert cloud_aggregator(["restore", str(file), "-c", str(new / "aggregator.toml"), "--check"]) in (0, 2)
        assert not new.exists() and "Traceback" not in capsys.readouterr().err


# --- an archive bent by hand ------------------------------------------------------------------------------------------


def test_an_archive_whose_end_was_cut_off_behind_its_last_part_is_refused(
    site: Folder, tmp_path: Path, passphrase: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "PIECE_BYTES", 1 << 14)
    file, new = tmp_path / "b", tmp_path / "new"
    backup(site, file)
    out = io.BytesIO()
    sealer = sealing.Sealer(out, "correct horse battery", bytes(sealing.SALT_BYTES))
    sealer.write(file.read_bytes() + bytes(5 << 14))
    sealer.close()
    file.write_bytes(out.getvalue())
    restore(file, new, "--passphrase-file", passphrase, "--check")
    file.write_bytes(out.getvalue()[: -(2 << 14)])
    restore(file, new, "--passphrase-file", passphrase, "--check", code=2)
