"""What the services say to systemd, over a real socket: that they began once they work, that the work goes on for as
long as it does, and that they end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, cast

import pytest

from fedgate.cloud_aggregator.storage.sqlite import locate_staged
from fedgate.config.runtime.store_lock import lock_file
from fedgate.config.runtime.supervisor import Supervisor
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import mosquitto_program
from tests.end_to_end.test_processes import free_port, write
from tests.support import waiting
from tests.support.site_folders import Folder, founded, listens
from tests.support.soak import crossed, some
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

UNWATCHED = ("fedgate-metrics",)  # where a loop that hangs is seen by who asks
PATIENCE_US = 800_000  # of the service manager that the tests play
BROKERS_US = 4_000_000  # in half of which a broker on a busy machine answers
HANGS_S = 2.5 * PATIENCE_US / 1e6
# A service whose step does not come back for as long as a file is there. It leaves the processor to other threads,
# which might speak for it.
HANGING = """
import sys, time, importlib
from importlib import resources
from pathlib import Path
module, settings, flag = sys.argv[1:]
kind = importlib.import_module(f"fedgate.{module}.runtime.service").Service
before = kind.step_all
def planted(self, *given, **named):
    while Path(flag).exists():
        time.sleep(0.02)
    return before(self, *given, **named)
kind.step_all = planted
sys.exit(importlib.import_module(f"fedgate.{module}.__main__").main(["run", "-c", settings]))
"""
SERVICES = {"gateway_agent": "gateway", "cloud_aggregator": "aggregator"}
ADDRESSES = ("file", "abstract")


class Manager:
    """A service manager: a socket, and what was said to it."""

    def __init__(self, address: str) -> None:
        self.address, self.said = address, list[str]()
        self._wire = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._wire.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._wire.setblocking(False)

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": str(PATIENCE_US), **more}

    def heard(self, word: str) -> int:
        """Return how often a word was said until now."""
        while True:
            try:
                self.said += self._wire.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self.said.count(word)

    def waits_for(self, word: str, count: int = 1) -> None:
        """Wait until it was said so often."""
        waiting.until(lambda: self.heard(word) >= count, lambda: str(self.said))

    def close(self) -> None:
        self._wire.close()


@pytest.fixture(params=ADDRESSES)
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(f"@fedgate-{os.getpid()}-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "n"))
    yield made
    made.close()


@contextmanager
def process(command: list[Any], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as words:
        running = children.start(command, stdout=words, stderr=words, env=environment)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@pytest.mark.soak
@pytest.mark.parametrize(("manager", "module"), crossed(ADDRESSES, tuple(SERVICES)), indirect=["manager"])
def test_a_service_says_that_it_works_until_its_loop_hangs(module: str, manager: Manager, tmp_path: Path) -> None:
    name = SERVICES[module]
    write(tmp_path, free_port())
    flag, log = tmp_path / "hang", tmp_path / "log"
    flag.touch()
    command = [sys.executable, "-c", HANGING, module, tmp_path / f"{name}.toml", flag]
    with process(command, log, manager.environment(PYTHONFAULTHANDLER="1")) as running:
        waiting.until(lambda: b"watches" in log.read_bytes() or b"aggregator of site" in log.read_bytes())
        time.sleep(1.0)
        assert manager.heard("EXTEND_TIMEOUT_USEC=600000000") == 1
        assert manager.heard("READY=1") == 0  # it is there, and its first step has not come to an end
        flag.unlink()
        manager.waits_for("READY=1")
        manager.waits_for("WATCHDOG=1", 3)
        flag.touch()
        time.sleep(2.0)
        before = manager.heard("WATCHDOG=1")
        time.sleep(HANGS_S)
        assert manager.heard("WATCHDOG=1") == before and running.poll() is None
        running.send_signal(signal.SIGABRT)  # as systemd does
        assert children.wait_for_end(running, PATIENCE_S) == -signal.SIGABRT
    assert "in planted" in log.read_text()  # where it hung
    assert manager.heard("READY=1") == 1


@pytest.mark.soak
@pytest.mark.parametrize(("manager", "module"), crossed(ADDRESSES, tuple(SERVICES)), indirect=["manager"])
def test_a_service_says_that_it_ends(module: str, manager: Manager, tmp_path: Path) -> None:
    write(tmp_path, free_port())
    command = [sys.executable, "-P", "-m", f"fedgate.{module}", "run", "-c", tmp_path / f"{SERVICES[module]}.toml"]
    with process(command, tmp_path / "log", manager.environment()) as running:
        manager.waits_for("READY=1")
        running.send_signal(signal.SIGTERM)
        manager.waits_for("STOPPING=1")
        assert children.wait_for_end(running, PATIENCE_S) == 0


def test_the_watchdog_is_told_in_time_and_no_oftener_than_it_asks(manager: Manager) -> None:
    now_s = [0.0]
    supervisor = Supervisor(manager.environment(WATCHDOG_USEC="300000000"), lambda: now_s[0])
    for _ in range(300):
        supervisor.report_work()
        now_s[0] += 1.0
    assert (manager.heard("READY=1"), manager.heard("WATCHDOG=1")) == (1, 4)


@pytest.mark.parametrize("more", [{"WATCHDOG_USEC": ""}, {"WATCHDOG_PID": "1"}])
def test_where_no_watchdog_is_meant_for_this_process_only_the_start_is_told(
    more: dict[str, str], manager: Manager
) -> None:
    now_s = [0.0]
    supervisor = Supervisor(manager.environment(**more), lambda: now_s[0])
    supervisor.report_work()
    now_s[0] += 1e6
    supervisor.report_work()
    assert manager.heard("WATCHDOG=1") == manager.heard("READY=1") == 1


def test_a_manager_that_is_gone_stops_no_service(manager: Manager, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor(manager.environment())
    manager.close()
    for _ in range(4):
        supervisor.report_stop()
    assert [record.getMessage()[-6:] for record in caplog.records] == ["time 1", "time 2", "time 4"]
    Supervisor({}).report_work()


@pytest.fixture(params=some(["certificates", "loopback"]))
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "certificates":
        return founded(tmp_path / "site")
    port = free_port()
    (tmp_path / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    return Folder(tmp_path, port)


@pytest.mark.soak
def test_a_broker_is_alive_for_as_long_as_it_answers(site: Folder, tmp_path: Path) -> None:
    program, manager, log = mosquitto_program(), Manager(str(tmp_path / "notify")), tmp_path / "log"
    assert program is not None
    command = [
        sys.executable,
        "-P",
        "-m",
        "fedgate.cloud_aggregator.runtime.broker_watch",
        site.path / "mosquitto.conf",
    ]
    with process(
        [*command, "--program", str(program)], log, manager.environment(WATCHDOG_USEC=str(BROKERS_US))
    ) as running:
        manager.waits_for("READY=1")
        assert listens(site.port)
        manager.waits_for("WATCHDOG=1", 8)
        assert b"mosquitto" in Path(f"/proc/{running.pid}/cmdline").read_bytes()
        assert log.read_text().count("New connection") < 6  # ours stays
        running.send_signal(signal.SIGSTOP)  # the watcher, another process, goes on
        time.sleep(1.0)
        before = manager.heard("WATCHDOG=1")
        time.sleep(1.5 * BROKERS_US / 1e6)
        assert manager.heard("WATCHDOG=1") == before
        running.send_signal(signal.SIGCONT)
        manager.waits_for("WATCHDOG=1", before + 2)
        (watcher,) = children.family(running.pid)[1:]
        running.terminate()
        assert children.wait_for_end(running, PATIENCE_S) == 0
        waiting.until(lambda: not children.is_alive(watcher))
    assert manager.heard("READY=1") == 1
    manager.close()


@pytest.mark.parametrize("text", ["", "listener no-number\n"])
def test_a_broker_whose_listener_is_not_said_is_not_started(text: str, tmp_path: Path) -> None:
    (tmp_path / "mosquitto.conf").write_text(text)
    done = children.run_module(
        "cloud_aggregator.runtime.broker_watch", str(tmp_path / "mosquitto.conf"), idle_s=PATIENCE_S
    )
    assert done.returncode == 2 and "expected a line 'listener PORT'" in done.stderr


def test_the_store_as_it_is_installed_lies_with_all_beside_it_where_the_broker_cannot_look(tmp_path: Path) -> None:
    """A file is hidden where it is there when the broker starts; a folder hides what comes later, too."""
    settings = founded(tmp_path / "site").path / "aggregator.toml"
    docs = (ROOT / "docs" / "run-aggregator.md").read_text(encoding="utf-8")
    (made,) = re.findall(r"^sudo -u fedgate install -d -m 2750 (\S+)$", docs, re.MULTILINE)
    (edit,) = re.findall(r"^sudo -u fedgate sed -i '(.*)' \S+$", docs, re.MULTILINE)
    assert children.run(["sed", "-i", edit, settings], PATIENCE_S).returncode == 0
    store = cast(Path, load(settings, AggregatorSettings).aggregator.store)
    unit = (resources.files("fedgate.config") / "fedgate-broker.service").read_text(encoding="utf-8")
    hidden = {
        path.lstrip("-")
        for line in re.findall(r"^InaccessiblePaths=(.*)$", unit, re.MULTILINE)
        for path in line.split()
    }
    beside = (store, store.with_name(f"{store.name}-wal"), lock_file(store), locate_staged(store))
    folders = {str(path.parent).replace(str(settings.parent), "/var/lib/fedgate/site") for path in beside}
    assert folders == {made} and folders <= hidden


def test_each_unit_has_an_empty_working_directory_of_its_own() -> None:
    found = list[str]()
    for unit in resources.files("fedgate.config").iterdir():
        if unit.name.endswith(".service"):
            text = unit.read_text(encoding="utf-8")
            (place,) = re.findall(r"^WorkingDirectory=/run/(\S+)$", text, re.MULTILINE)
            assert f"\nRuntimeDirectory={place}\nRuntimeDirectoryMode=0700\n" in text
            found.append(place)
    assert len(found) == len(set(found)) == 7


@pytest.mark.parametrize(
    "unit", ["gateway-agent", "cloud-aggregator", "fedgate-broker", "fedgate-web", "fedgate-gateway-web", *UNWATCHED]
)
def test_each_unit_is_good_and_asks_to_be_told(unit: str, tmp_path: Path) -> None:
    text = (resources.files("fedgate.config") / f"{unit}.service").read_text(encoding="utf-8")
    assert ("\nType=notify\n" in text and "\nWatchdogSec=" in text) == (unit not in UNWATCHED)
    analyser = shutil.which("systemd-analyze")
    if analyser is None:
        return
    there = tmp_path / f"{unit}.service"
    there.write_text(re.sub(r"=/(opt|usr)/\S+", f"={sys.executable}", text))  # what is installed elsewhere
    done = children.run([analyser, "verify", there], PATIENCE_S, text=True)
    assert (done.returncode, done.stderr) == (0, "")
