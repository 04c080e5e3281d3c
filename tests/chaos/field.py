"""A site of real processes on this machine: a broker with certificates, an aggregator, agents, and sensors on a broker
of their own, each of which can be killed on the spot and started again.

The site is made by the commands that an operator uses, so what they write is what is tried here.
"""

from __future__ import annotations

import io
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.storage.store import Store as Registry
from fedgate.config.settings.settings import Broker
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import broker, mosquitto_program
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.arrays import Floats
from tests.support.sites import FEATURES, SITE, WINDOWS, frame, samples, topic
from tests.support.waiting import PATIENCE_S, until

HOST = "127.0.0.1"
END_S = 10.0
LOOK_S = 0.2  # between two looks, most of which open a store
LOG_TAIL = 25
FRAME_WINDOWS = 5
CLOUD, BROKER = "aggregator", "broker"
QUIET_S = 1e6
PROGRAMS = {"cloud_aggregator": cloud_aggregator, "gateway_agent": gateway_agent}


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def command(module: str, *arguments: str) -> str:
    """Run a command of ours as an operator would, but in this process, and return what it prints."""
    said = io.StringIO()
    with redirect_stdout(said):
        assert PROGRAMS[module](list(arguments)) == 0, f"{module} {' '.join(arguments)}: {said.getvalue()}"
    return said.getvalue()


def toml(tables: dict[str, Any]) -> str:
    """Return tables of plain values as TOML."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in item.items()) + " }"
        if isinstance(item, list):
            return "[" + ", ".join(map(value, item)) + "]"
        return json.dumps(item)

    return "\n".join(f"{key} = {value(table)}" for key, table in tables.items()) + "\n"


class Field:
    """The site; `settle` waits for what a test wants to see, and shows the logs where it does not come."""

    def __init__(
        self,
        folder: Path,
        sensors_port: int,
        gateways: Sequence[str],
        false_alarms_per_day: float,
        cloud: dict[str, Any],
    ) -> None:
        self.folder, self.gateways, self.sensors_port = folder, tuple(gateways), sensors_port
        self.port, self._false_alarms_per_day = free_port(), false_alarms_per_day
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        command(
            "cloud_aggregator", "init", str(folder), "--site", SITE, "--host", "localhost", "--port", str(self.port)
        )
        tables = tomllib.loads((folder / "aggregator.toml").read_text(encoding="utf-8"))
        port = free_port()
        tables["enrolment"] = {"listen": f"{HOST}:{port}", "address": f"localhost:{port}"}
        (folder / "aggregator.toml").write_text(toml(tables | {"features": FEATURES} | cloud), encoding="utf-8")
        self._enrolment = f"localhost:{port}"
        for who in self.gateways:
            self.write_settings(who)

    def write_settings(self, who: str, port: int = 0, store: str = "") -> None:
        """Write the settings of a gateway, that reaches the broker through a `port` of its own where one is given."""
        source = {"name": "deck", "kind": "frames", "channels": [{"role": "load"}], "silent_after_s": QUIET_S}
        files = {"ca_file": "ca.pem", "certificate_file": f"{who}.pem", "key_file": f"{who}.key"}
        tables = {
            "gateway": {"id": who, "site": SITE, "store": store or f"{who}.db"},
            "broker": {"host": "localhost", "port": port or self.port} | files,
            "sensors": {"broker": {"host": HOST, "port": self.sensors_port}},
            "identity": {"enrolment": self._enrolment},
            "source": [source],
            "features": FEATURES,
            "baseline": {"windows": WINDOWS},
            "alarm": {"false_alarms_per_day": self._false_alarms_per_day},
            "exchange": {"status_s": 0.5, "resend_s": 2.0, "spread_s": 0.2},
            "store": {"group_commit_s": 1.0},  # what is on disk is what is looked at
        }
        (self.folder / f"{who}.toml").write_text(toml(tables), encoding="utf-8")

    def begin(self) -> None:
        """Start the broker and the aggregator and admit every gateway."""
        self.start(BROKER, CLOUD)
        cloud = str(self.folder / "aggregator.toml")
        self.settle(lambda: "aggregator of site" in self.words(CLOUD))
        for who in self.gateways:
            token = command("cloud_aggregator", "gateways", "token", who, "-c", cloud).split()[-1]
            command("gateway_agent", "enrol", "--token", token, "-c", str(self.folder / f"{who}.toml"))

    def start(self, *whom: str, wrapped: Sequence[str] = ()) -> None:
        """Start processes by name; `wrapped` is what stands before the command, where something must."""
        for who in whom:
            with (self.folder / f"{who}.log").open("ab") as words:
                started = children.start([*wrapped, *self._command(who)], stdout=words, stderr=words, cwd=self.folder)
            self.processes[who] = started
        if BROKER in whom:
            self.settle(self._broker_listens)

    def _command(self, who: str) -> list[str]:
        if who == BROKER:
            program = mosquitto_program()
            assert program is not None
            return [program, "-c", "mosquitto.conf"]
        module = "cloud_aggregator" if who == CLOUD else "gateway_agent"
        return [sys.executable, "-P", "-m", f"fedgate.{module}", "run", "-c", f"{who}.toml"]

    def _broker_listens(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self.port), timeout=1.0):
            return True
        return False

    def kill(self, who: str) -> None:
        """End a process as a power cut would."""
        self.processes[who].kill()
        self.processes[who].wait()

    def restart(self, who: str) -> None:
        """Cut the power of one of them, and give it back."""
        self.kill(who)
        self.start(who)

    def end(self) -> None:
        """Tell all to end, agents first; each must do so well and soon."""
        for who in (*self.gateways, CLOUD, BROKER):
            process = self.processes.get(who)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                assert children.wait_for_end(process, END_S) == 0, self.words(who)
                assert "Traceback" not in self.words(who), self.words(who)

    def feed(self, who: str, values: Floats, start_s: float) -> None:
        """Send samples to a gateway in frames, as the node of its sensor does."""
        length = FRAME_WINDOWS * round(FEATURES["rate_hz"])
        table = Broker(host=HOST, port=self.sensors_port, user="node")
        link = Link(table, f"node.{who}", [], lambda _topic, _payload: None, lambda _up: None)
        link.start()
        for first in range(0, len(values), length):
            payload = frame(values[first : first + length], start_s + first / FEATURES["rate_hz"])
            self.settle(partial(link.publish, topic(who, "sample", "deck"), payload))
        until(lambda: link.drain(0.1))
        link.stop()

    def commission(self) -> None:
        """Show every gateway as many windows as its baseline has, once it listens to its sensors."""
        sensors = f"connected to broker {HOST}:{self.sensors_port}"
        self.settle(lambda: all(sensors in self.words(who) for who in self.gateways))
        self.settle(lambda: len(self.statuses()) == len(self.gateways))
        for index, who in enumerate(self.gateways):
            self.feed(who, samples(index, WINDOWS), 0.0)

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """Return rows of the aggregator's store, which may be in use."""
        store = Registry(self.folder / "aggregator.db", create=False)
        try:
            return store.read_rows(table, *columns)
        finally:
            store.close()

    def rounds(self) -> list[dict[str, Any]]:
        """Return the rounds closed so far; none before the aggregator has its store."""
        return self.rows("rounds") if (self.folder / "aggregator.db").exists() else []

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the last status of every gateway, as the aggregator has it."""
        return {row["gateway"]: json.loads(row["status"]) for row in self.rows("gateways")}

    def outbox(self, who: str) -> list[str]:
        """Return what a gateway still has to send."""
        store = Store(self.folder / f"{who}.db", read_only=True)
        try:
            return list(store.read().outbox)
        finally:
            store.close()

    def told(self, who: str, what: Literal["raised", "cleared"]) -> int:
        """Return how often a gateway has raised or cleared an anomaly since it was started first, as its log tells."""
        return self.words(who).count(f"alarm anomaly {what}")

    def words(self, who: str) -> str:
        """Return the log of a process."""
        log = self.folder / f"{who}.log"
        return log.read_text(errors="replace") if log.exists() else "(no log)"

    def tails(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {who}\n" + "\n".join(self.words(who).splitlines()[-LOG_TAIL:]) for who in self.processes)

    def settle(self, done: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait until something is so; fails with the ends of all logs."""
        until(done, self.tails, idle_s=patience_s, poll_s=LOOK_S)


def whole(path: Path) -> bool:
    """Tell whether a SQLite file is one."""
    database = sqlite3.connect(path)
    answer = database.execute("PRAGMA integrity_check").fetchone()[0]
    database.close()
    return bool(answer == "ok")


@contextmanager
def field(folder: Path, gateways: Sequence[str], *, false_alarms_per_day: float = 1.0, **cloud: Any) -> Iterator[Field]:
    """Make a site and end whatever of it still runs when the `with` block is left."""
    with broker(folder / "sensors", "mosquitto") as sensors:
        made = Field(folder, sensors.port, gateways, false_alarms_per_day, cloud)
        try:
            yield made
            made.end()
            assert "could not be handled" not in made.words(CLOUD), (
                f"a defect is one where it is contained too:\n{made.tails()}"
            )
        finally:
            for process in made.processes.values():
                process.kill()
                process.wait()
