"""`firmware-sim demo`: the whole system doing its job, with real processes over real MQTT on a real recording.

One broker, one aggregator with its page, a gateway agent and a sensor node for each sensor, all processes of their own.
The nodes replay the commissioning part; the gateways learn, take part in a round and receive the signed model; then the
nodes replay the rest and we watch, over MQTT as an operator would, what the gateways say of it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedgate.config.protocol.messages import Alarm
from fedgate.firmware_sim import broker as brokers
from fedgate.firmware_sim import children
from fedgate.firmware_sim.demo import report, stage
from fedgate.firmware_sim.demo.outcome import AlarmSpan, Trace
from fedgate.firmware_sim.demo.page import Page, describe_table, make_page
from fedgate.firmware_sim.demo.scenarios import Story
from fedgate.firmware_sim.demo.stage import EXCHANGE_S, EXCHANGES_MAX, PATIENCE_S, DemoError, Watch

LINE_S = 2.0
LOOK_S = 0.2
Say = Callable[[str], None]


class Setup(NamedTuple):
    """On what a demo is played: its folder, which broker, how many times real time."""

    folder: Path
    broker: Literal["auto", "mosquitto", "embedded"]
    speed: float


class Performed(NamedTuple):
    """A story that was played, while its processes run on: what was heard over MQTT, and facts about the run."""

    received: Watch
    facts: dict[str, object]
    page: Page
    running: dict[str, subprocess.Popen[bytes]]

    def stay(self) -> None:
        """Return at Ctrl-C; raises `DemoError` where a process ends before."""
        try:
            while True:
                stage.check_running(self.running, self.page.folder, "Ctrl-C")
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            return


class Played(NamedTuple):
    """What a demo leaves behind."""

    traces: list[Trace]
    paths: report.Paths
    performed: Performed


@dataclass
class Performance:
    """A story being played: what runs, and what was heard of it."""

    story: Story
    names: list[str]
    folder: Path
    address: brokers.Address
    speed: float
    running: dict[str, subprocess.Popen[bytes]]
    received: Watch
    page: Page
    say: Say

    def play(self) -> None:
        """Replay the commissioning part, wait for the model on every gateway, replay the rest."""
        commissioned_s, end_s = self.story.scenario.commissioning[1], self.story.length_s
        self.say(f"waiting for {len(self.names)} gateways")
        self.wait("all gateways online", self.online, PATIENCE_S)
        self.wait("the page", self.page.is_served, PATIENCE_S)
        self.say(f"the page of all that follows: {self.page.login}")
        self.say(f"commissioning: healthy to {self.story.moment(commissioned_s)}, at {self.speed:g} x real time")
        nodes = self.start_nodes(0.0, commissioned_s)
        patience_s = commissioned_s / self.speed + PATIENCE_S
        self.wait("the end of commissioning", lambda: self.done(nodes), patience_s, self.baseline_line)
        self.wait("whole baselines", self.has_baselines, PATIENCE_S, self.baseline_line)
        patience_s = PATIENCE_S + EXCHANGES_MAX * EXCHANGE_S
        self.say("every baseline is whole; the gateways train, and the aggregator releases a model")
        self.wait("a model in force on every gateway", self.modelled, patience_s, self.training_line)
        self.say("the model is in force on every gateway; now the rest is replayed")
        nodes = self.start_nodes(commissioned_s, end_s)
        patience_s = (end_s - commissioned_s) / self.speed + PATIENCE_S
        self.wait("the end of the replay", lambda: self.done(nodes) and self.finished(), patience_s, self.score_line)

    def start_nodes(self, start_s: float, end_s: float) -> list[subprocess.Popen[bytes]]:
        """Start one sensor node a gateway."""
        return stage.start_nodes(self.story, self.names, self.folder, self.address, self.speed, start_s, end_s)

    def wait(
        self, what: str, done: Callable[[], bool], patience_s: float, line: Callable[[], str] | None = None
    ) -> None:
        """Wait for something, saying how far it is; raises `DemoError` where a process ends or patience does."""
        next_line_s = time.monotonic() + LINE_S

        def is_done() -> bool:
            nonlocal next_line_s
            self.received.take(self.say)
            stage.check_running(self.running, self.folder, what)
            if line is not None and time.monotonic() > next_line_s:
                next_line_s += LINE_S
                self.say(line())
            return done()

        if not children.wait_until(is_done, patience_s):
            logs = "\n".join(f"{name}: {stage.log_tail(self.folder, name)}" for name in self.running)
            raise DemoError(f"no sign of {what} within {patience_s:.0f} s\n{logs}")

    def online(self) -> bool:
        """True once every gateway has said so."""
        status = self.received.status
        return all(name in status and status[name].state == "online" for name in self.names)

    def has_baselines(self) -> bool:
        """True once every gateway has as many healthy windows as it needs."""
        return all(
            self.received.status[name].baseline_windows >= self.received.status[name].baseline_needed
            for name in self.names
        )

    def modelled(self) -> bool:
        """True once every gateway reports a model in force."""
        return all(self.received.status[name].model_version > 0 for name in self.names)

    def done(self, nodes: list[subprocess.Popen[bytes]]) -> bool:
        """True once every sensor node has ended well."""
        for name, node in zip(self.names, nodes, strict=True):
            if node.poll() not in (None, 0):
                raise DemoError(f"the sensor node of {name} ended with code {node.poll()}")
        return all(node.poll() == 0 for node in nodes)

    def finished(self) -> bool:
        """True once every gateway has scored its last window and every alarm has its receipt."""
        last_s = self.story.length_s - self.story.features["hop_s"] - 1.0
        return all(
            self.received.scores.get(name)
            and self.story.seconds(self.received.scores[name][-1].t_ns) >= last_s
            and self.received.status[name].outbox == 0
            and self.received.status[name].windows >= self.story.baseline_windows + len(self.received.scores[name])
            for name in self.names
        )

    def baseline_line(self) -> str:
        """Return how far the commissioning has come."""
        known = ((name, self.received.status[name]) for name in self.names)
        return "; ".join(f"{name} {status.baseline_windows}/{status.baseline_needed} windows" for name, status in known)

    def training_line(self) -> str:
        """Return how far the training has come."""
        known = [self.received.status[name] for name in self.names]
        rounds = [int(one.answered.rpartition("/")[2]) for one in known if one.answered]
        updates = f"round {max(rounds)}, {rounds.count(max(rounds))} of {len(known)} updates made; " if rounds else ""
        return (
            f"training: {updates}a model is in force on {sum(one.model_version > 0 for one in known)} of {len(known)}"
        )

    def score_line(self) -> str:
        """Return where the replay is, what is true of the structure there, and what each gateway says."""
        latest = {name: self.received.scores[name][-1] for name in self.names if self.received.scores.get(name)}
        if not latest:
            return "no window is scored yet"
        at_s = max(self.story.seconds(score.t_ns) for score in latest.values())
        truth = next((span.text for span in self.story.spans if at_s <= span.end_s), "")
        listed = "; ".join(
            f"{name} {score.score:.3g} of {score.level:.3g}{' ALARM' if score.alarm else ''}"
            for name, score in latest.items()
        )
        return f"{self.story.moment(at_s)} ({truth}): {listed}"


@contextmanager
def run(story: Story, setup: Setup, algorithm: str, say: Say) -> Iterator[Played]:
    """Play a story and write its report; all of it runs on while the `with` block lasts.

    Raises `DemoError` where anything on the path failed.
    """
    names = [f"gateway-{number + 1}" for number in range(len(story.sensors))]
    with perform(story, names, setup, algorithm, say) as performed:
        traces = [trace_of(story, name, index, performed.received) for index, name in enumerate(names)]
        paths = report.write(story.scenario, traces, setup.folder, performed.facts, performed.received.evidence)
        yield Played(traces, paths, performed)


@contextmanager
def perform(story: Story, names: list[str], setup: Setup, algorithm: str, say: Say) -> Iterator[Performed]:
    """Play a story on gateways of these names; all of it runs on while the `with` block lasts.

    Raises `DemoError` where anything on the path failed.
    """
    folder = setup.folder
    stage.make_folder(folder)
    started_s = time.monotonic()
    with brokers.broker(folder, setup.broker) as broker:
        say(f"broker: {broker.kind} {broker.version} on {broker.address}")
        page = make_page(folder)
        web = describe_table(page, story, names)
        stage.write_settings(story, names, folder, broker.address, algorithm, web)
        with stage.processes(names, folder) as running, stage.watching(story, broker.address) as received:
            Performance(story, names, folder, broker.address, setup.speed, running, received, page, say).play()
            facts: dict[str, object] = {
                "broker": f"{broker.kind} {broker.version}",
                "speed": setup.speed,
                "seconds": round(time.monotonic() - started_s, 1),
                "algorithm": received.manifest.algorithm if received.manifest else "",
                "model_digest": received.manifest.model.digest if received.manifest else "",
            }
            yield Performed(received, facts, page, running)


def trace_of(story: Story, name: str, index: int, received: Watch) -> Trace:
    """Return what a gateway said of the watched part, beside the truth and a trivial detector."""
    window_s, sensor = story.features["window_s"], story.sensors[index]
    commissioned_s = story.scenario.commissioning[1]
    scores = {score.t_ns: score for score in received.scores.get(name, [])}  # by time: QoS 1 and restarts may repeat
    kept = [scores[t_ns] for t_ns in sorted(scores) if story.seconds(t_ns) - window_s >= commissioned_s - 1e-6]
    ends_s = np.array([story.seconds(score.t_ns) for score in kept])
    means = np.array([sensor.cut(max(end - window_s, 0.0), min(end, sensor.length_s)).values.mean() for end in ends_s])
    baseline = sensor.cut(0.0, commissioned_s).values
    status = received.status[name]
    return Trace(
        gateway=name,
        sensor=f"{sensor.channels[0].name} [{sensor.channels[0].unit}]",
        t_s=ends_s,
        score=np.array([score.score for score in kept]),
        level=np.array([score.level for score in kept]),
        label=np.array([story.label(end - window_s, end) for end in ends_s], dtype=np.int64),
        alarmed=np.array([score.alarm for score in kept], dtype=np.bool_),
        model_version=np.array([score.model_version for score in kept], dtype=np.int64),
        alarms=spans_of(story, received.alarms.get(name, [])),
        window_s=window_s,
        bytes_sent=status.bytes_sent,
        bytes_received=status.bytes_received,
        trivial=np.abs(means - baseline.mean()) / baseline.std(),
    )


def spans_of(story: Story, alarms: list[Alarm]) -> tuple[AlarmSpan, ...]:
    """Return the anomaly alarms as spans on the replay's clock."""
    cleared = {alarm.id: story.seconds(alarm.t_ns) for alarm in alarms if alarm.state == "cleared"}
    return tuple(
        AlarmSpan(alarm.id, story.seconds(alarm.onset_ns), story.seconds(alarm.t_ns), cleared.get(alarm.id))
        for alarm in alarms
        if alarm.state == "raised" and alarm.kind == "anomaly"
    )
