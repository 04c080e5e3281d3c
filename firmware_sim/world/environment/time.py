"""Time in a simulated world: one heap of what is to happen, and the clocks of machines that mistake it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedgate.config.protocol.messages import ClockQuality
from fedgate.config.runtime.clock import STEPPED_NS
from fedgate.models.time_units import HOUR_S, NS

T0_NS = 1_800_000_000 * NS  # of the world: January 2027
TICK_S = 15.0  # of the machines; a second in the field, and nothing in them depends on it


@dataclass
class Scheduler:
    """What is to happen, by time and, at the same time, by the order in which it was arranged."""

    now_ns: int = T0_NS
    calm_s: float | None = None  # the age at which faults were over
    _heap: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    @property
    def elapsed_s(self) -> float:
        """How old the world is."""
        return (self.now_ns - T0_NS) / NS

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Let something happen in a while."""
        self._count += 1
        heapq.heappush(self._heap, (self.now_ns + round(delay_s * NS), self._count, act))

    @property
    def is_calm(self) -> bool:
        """True where nothing fails any more."""
        return self.calm_s is not None

    def again(self, rng: np.random.Generator, rate: float, act: Callable[[], None]) -> None:
        """Let something happen now and then, `rate` times an hour, until nothing fails any more."""
        if rate == 0.0:
            return

        def happen() -> None:
            if not self.is_calm:
                act()
                self.again(rng, rate, act)

        self.after(float(rng.exponential(HOUR_S / rate)), happen)

    def run(self, until_s: float) -> None:
        """Let things happen until the world is so old."""
        until_ns = T0_NS + round(until_s * NS)
        while self._heap and self._heap[0][0] <= until_ns:
            self.now_ns, _, act = heapq.heappop(self._heap)
            act()
        self.now_ns = max(self.now_ns, until_ns)


@dataclass
class MachineClock:
    """A wall clock that may be wrong and be set, and what a process knows of it; see `fedgate.config.runtime.clock`."""

    wall_offset_ns: int = 0  # wall clock minus true time
    timeline_offset_ns: int = 0  # the time of day of the running process minus true time
    is_disciplined: bool = True
    boot_ns: int = T0_NS  # when the machine began to count

    def started(self) -> None:
        """Let a process begin with the wall time of now."""
        self.timeline_offset_ns = self.wall_offset_ns

    def booted(self, wall_ns: int, true_ns: int) -> None:
        """Begin at a wall time that nobody has checked: a whole second, as boards save it, so boots may begin alike."""
        self.wall_offset_ns, self.is_disciplined = wall_ns // NS * NS - true_ns, False

    @property
    def anchor_ns(self) -> int:
        """The time of the boot, by the time of day of the running process."""
        return self.boot_ns + self.timeline_offset_ns

    def uptime_ns(self, true_ns: int) -> int:
        """Return the time since the boot."""
        return true_ns - self.boot_ns

    def follow(self) -> int:
        """Take the time of day from a wall clock that was set and can be believed; return by how many ns it moved,
        mostly 0.
        """
        by_ns = self.wall_offset_ns - self.timeline_offset_ns
        if abs(by_ns) <= STEPPED_NS or not self.is_disciplined:
            return 0
        self.timeline_offset_ns += by_ns
        return by_ns

    def synchronised(self) -> None:
        """Set the wall clock right, as the network does."""
        self.wall_offset_ns, self.is_disciplined = 0, True

    def stepped(self, by_ns: int, true_ns: int) -> None:
        """Set the wall clock wrong; no system takes a time before 1970."""
        self.wall_offset_ns = max(self.wall_offset_ns + by_ns, -true_ns)

    def now_ns(self, true_ns: int) -> int:
        """Return the time of day of the running process."""
        return true_ns + self.timeline_offset_ns

    @property
    def quality(self) -> ClockQuality:
        """Whether that can be believed."""
        has_left = abs(self.wall_offset_ns - self.timeline_offset_ns) > STEPPED_NS
        return "synchronised" if self.is_disciplined and not has_left else "unsynchronised"
