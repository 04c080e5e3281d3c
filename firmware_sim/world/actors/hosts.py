"""The two kinds of machines of a simulated world: what is the agent's own in a gateway, and the aggregator's in the
cloud. Events go into the real service, effects come out, and the witness sees both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from fedgate.cloud_aggregator import events as cloud_events
from fedgate.cloud_aggregator import machine
from fedgate.cloud_aggregator.enrolment import Issue, Reject, Revoke
from fedgate.cloud_aggregator.runtime.service import Service as CloudService
from fedgate.cloud_aggregator.state import State as CloudState
from fedgate.config.identity.signing import verify
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.topics import ALL, Topic, topic_of
from fedgate.config.settings.settings import AggregatorSettings, GatewaySettings
from fedgate.firmware_sim.world.actors.machines import Machine, there
from fedgate.firmware_sim.world.actors.processor import Stopwatch
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.disk import CloudStore, Disk, GatewayStore, Renewed
from fedgate.firmware_sim.world.environment.faults import NO_MEMORY
from fedgate.firmware_sim.world.environment.setup import KEY, SITE, faulty, stream_of
from fedgate.firmware_sim.world.promises.alarms.damage import Under, reaches_level
from fedgate.firmware_sim.world.promises.bounds import bounded_step
from fedgate.firmware_sim.world.promises.liveness import Owed, of_cloud, of_gateway
from fedgate.gateway_agent import events
from fedgate.gateway_agent.deployment.deployment import Examination, UntriedError
from fedgate.gateway_agent.deployment.probation import SLOW_STEPS
from fedgate.gateway_agent.runtime import training_worker
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import Host
from fedgate.models.arrays import FEATURES

TRAINING_S = (3.0, 40.0)
LOADED_S = (0.1, 300.0)  # from the mark of a load to the end of its process, where that is drawn
STOPPED = 0.3  # share of these ends that are stops in order; the others are kills
EVIDENCE = ".evidence"  # ends the name of an item
AT_ONCE_S = 0.2  # what comes within this time waits in the same queue
UNTRAINED = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)  # what the training child reports


def last_will(name: str) -> tuple[str, bytes]:
    """Return what the broker says of a gateway that vanished."""
    return topic_of(Topic(SITE, name, "status", "agent")), Status(state="offline").to_bytes()


class GatewayHost(Machine):
    """A gateway with the real agent on it; of two devices with one id, the second has another name in this world."""

    def __init__(self, world: World, settings: GatewaySettings, phase_s: float, name: str = "") -> None:
        name = name or settings.gateway.id
        disk_rng = stream_of(world.seed, f"disk of {name}")
        disk = Disk(settings.gateway.store, disk_rng, self._committed)
        disk.torn = world.network.faults.power.torn
        super().__init__(world, name, disk, phase_s)
        self.settings = settings
        world.witness.probations.known(name, settings)
        world.witness.maintenance.known(name, settings.features.window_s)
        rng = stream_of(world.seed, f"processor of {name}")
        self._stopwatch = Stopwatch(world.scheduler, rng, world.network.faults.processor, partial(world.note, name))
        self._store: GatewayStore | None = None
        self.service: Service | None = None
        self._training_rng = stream_of(world.seed, f"training of {name}")
        self._trial_rng = stream_of(world.seed, f"trials of models of {name}")
        self._labelled = faulty(world.seed, name)
        for row in self._labelled[FEATURES]:
            world.witness.privacy.row(settings.gateway.id, row)
        self._secret_rng = stream_of(world.seed, f"secret of {name}")
        self._alarms_rng = stream_of(world.seed, f"alarms of {name}")
        self._loads_rng = stream_of(world.seed, f"loads of {name}")
        self._marked: frozenset[str] = frozenset()  # digests of models whose loads this process has marked

    def opened(self) -> Sequence[events.Outward]:
        """Start the agent on its store."""
        self._store = store = GatewayStore(self.disk)
        self.world.witness.gateway_opened(self.name, store, self.disk.resolved())
        self._marked = frozenset()
        self.service = Service(
            self.settings,
            store,
            Host(
                boot_id=f"{self.name}-{self.boots}",
                verified=partial(verify, KEY.public_key()),
                can_train=True,
                uptime_ns=self.uptime_ns,
                anchor_ns=self.clock.anchor_ns,
                clock=self.clock.quality,
                labelled=self._labelled,
                random_bytes=lambda: self._secret_rng.bytes(32),
                stopwatch=self._stopwatch,
                examine=self._examine,
            ),
        )
        return self.service.first_effects

    def closed(self) -> None:
        """Let go of the store and of the file of clips as they are."""
        if self.service is not None and self.service.clips is not None:
            self.service.clips.close()
        super().closed()

    def stepped(self, event: events.Event) -> Sequence[events.Outward]:
        """Let the agent take a step."""
        if self._stopwatch.slow_until_s is not None:
            slack_s = SLOW_STEPS * self.settings.features.hop_s
            self.world.witness.devices.loads[self.name].slowed(self._stopwatch.slow_until_s + slack_s)
        service = there(self.service)
        effects = service.step(self.uptime_ns, event)
        self.world.witness.probations.stepped(self.name, service.state)
        if service.state.deployment.marked != self._marked:
            self._load_marked(service.state.deployment.marked)
        return effects

    def _committed(self, effects: Sequence[events.Durable | Renewed]) -> None:
        """Let the witness know of a commit; the power fails at the next chance after some that tell of an anomaly."""
        self.world.witness.gateway_committed(self.name, effects)
        has_evidence = any(isinstance(one, events.Enqueue) and one.name.endswith(EVIDENCE) for one in effects)
        if has_evidence and self._alarms_rng.random() < self.world.network.faults.alarms.cuts:
            self.arm("power")

    def _load_marked(self, marked: frozenset[str]) -> None:
        """Let the process end around a load that it has just marked, in the share of them that is drawn."""
        is_new, self._marked = bool(marked - self._marked), marked
        if not is_new or self._loads_rng.random() >= self.world.network.faults.loads.ends:
            return
        after_s = float(np.exp(self._loads_rng.uniform(*np.log(LOADED_S))))
        if self._loads_rng.random() < STOPPED:
            self.during_process(after_s, self.stop)
        else:
            self.during_process(after_s, lambda: self._fell("kill", f"{after_s:.0f} s after it marked a load"))

    @property
    def under(self) -> Under | None:
        """Under what it judges what it hears; None where no model, or no room in the store, lets it raise an alarm."""
        if (
            self.service is None
            or not self.is_up
            or self.disk.is_full
            or self.service.state.deployment.manifest is None
        ):
            return None
        return Under(self._process, self.service.state.deployment.manifest.version, self.clock.timeline_offset_ns)

    def reaches(self) -> bool:
        """Tell whether a damaged window of the last frame reaches the level of the model in force."""
        pipeline = there(self.service).state.monitor.pipeline
        return pipeline.judge is not None and reaches_level(pipeline.judge, pipeline.recent, pipeline.spec)

    def schedule_faults(self) -> None:
        """Schedule the faults of this machine."""
        super().schedule_faults()
        self._stopwatch.schedule_faults()

    def carry_out(self, effect: events.Outward) -> None:
        """Publish, train or log."""
        match effect:
            case events.Publish(topic=topic, payload=payload, retain=retain, qos=qos):
                self.world.witness.gateway_published(self.name, topic, payload)
                self.publish(topic, payload, retain=retain, qos=qos)
            case events.Train(job=job):
                self.during_process(float(self._training_rng.uniform(*TRAINING_S)), partial(self._train, job))
            case events.Log():
                self.log(effect)

    def _examine(self, _asked: Examination) -> None:
        """Let a model come through the process that tries it; where memory lacks there is none."""
        fails = 0.0 if self.world.scheduler.is_calm else self.world.network.faults.work.training_fails
        if self._trial_rng.random() < fails:
            raise UntriedError(NO_MEMORY)

    def _train(self, job: bytes) -> None:
        self.world.witness.privacy.trains(self.name, job)
        if self._training_rng.random() < self.world.network.faults.work.training_fails:
            self.step(events.Trained(None, NO_MEMORY))
            return
        try:
            answer = training_worker.answer(job)
        except UNTRAINED as error:
            self.step(events.Trained(None, f"{type(error).__name__}: {error}"))
            return
        self.step(events.Trained(answer))

    def ticks(self) -> Iterator[events.Event]:
        """Yield that time has passed."""
        line = self.world.network.sessions[self.name].line
        queue = line.queue
        yield events.Tick(
            self.clock.quality, 0, 0, queue.waiting_bytes, line.conflict.text, payload_bytes=queue.payload_bytes
        )

    def owed(self) -> Owed:
        """Return what the agent has to see to now."""
        return of_gateway(there(self.service).state, self.world.witness.devices.outbox(self.name).keys())

    def farewell(self) -> None:
        """Say that it is off."""
        topic, payload = last_will(self.settings.gateway.id)
        self.publish(topic, payload, retain=True)


class CloudHost(Machine):
    """The machine with the real aggregator on it."""

    def __init__(self, world: World, settings: AggregatorSettings, phase_s: float) -> None:
        disk_rng, file = stream_of(world.seed, "disk of the cloud"), cast(Path, settings.aggregator.store)
        disk = Disk(file, disk_rng, world.witness.cloud_committed)
        disk.torn = world.network.faults.power.torn
        super().__init__(world, "cloud", disk, phase_s)
        self.settings = settings
        self._store: CloudStore | None = None
        self.service: CloudService | None = None
        self._beginnings = 0
        self._inbox: list[cloud_events.Event] = []

    def opened(self) -> Sequence[cloud_events.Outward]:
        """Start the aggregator on its store."""
        self._store = store = CloudStore(self.disk)
        self._beginnings += 1
        self._inbox = []
        self.service = CloudService(
            self.settings,
            store,
            KEY,
            uptime_ns=self.uptime_ns,
            anchor_ns=self.clock.anchor_ns,
            beginning=f"start-{self._beginnings}",
            step=self._watched,
        )
        self.world.witness.cloud_opened(self.service.state, store, self.disk.resolved())
        return []

    def _watched(self, state: CloudState, uptime_ns: int, event: cloud_events.Event) -> machine.Result:
        """Take a step of the machine, of several that share a commit, and let the witness know of it."""
        after, effects = machine.step(state, uptime_ns, event)
        self.world.witness.cloud_thinks(after)
        return after, effects

    def stepped(self, event: cloud_events.Event) -> Sequence[cloud_events.Outward]:
        """Let the aggregator take a step, and the witness compare."""
        waiting, self._inbox = self._inbox, []
        service = there(self.service)
        self.world.witness.cloud_steps(service.state, self.now_ns)
        with bounded_step():
            effects = service.step_all(self.uptime_ns, [event, *waiting])
        for gateway in service.state.failures:  # a defect of ours that is contained is one all the same
            self.world.witness.violate(f"the aggregator failed at a message of {gateway}")
        self.world.witness.cloud_stepped()
        return effects

    def receive(self, topic: str, payload: bytes) -> None:
        """Take a message; those that come at about the same time are worked off together, as the real loop does."""
        if not self.is_up:
            return
        self.world.witness.cloud_receives(topic, payload)
        self._inbox.append(cloud_events.Received(topic, payload))
        if len(self._inbox) == 1:
            self.during_process(AT_ONCE_S, self._work_off)

    def _work_off(self) -> None:
        if self._inbox:
            self.step(self._inbox.pop(0))

    def carry_out(self, effect: cloud_events.Outward) -> None:
        """Publish or log."""
        match effect:
            case cloud_events.Publish(topic=topic, payload=payload, retain=retain):
                self.world.witness.cloud_published(topic, payload)
                self.publish(topic, payload, retain=retain)
            case cloud_events.Send(post=post) if self.world.receiver is not None:
                self.world.receiver.send(self, post)
            case Issue() | Reject() | Revoke() if self.world.door is not None:
                self.world.door.carry_out(effect)
            case cloud_events.Log():
                self.log(effect)

    def ticks(self) -> Iterator[cloud_events.Event]:
        """Yield what the operator has ordered, and that time has passed."""
        if self.world.witness.releases.has_waiting:
            yield from there(self.service).read_orders()
        if self.world.door is not None:
            self.world.door.tick()
        yield cloud_events.Tick()

    def owed(self) -> Owed:
        """Return what the aggregator has to see to now."""
        witness = self.world.witness
        witness.log.ticked(there(self.service).state, self.now_ns)
        twins = {name for name, how in witness.devices.handled.items() if "twin" in how}
        return of_cloud(there(self.service).state, witness.releases, twins, witness.hostile)

    def farewell(self) -> None:
        """Say that it is off."""
        self.publish(topic_of(Topic(SITE, ALL, "status", "cloud")), Status(state="offline").to_bytes(), retain=True)
