"""A site without a broker, a clock or a disk: the machines of several gateways and of the aggregator, joined by a link
that can lose, repeat and reorder messages, and shelves that hold what their stores would hold. One thread, one seeded
generator: what fails, fails again.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator import events as cloud_events
from fedgate.cloud_aggregator import machine as cloud_machine
from fedgate.cloud_aggregator import state as cloud_state
from fedgate.cloud_aggregator.releases import deploy
from fedgate.cloud_aggregator.releases.releases import ModelRelease, Releases
from fedgate.cloud_aggregator.rounds.compression import settle_compression
from fedgate.cloud_aggregator.runtime.defence import NOTHING, Material, build_algorithm
from fedgate.config.identity.signing import verify
from fedgate.config.protocol import topics
from fedgate.config.protocol.frames import Frame, FrameMeta
from fedgate.config.protocol.messages import Manifest, Status
from fedgate.config.settings.settings import AggregatorSettings, GatewaySettings
from fedgate.gateway_agent import events, machine
from fedgate.gateway_agent import state as agent_state
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.runtime import training_worker
from fedgate.gateway_agent.state import Host, restore
from fedgate.models.arrays import FEATURES as X
from fedgate.models.arrays import LABELS, Arrays, Floats
from fedgate.models.time_units import NS
from tests.support.given_width import with_width

T0_NS = 1_800_000_000 * NS
SITE = "bridge"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FEATURES: dict[str, Any] = {
    "rate_hz": 20.0,
    "window_s": 1.0,
    "channels": ["load"],
    "steps": [{"kind": "level"}, {"kind": "deviation"}, {"kind": "peak"}],
}
WINDOWS = 60  # of a baseline: 40 train, 20 calibrate
WINDOW_SAMPLES = 20
TO_CLOUD = {"status", "update", "alarm", "evidence", "want", "newest"}
TO_OTHERS = {"score", "service-request", "alarm-state", "alarm"}  # an alarm of all is the fleet's, for whoever watches
NEVER_S = 1e7


def start_cloud(
    settings: AggregatorSettings,
    stored: cloud_state.Stored,
    uptime_ns: int = T0_NS,
    beginning: str = "first",
    material: Material = NOTHING,
) -> cloud_state.State:
    """Return an aggregator that starts with what its store held."""
    settings = settle_compression(settings)
    return cloud_state.restore(settings, KEY, build_algorithm(settings, material), stored, uptime_ns, beginning)


def with_record(state: cloud_state.State, part: str, **changes: Any) -> cloud_state.State:
    """Return a state of the aggregator with one of its records changed."""
    return replace(state, **{part: replace(getattr(state, part), **changes)})


def receive_model(state: cloud_state.State, new: ModelRelease) -> tuple[cloud_state.State, list[cloud_events.Effect]]:
    """Let the training have made a model."""
    releases, effects = deploy.receive_model(state.releases, state.context, state.access.gateways, new)
    return replace(state, releases=releases), effects


def stop_rollout(state: cloud_state.State, why: str) -> tuple[cloud_state.State, list[cloud_events.Effect]]:
    """Stop the release at hand."""
    releases, effects = deploy.stop_rollout(state.releases, state.context, state.access.gateways, why)
    return replace(state, releases=releases), effects


def gateway_settings(name: str = "north", **tables: Any) -> GatewaySettings:
    source = {"name": "deck", "kind": "frames", "channels": [{"role": "load"}], "silent_after_s": NEVER_S}
    given = {"gateway": {"id": name, "site": SITE}, "source": [source], "features": FEATURES}
    return GatewaySettings.model_validate({**given, "baseline": {"windows": WINDOWS}, **tables})


def aggregator_settings(**tables: Any) -> AggregatorSettings:
    """Return settings with a kernel's width given, so that a round is the first exchange."""
    algorithm = with_width(tables.pop("algorithm", {}))
    given = {"aggregator": {"site": SITE}, "features": FEATURES, "algorithm": algorithm, **tables}
    return AggregatorSettings.model_validate(given)


def faults(seed: int = 0) -> Arrays:
    """Return what a gateway's table of labelled windows would hold: some faults, far from what is normal."""
    rng = np.random.default_rng(seed)
    return {X: rng.normal([6.0, 1.0, 6.0], 0.3, (20, 3)), LABELS: np.ones(20, dtype=np.int64)}


def topic(gateway: str, channel: str, item: str) -> str:
    return topics.topic_of(topics.Topic(SITE, gateway, channel, item))


def samples(seed: int, windows: int, shift: float = 0.0) -> Floats:
    """Return noise (T, 1), `shift` deviations away from where it is in health."""
    return np.random.default_rng(seed).normal(size=(windows * WINDOW_SAMPLES, 1)) + shift


def frame(values: Floats, start_s: float = 0.0, **meta: Any) -> bytes:
    """Return samples as a node would send them, the first one `start_s` after `T0_NS`."""
    given = {"t_ns": T0_NS + round(start_s * NS), "rate_hz": FEATURES["rate_hz"], **meta}
    return Frame(FrameMeta.model_validate(given), values).to_bytes()


@dataclass
class Shelf:
    """What a gateway's store would hold; `test_gateway_store` holds the real one against it."""

    baseline: list[FeatureRow] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=lambda: {agent_state.SECRET: bytes(range(32))})
    outbox: dict[str, events.Item] = field(default_factory=dict)

    def commit(self, effects: Iterable[object]) -> None:
        for effect in effects:
            match effect:
                case events.Keep(seen=seen):
                    self.baseline.append(seen)
                case events.Save(key=key, body=body):
                    self.blobs[key] = body
                case events.Enqueue(name=name, item=item):
                    self.outbox.pop(name, None)
                    self.outbox[name] = item
                case events.Dequeue(name=name):
                    self.outbox.pop(name, None)

    def stored(self) -> agent_state.Stored:
        return agent_state.Stored(tuple(self.baseline), dict(self.blobs), dict(self.outbox))


@dataclass
class CloudShelf:
    """What the aggregator's store would hold."""

    training: cloud_events.SaveTraining | None = None
    released: tuple[Manifest, bytes] | None = None
    gateways: dict[str, Status] = field(default_factory=dict)
    rounds: list[cloud_events.RecordRound] = field(default_factory=list)
    held: dict[str, cloud_events.HoldUpdate] = field(default_factory=dict)

    @property
    def releases(self) -> Releases:
        return Releases() if self.released is None else Releases(ModelRelease(*self.released))

    def commit(self, effects: Iterable[object]) -> None:
        for effect in effects:
            match effect:
                case cloud_events.SaveTraining():
                    self.training = effect
                case cloud_events.RecordModel(manifest=manifest, body=body):
                    self.released = (manifest, body)
                case cloud_events.RecordGateway(gateway=gateway, status=status):
                    self.gateways[gateway] = status
                case cloud_events.RecordRound():
                    self.rounds.append(effect)
                case cloud_events.HoldUpdate(gateway=gateway):
                    self.held[gateway] = effect
                case cloud_events.DropHeld(round_index=index):
                    self.held = {} if index is None else {k: v for k, v in self.held.items() if v.round_index != index}


_STARTS = itertools.count()


def agent(
    settings: GatewaySettings,
    shelf: Shelf,
    uptime_ns: int = T0_NS,
    *,
    can_train: bool = True,
    boot_id: str = "boot",
    anchor_ns: int = 0,
) -> agent_state.State:
    """Return an agent as it is after its start with what its store holds."""
    start = f"{settings.gateway.id} {next(_STARTS)}"
    host = Host(
        boot_id=boot_id,
        uptime_ns=uptime_ns,
        verified=partial(verify, KEY.public_key()),
        random_bytes=lambda: hashlib.sha256(start.encode()).digest(),
        anchor_ns=anchor_ns,
        can_train=can_train,
        libraries=("torch", "dp_accounting"),
        labelled=faults(),
    )
    state = restore(settings, shelf.stored(), host)
    state, effects = machine.begin(state, shelf.stored())
    shelf.commit(effects)
    return state


class Site:
    """The site; `weather` may drop (return 0) or repeat (return 2) a delivery, `shuffled` delivers in random order."""

    def __init__(
        self,
        cloud: AggregatorSettings,
        gateways: Iterable[GatewaySettings],
        seed: int = 0,
        material: Material = NOTHING,
    ) -> None:
        self.now_ns, self.rng = T0_NS, np.random.default_rng(seed)
        self.settings = {one.gateway.id: one for one in gateways}
        self.cloud_settings, self.material, self.boots = cloud, material, 0
        self.shelves, self.cloud_shelf = {name: Shelf() for name in self.settings}, CloudShelf()
        self.agents = {name: agent(self.settings[name], shelf) for name, shelf in self.shelves.items()}
        self.cloud = self._cloud()
        self.retained: dict[str, bytes] = {}
        self.on_the_way: list[tuple[str, str, bytes]] = []  # receiver, topic, payload
        self.jobs: list[tuple[str, bytes]] = []
        self.weather: Callable[[], int] = lambda: 1
        self.shuffled = False
        self.commits: list[Callable[[list[cloud_events.Durable]], None]] = []  # of effects of the aggregator
        self.log: list[str] = []

    def _cloud(self) -> cloud_state.State:
        shelf = self.cloud_shelf
        stored = cloud_state.Stored(shelf.training, shelf.releases, dict(shelf.gateways), held=dict(shelf.held))
        return start_cloud(self.cloud_settings, stored, self.now_ns, material=self.material)

    def connect(self, who: str, up: bool = True) -> None:
        if who == "cloud":
            self.step_cloud(cloud_events.Connection(up))
        else:
            self.step_agent(who, events.Connection(up))
        for where, payload in list(self.retained.items()) if up else []:
            if who in self._receivers(where):
                self.on_the_way.append((who, where, payload))

    def connect_all(self) -> None:
        for who in ("cloud", *self.agents):
            self.connect(who)

    def restart(self, who: str) -> None:
        """Cut the power of one of them, and give it back."""
        if who == "cloud":
            self.cloud = self._cloud()
        else:
            self.jobs = [(owner, job) for owner, job in self.jobs if owner != who]
            self.boots += 1  # of a board: a model that ends the agent in one boot is another thing
            self.agents[who] = agent(self.settings[who], self.shelves[who], self.now_ns, boot_id=f"boot {self.boots}")
        self.connect(who)

    def lose(self, who: str) -> None:
        """Take a gateway away for good; the broker says its will."""
        self.agents.pop(who)
        self.on_the_way = [message for message in self.on_the_way if message[0] != who]
        self.publish(topic(who, "status", "agent"), Status(state="offline").to_bytes(), retain=True)

    def step_agent(self, who: str, event: events.Event, *, cut: bool = False) -> None:
        """Take a step; with `cut` the power fails after the commit, before anything is sent."""
        self.agents[who], effects = machine.step(self.agents[who], self.now_ns, event)
        self.shelves[who].commit(effects)
        for effect in () if cut else effects:
            match effect:
                case events.Publish() if self.agents[who].context.is_connected:
                    self.publish(effect.topic, effect.payload, effect.retain)
                case events.Train(job=job):
                    self.jobs.append((who, job))
                case events.Log(text=text):
                    self.log.append(f"{who}: {text}")

    def step_cloud(self, event: cloud_events.Event, *, cut: bool = False) -> None:
        self.cloud, effects = cloud_machine.step(self.cloud, self.now_ns, event)
        self.cloud_shelf.commit(effects)
        for commit in self.commits:
            commit([effect for effect in effects if isinstance(effect, cloud_events.Durable)])
        for effect in () if cut else effects:
            match effect:
                case cloud_events.Publish() if self.cloud.context.is_connected:
                    self.publish(effect.topic, effect.payload, effect.retain)
                case cloud_events.Log(text=text):
                    self.log.append(f"cloud: {text}")

    def publish(self, where: str, payload: bytes, retain: bool = False) -> None:
        if retain:
            self.retained[where] = payload
            if not payload:
                del self.retained[where]
        self.on_the_way += [(who, where, payload) for who in self._receivers(where)]

    def _receivers(self, where: str) -> list[str]:
        parsed = topics.parse(where)
        if parsed.channel in TO_CLOUD and parsed.gateway != topics.ALL:
            return ["cloud"]
        listening = () if parsed.channel in TO_OTHERS else self.agents
        return [who for who in listening if parsed.gateway in (who, topics.ALL)]

    def deliver(self, *, cut: bool = False) -> str:
        """Deliver one message, if the weather lets it pass; return to whom."""
        index = int(self.rng.integers(len(self.on_the_way))) if self.shuffled else 0
        who, where, payload = self.on_the_way.pop(index)
        for _ in range(self.weather()):
            if who == "cloud":
                self.step_cloud(cloud_events.Received(where, payload), cut=cut)
            else:
                self.step_agent(who, events.Received(where, payload), cut=cut)
        return who

    def train(self) -> None:
        who, job = self.jobs.pop(0)
        self.step_agent(who, events.Trained(training_worker.answer(job)))

    def tick(self, seconds: float = 1.0) -> None:
        self.now_ns += round(seconds * NS)
        self.step_cloud(cloud_events.Tick())
        for who in self.agents:
            self.step_agent(who, events.Tick("synchronised", 0, 0))

    def flow(self) -> None:
        """Deliver and train until nothing is on its way."""
        while self.on_the_way or self.jobs:
            if self.on_the_way:
                self.deliver()
            else:
                self.train()

    def run(self, until: Callable[[], bool], patience_s: int = 3_000) -> None:
        """Let time pass until something is so."""
        for _ in range(patience_s):
            self.flow()
            if until():
                return
            self.tick()
        raise AssertionError(f"not within {patience_s} s; the last words were {self.log[-8:]}")

    def feed(self, who: str, values: Floats, start_s: float, frame_s: float = 5.0) -> None:
        """Send samples to a gateway in frames; its sensors have a line of their own that loses nothing."""
        length = round(frame_s * FEATURES["rate_hz"])
        for first in range(0, len(values), length):
            payload = frame(values[first : first + length], start_s + first / FEATURES["rate_hz"])
            self.step_agent(who, events.Received(topic(who, "sample", "deck"), payload))

    def commission(self) -> None:
        for index, who in enumerate(self.agents):
            self.feed(who, samples(index, WINDOWS), 0.0)

    def in_force(self, version: int = 1) -> bool:
        return all(
            (state.deployment.manifest.version if state.deployment.manifest else 0) == version
            for state in self.agents.values()
        )

    def settled(self) -> bool:
        return not any(state.outbox.items for state in self.agents.values())
