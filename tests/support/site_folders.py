"""A site as `cloud-aggregator init` makes it, on free ports, with its own Mosquitto and certificates for whom a test
wants.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.pki.authority import Authority
from fedgate.cloud_aggregator.runtime.app import Aggregator
from fedgate.config.identity import pki
from fedgate.config.runtime import loop
from fedgate.config.settings.settings import AggregatorSettings, Broker, load
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import mosquitto_program
from tests.support import waiting
from tests.support.sites import SITE
from tests.support.waiting import PATIENCE_S

DAY = timedelta(days=1)
Heard = list[tuple[str, bytes]]


def free_ports() -> int:
    """Return a port that is free, as the one after it is: the second is for enrolment."""
    for _ in range(50):
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
    raise AssertionError("no two free ports side by side")


def listens(port: int) -> bool:
    """Tell whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(done: Callable[[], object], what: str = "") -> None:
    """Wait for something to become true."""
    waiting.until(done, lambda: what)


@dataclass
class Folder:
    """The folder that `init` made."""

    path: Path
    port: int

    @property
    def authority(self) -> Authority:
        return Authority(self.path)

    @property
    def settings(self) -> AggregatorSettings:
        return load(self.path / "aggregator.toml", AggregatorSettings)

    def certified(self, name: str, *, days: float = 1.0, by: Authority | None = None) -> tuple[Path, Path]:
        """Write key and certificate of a name, as the authority makes them; return the two files."""
        key = ec.generate_private_key(ec.SECP256R1())
        files = (self.path / f"{name}.{days}.pem", self.path / f"{name}.{days}.key")
        now = datetime.now(UTC)
        serial = x509.random_serial_number()
        validity = (now - 2 * DAY, now + days * DAY)
        files[0].write_bytes((by or self.authority).issue(name, key.public_key(), serial, *validity))
        pki.write(files[1], pki.encode_private_key(key), 0o600)
        return files


def founded(path: Path, *more: str) -> Folder:
    """Run `init` for a site on free ports of this machine, with an endpoint that listens on loopback only."""
    port = free_ports()
    assert cloud_aggregator(["init", str(path), "--site", SITE, "--host", "localhost", "--port", str(port), *more]) == 0
    for name, old, new in (
        ("aggregator.toml", "0.0.0.0:", "127.0.0.1:"),
        ("mosquitto.conf", f"listener {port}", f"listener {port} 127.0.0.1"),
    ):
        file = path / name
        file.write_text(file.read_text().replace(old, new))
    return Folder(path, port)


@contextmanager
def broker_of(folder: Folder) -> Iterator[subprocess.Popen[bytes]]:
    """Run Mosquitto with the configuration that `init` made."""
    program = mosquitto_program()
    assert program is not None
    log = folder.path / "mosquitto.log"
    with log.open("ab") as words:
        running = children.start([program, "-c", folder.path / "mosquitto.conf"], stdout=words, stderr=words)
    try:
        until(lambda: listens(folder.port), "Mosquitto does not start")
        yield running
    finally:
        running.terminate()
        children.wait_for_end(running, PATIENCE_S)


@contextmanager
def aggregator_of(folder: Folder) -> Iterator[Aggregator]:
    """Run the aggregator of a site in a thread, wait until its enrolment answers, and look for orders often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "TICK_S", 0.05)
        with _running(folder) as aggregator:
            yield aggregator


@contextmanager
def _running(folder: Folder) -> Iterator[Aggregator]:
    aggregator = Aggregator(folder.settings)
    thread = threading.Thread(target=aggregator.run, daemon=True)
    thread.start()

    try:
        until(lambda: listens(folder.port + 1), "enrolment does not answer")
        yield aggregator
    finally:
        aggregator.stop()
        until(lambda: not thread.is_alive(), "the aggregator does not end")


@contextmanager
def relay(port: int) -> Iterator[tuple[int, list[bytes]]]:
    """Pass on what is said to a port of this machine and back, and write it down."""
    said: list[bytes] = []
    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def carry(source: socket.socket, target: socket.socket) -> None:
            with suppress(OSError):  # either side is gone, and so is the conversation
                while piece := source.recv(65_536):
                    said.append(piece)
                    target.sendall(piece)
                target.shutdown(socket.SHUT_WR)

        def serve() -> None:
            with suppress(OSError):  # the door is shut
                while True:
                    guest = stack.enter_context(door.accept()[0])
                    host = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for pair in ((guest, host), (host, guest)):
                        threading.Thread(target=carry, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield door.getsockname()[1], said
        door.shutdown(socket.SHUT_RDWR)


@contextmanager
def client(
    site: Folder,
    name: str,
    own: tuple[Path, Path] | None,
    *topics: str,
    ca: Path | None = None,
    host: str = "localhost",
) -> Iterator[tuple[Link, Heard, list[bool]]]:
    """Connect, or try to, under a client id; the certificate says who it is. It keeps to no limit but the broker's."""
    heard: Heard = []
    ups: list[bool] = []
    certificate = {} if own is None else {"certificate_file": own[0], "key_file": own[1]}
    ca_file = ca or site.path / "ca.pem"
    broker = Broker(host=host, port=site.port, ca_file=ca_file, max_packet_bytes=2**30, **certificate)
    link = Link(broker, name, topics, lambda where, payload: heard.append((where, payload)), ups.append)
    link.start()
    try:
        yield link, heard, ups
    finally:
        link.stop()
        until(lambda: link._client._thread is None, "a link goes on connecting")  # it would warn in a later test
