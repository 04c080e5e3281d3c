"""What a demo is played on: the settings of all programs, their processes, the sensor nodes, and an operator who
listens.

Everything here is what an installation has too; only the folder and the ports are made for the occasion.
"""

from __future__ import annotations

import inspect
import json
import queue
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import Alarm, Manifest, Score, Status
from fedgate.config.protocol.topics import ALL, CLOUD, parse, watch
from fedgate.config.settings.settings import Broker as BrokerSettings
from fedgate.config.transport.mqtt import Link
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import Address
from fedgate.firmware_sim.demo.scenarios import Story
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.installed import InstallationError
from fedgate.models.time_units import DAY_S, NS

SITE, STREAM = "demo", "sensor"
MARK = ".firmware-sim-demo"  # of a folder that the next demo may remove
PATIENCE_S = 60.0
EXCHANGES_MAX = 20
EXCHANGE_S = 6.0  # for one of all gateways, whose training children start one after the other on a small machine
STOP_S = 10.0
STATUS_S = 1.0
LOG_TAIL = 15


class DemoError(RuntimeError):
    """Something on the path failed; the message says what, with the end of the log where there is one."""


def make_folder(folder: Path) -> None:
    """Make a demo's folder, in place of an earlier one, however far that came.

    Raises `DemoError` for a folder that holds anything and is not a demo's, which is left alone.
    """
    if folder.exists():
        if not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARK).exists()):
            raise DemoError(f"{folder}: exists and is not the folder of an earlier demo; name another with --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()


def quick_settings(
    algorithm: str, feature_count: int, defaults: Mapping[str, Any], chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings under which a demo need not wait for more than some twenty exchanges, with those chosen, and of
    the usual ones of its story those that the algorithm has.
    """
    try:
        built = build(algorithm, feature_count, chosen)
    except InstallationError as error:
        raise DemoError(f"--algorithm: {error}") from None
    except ValueError as error:
        raise DemoError(f"--set: {' '.join(str(error).split())}") from None
    if built.labels:
        raise DemoError(f"--algorithm: {algorithm} learns from labels, which a demo has not; expected one without")
    rounds = max(min(built.rounds, EXCHANGES_MAX // len(built.phases)), 1)
    known = inspect.signature(ALGORITHMS[algorithm]).parameters
    quick = {"nu": 0.1, "rounds": rounds, **defaults}
    return {key: value for key, value in quick.items() if key in known} | dict(chosen)


def write_settings(
    story: Story, names: list[str], folder: Path, address: Address, algorithm: str, web: Mapping[str, Any]
) -> None:
    """Write the release key and the settings of all programs, as an operator would have."""
    _call("cloud_aggregator", "init", str(folder), "--loopback")
    table = {"host": address.host, "port": address.port}
    count = len(feature_names(FeatureSpec.model_validate(story.features)))
    aggregator = {
        "aggregator": {"site": SITE},
        "broker": table,
        "features": story.features,
        "algorithm": {"name": algorithm, "settings": quick_settings(algorithm, count, story.defaults, story.settings)},
        "rounds": {"quorum": len(names), "deadline_s": PATIENCE_S},
        "web": dict(web),
    } | dict(story.aggregator)
    (folder / "aggregator.toml").write_text(toml(aggregator), encoding="utf-8")
    source = {"name": STREAM, "kind": "frames", "silent_after_s": DAY_S}  # a recording ends
    for name, sensor, place in zip(names, story.sensors, story.places, strict=True):
        channel = {"role": story.features["channels"][0], "unit": sensor.channels[0].unit}
        gateway = {
            "gateway": {"id": name, "site": SITE, "store": f"{name}.db", "device": {"location": place}},
            "broker": table,
            "source": [source | {"channels": [channel]} | dict(story.source)],
            "features": story.features,
            "baseline": {"windows": story.baseline_windows},
            "alarm": story.alarm,
            "exchange": {"status_s": STATUS_S, "publish_values": True},
        }
        (folder / f"{name}.toml").write_text(toml(gateway), encoding="utf-8")
        np.savez_compressed(
            folder / f"{name}.npz",
            data=sensor.values.astype(np.float32),
            channels=np.array([f"{c.name} [{c.unit}]" for c in sensor.channels]),
            fs=np.array(sensor.rate_hz),
        )


def toml(tables: dict[str, Any]) -> str:
    """Return tables as TOML; JSON's strings, numbers and arrays are TOML's, and inline tables say the rest."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in item.items()) + " }"
        if isinstance(item, list | tuple):
            return "[" + ", ".join(value(inner) for inner in item) + "]"
        return json.dumps(item, ensure_ascii=False)

    return "\n".join(f"{key} = {value(table)}" for key, table in tables.items()) + "\n"


def _call(module: str, *arguments: str) -> None:
    done = children.run_module(module, *arguments, idle_s=PATIENCE_S)
    if done.returncode != 0:
        raise DemoError(f"{module} {' '.join(arguments[:1])} failed: {done.stderr.strip()}")


@contextmanager
def processes(names: list[str], folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run the aggregator, its page and the agents, each with a log of its own; end them all, by SIGTERM, and see that
    they end well.
    """
    settings = str(folder / "aggregator.toml")
    commands = {
        "aggregator": ["cloud_aggregator", "run", "-c", settings],
        "page": ["cloud_aggregator", "web", "-c", settings],
    }
    commands |= {name: ["gateway_agent", "run", "-c", str(folder / f"{name}.toml")] for name in names}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = children.start_module(*command, stdout=log, stderr=log)
        yield running
        for process in running.values():
            process.terminate()
        for name, process in running.items():
            code = children.wait_for_end(process, STOP_S)
            if code != 0:
                raise DemoError(f"{name} ended with code {code}:\n{log_tail(folder, name)}")
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def check_running(running: Mapping[str, subprocess.Popen[bytes]], folder: Path, awaited: str) -> None:
    """Raise `DemoError` where a process has ended while something was waited for."""
    ended = next((name for name, process in running.items() if process.poll() is not None), None)
    if ended is not None:
        raise DemoError(f"{ended} ended while we waited for {awaited}:\n{log_tail(folder, ended)}")


def log_tail(folder: Path, name: str) -> str:
    """Return the end of a process's log."""
    return "\n".join((folder / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_TAIL:])


def start_nodes(
    story: Story, names: list[str], folder: Path, address: Address, speed: float, start_s: float, end_s: float
) -> list[subprocess.Popen[bytes]]:
    """Start one sensor node a gateway, replaying a part of its recording."""
    common = ["--broker", str(address), "--site", SITE, "--stream", STREAM, "--speed", str(speed), "--quiet"]
    common += ["--start", str(start_s), "--end", str(end_s), "--t0", str(story.t0_ns / NS)]
    common += [] if story.frame_s is None else ["--frame", str(story.frame_s)]
    return [
        children.start_module("firmware_sim", "replay", str(folder / f"{name}.npz"), "--gateway", name, *common)
        for name in names
    ]


@dataclass
class Watch:
    """What was heard over MQTT, by gateway."""

    story: Story
    inbox: queue.Queue[tuple[str, bytes]] = field(default_factory=queue.Queue)
    status: dict[str, Status] = field(default_factory=dict)
    scores: dict[str, list[Score]] = field(default_factory=dict)
    alarms: dict[str, list[Alarm]] = field(default_factory=dict)
    evidence: dict[str, list[AlarmEvidence]] = field(default_factory=dict)
    manifest: Manifest | None = None

    def take(self, say: Callable[[str], None]) -> None:
        """Take in everything that has arrived, and say what an operator would want to know at once."""
        while True:
            try:
                where, payload = self.inbox.get_nowait()
            except queue.Empty:
                return
            topic = parse(where)
            match topic.channel:
                case "status" if topic.item != CLOUD:
                    self.status[topic.gateway] = Status.from_bytes(payload)
                case "score":
                    self.scores.setdefault(topic.gateway, []).append(Score.from_bytes(payload))
                case "evidence":
                    one, known = AlarmEvidence.from_bytes(payload), self.evidence.setdefault(topic.gateway, [])
                    known += [] if one in known else [one]
                case "manifest":
                    self.manifest = Manifest.from_bytes(payload)
                    say(f"model {self.manifest.version} released ({self.manifest.model.size_bytes} bytes, signed)")
                case "alarm":
                    self._alarm(topic.gateway, Alarm.from_bytes(payload), say)

    def _alarm(self, gateway: str, alarm: Alarm, say: Callable[[str], None]) -> None:
        received = self.alarms.setdefault(gateway, [])
        if alarm.item not in [other.item for other in received]:
            received.append(alarm)
            what = f"ALARM {alarm.state.upper()} ({alarm.severity})"
            # What the aggregator says is told by its own clock, which is not that of the replay.
            at_s = self.story.seconds(alarm.onset_ns if gateway == ALL else alarm.t_ns)
            when = f" at {self.story.moment(at_s)}" if 0.0 <= at_s <= self.story.length_s else ""
            say(f"{gateway}: {what}{when}: {alarm.text}")


@contextmanager
def watching(story: Story, address: Address) -> Iterator[Watch]:
    """Listen to all gateways as an operator would."""
    received = Watch(story)
    settings = BrokerSettings(host=address.host, port=address.port)
    topics = [watch(SITE, "+", channel) for channel in ("status", "score", "alarm", "evidence")] + [
        watch(SITE, ALL, "manifest")
    ]
    link = Link(
        settings, "operator", topics, lambda topic, payload: received.inbox.put((topic, payload)), lambda _up: None
    )
    link.start()
    try:
        yield received
    finally:
        link.stop()
