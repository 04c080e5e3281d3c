"""Goal: who was revoked stays so where the aggregator's store is put back to a day before.

Method: the real store and the real list of revoked certificates; the first is set back while the second stays.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.access.registry_sync import CopiedWithoutLogError
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.runtime.app import Aggregator
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.models.time_units import NS
from tests.support.site_folders import Folder, aggregator_of, founded, until
from tests.support.sites import T0_NS

LIFE_NS = 9_000 * 86_400 * NS
NAMES = {"a1": "east", "a2": "west"}


def backed_up(site: Folder, backup: Path) -> None:
    """Make a store in which two gateways are enrolled, and a copy of it."""
    with closing(Store(site.path / "aggregator.db")) as store:
        made = (Certificate(serial, name, f"key of {name}", T0_NS, T0_NS + LIFE_NS) for serial, name in NAMES.items())
        store.commit([RecordRegistry(tuple(made))])
    shutil.copy(site.path / "aggregator.db", backup)


@pytest.mark.soak
def test_an_older_store_revokes_again_whom_the_list_names_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    site = founded(tmp_path / "site")
    backed_up(site, tmp_path / "backup.db")
    with aggregator_of(site), closing(Store(site.path / "aggregator.db")) as store:
        store.order("revoke", {"gateway": "west"})
        until(lambda: site.authority.read_revoked().keys() == {0xA2})
    moment = site.authority.read_revoked()[0xA2]
    site.authority.write_revoked([(0xA2, moment), (0xB7, moment)])  # and one that was enrolled after the backup
    for path in site.path.glob("aggregator.db*"):
        path.unlink()
    shutil.copy(tmp_path / "backup.db", site.path / "aggregator.db")
    caplog.clear()
    with aggregator_of(site) as aggregator:
        registry = aggregator.service.state.access.registry
        assert registry is not None and registry.admitted == {"east"} and registry.barred == {"west"}
    assert "this store is older than revoked.crl, which names 2 certificates more: serial b7, west" in caplog.text
    assert site.authority.read_revoked().keys() == {0xA2, 0xB7}
    caplog.clear()
    with aggregator_of(site):
        assert "older than revoked.crl" not in caplog.text
    capsys.readouterr()
    assert cloud_aggregator(["gateways", "list", "-c", str(site.path / "aggregator.toml")]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "enrolled" in rows["east"] and "revoked" in rows["west"] and "revoked, serial b7" in rows["?"]


@pytest.mark.soak
@pytest.mark.parametrize("has_run_before", [False, True], ids=["nothing", "tables alone"])
def test_a_copy_of_the_file_without_its_log_is_refused_beside_a_list_and_taken_nowhere_for_a_new_site(
    has_run_before: bool, tmp_path: Path
) -> None:
    """What is committed stands in the log for a long time: `cp aggregator.db` leaves it behind."""
    site = founded(tmp_path / "site")
    file, copy = site.path / "aggregator.db", tmp_path / "copy.db"
    if has_run_before:
        Store(file).close()  # which takes the log in
    with closing(Store(file)) as store:
        made = (Certificate(serial, name, f"key of {name}", T0_NS, T0_NS + LIFE_NS) for serial, name in NAMES.items())
        store.commit([RecordRegistry(tuple(made))])
        shutil.copy(file, copy)
    site.authority.write_revoked([(0xA2, datetime(2026, 1, 1, tzinfo=UTC))])
    file.unlink()
    shutil.copy(copy, file)
    for _ in range(2):  # the second finds what the first has made of the file
        with pytest.raises(CopiedWithoutLogError, match=r"revoked\.crl names 1 certificates: .* .*aggregator\.db-wal"):
            Aggregator(site.settings)
    file.unlink()  # as it says: a site that has lost all begins anew, and who was revoked stays out
    with aggregator_of(site) as aggregator:
        until(
            lambda: (
                aggregator.service.state.access.registry is not None
                and aggregator.service.state.access.registry.certificates
            )
        )
    assert site.authority.read_revoked().keys() == {0xA2}


@pytest.mark.soak
def test_an_empty_file_is_told_of_where_no_list_says_that_it_is_a_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = founded(tmp_path / "site")
    (site.path / "aggregator.db").touch()
    with aggregator_of(site):
        assert "aggregator.db was there and empty: a copy without its log" in caplog.text
    caplog.clear()
    with aggregator_of(site):
        assert "was there and empty" not in caplog.text


def test_a_list_that_cannot_be_read_is_told_and_keeps_nobody_out_of_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = founded(tmp_path / "site")
    backed_up(site, tmp_path / "backup.db")
    (site.path / "revoked.crl").write_bytes(b"rubbish")
    with aggregator_of(site) as aggregator:
        registry = aggregator.service.state.access.registry
        assert registry is not None and registry.admitted == {"east", "west"}
    assert (
        "who was revoked is known by the store alone: " in caplog.text and "remove it, it is made anew" in caplog.text
    )
