"""`firmware-sim demo`: the whole system doing its job, with real processes over real MQTT on a real recording.

One broker, one aggregator, a gateway agent and a sensor node for each sensor, all processes of their own. The nodes
replay the commissioning part; the gateways learn, take part in a round and receive the signed model; then the nodes
replay the rest and we watch, over MQTT as an operator would, what the gateways say of it.
"""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from config.messages import Alarm, Manifest, Score, Status
from config.mqtt import Link
from config.settings import Broker as BrokerSettings
from config.topics import ALL, CLOUD, parse, watch
from firmware_sim import broker as brokers
from firmware_sim import report
from firmware_sim.outcome import AlarmSpan, Trace
from firmware_sim.scenarios import Story

NS = 1_000_000_000
SITE, STREAM = "demo", "sensor"
T0_NS = 1_700_000_000 * NS  # the replay's own clock: when its first sample is said to have been taken
PATIENCE_S = 60.0
STOP_S = 10.0
STATUS_S = 1.0
LINE_S = 2.0
LOG_TAIL = 15


class DemoError(RuntimeError):
    """Something on the path failed; the message says what, with the end of the log where there is one."""


@dataclass
class Watch:
    """What was heard over MQTT, by gateway."""

    inbox: queue.Queue[tuple[str, bytes]] = field(default_factory=queue.Queue)
    status: dict[str, Status] = field(default_factory=dict)
    scores: dict[str, list[Score]] = field(default_factory=dict)
    alarms: dict[str, list[Alarm]] = field(default_factory=dict)
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
                case "manifest":
                    self.manifest = Manifest.from_bytes(payload)
                    say(f"model {self.manifest.version} released ({self.manifest.model.size_bytes} bytes, signed)")
                case "alarm":
                    self._alarm(topic.gateway, Alarm.from_bytes(payload), say)

    def _alarm(self, gateway: str, alarm: Alarm, say: Callable[[str], None]) -> None:
        heard = self.alarms.setdefault(gateway, [])
        if alarm.item not in [other.item for other in heard]:
            heard.append(alarm)
            say(
                f"{gateway}: ALARM {alarm.state.upper()} ({alarm.severity}) at {seconds(alarm.t_ns):.0f} s: {alarm.text}"
            )


def seconds(t_ns: int) -> float:
    """Return a time stamp of the replay as seconds into it."""
    return (t_ns - T0_NS) / NS


class Played(NamedTuple):
    """What a demo leaves behind."""

    traces: list[Trace]
    paths: report.Paths


def run(story: Story, folder: Path, kind: brokers.Kind | None, speed: float, say: Callable[[str], None]) -> Played:
    """Play a story and write its report; raises `DemoError` where anything on the path failed."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    names = [f"gateway-{number + 1}" for number in range(len(story.sensors))]
    started_s = time.monotonic()
    with brokers.broker(folder, kind or "auto") as broker:
        say(f"broker: {broker.kind} {broker.version} on {broker.address}")
        write_settings(story, names, folder, broker.address)
        with processes(names, folder) as running, watching(broker.address) as heard:
            play(story, names, folder, broker.address, speed, running, heard, say)
        broker_text = f"{broker.kind} {broker.version}"
    traces = [trace_of(story, name, index, heard) for index, name in enumerate(names)]
    extra = {
        "broker": broker_text,
        "speed": speed,
        "seconds": round(time.monotonic() - started_s, 1),
        "algorithm": heard.manifest.algorithm if heard.manifest else "",
        "model_digest": heard.manifest.model.digest if heard.manifest else "",
    }
    return Played(traces, report.write(story.scenario, traces, folder, extra))


def write_settings(story: Story, names: list[str], folder: Path, address: brokers.Address) -> None:
    """Write the release key and the settings of all programs, as an operator would have."""
    _call("cloud_aggregator", "init", str(folder))
    table = {"host": address.host, "port": address.port}
    aggregator = {
        "aggregator": {"site": SITE},
        "broker": table,
        "features": story.features,
        "algorithm": {"name": "support-vector-election", "settings": {"nu": 0.1}},
        "rounds": {"quorum": len(names), "deadline_s": PATIENCE_S},
    }
    (folder / "aggregator.toml").write_text(_toml(aggregator), encoding="utf-8")
    for name, sensor in zip(names, story.sensors, strict=True):
        channel = {"role": story.features["channels"][0], "unit": sensor.channels[0].unit}
        gateway = {
            "gateway": {"id": name, "site": SITE, "store": f"{name}.db"},
            "broker": table,
            "source": [{"name": STREAM, "kind": "frames", "channels": [channel], "silent_after_s": 2 * PATIENCE_S}],
            "features": story.features,
            "baseline": {"windows": story.baseline_windows},
            "alarm": story.alarm,
            "exchange": {"status_s": STATUS_S},
        }
        (folder / f"{name}.toml").write_text(_toml(gateway), encoding="utf-8")
        np.savez_compressed(
            folder / f"{name}.npz",
            data=sensor.values.astype(np.float32),
            channels=np.array([f"{c.name} [{c.unit}]" for c in sensor.channels]),
            fs=np.array(sensor.rate_hz),
        )


def _toml(tables: dict[str, Any]) -> str:
    """Return tables as TOML; JSON's strings, numbers and arrays are TOML's, and inline tables say the rest."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{ " + ", ".join(f"{key} = {value(inner)}" for key, inner in item.items()) + " }"
        if isinstance(item, list | tuple):
            return "[" + ", ".join(value(inner) for inner in item) + "]"
        return json.dumps(item, ensure_ascii=False)

    return "\n".join(f"{key} = {value(table)}" for key, table in tables.items()) + "\n"


def _call(module: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 - our own modules
    if done.returncode != 0:
        raise DemoError(f"{module} {' '.join(arguments[:1])} failed: {done.stderr.strip()}")


@contextmanager
def processes(names: list[str], folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run the aggregator and the agents, each with a log of its own; end them all, by SIGTERM, and see that they end
    well.
    """
    commands = {"aggregator": ["cloud_aggregator", "run", "-c", str(folder / "aggregator.toml")]}
    commands |= {name: ["gateway_agent", "run", "-c", str(folder / f"{name}.toml")] for name in names}
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=log)  # noqa: S603 - our own modules
        yield running
        for process in running.values():
            process.terminate()
        for name, process in running.items():
            code = process.wait(STOP_S)
            if code != 0:
                raise DemoError(f"{name} ended with code {code}:\n{log_tail(folder, name)}")
    finally:
        for process in running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def log_tail(folder: Path, name: str) -> str:
    """Return the end of a process's log."""
    return "\n".join((folder / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_TAIL:])


@contextmanager
def watching(address: brokers.Address) -> Iterator[Watch]:
    """Listen to all gateways as an operator would."""
    heard = Watch()
    settings = BrokerSettings(host=address.host, port=address.port)
    topics = [watch(SITE, "+", channel) for channel in ("status", "score", "alarm")] + [watch(SITE, ALL, "manifest")]
    link = Link(
        settings, "operator", topics, lambda topic, payload: heard.inbox.put((topic, payload)), lambda _up: None
    )
    link.start()
    try:
        yield heard
    finally:
        link.stop()


def play(
    story: Story,
    names: list[str],
    folder: Path,
    address: brokers.Address,
    speed: float,
    running: dict[str, subprocess.Popen[bytes]],
    heard: Watch,
    say: Callable[[str], None],
) -> None:
    """Replay the commissioning part, wait for the model on every gateway, replay the rest."""

    def wait(what: str, done: Callable[[], bool], patience_s: float, line: Callable[[], str] | None = None) -> None:
        deadline_s, next_line_s = time.monotonic() + patience_s, time.monotonic() + LINE_S
        while not done():
            heard.take(say)
            dead = [name for name, process in running.items() if process.poll() is not None]
            if dead:
                raise DemoError(f"{dead[0]} ended while we waited for {what}:\n{log_tail(folder, dead[0])}")
            if time.monotonic() > deadline_s:
                logs = "\n".join(f"{name}: {log_tail(folder, name)}" for name in running)
                raise DemoError(f"no sign of {what} within {patience_s:.0f} s\n{logs}")
            if line is not None and time.monotonic() > next_line_s:
                next_line_s += LINE_S
                say(line())
            time.sleep(0.05)
        heard.take(say)

    def online() -> bool:
        return all(name in heard.status and heard.status[name].state == "online" for name in names)

    def modelled() -> bool:
        return all(heard.status[name].model_version > 0 for name in names)

    def finished() -> bool:
        return nodes_done() and all(last_end(name) >= end_s for name in names) and all(settled(name) for name in names)

    def settled(name: str) -> bool:
        return heard.status[name].windows >= len(heard.scores[name]) and heard.status[name].outbox == 0

    def last_end(name: str) -> float:
        return seconds(heard.scores[name][-1].t_ns) if heard.scores.get(name) else 0.0

    commissioned_s = story.scenario.commissioning[1]
    hop_s = story.features["hop_s"]
    end_s = story.length_s - hop_s - 1.0
    say(f"waiting for {len(names)} gateways")
    wait("all gateways online", online, PATIENCE_S)
    say(f"commissioning: {commissioned_s:.0f} s of healthy recording at {speed:g} x real time")
    nodes = start_nodes(names, folder, address, speed, 0.0, commissioned_s)

    def nodes_done() -> bool:
        for name, node in zip(names, nodes, strict=True):
            if node.poll() not in (None, 0):
                raise DemoError(f"the sensor node of {name} ended with code {node.poll()}")
        return all(node.poll() == 0 for node in nodes)

    wait(
        "the end of commissioning", nodes_done, commissioned_s / speed + PATIENCE_S, lambda: baseline_line(heard, names)
    )
    wait("a model in force on every gateway", modelled, PATIENCE_S, lambda: baseline_line(heard, names))
    say(f"model {heard.status[names[0]].model_version} is in force on every gateway; now the rest is replayed")
    rest_s = story.length_s - commissioned_s
    nodes = start_nodes(names, folder, address, speed, commissioned_s, story.length_s)
    wait("the end of the replay", finished, rest_s / speed + PATIENCE_S, lambda: score_line(story, heard, names))


def baseline_line(heard: Watch, names: list[str]) -> str:
    """Return how far the commissioning has come."""
    return "; ".join(
        f"{name} {heard.status[name].baseline_windows}/{heard.status[name].baseline_needed} windows" for name in names
    )


def score_line(story: Story, heard: Watch, names: list[str]) -> str:
    """Return where the replay is, what is true of the structure there, and what each gateway says."""
    latest = {name: heard.scores[name][-1] for name in names if heard.scores.get(name)}
    at_s = max((seconds(score.t_ns) for score in latest.values()), default=0.0)
    truth = next((span.text for span in story.spans if at_s <= span.end_s), "")
    said = "; ".join(
        f"{name} {score.score:.3g} of {score.level:.3g}{' ALARM' if score.alarm else ''}"
        for name, score in latest.items()
    )
    return f"{at_s:5.0f} s ({truth}): {said}"


def start_nodes(
    names: list[str], folder: Path, address: brokers.Address, speed: float, start_s: float, end_s: float
) -> list[subprocess.Popen[bytes]]:
    """Start one sensor node a gateway, replaying a part of its recording."""
    common = ["--broker", str(address), "--site", SITE, "--stream", STREAM, "--speed", str(speed), "--quiet"]
    common += ["--start", str(start_s), "--end", str(end_s), "--t0", str(T0_NS / NS)]
    return [
        subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "firmware_sim", "replay", str(folder / f"{name}.npz"), "--gateway", name, *common]
        )
        for name in names
    ]


def trace_of(story: Story, name: str, index: int, heard: Watch) -> Trace:
    """Return what a gateway said of the watched part, beside the truth and a trivial detector."""
    window_s, sensor = story.features["window_s"], story.sensors[index]
    commissioned_s = story.scenario.commissioning[1]
    scores = {score.t_ns: score for score in heard.scores.get(name, [])}  # by time: QoS 1 and restarts may repeat
    kept = [scores[t_ns] for t_ns in sorted(scores) if seconds(t_ns) - window_s >= commissioned_s - 1e-6]
    ends_s = np.array([seconds(score.t_ns) for score in kept])
    means = np.array([sensor.cut(max(end - window_s, 0.0), min(end, sensor.length_s)).values.mean() for end in ends_s])
    baseline = sensor.cut(0.0, commissioned_s).values
    status = heard.status[name]
    return Trace(
        gateway=name,
        sensor=f"{sensor.channels[0].name} [{sensor.channels[0].unit}]",
        t_s=ends_s,
        score=np.array([score.score for score in kept]),
        level=np.array([score.level for score in kept]),
        label=np.array([story.label(end - window_s, end) for end in ends_s], dtype=np.int64),
        alarmed=np.array([score.alarm for score in kept], dtype=np.bool_),
        model_version=np.array([score.model_version for score in kept], dtype=np.int64),
        alarms=spans_of(heard.alarms.get(name, [])),
        window_s=window_s,
        bytes_sent=status.bytes_sent,
        bytes_received=status.bytes_received,
        trivial=np.abs(means - baseline.mean()) / baseline.std(),
    )


def spans_of(alarms: list[Alarm]) -> tuple[AlarmSpan, ...]:
    """Return the anomaly alarms as spans on the replay's clock."""
    cleared = {alarm.id: seconds(alarm.t_ns) for alarm in alarms if alarm.state == "cleared"}
    return tuple(
        AlarmSpan(alarm.id, seconds(alarm.onset_ns), seconds(alarm.t_ns), cleared.get(alarm.id))
        for alarm in alarms
        if alarm.state == "raised" and alarm.kind == "anomaly"
    )
