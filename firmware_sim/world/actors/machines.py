"""The machines of a simulated world: the real services on hardware that loses its power, its process and its time.

A cut may come before a step, within its commit, or behind it, before any of the effects that were to follow. Whatever
happens, a machine is started again by its service manager, and goes on with what its disk holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fedgate.cloud_aggregator.runtime.service import Service as CloudService
from fedgate.config.runtime.events import ClockSet, Connection, Received
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.disk import CloudStore, Disk, GatewayStore, PowerCutError
from fedgate.firmware_sim.world.environment.faults import Power
from fedgate.firmware_sim.world.environment.setup import stream_of
from fedgate.firmware_sim.world.environment.time import TICK_S, MachineClock
from fedgate.firmware_sim.world.promises.liveness import Owed
from fedgate.firmware_sim.world.promises.loads import End
from fedgate.gateway_agent.runtime.service import Service as AgentService
from fedgate.models.time_units import NS

RESTART_S = 10.0  # the service manager's pause
SAVED_S_MAX = 600.0  # how old the time may be that a machine without a clock has saved
ARMED_S_MAX = 900.0  # a cut waits so long for a commit to come
Running = TypeVar("Running")


def there(running: Running | None) -> Running:
    """Return what runs on a machine that is up."""
    if running is None:
        raise AssertionError("a machine that is down was asked for its service")
    return running


@dataclass
class Cut:
    """A machine is to go down, at the next chance of a kind."""

    kind: Literal["power", "kill"]
    place: Literal["before", "commit", "after"]


class Machine(ABC):
    """A computer with one service on it; what differs between the two kinds is below."""

    _store: GatewayStore | CloudStore | None = None
    service: AgentService | CloudService | None = None

    def __init__(self, world: World, name: str, disk: Disk, phase_s: float) -> None:
        self.name, self.world, self.disk, self._phase_s = name, world, disk, phase_s
        self.clock = MachineClock()
        self.is_up = self.is_retired = False
        self.boots = 0
        self._rng = stream_of(world.seed, f"power of {name}")
        self._process = 0  # counts them: what belongs to one that ended is void
        self._cut: Cut | None = None
        self._off_wall_ns = 0
        self._commits = 0  # of all processes before the last start
        self.faults = world.network.faults.power

    @abstractmethod
    def opened(self) -> Sequence[Any]:
        """Open the store, start the service and return what it has to tell first."""

    @abstractmethod
    def stepped(self, event: Any) -> Sequence[Any]:
        """Let the service take a step and return what is to be done outside."""

    @abstractmethod
    def carry_out(self, effect: Any) -> None:
        """Do one thing outside."""

    @abstractmethod
    def ticks(self) -> Iterator[Any]:
        """Yield what time brings, one event after the other: the service may go down at each."""

    @abstractmethod
    def owed(self) -> Owed:
        """Return what the service has to see to now."""

    def closed(self) -> None:
        """Let go of the store as it is."""
        if self._store is not None:
            self._store.close()
        self._store = self.service = None

    def ended(self) -> None:
        """End the service in order."""
        if self.service is not None:
            self.service.close()
        self._store = self.service = None

    def filled(self, is_full: bool) -> None:
        """Let the open store find its disk full, or not any more."""
        if self._store is not None:
            self._store.fill(is_full)

    @abstractmethod
    def farewell(self) -> None:
        """Say what a service says before it ends."""

    @property
    def now_ns(self) -> int:
        """The time of day as the service sees it."""
        return self.clock.now_ns(self.world.scheduler.now_ns)

    @property
    def uptime_ns(self) -> int:
        """The time since the boot."""
        return self.clock.uptime_ns(self.world.scheduler.now_ns)

    def _ticks(self) -> Iterator[Any]:
        """Yield a wall clock that was set, where it was, and what else time brings."""
        if by_ns := self.clock.follow():
            self.world.note(self.name, f"timeline moves by {by_ns / NS:.0f} s")
            yield ClockSet(self.clock.anchor_ns)
        yield from self.ticks()

    def boot(self) -> None:
        """Start the service; where it cannot start, try again in a while."""
        if self.is_up or self.is_retired:
            return
        self.clock.started()
        self._commits = self.disk.commits
        try:
            effects = self.opened()
        except PowerCutError:
            self._fell("power", "cut while it started")
            return
        except OSError as error:
            self.world.note(self.name, f"cannot start: {self._named(error)}")
            self._fell("kill", "", away_s=RESTART_S)
            return
        self.is_up = True
        self._process += 1
        self.world.note(self.name, f"starts, boot {self.boots}, clock {self.clock.quality}, {self.now_ns // NS}")
        self._carry_out(effects)
        if self.is_up:
            self.world.network.connect(self.name)
            if self.world.door is not None:
                self.world.door.started(self)
            self.during_process(self._phase_s % TICK_S, self._tick)

    def during_process(self, delay_s: float, act: Any) -> None:
        """Let something happen in a while, unless the process has ended by then."""
        process = self._process
        self.world.scheduler.after(delay_s, lambda: act() if self.is_up and self._process == process else None)

    def _tick(self) -> None:
        self.during_process(TICK_S, self._tick)
        for event in self._ticks():
            self.step(event)
            if not self.is_up:
                return
        self.world.witness.liveness.owes(self.name, self._process, self.owed())

    def receive(self, topic: str, payload: bytes) -> None:
        """Take a message from the broker."""
        self.step(Received(topic, payload))

    def linked(self, up: bool) -> None:
        """Take note that the connection came up or went down."""
        self.step(Connection(up))
        connection = self.world.network.sessions[self.name].connection
        if up and not self.clock.is_disciplined:
            self.during_process(self.faults.synchronised_after_s, lambda: self._synchronise(connection))

    def _synchronise(self, connection: int) -> None:
        session = self.world.network.sessions[self.name]
        if session.is_connected and session.connection == connection and not self.clock.is_disciplined:
            self.clock.synchronised()
            self.world.note(self.name, "is told the time by the network")

    def step(self, event: Any) -> None:
        """Give the service an event and do what it wants done, as far as the power lasts."""
        if not self.is_up:
            return
        cut, commits = self._cut, self.disk.commits
        if cut is not None and cut.place == "before":
            self._fell(cut.kind, "before a step")
            return
        self.disk.is_cut_armed = cut is not None and cut.place == "commit"
        try:
            effects = self.stepped(event)
        except PowerCutError:
            self._fell("kill" if cut is None else cut.kind, "within a commit")
            return
        except OSError as error:
            self.world.note(self.name, f"ends: {self._named(error)}")
            self._fell("kill", "", away_s=RESTART_S)
            return
        self.disk.is_cut_armed = False
        is_cut = cut is not None and cut.place == "after" and self.disk.commits > commits
        self._carry_out(effects, int(self._rng.integers(len(effects) + 1)) if is_cut else None)

    def _carry_out(self, effects: Sequence[Any], cut_at: int | None = None) -> None:
        process = self._process
        for index, effect in enumerate(effects):
            if index == cut_at or not self.is_up or self._process != process:
                break
            self.carry_out(effect)
        if cut_at is not None and self.is_up and self._cut is not None:
            self._fell(self._cut.kind, f"behind a commit, {cut_at} of {len(effects)} effects done")

    def publish(self, topic: str, payload: bytes, *, retain: bool, qos: int = 1) -> None:
        """Hand a message to the line."""
        self.world.witness.liveness.sent(self.name, topic, payload)
        self.world.network.publish(self.name, topic, payload, retain=retain, qos=qos)

    def log(self, effect: Any) -> None:
        """Let the history tell what the service says."""
        self.world.note(self.name, f"{'! ' if effect.level == 'warning' else ''}{effect.text}")

    def _named(self, error: OSError) -> str:
        """Return an error without the path of its file, which differs from one run to the next."""
        return str(error).replace(str(self.disk.path.parent), "")

    def arm(self, kind: Literal["power", "kill"]) -> None:
        """Let the power fail, or the process be killed, at the next chance of some kind."""
        if self.is_up and self._cut is None:
            place: Literal["before", "commit", "after"] = ("before", "commit", "after")[int(self._rng.integers(3))]
            self._cut = cut = Cut(kind, place)
            self.during_process(ARMED_S_MAX, lambda: self._fell(kind, "idle") if self._cut is cut else None)

    def _fell(self, kind: Literal["power", "kill"], when: str, away_s: float | None = None) -> None:
        """Go down, and come back after a while."""
        self.fall(kind, when)
        if away_s is None:
            away_s = RESTART_S + (float(self._rng.exponential(self.faults.away_s)) if kind == "power" else 0.0)
        self.world.scheduler.after(away_s, self.power_on if kind == "power" else self.boot)

    def cut_off(self, away_s: float, meanwhile: Callable[[], None]) -> None:
        """Take its power away, do something to its disk, and give the power back."""
        if self.is_up:
            self.fall("power", "by hand")
        meanwhile()
        self.world.scheduler.after(away_s, self.power_on)

    def fall(self, kind: Literal["power", "kill"], when: str) -> None:
        """Go down, and stay so until somebody starts it again."""
        if when:
            self.world.note(self.name, f"{'power cut' if kind == 'power' else 'killed'} {when}")
        if self.is_up or self.disk.commits > self._commits:  # else it has not even begun to load its model
            self._end(kind)
        self.is_up, self._cut, self._process = False, None, self._process + 1
        self.disk.fail(self.closed, in_checkpoint=kind == "power" and self._rng.random() < self.faults.checkpoint)
        self.world.network.left(self.name, at_once=kind == "kill")
        if kind == "power":
            self._off_wall_ns = self.world.scheduler.now_ns + self.clock.wall_offset_ns

    def _end(self, kind: Literal["power", "kill", "stop"]) -> None:
        self.world.witness.devices.loads[self.name].ended(End(self.boots, kind), self.world.scheduler.elapsed_s)

    def power_on(self) -> None:
        """Start the machine, its clock right or not."""
        if self.is_up or self.is_retired:
            return
        self.boots += 1
        self.clock.boot_ns = now_ns = self.world.scheduler.now_ns
        chance = self._rng.random()
        if chance < self.faults.no_clock:
            self.clock.booted(round(float(self._rng.uniform(5.0, 30.0)) * NS), now_ns)
        elif chance < self.faults.no_clock + self.faults.stale_clock:
            saved_ns = self._off_wall_ns - round(float(self._rng.uniform(0.0, SAVED_S_MAX)) * NS)
            self.clock.booted(max(saved_ns, 0), now_ns)
        self.boot()

    def stop(self) -> None:
        """Stop the service in order, as an operator does, and start it again."""
        if not self.is_up:
            return
        self.world.note(self.name, "is stopped")
        self._end("stop")
        self.farewell()
        self.world.network.goodbye(self.name)
        self.is_up, self._cut, self._process = False, None, self._process + 1
        try:
            self.ended()
        except OSError as error:
            self.world.note(self.name, f"cannot save all: {self._named(error)}")
        self.world.scheduler.after(RESTART_S, self.boot)

    def fill(self, duration_s: float) -> None:
        """Let the disk be full for a while."""
        if not self.disk.is_full:
            self.world.note(self.name, f"disk full for {duration_s:.0f} s")
            self._filled(True)
            self.world.scheduler.after(duration_s, lambda: self._filled(False))

    def _filled(self, is_full: bool) -> None:
        self.disk.is_full = is_full
        if self.is_up:
            self.filled(is_full)

    def schedule_faults(self) -> None:
        """Schedule the faults of this machine."""
        faults = self.faults
        again, rng = self.world.scheduler.again, self._rng
        again(rng, faults.cuts, lambda: self.arm("power"))
        again(rng, faults.kills, lambda: self.arm("kill"))
        again(rng, faults.stops, self.stop)
        again(rng, faults.disk_full, lambda: self.fill(float(rng.exponential(faults.disk_full_s))))
        again(rng, faults.clock_steps, self._misset)

    def calm(self) -> None:
        """Let nothing fail on this machine any more."""
        self.faults, self._cut, self.disk.is_cut_armed = Power(), None, False

    def _misset(self) -> None:
        by_s = float(self._rng.uniform(-self.faults.step_s, self.faults.step_s))
        self.world.note(self.name, f"wall clock steps by {by_s:.0f} s")
        self.clock.stepped(round(by_s * NS), self.world.scheduler.now_ns)
        self.world.scheduler.after(self.faults.synchronised_after_s, self.clock.synchronised)
