"""The two services as processes, over a real broker that is there, not there yet, or gone: they start, go on and end.

Each waits for what it asserts; nothing here sleeps for longer than it takes.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography.hazmat.primitives import serialization

from fedgate.cloud_aggregator.storage.store import Store as Registry
from fedgate.config.settings.settings import Broker
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import broker
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.storage.store import Store
from tests.gateway_agent.deployment.test_gateway_models import in_force
from tests.support import waiting
from tests.support.sites import FEATURES, KEY, SITE, WINDOWS, Shelf, frame, samples, topic
from tests.support.waiting import PATIENCE_S

ME = "north"
END_S = 5.0
HOST = "127.0.0.1"
HEAVY = ("sklearn", "scipy", "torch", "onnx/", "sqlalchemy")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def write(folder: Path, port: int, sensors: int | None = None) -> None:
    """Write the settings of a gateway and an aggregator, and the release key, as an operator would have."""
    formats = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "release.key").write_bytes(KEY.private_bytes(serialization.Encoding.PEM, *formats))
    public = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "release.pub").write_bytes(public)
    steps = ", ".join(f'{{ kind = "{step["kind"]}" }}' for step in FEATURES["steps"])
    common = (
        f'[broker]\nport = {port}\n[features]\nrate_hz = 20.0\nwindow_s = 1.0\nchannels = ["load"]\nsteps = [{steps}]\n'
    )
    gateway = f'[gateway]\nid = "{ME}"\nsite = "{SITE}"\n[[source]]\nname = "deck"\nkind = "frames"\n'
    gateway += f'channels = [{{ role = "load" }}]\n[baseline]\nwindows = {WINDOWS}\n'
    gateway += "[exchange]\nstatus_s = 0.5\nspread_s = 2.0\n[store]\ngroup_commit_s = 0.5\n"
    gateway += f"[sensors.broker]\nport = {sensors}\n" if sensors else ""
    (folder / "gateway.toml").write_text(gateway + common)
    (folder / "aggregator.toml").write_text(f'[aggregator]\nsite = "{SITE}"\n' + common)


@contextmanager
def running(module: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service; at the end it is told to end and must do so well and soon, unless the test has killed it."""
    name = "gateway" if module == "gateway_agent" else "aggregator"
    log = folder / f"{name}.log"
    with log.open("ab") as words:
        command = [sys.executable, "-P", "-m", f"fedgate.{module}", "run", "-c", str(folder / f"{name}.toml")]
        process = children.start(command, stdout=words, stderr=words)
    try:
        until(lambda: b"watches" in log.read_bytes() or b"aggregator of site" in log.read_bytes(), process, log)
        yield process
        if process.poll() != -signal.SIGKILL:
            end(process, log)
    finally:
        process.kill()
        process.wait()


def end(process: subprocess.Popen[bytes], log: Path) -> None:
    process.send_signal(signal.SIGTERM)
    assert children.wait_for_end(process, END_S) == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def until(done: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
    def words() -> str:
        return log.read_text() if log else ""

    def is_done() -> object:
        assert process is None or process.poll() is None, words()
        return done()

    waiting.until(is_done, words)


def whole(path: Path) -> bool:
    database = sqlite3.connect(path)
    answer = database.execute("PRAGMA integrity_check").fetchone()[0]
    database.close()
    return bool(answer == "ok")


def has_come(here: socket.socket) -> bool:
    """Tell whether somebody asks to be let in, or has said something."""
    return bool(select.select([here], [], [], 0.0)[0])


@pytest.mark.soak
@pytest.mark.parametrize("module", ["gateway_agent", "cloud_aggregator"])
def test_without_any_broker_it_starts_goes_on_and_ends_at_once(module: str, tmp_path: Path) -> None:
    """The port belongs to one who takes connections and never says a word, which is worse than nobody."""
    with socket.socket() as mute:
        mute.bind((HOST, 0))
        mute.listen()
        write(tmp_path, mute.getsockname()[1])
        with running(module, tmp_path) as process:
            waiting.until(lambda: has_come(mute))
            client, _ = mute.accept()
            waiting.until(lambda: has_come(client))
            assert client.recv(1) == b"\x10"  # it says its CONNECT
            assert process.poll() is None
            client.close()
    (store,) = tmp_path.glob("*.db")
    assert whole(store)


@contextmanager
def listening(port: int, *channels: str) -> Iterator[dict[str, bytes]]:
    """Collect the latest message of each topic."""
    heard: dict[str, bytes] = {}
    topics = [f"fedgate/v1/{SITE}/+/{channel}/+" for channel in channels]
    link = Link(Broker(host=HOST, port=port), "listener", topics, heard.__setitem__, lambda _up: None)
    link.start()
    try:
        yield heard
    finally:
        link.stop()


@contextmanager
def speaking(port: int) -> Iterator[Link]:
    """Be a sensor node that has reached its broker."""
    reached: list[bool] = []
    node = Link(Broker(host=HOST, port=port), "node", [], lambda *_: None, reached.append)
    node.start()
    until(lambda: bool(reached))
    try:
        yield node
    finally:
        node.stop()


def state_of(heard: dict[str, bytes], where: str) -> Any:
    return json.loads(heard.get(where, b'{"state": null}'))["state"]


@pytest.mark.soak
@pytest.mark.slow
def test_a_broker_that_comes_later_is_found_and_the_end_is_told(tmp_path: Path) -> None:
    """It is also named as the broker of the sensors: the two connections of one gateway must not end each other."""
    port = free_port()
    write(tmp_path, port, sensors=port)
    mine, cloud = topic(ME, "status", "agent"), topic("all", "status", "cloud")
    with (
        running("gateway_agent", tmp_path) as agent,
        running("cloud_aggregator", tmp_path) as aggregator,
        broker(tmp_path / "broker", port=port),
        listening(port, "status") as heard,
    ):
        until(lambda: state_of(heard, mine) == state_of(heard, cloud) == "online", agent, tmp_path / "gateway.log")
        with speaking(port) as node:
            node.publish(topic(ME, "sample", "deck"), frame(samples(0, 5)))
            until(lambda: json.loads(heard[mine])["baseline_windows"] == 5, agent, tmp_path / "gateway.log")
        agent.send_signal(signal.SIGTERM)
        until(lambda: state_of(heard, mine) == "offline")
        assert children.wait_for_end(agent, END_S) == 0
        aggregator.kill()
        aggregator.wait()  # it ended without a word: its last will speaks
        until(lambda: state_of(heard, cloud) == "offline")
        with running("cloud_aggregator", tmp_path):
            until(lambda: state_of(heard, cloud) == "online")
    registry = Registry(tmp_path / "aggregator.db", create=False)
    assert [(row["gateway"], row["online"]) for row in registry.read_rows("gateways")] == [(ME, False)]
    registry.close()


def stored_model(folder: Path) -> None:
    """Fill a gateway's store as if it had been commissioned and given a model before."""
    shelf = Shelf()
    in_force(shelf)
    store = Store(folder / "gateway.db")
    store.commit([*map(Keep, shelf.baseline), *(Save(key, body) for key, body in shelf.blobs.items())])
    store.close()


def outbox(folder: Path) -> list[str]:
    store = Store(folder / "gateway.db", read_only=True)
    names = list(store.read().outbox)
    store.close()
    return names


@pytest.mark.soak
@pytest.mark.slow
def test_with_the_cloud_away_a_gateway_goes_on_watching_and_delivers_its_alarms_later(tmp_path: Path) -> None:
    cloud_port = free_port()
    with broker(tmp_path / "sensors") as sensors:
        write(tmp_path, cloud_port, sensors.port)
        stored_model(tmp_path)
        with running("gateway_agent", tmp_path) as agent, speaking(sensors.port) as node:
            where, numbers = topic(ME, "sample", "deck"), iter(range(10_000))

            def feed(shift: float) -> None:
                number = next(numbers)
                node.publish(where, frame(samples(number, 1, shift), WINDOWS + number))
                time.sleep(0.02)

            def alarms(count: int, shift: float) -> bool:
                feed(shift)
                return sum(not name.endswith(".evidence") for name in outbox(tmp_path)) == count

            until(lambda: alarms(1, 60.0), agent, tmp_path / "gateway.log")
            until(lambda: alarms(2, 0.0), agent, tmp_path / "gateway.log")
            loaded = " ".join(region.path for region in psutil.Process(agent.pid).memory_maps())
            assert "onnxruntime" in loaded and not [name for name in HEAVY if f"site-packages/{name}" in loaded]
            with broker(tmp_path / "cloud", port=cloud_port), running("cloud_aggregator", tmp_path):
                until(lambda: not outbox(tmp_path), agent, tmp_path / "gateway.log")
    registry = Registry(tmp_path / "aggregator.db", create=False)
    (row,) = registry.read_rows("alarms")
    registry.close()
    assert (row["gateway"], row["cause"], row["model_version"]) == (ME, "anomaly", 1)
    assert row["raised_ns"] < row["cleared_ns"]
    assert whole(tmp_path / "gateway.db") and whole(tmp_path / "aggregator.db")


@pytest.mark.soak
def test_a_service_whose_store_cannot_be_had_now_is_tried_again(tmp_path: Path) -> None:
    """The service units take 2 for the end of all tries; a lock and a full disk are not that."""
    write(tmp_path, free_port())
    held = Store(tmp_path / "gateway.db")
    (tmp_path / "aggregator.db").mkdir()  # what no SQLite can open, as on a disk that is gone
    for module, name in (("gateway_agent", "gateway"), ("cloud_aggregator", "aggregator")):
        command = [sys.executable, "-P", "-m", f"fedgate.{module}", "run", "-c", str(tmp_path / f"{name}.toml")]
        done = children.run(command, PATIENCE_S, text=True)
        assert done.returncode == 1, done.stderr
        assert f"{name}.db" in done.stderr and "Traceback" not in done.stderr
    held.close()
