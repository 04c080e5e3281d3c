"""What a device does with each model that it loads, and whether that looks like a model that ends the agent."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fedgate.gateway_agent.deployment.deployment import LOADS_MAX, STARTS_MAX
from fedgate.gateway_agent.deployment.probation import STEADY_S

LOADING_S = STEADY_S + 30.0  # until then the load of a model may not have been finished, the tick included


class End(NamedTuple):
    """An end of a process: in which boot, and by what."""

    boot: int
    kind: Literal["power", "kill", "stop"]


@dataclass
class Load:
    """What a device has done with one model."""

    first_s: float  # when its store first counted a load
    counted: int | None = None  # loads in its store; None where the last one was finished
    is_resting: bool = False
    by_process: int = 0  # loads that its process has counted
    marked_s: float | None = None  # when its process marked one that is not finished yet
    ends: list[End] = field(default_factory=list)  # of processes in a row, each soon after it marked a load
    has_rested: bool = False  # since one was finished
    ever_looked_deadly: bool = False

    @property
    def looks_deadly(self) -> bool:
        """Whether the last processes that began to load the model were killed, or cut off over all boots, in a row and
        so soon that nobody on that device can tell it from a model that ends the agent. One that has rested for that
        is tried once.
        """
        last = self.ends[-STARTS_MAX:]
        is_killed = bool(last) and last == [End(last[-1].boot, "kill")] * STARTS_MAX
        return is_killed or len(self.ends) >= (1 if self.has_rested else LOADS_MAX)

    def go_on(self) -> None:
        """Begin anew where the last load was finished, and where the model rests."""
        if self.counted is None or self.is_resting:
            self.marked_s, self.ends = None, []
        self.has_rested = self.counted is not None and (self.has_rested or self.is_resting)


class Loads:
    """The loads of all models on one device."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}  # by digest
        self._last: End | None = None
        self._slow_until_s = -math.inf

    def copied(self) -> Loads:
        """Return the loads of a copy of the device, which no process has been on yet."""
        made = copy.deepcopy(self)
        for load in made._loads.values():
            load.by_process, load.marked_s = 0, None
        return made

    def counted(self, counts: Mapping[str, Any], now_s: float) -> Iterator[str]:
        """Take note of what a process writes of its loads, by digest; yield what it had no reason for."""
        for digest, (_, _, in_all, is_resting) in counts.items():
            load = self._loads.setdefault(digest, Load(now_s))
            if is_resting and not load.is_resting and not load.looks_deadly:
                yield f"starts without model {digest[:12]}, which ended no process of it often enough"
            by_process = in_all if load.counted is None else load.by_process + in_all - load.counted
            if by_process > 1 and not is_resting:
                yield f"counts {by_process} loads of one model, and its process can end but once"
            load.by_process = 0 if is_resting else by_process
            if in_all != (load.counted or 0):
                load.marked_s = now_s
        self._store(counts, now_s)

    def opened(self, counts: Mapping[str, Any], now_s: float) -> None:
        """Take note of what a store holds that was opened."""
        if any(load.marked_s is not None for load in self._loads.values()):  # by a commit that was cut, and there
            assert self._last is not None  # noqa: S101 - no store is opened twice without an end between
            self.ended(self._last, now_s)
        self._store(counts, now_s)
        for load in self._loads.values():
            load.by_process = 0

    def _store(self, counts: Mapping[str, Any], now_s: float) -> None:
        for digest in counts:
            self._loads.setdefault(digest, Load(now_s))
        for digest, load in self._loads.items():
            _, _, load.counted, load.is_resting = counts.get(digest, (None, None, None, False))
            load.go_on()

    def ended(self, end: End, now_s: float) -> None:
        """Take note that a process has ended, and of the loads that it had marked and not finished."""
        for load in self._loads.values():
            if load.marked_s is not None:
                is_soon = end.kind != "stop" and now_s - load.marked_s <= LOADING_S
                load.ends = [*load.ends, end] if is_soon else []
                load.ever_looked_deadly |= load.looks_deadly
            load.by_process, load.marked_s = 0, None
        self._last = end

    def slowed(self, until_s: float) -> None:
        """Take note of the time until which the processor is slow, or was last."""
        self._slow_until_s = until_s

    def ever_looked_deadly(self, digest: str) -> bool:
        """Tell whether there was ever reason to give a model up, see `Load.looks_deadly`."""
        return digest in self._loads and self._loads[digest].ever_looked_deadly

    def was_slow_with(self, digest: str) -> bool:
        """Tell whether the processor was slow at any time since a model was first loaded."""
        return digest in self._loads and self._loads[digest].first_s <= self._slow_until_s
