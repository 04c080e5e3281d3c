"""An MQTT broker of our own for as long as a demo, a test or a chaos run lasts.

Nothing is asked of the machine: Mosquitto is taken where it is installed, else amqtt, which comes with the simulator.
Both run as a child process on 127.0.0.1 and a free port, are ready when `broker()` hands them over, and are gone
when it ends, or when the process that started them does.

What the two do not share, and clients must not rely on (measured, amqtt 0.12.1 and Mosquitto 2.0.11):
- The embedded broker refuses a client without a user name, since it forgets the session of an anonymous one in
  silence. Any name will do, no password is asked. Mosquitto takes everybody: it listens on loopback only.
- The embedded broker keeps nothing across a restart. Mosquitto keeps all of it across `stop`, and loses what came
  after its last snapshot (1800 s apart) across `kill`, as it would in a power cut.
- The embedded broker may send a client retained messages that it never subscribed to.
"""

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired
from typing import Literal

from fedgate.firmware_sim import children

Kind = Literal["mosquitto", "embedded"]

HOST = "127.0.0.1"
READY_WITHIN_S = 20.0  # of doing nothing, see `children`
STOP_WITHIN_S = 5.0
POLL_S = 0.02
FREE_PORT_ATTEMPTS = 5
LOG_TAIL_LINES = 12

# Each broker prints this line after it has bound its port, so it also proves that the port is not somebody else's.
_RUNNING = re.compile(r"(?:mosquitto|amqtt) version (\S+) running")
_IN_USE = re.compile(r"address already in use", re.IGNORECASE)

# MQTT 3.1.1: CONNECT with clean session and a user name (section 3.1), CONNACK "accepted" (3.2), DISCONNECT (3.14).
_CONNECT = b"\x10\x1d\x00\x04MQTT\x04\x82\x00\x0a\x00\x08is-ready\x00\x07is-here"
_ACCEPTED = b"\x20\x02\x00\x00"
_DISCONNECT = b"\xe0\x00"


class BrokerError(RuntimeError):
    """No broker can be had; the subclass says why."""


class BrokerMissingError(BrokerError):
    """The broker that was asked for is not installed."""


class PortInUseError(BrokerError):
    """Another process listens on the port."""


class BrokerNotReadyError(BrokerError):
    """The broker ended, or accepted no client in time; the message carries the end of its own log."""


@dataclass(frozen=True)
class Address:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Broker:
    """One broker process on one port, started on construction; made by `broker()`, which also ends it.

    Attributes: `kind`, `address`, `log_path`, and `version` of the broker as its log states it.
    """

    def __init__(self, kind: Kind, address: Address, folder: Path) -> None:
        self.kind = kind
        self.address = address
        self.log_path = folder / "broker.log"
        self._command = _command(kind, address, folder)
        self.start()

    @property
    def host(self) -> str:
        return self.address.host

    @property
    def port(self) -> int:
        return self.address.port

    @property
    def pid(self) -> int:
        """Process id of the broker, another one after each start."""
        return self._process.pid

    def start(self) -> None:
        """Run the broker, after a `stop` or `kill`, and wait until it accepts a client.

        Raises:
            PortInUseError: somebody else listens on the port.
            BrokerNotReadyError: the broker ended, or accepted no client within `READY_WITHIN_S`.
        """
        with self.log_path.open("ab") as log:
            written_before = log.tell()
            self._process = children.start(self._command, stdin=DEVNULL, stdout=log, stderr=log)
        try:
            self.version = self._wait_until_ready(written_before)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Ask the broker to end, and end it if it does not; nothing happens if it already has."""
        self._process.terminate()
        try:
            children.wait_for_end(self._process, STOP_WITHIN_S)
        except TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the broker on the spot, as a power cut would."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Kill the broker and start it again on the same port and folder. Raises as `start` does."""
        self.kill()
        self.start()

    def _wait_until_ready(self, written_before: int) -> str:
        version = ""

        def is_ready() -> bool:
            nonlocal version
            ended = self._process.poll() is not None  # asked before the log is read, so that its last words are in it
            log = self._words(written_before)
            running = _RUNNING.search(log)
            if ended:
                raise self._failure(f"ended with code {self._process.returncode}", log)
            version = running[1] if running else ""
            return running is not None and _accepts_clients(self.address)

        if not children.wait_until(is_ready, READY_WITHIN_S, POLL_S):
            raise self._failure(f"accepted no client within {READY_WITHIN_S:g} s", self._words(written_before))
        return version

    def _words(self, written_before: int) -> str:
        return self.log_path.read_bytes()[written_before:].decode(errors="replace")

    def _failure(self, what: str, log: str) -> BrokerError:
        if _IN_USE.search(log):
            return PortInUseError(f"another process listens on {self.address}; give a free port, or none at all")
        tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:]) or "(it wrote nothing)"
        return BrokerNotReadyError(f"the {self.kind} broker {what}. The end of {self.log_path}:\n{tail}")


@contextmanager
def broker(
    folder: Path, kind: Literal["auto", "mosquitto", "embedded"] = "auto", port: int | None = None
) -> Iterator[Broker]:
    """Run a broker on 127.0.0.1 while the `with` block lasts.

    Args:
        folder: takes the broker's log, configuration and kept messages; made if absent.
        kind: "auto" is Mosquitto where it is installed and the embedded broker elsewhere.
        port: None takes a free one.

    Raises:
        BrokerMissingError: Mosquitto was asked for and is not installed.
        PortInUseError: somebody else listens on `port`.
        BrokerNotReadyError: the broker ended, or accepted no client in time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen: Kind = kind if kind != "auto" else ("mosquitto" if mosquitto_program() else "embedded")
    kept = folder.resolve()
    running = _on_free_port(chosen, kept) if port is None else Broker(chosen, Address(HOST, port), kept)
    try:
        yield running
    finally:
        running.stop()


def mosquitto_program() -> str | None:
    """Path of Mosquitto, or None; Debian installs it in /usr/sbin, which is not on the PATH of an ordinary user."""
    return shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))


def _on_free_port(kind: Kind, folder: Path) -> Broker:
    for _ in range(FREE_PORT_ATTEMPTS - 1):
        # Between choosing a free port and binding it, another process may take it: choose again.
        with suppress(PortInUseError):
            return Broker(kind, Address(HOST, find_free_port()), folder)
    return Broker(kind, Address(HOST, find_free_port()), folder)


def find_free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _accepts_clients(address: Address) -> bool:
    try:
        with socket.create_connection((address.host, address.port), timeout=1.0) as client:
            client.sendall(_CONNECT)
            accepted = client.recv(len(_ACCEPTED)) == _ACCEPTED
            client.sendall(_DISCONNECT)
    except OSError:
        return False
    return accepted


def _command(kind: Kind, address: Address, folder: Path) -> list[str]:
    if kind == "embedded":
        return [sys.executable, "-P", "-m", "fedgate.firmware_sim.embedded_broker", "--port", str(address.port)]
    program = mosquitto_program()
    if program is None:
        raise BrokerMissingError(
            "mosquitto is neither on the PATH nor in /usr/sbin; install it (Debian: apt install mosquitto) "
            'or take kind="embedded"'
        )
    configuration = folder / "mosquitto.conf"
    configuration.write_text(_mosquitto_configuration(address, folder), encoding="utf-8")
    return [program, "-c", str(configuration)]


def _mosquitto_configuration(address: Address, folder: Path) -> str:
    lines = [
        f"listener {address.port} {address.host}",
        "allow_anonymous true",
        # The default of 1000 drops what a slow subscriber is owed, though the publisher has its PUBACK.
        "max_queued_messages 100000",
        "persistence true",
        f"persistence_location {folder}/",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_type information",
    ]
    if os.geteuid() == 0:
        # Started by root it would become the user "mosquitto", who may not write into the folder.
        lines.append("user root")
    return "\n".join(lines) + "\n"
