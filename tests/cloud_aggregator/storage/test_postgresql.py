"""Goal: on PostgreSQL one process has a store, nothing is written once that is lost, and errors say what to do.

Method: a real server; sessions are ended by `pg_terminate_backend`, as an operator or a restart of the server does.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.events import RecordCount, RecordDiscovery, RecordGateway, RecordService
from fedgate.cloud_aggregator.runtime.site_facts import read_facts
from fedgate.cloud_aggregator.storage import postgresql
from fedgate.cloud_aggregator.storage.store import Store, StoreError, choose_database
from fedgate.config.settings.database import SCHEME, DatabaseUrl
from fedgate.config.settings.settings import AggregatorSettings, load
from tests.support.metric_samples import make_alarm, make_round, make_status, record_alarm
from tests.support.postgresql import Server
from tests.support.waiting import until


@pytest.fixture
def url(server: Server) -> DatabaseUrl:
    return server.new_schema()


@pytest.mark.soak
def test_a_second_service_is_refused_and_told_of_the_first_while_others_read(url: DatabaseUrl) -> None:
    assert choose_database(url).find_held_since_ns() is None and not choose_database(url).exists()
    with closing(Store(url, program="aggregator")) as first:
        words = rf"another aggregator runs on this store: fedgate aggregator, process {os.getpid()} on .*, since 20"
        with pytest.raises(StoreError, match=words) as refused:
            Store(url, program="aggregator")
        assert "pg_stat_activity" in str(refused.value)
        with closing(Store(url, create=False)) as reader:
            number = reader.order("token", {"gateway": "west"})
            assert [one.number for one in first.read_orders()] == [number]
            held_ns = reader.database.find_held_since_ns()
        assert held_ns is not None and 0 <= time.time_ns() - held_ns < 600e9
    until(lambda: choose_database(url).find_held_since_ns() is None)  # the server ends a session in its own time
    Store(url, program="aggregator").close()
    until(lambda: choose_database(url).find_held_since_ns() is None)
    assert choose_database(url).exists()


def test_a_session_of_another_user_is_named_too(url: DatabaseUrl, server: Server) -> None:
    server.execute("CREATE ROLE other LOGIN")
    schema = str(url).rpartition("%3D")[2]
    server.execute(f"GRANT ALL ON SCHEMA {schema} TO other")
    seen_by_another = choose_database(server.url(schema, "other"))
    with closing(Store(url, program="aggregator")):
        assert seen_by_another.find_held_since_ns() is not None
        with pytest.raises(StoreError, match="a session of another user \\(as pid"):
            seen_by_another.hold("aggregator")


def test_a_session_that_the_next_connection_gets_too_is_no_place_for_a_lock(
    url: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler in transaction mode, where a connection that waits has no session of its own."""
    with monkeypatch.context() as pooled, pytest.raises(StoreError, match=r"pooler in transaction mode.*session mode"):
        pooled.setattr(postgresql, "BACKEND", text("SELECT 1"))
        Store(url, program="aggregator")
    assert choose_database(url).find_held_since_ns() is None
    Store(url, program="aggregator").close()


def test_who_has_lost_the_lock_writes_nothing_beside_the_next_one(url: DatabaseUrl, server: Server) -> None:
    first = Store(url, program="aggregator")
    server.end_sessions("fedgate aggregator")
    until(lambda: choose_database(url).find_held_since_ns() is None)
    with closing(Store(url, program="aggregator")) as second:
        second.commit([RecordCount("name", 2)])
        with pytest.raises(StoreError, match="the connection is lost, and with it the lock"):
            first.commit([RecordCount("name", 1)])
        for act in (lambda: first.commit([RecordCount("name", 1)]), first.read_orders):  # it never connects again
            with pytest.raises(StoreError):
                act()
        assert second.read_rows("counts") == [{"name": "name", "value": 2}]
    first.close()


def test_a_commit_is_on_the_disk_whatever_is_set_for_others(url: DatabaseUrl, server: Server) -> None:
    off = DatabaseUrl(f"{url}%20-csynchronous_commit%3Doff")
    with choose_database(off).connect(create=True) as db:
        assert db.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"


@pytest.mark.parametrize("topic", ["a\0b", "\ud800", "x" * 8 + "".join(map(chr, range(0x4E00, 0x4E00 + 9_000)))])
def test_a_value_that_the_server_does_not_take_is_no_error_of_the_store(url: DatabaseUrl, topic: str) -> None:
    """Of such an error the sender is contained, and the service goes on."""
    with closing(Store(url)) as store:
        with pytest.raises((DBAPIError, UnicodeEncodeError)):
            store.commit([RecordDiscovery(topic)])
        store.commit([RecordDiscovery("good")])
        assert [row["topic"] for row in store.read_rows("discovered")] == ["good"]


def test_what_is_wrong_with_a_server_is_said_with_what_to_do(server: Server, url: DatabaseUrl) -> None:
    server.execute("CREATE ROLE guest LOGIN")
    wrong = {
        f"{SCHEME}://nobody@127.0.0.1:1/fedgate": "is the password in ~/.pgpass or PGPASSWORD",
        str(url).replace("/fedgate?", "/nowhere?"): 'database "nowhere" does not exist; does the server run',
        f"{url}_of_nobody": "there is no schema of its search_path; CREATE SCHEMA first",
        server.url("public", "guest"): "permission denied for schema public.*make this user the owner of the database",
    }
    for given, words in wrong.items():
        with pytest.raises(StoreError, match=words) as refused:
            Store(DatabaseUrl(given))
        assert str(refused.value).startswith(given) and "\n" not in str(refused.value)


def test_a_database_of_others_or_of_another_version_is_refused(server: Server, url: DatabaseUrl) -> None:
    with pytest.raises(StoreError, match="there is no store yet"):
        Store(url, create=False)
    schema = str(url).rpartition("%3D")[2]
    server.execute(f"CREATE TABLE {schema}.alarms (id int)")
    with pytest.raises(StoreError, match="it is the database of another program; name another"):
        Store(url)
    server.execute(f"DROP TABLE {schema}.alarms")
    Store(url).close()
    server.execute(f"UPDATE {schema}.schema_version SET version = 99")  # noqa: S608 - names of our own
    with pytest.raises(StoreError, match="it has schema 99, this aggregator knows"):
        Store(url)


def test_metrics_are_read_from_it_and_who_reads_them_can_write_nothing(url: DatabaseUrl, tmp_path: Path) -> None:
    assert main(["init", str(tmp_path), "--loopback"]) == 0
    settings = load(tmp_path / "aggregator.toml", AggregatorSettings)
    place = settings.aggregator.model_copy(update={"store": url})
    now_ns = time.time_ns()
    with closing(Store(url, program="aggregator")) as store:
        store.commit([record_alarm("north", make_alarm("a", 60)), make_round(0, "north"), make_round(1)])
        store.commit([RecordGateway("north", make_status(), now_ns), RecordService(now_ns, now_ns, True, now_ns)])
        facts = read_facts(settings.model_copy(update={"aggregator": place}), now_ns + 1)
    assert facts.service.is_running and facts.store.free_bytes is None and facts.store.size_bytes > 0
    (north,) = facts.gateways
    assert (north.state, north.alarms_active) == ("online", {"anomaly": 1})
    assert facts.alarms.last_10_minutes == {"anomaly": 1} and facts.alarms.states == {"unacknowledged": 1}
    assert (facts.training.totals["rounds.closed"], facts.training.totals["rounds.given-up"]) == (1, 1)
    with closing(Store(url, create=False, is_read_only=True)) as reader:
        with pytest.raises(StoreError, match="read-only transaction"):
            reader.commit([RecordCount("name", 1)])
        with pytest.raises(StoreError, match="read-only transaction"):
            reader.order("token", {})
