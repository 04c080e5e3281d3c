"""The aggregator as it runs in service: a process of its own on a real broker, with or without TLS."""

from __future__ import annotations

import datetime
import ipaddress
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedgate.config.identity import signing
from fedgate.config.settings.settings import Broker
from fedgate.firmware_sim import broker as brokers
from fedgate.firmware_sim import children
from tests.benchmarks.field import toml
from tests.benchmarks.light_gateways import ALGORITHM, FEATURES, SETTINGS, SITE

PATIENCE_S = 30.0
SPEC = {
    "rate_hz": 20.0,
    "window_s": 1.0,
    "channels": [f"channel-{number}" for number in range(FEATURES // 3)],
    "steps": [{"kind": "level"}, {"kind": "deviation"}, {"kind": "peak"}],
}


class Centre(NamedTuple):
    """What runs: the processes by their ids, and how to reach the broker."""

    broker: Broker
    broker_pid: int
    aggregator_pid: int
    folder: Path


@contextmanager
def centre(folder: Path, *, quorum: int, tls: bool = False, plain: bool = False) -> Iterator[Centre]:
    """Run a broker and the aggregator while the block lasts, `plain` without the compression of updates that is the
    default.
    """
    chosen = {"compression": "none"} if plain else {}
    folder.mkdir(parents=True, exist_ok=True)
    signing.make_key(folder / "release.key", folder / "release.pub")
    with _secured(folder) if tls else _plain(folder) as (reach, broker_pid):
        tables = {
            "aggregator": {"site": SITE},
            "broker": {"port": reach.port, **({"ca_file": str(reach.ca_file)} if reach.ca_file else {})},
            "features": SPEC,
            "algorithm": {"name": ALGORITHM, "settings": {**SETTINGS, **chosen}},
            "rounds": {"quorum": quorum, "per_release": 1_000},
        }
        (folder / "aggregator.toml").write_text(toml(tables))
        with (folder / "aggregator.log").open("wb") as log:
            command = [
                sys.executable,
                "-P",
                "-m",
                "fedgate.cloud_aggregator",
                "run",
                "-c",
                str(folder / "aggregator.toml"),
            ]
            aggregator = children.start(command, stdout=log, stderr=log)
        try:
            yield Centre(reach, broker_pid, aggregator.pid, folder)
        finally:
            aggregator.terminate()
            aggregator.wait(PATIENCE_S)


@contextmanager
def _plain(folder: Path) -> Iterator[tuple[Broker, int]]:
    with brokers.broker(folder / "broker", "mosquitto") as running:
        yield Broker(port=running.port), running.pid


@contextmanager
def _secured(folder: Path) -> Iterator[tuple[Broker, int]]:
    """Run Mosquitto with TLS alone, and a certificate that holds for a day."""
    authority, program = make_certificate(folder), brokers.mosquitto_program()
    port = brokers.find_free_port()
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0", "user root"]
    lines += [f"cafile {authority}", f"certfile {folder / 'server.crt'}", f"keyfile {folder / 'server.key'}"]
    (folder / "tls.conf").write_text("\n".join([*lines, "tls_version tlsv1.2", ""]))
    with (folder / "tls.log").open("wb") as log:
        server = children.start([str(program), "-c", str(folder / "tls.conf")], stdout=log, stderr=log)
    try:
        time.sleep(0.5)
        assert server.poll() is None, (folder / "tls.log").read_text()
        yield Broker(port=port, ca_file=authority), server.pid
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def make_certificate(folder: Path) -> Path:
    """Write a server's key and certificate, which is its own authority, and return the file of that."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    alternatives = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    made = made.add_extension(alternatives, critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "server.crt").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem))
    (folder / "server.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return folder / "server.crt"
