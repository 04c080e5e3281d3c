"""Goal: one process to a store, at either end; the one that comes second ends at once and says which one is there.

Method: the real services and small programs, each a process of its own; what the lock could be fooled by is tried:
a lock file that was left behind, a child that outlives the holder, links of both kinds, another opening in one process.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.storage.sqlite import SqliteDatabase
from fedgate.cloud_aggregator.storage.store import StoreError as CloudStoreError
from fedgate.config.runtime import store_lock
from fedgate.config.runtime.store_lock import InUseError
from fedgate.firmware_sim import children
from fedgate.gateway_agent.storage.store import Store
from tests.end_to_end.test_processes import free_port, running, until, write
from tests.support.soak import some
from tests.support.waiting import PATIENCE_S

HOLD = "import sys, time; from pathlib import Path; from fedgate.config.runtime import store_lock; "
HOLD += "lock = store_lock.hold(Path(sys.argv[1]), 'aggregator'); "
LOOK = "from fedgate.config.runtime import store_lock; print(store_lock.find_holder(pathlib.Path(sys.argv[1])))"
HIDDEN = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
FOREVER = "print('has it', flush=True); time.sleep(3600)"
FORKED = textwrap.dedent(
    """
    import os
    if os.fork() == 0:
        time.sleep(3600)
    """
)


def take(store: Path) -> None:
    """Take a store as the aggregator does, and give it back."""
    database = SqliteDatabase(store)
    database.hold("aggregator")
    database.release()


@contextmanager
def holder(store: Path, between: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run a program that has the lock of a store."""
    program = HOLD.rstrip("; ") + f"\n{between}\n{FOREVER}"
    with children.start([sys.executable, "-c", program, str(store)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"has it\n"
            yield process
        finally:
            process.kill()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), some([("gateway_agent", "gateway"), ("cloud_aggregator", "aggregator")]))
def test_a_second_service_on_a_store_ends_at_once_and_names_the_first(module: str, name: str, tmp_path: Path) -> None:
    write(tmp_path, free_port())
    command = [sys.executable, "-P", "-m", f"fedgate.{module}"]
    config = ["-c", str(tmp_path / f"{name}.toml")]
    with running(module, tmp_path) as first:
        second = children.run([*command, "run", *config], PATIENCE_S, text=True)
        assert second.returncode == 1 and "Traceback" not in second.stderr
        last = second.stderr.splitlines()[-1]
        kind = "agent" if module == "gateway_agent" else "aggregator"
        assert f"{name}.db: another {kind} runs on this store: process {first.pid}, since 20" in last, second.stderr
        assert f"ps -fp {first.pid}" in last and "stop it first" in last
        looked = children.run([*command, "status", *config], PATIENCE_S, text=True)
        assert looked.returncode == 0, looked.stderr
        assert first.poll() is None


def test_a_folder_is_not_taken_for_a_file_of_two_names(tmp_path: Path) -> None:
    with pytest.raises(store_lock.StoreError, match="it is a folder"):
        take(tmp_path)
    assert not store_lock.lock_file(tmp_path).exists()


def test_a_lock_file_that_was_left_behind_is_no_lock(tmp_path: Path) -> None:
    store = tmp_path / "aggregator.db"
    store_lock.lock_file(store).write_text("1\n")  # a process that is there, as a file with a number would say
    lock = store_lock.hold(store, "aggregator")
    assert store_lock.find_holder(store) == os.getpid()
    store_lock.release(lock)
    assert store_lock.find_holder(store) is None


def test_a_child_that_outlives_the_holder_does_not_keep_the_store(tmp_path: Path) -> None:
    store = tmp_path / "aggregator.db"
    with holder(store, FORKED) as process:
        (child,) = [pid for pid in children.family(process.pid) if pid != process.pid]
        try:
            with pytest.raises(CloudStoreError, match=f"process {process.pid}, since"):
                take(store)
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert children.is_alive(child)
            take(store)
        finally:
            os.kill(child, signal.SIGKILL)
            until(lambda: not children.is_alive(child))


@pytest.mark.parametrize("second", ["folder", "file"])
def test_a_store_has_one_lock_under_all_names_that_lead_to_it(second: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    store = tmp_path / "one" / "aggregator.db"
    store.touch()
    other = tmp_path / "two" / "aggregator.db"
    if second == "folder":
        (tmp_path / "two").symlink_to(tmp_path / "one")
    else:
        (tmp_path / "two").mkdir()
        other.symlink_to(store)
    with holder(store) as process:
        with pytest.raises(CloudStoreError, match=f"another aggregator runs on this store: process {process.pid}"):
            take(other)
        assert store_lock.find_holder(other) == process.pid
    take(other)


def test_a_store_of_two_hard_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    store = tmp_path / "one" / "gateway.db"
    Store(store).close()
    (tmp_path / "gateway.db").hardlink_to(store)
    with pytest.raises(OSError, match="has 2 names") as refused:
        Store(tmp_path / "gateway.db")
    assert "find -samefile gateway.db" in str(refused.value)
    store.unlink()
    Store(tmp_path / "gateway.db").close()


def test_a_process_stands_in_its_own_way_and_looking_gives_nothing_away(tmp_path: Path) -> None:
    store = tmp_path / "aggregator.db"
    lock = store_lock.hold(store, "aggregator")
    with pytest.raises(InUseError, match=f"process {os.getpid()}"):
        store_lock.hold(store, "aggregator")
    assert store_lock.find_holder(store) == os.getpid()
    other = children.run([sys.executable, "-c", HOLD + "pass", str(store)], PATIENCE_S, text=True)
    assert other.returncode != 0 and f"process {os.getpid()}, since" in other.stderr
    store_lock.release(lock)


def test_a_process_that_cannot_be_seen_is_said_to_be_one() -> None:
    assert "not seen from here" in store_lock.describe_process(0)
    gone = children.start([sys.executable, "-c", "pass"])
    gone.wait()
    assert store_lock.describe_process(gone.pid).startswith(f"process {gone.pid} (ps -fp")


def test_what_waits_for_a_store_gets_it_when_its_holder_is_gone(tmp_path: Path) -> None:
    store = tmp_path / "aggregator.db"
    with holder(store) as process:
        assert store_lock.find_holder(store) == process.pid
        process.kill()
        until(lambda: store_lock.find_holder(store) is None)
        take(store)  # who looked is in nobody's way


def may_hide() -> bool:
    """Tell whether this user may have process numbers of its own."""
    return shutil.which("unshare") is not None and children.run([*HIDDEN, "true"], PATIENCE_S).returncode == 0


@pytest.mark.soak
@pytest.mark.skipif(not may_hide(), reason="this user may not have process numbers of its own (unshare --user --pid)")
def test_a_holder_in_another_container_is_one_without_a_number(tmp_path: Path) -> None:
    write(tmp_path, free_port())
    store, program = tmp_path / "gateway.db", f"import pathlib, sys; {LOOK}"
    Store(store).close()

    def looked() -> str:
        return str(children.run([*HIDDEN, sys.executable, "-c", program, str(store)], PATIENCE_S, text=True).stdout)

    status = [
        *HIDDEN,
        sys.executable,
        "-P",
        "-m",
        "fedgate.gateway_agent",
        "status",
        "--json",
        "-c",
        str(tmp_path / "gateway.toml"),
    ]
    assert looked() == "None\n"
    with holder(store):
        assert looked() == "0\n"
        assert json.loads(children.run(status, PATIENCE_S, text=True).stdout)["running"] is True
    assert json.loads(children.run(status, PATIENCE_S, text=True).stdout)["running"] is False


def test_who_may_not_look_is_told_so_and_not_that_nobody_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError):
        store_lock.find_holder(tmp_path / "aggregator.db")
