"""What is known of devices that were handled: set back, damaged or doubled; what they may lose, and who must notice.

A gateway that nobody touched loses nothing and is never called a twin or an old image. One that was touched may lose
what only it held, and the aggregator must say so as soon as what it heard leaves no other reading.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from config.messages import Alarm, Status
from gateway_agent import events

Handled = Literal["restored", "rotten", "twin"]
TWIN = "~"  # behind the name of a second device under one id
BY_AGGREGATOR = "identity-"  # causes of alarms about a gateway that the aggregator raises
MAY_BE_SAID: dict[Handled, set[str]] = {
    "restored": {"identity-restored"},
    "rotten": {"identity-restored", "identity-replaced"},
    "twin": {"identity-twin", "identity-restored"},
}
APART_S = 60.0  # of what two devices say by turns, where nobody can doubt that they do


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
        self._said: dict[tuple[str, str, int | None], Said] = {}
        self._heard: dict[str, list[Said]] = defaultdict(list)  # by gateway: as the aggregator stored it
        self._causes: dict[str, set[str]] = defaultdict(set)

    def touched(self, device: str, how: Handled, items: Iterable[str] = ()) -> None:
        """Take note that a device was handled; `items` are those of the one of which it is a copy."""
        self.handled[gateway_of(device)].add(how)
        if how == "twin":
            self._outbox[device] = set(items)
            return
        self._just[device] = how
        self._cards[device] += how == "restored"

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
        if damage and how != "rotten":
            self._violate(f"{device} found its store damaged, which nobody touched: {damage}")
        if found != expected and how != "restored" and not damage:
            self._violate(f"the store of {device} holds {sorted(found)}, committed were {sorted(expected)}")
        self._outbox[device] = found
        if how is not None:
            self._forget(gateway_of(device), told)

    def gone(self, device: str, told: Iterable[tuple[str, str]]) -> None:
        """Take note that a device will not come back."""
        del self._outbox[device]
        self._forget(gateway_of(device), told)

    def _forget(self, gateway: str, told: Iterable[tuple[str, str]]) -> None:
        held = {item for device, items in self._outbox.items() if gateway_of(device) == gateway for item in items}
        self.lost |= {(owner, item) for owner, item in told if owner == gateway and item not in held}

    # Who notices.

    def said(self, device: str, status: Status) -> None:
        """Take note of a status that leaves a device."""
        key = (gateway_of(device), status.boot_id, status.monotonic_ns)
        self._said.setdefault(key, Said(device, self._cards[device], self._elapsed_s(), status))

    def heard(self, gateway: str, status: Status) -> None:
        """Take note of a status that the aggregator has stored."""
        said = self._said.get((gateway, status.boot_id, status.monotonic_ns))
        if status.state == "online" and said is not None:
            self._heard[gateway].append(said)

    def accused(self, gateway: str, alarm: Alarm) -> None:
        """Take note of what the aggregator says about a gateway, which must have been handled so."""
        if not alarm.cause.startswith(BY_AGGREGATOR):
            return
        self._causes[gateway].add(alarm.cause)
        if not any(alarm.cause in MAY_BE_SAID[how] for how in self.handled[gateway]):
            done = ", ".join(sorted(self.handled[gateway])) or "nothing"
            self._violate(f"{alarm.cause} of {gateway}, to which was done: {done}")

    def audit(self) -> None:
        """See that what the aggregator must have noticed was said."""
        for gateway, heard in self._heard.items():
            causes = self._causes[gateway]
            if _was_set_back(heard) and not causes:
                self._violate(f"{gateway} was set back to an old card, and nobody said so")
            if _are_two(heard) and "identity-twin" not in causes:
                self._violate(f"two devices spoke as {gateway} by turns, and nobody said so")


def _was_set_back(heard: Sequence[Said]) -> bool:
    """Tell whether a card was heard to have been started no oftener than the one before it."""
    most: dict[tuple[str, str], Said] = {}
    for one in heard:
        before = most.get((one.device, one.status.store_id))
        if before is not None and one.card > before.card and one.status.starts <= before.status.starts:
            return True
        if before is None or one.status.starts > before.status.starts:
            most[one.device, one.status.store_id] = one
    return False


def _are_two(heard: Sequence[Said]) -> bool:
    """Tell whether one device was heard before and after another, all far enough apart."""
    turns: list[Said] = []
    for one in heard:
        if not turns or (one.device != turns[-1].device and one.said_s > turns[-1].said_s + APART_S):
            turns.append(one)
    return len(turns) > 2
