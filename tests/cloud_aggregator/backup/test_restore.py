"""Goal: a restore that is cut off at any step, or that would bring back keys by which the site does not go, leaves what
an operator can go on from.

Method: the real commands; from one change of a file on nothing changes any more, as after a power cut.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.backup import sealing
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.authority import Authority
from fedgate.cloud_aggregator.pki.site_keys import KeyChange
from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.config.identity import pki, signing
from fedgate.config.settings.settings import Site
from tests.cloud_aggregator.backup.test_backup import alarm, backup, certificate, everything, filled, opened, restore
from tests.support.site_folders import Folder
from tests.support.sites import T0_NS
from tests.support.soak import some

Capture = pytest.CaptureFixture[str]
WITH_IT = ("-wal", "-shm")


@pytest.fixture
def site(tmp_path: Path) -> Folder:
    return filled(tmp_path / "site")


class PowerCut(BaseException):
    """No code of the product catches it, and nothing is tidied up after it."""


@contextmanager
def cut_at(call: int) -> Iterator[None]:
    """Let no file or folder change any more from its so manieth change on."""
    calls = itertools.count()

    def cut(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*given: Any, **named: Any) -> Any:
            if next(calls) >= call:
                raise PowerCut
            return real(*given, **named)

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "chown"):
            patch.setattr(os, name, cut(getattr(os, name)))
        with suppress(PowerCut):
            yield


def service_finds(path: Path) -> set[str] | None:
    """Return the alarms that a service that starts on a store finds there; None where it refuses to start."""
    try:
        with closing(Store(path)) as found:
            return {row["id"] for row in found.read_rows("alarms")}
    except StoreError as error:
        assert "a restore was cut off here; give the same" in str(error) or "not a database" in str(error)
        return None


@pytest.mark.soak
@pytest.mark.parametrize("there", some(["whole", "damaged", "none"], 2))
def test_a_cut_anywhere_leaves_a_store_or_what_the_same_command_puts_right(
    there: str, site: Folder, tmp_path: Path
) -> None:
    backup(site, tmp_path / "b")
    over, before, place = certificate("a2", "west", reason="revoked", ended_ns=T0_NS + 9), tmp_path / "old", site.path
    with opened(site, over, alarm(777)):
        shutil.copytree(place, before)  # with a log that nobody has folded in
    if there == "damaged":
        (before / "aggregator.db").write_bytes(b"rubbish" * 1_000)
    if there == "none":
        for one in before.glob("aggregator.db*"):
            one.unlink()
    old, new, cuts, is_done = {*map(str, (*range(500), 777))}, {*map(str, range(500))}, 0, False
    more = () if there == "none" else ("--replace",)
    while not is_done:
        shutil.rmtree(place)
        shutil.copytree(before, place)
        with cut_at(cuts):
            restore(tmp_path / "b", place, *more)
            is_done = True
        is_there = there != "none" or (place / "aggregator.db").exists()
        found = service_finds(place / "aggregator.db") if is_there else None
        assert found in (old, new, None)
        has_all = there == "none" and found == new
        restore(tmp_path / "b", place, *more, code=2 if has_all else 0)
        assert service_finds(place / "aggregator.db") == new
        with opened(site) as back:
            assert there != "whole" or back.read_registry().barred == {"west"}
        asides = [one for one in place.glob("aggregator.db.before-*") if not one.name.endswith(WITH_IT)]
        assert there != "whole" or [one for one in asides if service_finds(one) == old]
        left = [one for one in place.iterdir() if one.name.startswith((".restor", ".aggregator.db.r"))]
        assert not left or (has_all and not [*left[0].iterdir()])
        cuts += 1
    assert cuts > 12


def test_a_manifest_that_was_bent_is_not_believed(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "b"
    backup(site, file)
    good = file.read_bytes()
    assert good.count(b'"alarms": 500') == 1
    file.write_bytes(good.replace(b'"alarms": 500', b'"alarms": 501'))
    restore(file, tmp_path / "new", code=2)
    assert "manifest.json is damaged: its SHA-256 is another" in capsys.readouterr().err


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sealed(site: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str | Path, ...]:
    """Return what restores a backup with the keys; since then the site goes by others."""
    monkeypatch.setattr(sealing, "SCRYPT_N", 2)
    words = tmp_path / "passphrase"
    words.write_text("correct horse battery\n")
    words.chmod(0o600)
    backup(site, tmp_path / "b", "--passphrase-file", words)
    rotate(site, "release", "authority")
    (site.path / "aggregator.db").unlink()
    return ("--passphrase-file", words)


def rotate(site: Folder, *what: str) -> int:
    """Change keys of a site; return the number of the statement."""
    root = signing.load_private(site.path.with_name(f"{site.path.name}-root.key"))
    both = {name: name in what for name in ("release", "authority")}
    return KeyChange(site.path, site.path / "release.key", root, datetime.now(UTC)).rotate(**both).number


@pytest.mark.parametrize("lost", ["release.key", "ca.key", "keys.json"])
def test_keys_by_which_the_site_does_not_go_are_not_brought_back(
    lost: str, sealed: tuple[str | Path, ...], site: Folder, tmp_path: Path, capsys: Capture
) -> None:
    (site.path / lost).unlink()
    before = everything(site.path)
    for more in ((), ("--check",)):
        capsys.readouterr()
        restore(tmp_path / "b", site.path, *sealed, *more, code=2)
        said = capsys.readouterr().err
        where = "in the backup, number 1)" if lost == "keys.json" else "here, number 2)"
        assert f"keys.json ({where}" in said and "a newer backup" in said and "move" in said
        assert ("ca.key" if lost == "ca.key" else "release.key") in said
        assert everything(site.path) == before


def test_newer_keys_that_are_here_are_kept_with_their_statement(
    sealed: tuple[str | Path, ...], site: Folder, tmp_path: Path
) -> None:
    restore(tmp_path / "b", site.path, *sealed)
    keys = site_keys.read_statement(site.path)
    assert keys is not None and keys.number == 2
    assert site_keys.release_key(Site(site="bridge", release_key=site.path / "release.key"), site.path)


@pytest.mark.soak
def test_certificates_of_the_backup_give_way_to_the_newer_keys_that_are_here(
    sealed: tuple[str | Path, ...], site: Folder, tmp_path: Path, capsys: Capture
) -> None:
    root = signing.load_private(site.path.with_name(f"{site.path.name}-root.key"))
    keys = KeyChange(site.path, site.path / "release.key", root, datetime.now(UTC)).drop_before()
    for name in ("ca.pem", "server.pem", "cloud.pem", "release.pub"):
        (site.path / name).unlink()
    capsys.readouterr()
    restore(tmp_path / "b", site.path, *sealed)
    assert "server.pem and cloud.pem are of the authority of keys.json (number 3)" in capsys.readouterr().out
    authority = Authority(site.path)
    assert [pki.certificate_pem(one).decode() for one in authority.believed] == list(keys.authorities)
    assert authority.has_own() and "localhost" in authority.list_hosts()
    assert (site.path / "release.pub").read_text() == keys.release_key


@pytest.mark.parametrize("lost", ["server.pem", "cloud.pem", "root.pub"])
def test_what_the_new_certificates_take_is_missing_and_no_reason_to_fail_half_way(
    lost: str, site: Folder, tmp_path: Path
) -> None:
    rotate(site, "authority")
    (site.path / lost).unlink()
    backup(site, tmp_path / "b")
    for name in ("aggregator.db", "ca.pem"):
        (site.path / name).unlink()
    restore(tmp_path / "b", site.path)
    assert (site.path / "aggregator.db").exists()


@pytest.mark.soak
def test_who_has_the_newer_keys_no_more_goes_back_and_above_their_number(
    sealed: tuple[str | Path, ...], site: Folder, tmp_path: Path
) -> None:
    (site.path / "release.key").unlink()
    for name in ("keys.json", "ca.key"):  # as the message says
        (site.path / name).rename(tmp_path / name)
    restore(tmp_path / "b", site.path, *sealed)
    assert [rotate(site, "release"), rotate(site, "release")] == [2, 3]


def test_keys_that_are_nowhere_are_missing_and_no_reason_to_refuse(
    site: Folder, tmp_path: Path, capsys: Capture
) -> None:
    backup(site, tmp_path / "b")
    rotate(site, "release")
    for name in ("aggregator.db", "release.key"):
        (site.path / name).unlink()
    capsys.readouterr()
    restore(tmp_path / "b", site.path)
    assert f"MISSING: {site.path / 'release.key'}" in capsys.readouterr().out
