"""Whether a simulated gateway learns anything from what it measures while maintenance is announced to it.

What it knows of maintenance is what its store holds; what it learns, the windows of its baseline.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fedgate.config.protocol.messages import MaintenanceWindows
from fedgate.config.protocol.topics import ALL
from fedgate.firmware_sim.world.environment.disk import Renewed
from fedgate.firmware_sim.world.environment.setup import gateway_of
from fedgate.gateway_agent import events
from fedgate.gateway_agent.monitor.maintenance import MAINTENANCE
from fedgate.gateway_agent.state import Stored
from fedgate.models.time_units import NS

Times = list[tuple[int, int]]  # begin and end, in Unix ns


class Maintenance:
    """The maintenance of a world, as its gateways know of it."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._times: dict[str, Times] = defaultdict(list)  # by device
        self.changed_ns = Counter[str]()  # by device: of what it was told last
        self._window_ns: dict[str, int] = {}  # by device
        self.counts = {"maintenance": 0}  # that gateways were told of

    def known(self, device: str, window_s: float) -> None:
        """Take note of how long the windows of a device are."""
        self._window_ns[device] = round(window_s * NS)

    def committed(self, device: str, effects: Sequence[Any]) -> None:
        """See that no window is kept that shares time with maintenance that the store held before, and holds now."""
        before = self._times[device]
        for effect in effects:
            if isinstance(effect, events.Save) and effect.key == MAINTENANCE:
                self._note_announced(device, effect.body)
                self.counts["maintenance"] += 1
            elif isinstance(effect, Renewed):
                self.opened(device, effect.stored)
        for effect in effects:
            if isinstance(effect, events.Keep) and effect.seen.end_ns is not None:
                end_ns = effect.seen.end_ns
                span = (end_ns - self._window_ns[device], end_ns)
                if _shares(span, before) and _shares(span, self._times[device]):
                    self._violate(f"{device} learns from a window of announced maintenance, which ended at {end_ns}")

    def opened(self, device: str, stored: Stored) -> None:
        """Take note of what a store holds as it is opened."""
        self._note_announced(device, stored.blobs.get(MAINTENANCE, b""))

    def _note_announced(self, device: str, body: bytes) -> None:
        announced = MaintenanceWindows.from_bytes(body) if body else None
        windows = () if announced is None else announced.windows
        self.changed_ns[device] = 0 if announced is None else announced.changed_ns
        ours = (one for one in windows if one.gateway in (ALL, gateway_of(device)))
        self._times[device] = [(one.from_ns, one.to_ns) for one in ours if one.from_ns < one.to_ns]  # not called off


def _shares(span: tuple[int, int], times: Times) -> bool:
    return any(span[0] < to_ns and from_ns < span[1] for from_ns, to_ns in times)
