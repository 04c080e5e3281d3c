"""The processor of a simulated gateway: it is hot or busy now and then, and its models take longer than they may."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgate.firmware_sim.world.environment.faults import Processor
from fedgate.firmware_sim.world.environment.time import Scheduler
from fedgate.models.time_units import NS


class Stopwatch:
    """What the agent measures its models with: it stands still but for the times in which the processor is slow."""

    def __init__(
        self, scheduler: Scheduler, rng: np.random.Generator, faults: Processor, note: Callable[[str], None]
    ) -> None:
        self._scheduler, self._rng, self._faults, self._note = scheduler, rng, faults, note
        self.slow_until_s: float | None = None  # of the last such time
        self._by_ns = self._now_ns = 0

    def schedule_faults(self) -> None:
        """Arrange for the times in which it is slow."""
        self._scheduler.again(self._rng, self._faults.slow, self._slow_down)

    def _slow_down(self) -> None:
        faults = self._faults
        duration_s = float(self._rng.exponential(faults.slow_s))
        self._by_ns = round(float(self._rng.uniform(0.0, faults.takes_s)) * NS)
        self.slow_until_s = self._scheduler.elapsed_s + duration_s
        self._note(f"the processor is slow for {duration_s:.0f} s: what it does takes {self._by_ns / NS:.0f} s")

    def __call__(self) -> int:
        """Return the time that was spent so far."""
        is_over = self.slow_until_s is None or self._scheduler.elapsed_s >= self.slow_until_s
        if not is_over and not self._scheduler.is_calm:
            self._now_ns += self._by_ns
        return self._now_ns
