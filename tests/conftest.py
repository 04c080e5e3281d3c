"""How tests run here: hypothesis draws the same examples every time, a slow or busy machine is not a finding, and no
test leaves a process behind.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fedgate.config.settings.database import DatabaseUrl
from fedgate.firmware_sim.evaluate.training import TrainingError
from fedgate.models.detectors.recurrent.recurrent import TorchMissingError
from tests.support import postgresql

for profile, examples in (("fedgate", 30), ("long", 300)):  # `make soak-tests` asks for the long one
    settings.register_profile(
        profile,
        max_examples=examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile("fedgate")

# Nearly all that tests make lasts, or ends with its last reference: to look for cycles at every 700th object, as Python
# does by default, takes a tenth of the time.
gc.set_threshold(50_000)

PR_SET_CHILD_SUBREAPER = 36
TRACKER = "multiprocessing.resource_tracker"  # Python's own, which lasts as long as the process that has it

# What a child of a test has started becomes ours when that child is gone, and can be found (prctl(2)).
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip what trains a recurrent network where torch is not installed, as after `make test` alone; CI installs it."""
    try:
        yield
    except (TorchMissingError, TrainingError) as error:
        if not isinstance(error, TorchMissingError) and not isinstance(error.__cause__, TorchMissingError):
            raise
        pytest.skip("torch is in the extra [lstm] only: make install-lstm")


lasting = set[int]()  # processes that serve the tests behind this one, too


@pytest.fixture(scope="session")
def server() -> Iterator[postgresql.Server]:
    """A PostgreSQL server of this process's tests."""
    with postgresql.running_server() as made:
        lasting.add(made.pid)
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | DatabaseUrl:
    """Where a store may be made that is not there yet, on either kind of database."""
    if request.param == "sqlite":
        return tmp_path / "aggregator.db"
    made: postgresql.Server = request.getfixturevalue("server")
    return made.new_schema()


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    """Fail a test that leaves processes behind, and end those."""
    before, found = _children(), list[str]()
    yield
    while left := {pid: name for pid in _children() - before - lasting if (name := _command(pid))}:
        found += left.values()
        for pid in left:  # what these have started becomes ours then, and is next
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
    assert not found, f"left running: {sorted(found)}"


def _children() -> set[int]:
    """Return the children of this process, which the kernel lists by the thread that has them."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # the thread has ended
            found.update(map(int, file.read_text().split()))
    return found


def _command(pid: int) -> str:
    """Return what a process was called with; nothing where it has ended, or is Python's own."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return "" if TRACKER in words else words
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin each process's part with its share of the slow tests, so that none is left with them at the end."""
    processes = int(getattr(config, "workerinput", {}).get("workercount", 1))
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    part = -(-len(quick) // processes)
    items[:] = [
        item
        for number in range(processes)
        for item in (*slow[number::processes], *quick[number * part : (number + 1) * part])
    ]
