"""A seeded world: the real agent, aggregator and sensor nodes under one scheduler, on hardware and a network that fail.

One seed decides everything: who is there, what is trained, what fails and when. The machines are the services of the
field with their real stores on real files; only time, the broker, the power and the disks are simulated. For some hours
things go wrong; then everything gets power and a network, and the world must come to rest with nothing lost, nothing
counted twice and every gateway on the last model. Equal seeds give equal histories, byte for byte.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgate.firmware_sim.world.actors.alarm_operator import AlarmOperator
from fedgate.firmware_sim.world.actors.door import Door, terms_of, with_certificates
from fedgate.firmware_sim.world.actors.handling import Hands
from fedgate.firmware_sim.world.actors.hostile import NAME, Device
from fedgate.firmware_sim.world.actors.hosts import CloudHost, GatewayHost, last_will
from fedgate.firmware_sim.world.actors.node import Node
from fedgate.firmware_sim.world.actors.operator import Operator
from fedgate.firmware_sim.world.actors.receiver import Receiver
from fedgate.firmware_sim.world.actors.remote_system import RemoteSystem
from fedgate.firmware_sim.world.actors.samples_operator import SamplesOperator
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.disk import complaint
from fedgate.firmware_sim.world.environment.faults import (
    Faults,
    alarms_of,
    anew_of,
    drawn,
    hostile_of,
    lies_of,
    loads_of,
    samples_of,
)
from fedgate.firmware_sim.world.environment.network import Network
from fedgate.firmware_sim.world.environment.setup import HOURS, SETTLE_S, TWIN, setup, stream_of
from fedgate.firmware_sim.world.environment.time import Scheduler
from fedgate.firmware_sim.world.promises import bounds
from fedgate.firmware_sim.world.promises.checks import Witness
from fedgate.models.time_units import HOUR_S

IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it, where there is one
PREFIX = "fedgate-world-"
LOOK_S = 30.0


@dataclass(frozen=True)
class Outcome:
    """What became of a world."""

    seed: int
    algorithm: str
    history: tuple[str, ...]
    violations: tuple[str, ...]
    counts: dict[str, int]
    lasted_s: float


@contextmanager
def _folder(parent: Path | None) -> Iterator[Path]:
    """Yield a new folder, in memory where the machine has such a place: a world writes much and keeps nothing."""
    where = (parent or (IN_MEMORY if IN_MEMORY.is_dir() else Path(tempfile.gettempdir()))).resolve()
    _remove_left(where)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", dir=where) as name:
        yield Path(name)


def _remove_left(where: Path) -> None:
    """Remove the folders of processes that are gone: whoever is killed removes nothing, and memory is dear."""
    for left in where.glob(f"{PREFIX}*"):
        process = left.name.removeprefix(PREFIX).partition("-")[0]
        if process.isdecimal() and not Path("/proc", process).exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)


def run(seed: int, hours: float = HOURS, faults: Faults | None = None, folder: Path | None = None) -> Outcome:
    """Let a world run and return what became of it; `faults` are drawn from the seed where none are given."""
    with _folder(folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return _Run(seed, hours, faults_of(seed) if faults is None else faults, place).outcome()


def faults_of(seed: int) -> Faults:
    """Return what a seed draws; who means harm, and what ends loads, is drawn apart: a seed without is what it was."""
    apart: dict[str, Any] = {"hostile": hostile_of(stream_of(seed, "harm")), "lies": lies_of(stream_of(seed, "lies"))}
    faults = drawn(stream_of(seed, "faults"))
    handling = faults.handling.model_copy(update={"anew": anew_of(stream_of(seed, "anew"))})
    apart |= {"loads": loads_of(stream_of(seed, "loads")), "alarms": alarms_of(stream_of(seed, "alarm orders"))}
    apart["samples"] = samples_of(stream_of(seed, "samples"))
    return faults.model_copy(update=apart | {"handling": handling})


class _Run:
    """One world from its beginning to its end."""

    def __init__(self, seed: int, hours: float, faults: Faults, folder: Path) -> None:
        self._seed, self._hours, self._folder = seed, hours, folder
        made = setup(seed, hours, faults, folder)
        terms = terms_of(seed, made, hours, faults.handling)
        self._setup = made = made if terms is None else with_certificates(made, terms, folder)
        scheduler, history = Scheduler(), list[str]()

        def note(who: str, text: str) -> None:
            history.append(f"{scheduler.elapsed_s:11.3f} {who:7} {text}")

        witness = Witness(note, lambda: scheduler.elapsed_s)
        network = Network(scheduler, stream_of(seed, "network"), faults, note, witness.violate)
        self.world = World(seed, scheduler, network, witness, history)
        self.cloud = CloudHost(self.world, made.cloud, made.phases_s["cloud"])
        self.gateways = {
            name: GatewayHost(self.world, settings, made.phases_s[name]) for name, settings in made.gateways.items()
        }
        if terms is not None:
            self.world.door = Door(self.world, terms, self.cloud, made.gateways)
        network.join(self.cloud, None)
        for name, host in self.gateways.items():
            network.join(host, last_will(name))
        for name, host in self.gateways.items():
            witness.damages.known(name, made.damages[name], made.phases_s[name])
            witness.fetches.know(name, made.recordings[name], keeps=host.settings.samples is not None)
            Node(host, made.recordings[name], made.phases_s[name]).start()
        self._hands = self._in_hands()
        known = (*self.gateways, NAME) if faults.hostile.messages else tuple(self.gateways)
        self._operator = Operator(self.world, self.cloud, known)
        if faults.alarms.orders:
            self.world.receiver, witness.log.notices.is_on = Receiver(self.world), True
        alarm_operator = AlarmOperator(self.world, self._operator, self.cloud, known)
        if faults.alarms.actions:
            self._join_remote(RemoteSystem(self.world, self._operator, self.cloud, known))
        if faults.hostile.messages:
            self._admit(Device(self.world, self.cloud, faults.hostile))
        for machine in (self.cloud, *self.gateways.values()):
            scheduler.after(0.0, machine.boot)
            machine.schedule_faults()
            network.schedule_faults(machine.name)
        network.schedule_faults(None)
        network.schedule_lies()
        self._hands.schedule_faults()
        self._operator.schedule_faults()
        alarm_operator.schedule_faults()
        self._samples_operator = SamplesOperator(self.world, self._operator)
        self._samples_operator.schedule_faults()
        if self.world.door is not None:
            self.world.door.schedule_faults(self._operator)

    def _admit(self, device: Device) -> None:
        """Let a hostile gateway take part, as one that was enrolled like all others."""
        witness = self.world.witness
        witness.hostile = witness.log.notices.hostile = witness.fetches.hostile = device.name
        if self.world.door is not None:
            self.world.door.enrol(device.name, self.cloud)
        self.world.network.join(device, device.will())
        self.world.network.connect(device.name)
        device.schedule_faults()

    def _join_remote(self, system: RemoteSystem) -> None:
        """Let another system act on alarms."""
        self.world.witness.actions.allowed = frozenset({system.name})
        self.world.network.join(system, None)
        self.world.network.connect(system.name)
        system.schedule_faults()

    def _in_hands(self) -> Hands:
        """Return what will be done to one of the gateways."""
        made, name = self._setup, self._setup.handled
        made.twin.gateway.store.parent.mkdir()
        twin = GatewayHost(self.world, made.twin, made.phases_s[name], name + TWIN)
        self.world.network.join(twin, last_will(name), name)
        other = next(one for one in made.recordings if one != name)
        self.world.witness.fetches.know(name, made.recordings[other], keeps=made.twin.samples is not None)
        return Hands(self.world, self.gateways[name], twin, Node(twin, made.recordings[other], made.phases_s[name]))

    def outcome(self) -> Outcome:
        """Let it run, come to rest, and be judged."""
        scheduler, witness = self.world.scheduler, self.world.witness
        scheduler.run(self._hours * HOUR_S)
        self._calm()
        witness.rounds.calm()
        rounds = witness.counts["rounds"]
        until_s = scheduler.elapsed_s + SETTLE_S
        while scheduler.elapsed_s < until_s and not (self._has_settled() and witness.counts["rounds"] > rounds):
            self._operator.finish()
            self._samples_operator.finish()
            scheduler.run(scheduler.elapsed_s + LOOK_S)
        self._judge(rounds)
        return Outcome(
            self._seed,
            self._setup.cloud.algorithm.name,
            tuple(self.world.history),
            tuple(witness.violations),
            dict(witness.counts),
            scheduler.elapsed_s,
        )

    def _calm(self) -> None:
        """Let nothing fail any more. What a line carries stays as it was: a narrow line is no fault."""
        self.world.note("world", "faults are over")
        scheduler, network = self.world.scheduler, self.world.network
        scheduler.calm_s = scheduler.elapsed_s
        network.faults = Faults()
        for machine in (self.cloud, *self.gateways.values()):
            machine.calm()

    def _missing(self) -> list[str]:
        """Return what is not as it should be in the end."""
        if self.cloud.service is None:
            return ["the aggregator does not run"]
        cloud = self.cloud.service.state
        problems = [] if cloud.releases.manifest is not None else ["there is no model"]
        problems += ["orders wait"] if self.world.witness.releases.has_waiting else []
        notices = self.world.witness.log.notices.missing
        problems += [f"{notices} notices of alarms wait"] if notices else []
        actions, fetches = self.world.witness.actions.missing, self.world.witness.fetches.missing
        problems += [f"{actions} actions of other systems have no answer"] if actions else []
        out = self.world.witness.certificates.out
        problems += [f"samples of {'/'.join(key)} have not come" for key in fetches if key.gateway not in out]
        problems += ["a copy of a gateway is still on"] if self._hands.has_copy else []
        for name, host in self.gateways.items():
            if host.service is None:
                problems.append(f"{name} does not run")
                continue
            if name in self.world.witness.certificates.out:
                problems += [f"{name} is revoked, and connected"] if self.world.network.has(name) else []
                continue
            if self.world.door is not None and not self.world.door.admits(name):
                problems.append(f"{name} has no good certificate")
            # Who was handled may be shut out, where the algorithm remembers whom it counted.
            is_in = name in self.world.witness.rounds.took_part or self.world.witness.devices.handled[name]
            problems += [] if is_in else [f"{name} took no part in any round, and refused none"]
            state = host.service.state
            problems += self._unknown_works(name, host)
            if state.outbox.items:
                problems.append(f"{name} still has {len(state.outbox.items)} items to send")
            wanted, _ = self.world.witness.releases.wanted(name)
            held = state.deployment.manifest.version if state.deployment.manifest else 0
            is_refused = wanted in {one.version for one in state.deployment.models.rejected}
            # Who was given back what all have was given it under a version of its own.
            digest = self.world.witness.released.get(wanted)
            is_same = state.deployment.manifest is not None and digest == state.deployment.manifest.model.digest
            if wanted and held != wanted and not is_refused and not is_same:
                problems.append(f"{name} has model {held} and not {wanted}: {state.context.refusal}")
        return problems

    def _unknown_works(self, name: str, host: GatewayHost) -> list[str]:
        """Return what a gateway does not know of announced maintenance."""
        changed_ns = self.world.witness.log.states.changed_ns
        if changed_ns == self.world.witness.maintenance.changed_ns[host.name]:
            return []
        return [f"{name} does not know what maintenance was announced last"]

    def _has_settled(self) -> bool:
        return not self._missing()

    def _judge(self, rounds_before: int) -> None:
        witness = self.world.witness
        for problem in self._missing():
            witness.violate(f"{SETTLE_S / HOUR_S:g} hours after the last fault {problem}")
        if witness.counts["rounds"] == rounds_before:
            witness.violate(f"no round was closed within {SETTLE_S / HOUR_S:g} hours after the last fault")
        if witness.hostile:
            state = None if self.cloud.service is None else self.cloud.service.state
            witness.counts |= bounds.audit(state, self.cloud.disk.path, witness.violate)
        if self.cloud.service is not None:
            witness.audit(self.cloud.service.store, self.cloud.now_ns)
        if self.world.door is not None:
            witness.counts |= self.world.door.audit(self._folder)
        for machine in (self.cloud, *self.gateways.values()):
            machine.closed()
            if problem := complaint(machine.disk.path):
                witness.violate(f"the store of {machine.name} is damaged: {problem}")
        if witness.hostile:
            bounds.ask(self._setup.cloud, self._folder, witness.violate)
        self.world.note("world", f"ends: {self.world.witness.counts}")
