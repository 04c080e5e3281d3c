"""What is known of devices that were handled: set back, damaged or doubled; what they may lose, and who must notice.

A gateway that nobody touched loses nothing and is never called a twin or an old image. One that was touched may lose
what only it held, and the aggregator must say so as soon as what it heard leaves no other reading.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, NamedTuple

from config.messages import Alarm, Status
from firmware_sim.world_ends import Card
from gateway_agent import events
from gateway_agent.probation import STEADY_S
from gateway_agent.versions import LOADS_MAX, STARTS_MAX

Handled = Literal["restored", "rotten", "twin"]
TWIN = "~"  # behind the name of a second device under one id
BY_AGGREGATOR = "identity-"  # causes of alarms about a gateway that the aggregator raises
MAY_BE_SAID: dict[Handled, set[str]] = {
    "restored": {"identity-restored"},
    "rotten": {"identity-restored", "identity-replaced"},
    "twin": {"identity-twin", "identity-restored"},
}
ON_TIME_S = 10.0
TOGETHER_S, TOGETHER_TIMES = 500.0, 6  # of two devices that nobody can take for one whose messages were late
LOADING_S = STEADY_S + 30.0  # until then the load of a model may not have been finished, the tick included
LIVES_MAX = 4  # of a gateway, in one process of the aggregator: so many it must have in mind


@dataclass
class Life:
    """What was heard of one boot of one device."""

    starts: set[tuple[str, int]] = field(default_factory=set)  # store and count of starts
    times_s: list[float] = field(default_factory=list)  # when it was said what came on time


Named = tuple[tuple[str, int, str], Life]  # device, card and boot


class End(NamedTuple):
    """An end of a process: in which boot, by what, and how long it had run."""

    boot: int
    kind: Literal["power", "kill", "stop"]
    lasted_s: float


class Said(NamedTuple):
    """A status, by whom it was said and when."""

    device: str
    card: int  # counts the images that the device was set back to
    said_s: float
    status: Status


def gateway_of(device: str) -> str:
    """Return the id under which a device speaks."""
    return device.removesuffix(TWIN)


class Devices:
    """What each device holds on its way to the aggregator, and what was done to it."""

    def __init__(self, violate: Callable[[str], None], elapsed_s: Callable[[], float]) -> None:
        self._violate, self._elapsed_s = violate, elapsed_s
        self.handled: dict[str, set[Handled]] = defaultdict(set)  # by gateway
        self.lost: set[tuple[str, str]] = set()  # gateway and item: nobody has it any more, and nobody is to blame
        self._outbox: dict[str, set[str]] = defaultdict(set)  # by device: what its store holds
        self._just: dict[str, Handled] = {}  # by device: until it is switched on again
        self._cards: dict[str, int] = defaultdict(int)
        self._handlings: dict[str, int] = defaultdict(int)  # by device: how often anything was done to it
        self._said: dict[tuple[str, str, int | None], Said] = {}
        # By gateway and process of the aggregator, and by device, card and boot.
        self._lives: dict[tuple[str, int], dict[tuple[str, int, str], Life]] = defaultdict(dict)
        self._causes: dict[str, set[str]] = defaultdict(set)
        self._ends: dict[str, list[End]] = defaultdict(list)  # by device

    def touched(self, device: str, how: Handled) -> None:
        """Take note that a device was handled."""
        self.handled[gateway_of(device)].add(how)
        self._just[device] = how
        self._cards[device] += how == "restored"
        self._handlings[device] += 1

    def doubled(self, device: str, host: str) -> None:
        """Take note of a copy of a device, with all that was done to the card of that one while it is switched off."""
        self.handled[gateway_of(host)].add("twin")
        self._handlings[host] += 1
        self._outbox[device] = set(self._outbox[host])
        if host in self._just:
            self._just[device] = self._just[host]

    def card(self, device: str) -> Card:
        """Return what names a device as it is since it was handled last."""
        return device, self._handlings[device]

    def cards(self, gateway: str) -> set[Card]:
        """Return the device of a gateway as it is now; nothing while a copy speaks under its id."""
        return set() if gateway + TWIN in self._outbox else {self.card(gateway)}

    def outbox(self, device: str) -> set[str]:
        """Return what the store of a device holds for the aggregator."""
        return self._outbox[device]

    def committed(self, device: str, effects: Sequence[events.Durable]) -> None:
        """Take note of what comes and goes."""
        for effect in effects:
            match effect:
                case events.Queue(name=item):
                    self._outbox[device].add(item)
                    self.lost.discard((gateway_of(device), item))
                case events.Settle(name=item):
                    self._outbox[device].discard(item)

    def opened(self, device: str, found: set[str], damage: str, told: Iterable[tuple[str, str]]) -> None:
        """Compare what a store holds with what was committed to it; `told` is all that the aggregator has not got."""
        how, expected = self._just.pop(device, None), self._outbox[device]
        if damage and "rotten" not in self.handled[gateway_of(device)]:
            self._violate(f"{device} found its store damaged, which nobody touched: {damage}")
        if found != expected and how != "restored" and not damage:
            self._violate(f"the store of {device} holds {sorted(found)}, committed were {sorted(expected)}")
        self._outbox[device] = found
        if how is not None or damage:  # which may be in a page that was not looked at before
            self._forget(gateway_of(device), told)

    def gone(self, device: str, told: Iterable[tuple[str, str]]) -> None:
        """Take note that a device will not come back."""
        del self._outbox[device]
        self._handlings[gateway_of(device)] += 1
        self._forget(gateway_of(device), told)

    def _forget(self, gateway: str, told: Iterable[tuple[str, str]]) -> None:
        held = {item for device, items in self._outbox.items() if gateway_of(device) == gateway for item in items}
        self.lost |= {(owner, item) for owner, item in told if owner == gateway and item not in held}

    # What looks like a model that ends the agent.

    def ended(self, device: str, end: End) -> None:
        """Take note that a process has ended."""
        self._ends[device].append(end)

    def ended_like_one_deadly(self, device: str) -> bool:
        """Tell whether its processes were ever killed, or cut off over all boots, in a row and so soon that nobody on
        that device can tell it from a model that ends the agent.
        """
        ends = self._ends[device]
        rows = [ends[first : first + STARTS_MAX] for first in range(len(ends) - STARTS_MAX + 1)]
        rows = [row for row in rows if {(end.boot, end.kind) for end in row} == {(row[0].boot, "kill")}]
        rows += [ends[first : first + LOADS_MAX] for first in range(len(ends) - LOADS_MAX + 1)]
        is_soon = [all(end.kind != "stop" and end.lasted_s <= LOADING_S for end in row[1:]) for row in rows]
        return any(is_soon)  # the first of a row may have loaded the model at any time

    # Who notices.

    def said(self, device: str, status: Status) -> None:
        """Take note of a status that leaves a device."""
        key = (gateway_of(device), status.boot_id, status.monotonic_ns)
        self._said.setdefault(key, Said(device, self._cards[device], self._elapsed_s(), status))

    def heard(self, gateway: str, status: Status, process: int) -> None:
        """Take note of a status that comes to the aggregator; what it has in mind of it ends with its process."""
        said = self._said.get((gateway, status.boot_id, status.monotonic_ns))
        if status.state == "online" and said is not None:
            life = self._lives[gateway, process].setdefault((said.device, said.card, status.boot_id), Life())
            life.starts |= set() if status.store_problem else {(status.store_id, status.starts)}
            if self._elapsed_s() - said.said_s <= ON_TIME_S:
                life.times_s.append(said.said_s)

    def accused(self, gateway: str, alarm: Alarm) -> None:
        """Take note of what the aggregator says about a gateway, which must have been handled so."""
        if not alarm.cause.startswith(BY_AGGREGATOR):
            return
        self._causes[gateway].add(alarm.cause)
        if not any(alarm.cause in MAY_BE_SAID[how] for how in self.handled[gateway]):
            done = ", ".join(sorted(self.handled[gateway])) or "nothing"
            self._violate(f"{alarm.cause} of {gateway}, to which was done: {done}")

    def audit(self) -> dict[str, int]:
        """See that what the aggregator must have noticed was said; return how often that was so."""
        found = {"restored": 0, "twins": 0}
        for (gateway, _), lives in self._lives.items():
            pairs = list(combinations(lives.items(), 2))
            if len(lives) <= LIVES_MAX and any(_is_set_back(one, other) for one, other in pairs):
                found["restored"] += 1
                if not self._causes[gateway]:
                    self._violate(f"{gateway} was set back to an old card, and nobody said so")
            if any(_are_two(one, other) for one, other in pairs):
                found["twins"] += 1
                if "identity-twin" not in self._causes[gateway]:
                    self._violate(f"two devices spoke as {gateway} by turns, and nobody said so")
        return found


def _is_set_back(one: Named, other: Named) -> bool:
    """Tell whether two lives of one device, on two cards, have told of the same start of the same store."""
    ((device, card, _), life), ((other_device, other_card, _), other_life) = one, other
    return device == other_device and card != other_card and bool(life.starts & other_life.starts)


def _are_two(one: Named, other: Named) -> bool:
    """Tell whether two devices were heard, on time and all the while, within one time."""
    if one[0][0] == other[0][0] or not one[1].times_s or not other[1].times_s:
        return False
    first_s = max(one[1].times_s[0], other[1].times_s[0])
    last_s = min(one[1].times_s[-1], other[1].times_s[-1])
    counts = [sum(first_s <= time_s <= last_s for time_s in life.times_s) for life in (one[1], other[1])]
    return last_s - first_s >= TOGETHER_S and min(counts) >= TOGETHER_TIMES
