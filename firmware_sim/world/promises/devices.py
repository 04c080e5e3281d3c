"""What is known of devices that were handled: set back, damaged or doubled; what they may lose, and who must notice.

A gateway that nobody touched loses nothing and is never called a twin or an old image. One that was touched may lose
what only it held, and the aggregator must say so as soon as what it heard leaves no other reading.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fedgate.config.protocol.messages import Alarm, Status
from fedgate.firmware_sim.world.environment.disk import Renewed
from fedgate.firmware_sim.world.environment.setup import TWIN, gateway_of
from fedgate.firmware_sim.world.promises.alarms.ends import Card
from fedgate.firmware_sim.world.promises.loads import Loads
from fedgate.gateway_agent import events
from fedgate.gateway_agent.deployment.deployment import MODELS
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.state import Stored

Handled = Literal["restored", "rotten", "twin", "anew"]
BY_AGGREGATOR = "identity-"  # causes of alarms about a gateway that the aggregator raises
MAY_BE_REPORTED: dict[Handled, set[str]] = {
    "restored": {"identity-restored"},
    "rotten": {"identity-restored", "identity-replaced"},
    "twin": {"identity-twin", "identity-restored"},
    "anew": {"identity-replaced"},
}
SESSIONS_MAX = 8  # boots on one store of a gateway that the aggregator promises to have in mind


Named = tuple[str, int, str, str]  # a boot of a device on a store: device, card, boot and store


@dataclass
class Session:
    """What the aggregator has received of one boot of one device on one store."""

    first_s: float  # when it was first received, and ...
    last_s: float  # ... last
    sent_ns: int = -1  # on its own clock, of the latest of its statuses
    starts: int = 0  # of which it has reported that they are on its disk
    challenge: int = 0  # that was sent when it was first received; 0: none yet
    named: int = 0  # the highest challenge that it named


@dataclass
class Due:
    """What the aggregator must have reported of a gateway by the time at which it had received enough."""

    kind: Literal["restored", "twins"]
    gateway: str
    first_s: float  # when it first received one of the two sessions
    known_s: float


@dataclass
class Accusation:
    """What the aggregator says about a gateway, from when until when."""

    alarm_id: str
    cause: str
    from_s: float
    until_s: float = math.inf


@dataclass
class Held:
    """What the store of a device holds, by what was committed to it."""

    windows: list[tuple[bytes, int | None]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    items: dict[str, events.Item] = field(default_factory=dict)

    def copied(self) -> Held:
        """Return the same for another device."""
        return Held([*self.windows], {**self.blobs}, {**self.items})

    def differing(self, other: Held) -> list[str]:
        """Return the names of what another store holds otherwise, or alone, or not at all."""
        names = [] if self.windows == other.windows else ["baseline"]
        for kind, ours, theirs in (("blob", self.blobs, other.blobs), ("item", self.items, other.items)):
            both = sorted(ours.keys() | theirs.keys())
            names += [f"{kind} {name}" for name in both if ours.get(name) != theirs.get(name)]
        return names


def held_in(stored: Stored) -> Held:
    """Return what a store that was read holds."""
    return Held([_window(one) for one in stored.baseline], dict(stored.blobs), dict(stored.outbox))


def _loads_in(stored: Stored) -> dict[str, Any]:
    """Return what a store counts of loads that were not finished, by the digest of their model."""
    return dict(json.loads(stored.blobs.get(MODELS, b"{}")).get("trying", {}))


def _window(seen: FeatureRow) -> tuple[bytes, int | None]:
    return seen.row.astype("<f4").tobytes(), seen.end_ns


class SentStatus(NamedTuple):
    """A status, by whom it was sent and when."""

    device: str
    card: int  # counts the images that the device was set back to, and the stores that it began anew with
    sent_s: float
    status: Status


UNREPORTED = {"restored": "it was set back to an old card", "twins": "two devices spoke under its name by turns"}


class Devices:
    """What each device holds on its way to the aggregator, and what was done to it."""

    def __init__(self, violate: Callable[[str], None], elapsed_s: Callable[[], float]) -> None:
        self._violate, self._elapsed_s = violate, elapsed_s
        self.handled: dict[str, set[Handled]] = defaultdict(set)  # by gateway
        self.lost: set[tuple[str, str]] = set()  # gateway and item: nobody has it any more, and nobody is to blame
        self._held: dict[str, Held] = defaultdict(Held)  # by device
        self._just: dict[str, Handled] = {}  # by device: until it is switched on again
        self._cards: dict[str, int] = defaultdict(int)
        self._handlings: dict[str, int] = defaultdict(int)  # by device: how often anything was done to it
        self._sent: dict[tuple[str, str, int | None], SentStatus] = {}
        self._sessions: dict[str, dict[Named, Session]] = defaultdict(dict)  # by gateway
        self._due: dict[tuple[str, frozenset[Named]], Due] = {}  # by kind and the two sessions
        self._accusations: dict[str, list[Accusation]] = defaultdict(list)  # by gateway
        self.loads: dict[str, Loads] = defaultdict(Loads)  # by device

    def touched(self, device: str, how: Handled) -> None:
        """Take note that a device was handled."""
        self.handled[gateway_of(device)].add(how)
        self._just[device] = how
        self._cards[device] += how in ("restored", "anew")
        self._handlings[device] += 1

    def doubled(self, device: str, host: str) -> None:
        """Take note of a copy of a device, with all that was done to the card of that one while it is switched off."""
        self.handled[gateway_of(host)].add("twin")
        self._handlings[host] += 1
        self._held[device] = self._held[host].copied()
        self.loads[device] = self.loads[host].copied()
        if host in self._just:
            self._just[device] = self._just[host]

    def card(self, device: str) -> Card:
        """Return what names a device as it is since it was handled last."""
        return device, self._handlings[device]

    def cards(self, gateway: str) -> set[Card]:
        """Return the device of a gateway as it is now; nothing while a copy speaks under its id."""
        return set() if gateway + TWIN in self._held else {self.card(gateway)}

    def is_mixed(self, gateway: str) -> bool:
        """Tell whether more than one store may have spoken for a gateway by turns: an older image, or a copy."""
        return bool(self.handled[gateway] & {"restored", "twin"})

    def outbox(self, device: str) -> Mapping[str, events.Item]:
        """Return what the store of a device holds for the aggregator, by name."""
        return self._held[device].items

    def committed(self, device: str, effects: Sequence[events.Durable | Renewed]) -> None:
        """Take note of what comes and goes."""
        held = self._held[device]
        for effect in effects:
            match effect:
                case events.Keep(seen=seen):
                    held.windows.append(_window(seen))
                case events.Save(key=key, body=body):
                    held.blobs[key] = body
                    if key == MODELS:
                        self._note_loads(device, json.loads(body)["trying"])
                case events.Enqueue(name=name, item=item):
                    held.items[name] = item
                    self.lost.discard((gateway_of(device), name))
                case events.Dequeue(name=name):
                    held.items.pop(name, None)
                case Renewed(stored=stored):
                    self._held[device] = held = held_in(stored)
                    self._note_loads(device, _loads_in(stored))

    def opened(self, device: str, stored: Stored, damage: str, undelivered: Iterable[tuple[str, str]]) -> bool:
        """Compare what a store holds with what was committed to it, and tell whether it was handled since it was last
        open; `undelivered` is all that the aggregator has not got.
        """
        how, expected, found = self._just.pop(device, None), self._held[device], held_in(stored)
        is_handled = how is not None or bool(damage)
        if damage and (how is None or "rotten" not in self.handled[gateway_of(device)]):
            self._violate(f"{device} found its store damaged, which nobody touched: {damage}")
        if how not in {"restored", "anew"} and not damage and (names := expected.differing(found)):
            self._violate(f"the store of {device} does not hold what was committed to it: {', '.join(names)}")
        self._held[device] = found
        self.loads[device].opened(_loads_in(stored), self._elapsed_s())
        if is_handled:
            self._forget(gateway_of(device), undelivered)
        return is_handled

    def removed(self, device: str, undelivered: Iterable[tuple[str, str]]) -> None:
        """Take note that a device will not come back."""
        del self._held[device]
        self._handlings[gateway_of(device)] += 1
        self._forget(gateway_of(device), undelivered)

    def _forget(self, gateway: str, undelivered: Iterable[tuple[str, str]]) -> None:
        held = {item for device, one in self._held.items() if gateway_of(device) == gateway for item in one.items}
        self.lost |= {(owner, item) for owner, item in undelivered if owner == gateway and item not in held}

    def _note_loads(self, device: str, counts: dict[str, Any]) -> None:
        for complaint in self.loads[device].counted(counts, self._elapsed_s()):
            self._violate(f"{device} {complaint}")

    # Who notices.

    def note_sent(self, device: str, status: Status) -> None:
        """Take note of a status that leaves a device."""
        key = (gateway_of(device), status.boot_id, status.monotonic_ns)
        self._sent.setdefault(key, SentStatus(device, self._cards[device], self._elapsed_s(), status))

    def challenged(self, gateway: str, challenge: int) -> None:
        """Take note of a challenge of the aggregator: whoever names it was there after those received so far."""
        for session in self._sessions[gateway].values():
            if session.challenge == 0 or session.first_s == self._elapsed_s():
                session.challenge = max(session.challenge, challenge)

    def note_received(self, gateway: str, status: Status) -> None:
        """Take note of a status that comes to the aggregator."""
        sent = self._sent.get((gateway, status.boot_id, status.monotonic_ns))
        if status.state != "online" or sent is None:
            return
        now_s, sessions = self._elapsed_s(), self._sessions[gateway]
        name = (sent.device, sent.card, status.boot_id, status.store_id)
        session = sessions.setdefault(name, Session(now_s, now_s))
        session.last_s = now_s
        if (status.monotonic_ns or 0) <= session.sent_ns:  # a later one shows how it is
            return
        session.sent_ns = status.monotonic_ns or 0
        if status.starts > session.starts and any(store != status.store_id for _, _, _, store in sessions):
            # Beside another store more starts may be those of a store that was put back: it begins anew.
            session.first_s, session.challenge = now_s, 0
        session.starts = session.starts if status.store_problem else status.starts
        session.named = max(session.named, status.challenge)
        for other_name, other in sessions.items():
            if other is not session and self._between(sessions.values(), session, other) <= SESSIONS_MAX - 2:
                self._compare(gateway, (name, session), (other_name, other), status.starts)

    def _compare(self, gateway: str, one: tuple[Named, Session], other: tuple[Named, Session], starts: int) -> None:
        """Take note of what a session just received, with so many starts on its store, shows beside another."""
        ((device, card, _, store), session), ((other_device, other_card, _, other_store), other_session) = one, other
        if not 0 < other_session.challenge <= session.named:  # nobody knows that it was there after the other
            return
        first_s, pair = min(session.first_s, other_session.first_s), frozenset((one[0], other[0]))
        if device != other_device and 0 < session.challenge <= other_session.named:
            self._due.setdefault(("twins", pair), Due("twins", gateway, first_s, self._elapsed_s()))
        is_older = device == other_device and card > other_card and store == other_store
        if is_older and starts <= other_session.starts:
            self._due.setdefault(("restored", pair), Due("restored", gateway, first_s, self._elapsed_s()))

    @staticmethod
    def _between(sessions: Iterable[Session], one: Session, other: Session) -> int:
        """Return how many other sessions may have come to the aggregator since it first received one of the two."""
        since_s = min(one.first_s, other.first_s)
        return sum(session.last_s >= since_s for session in sessions if session is not one and session is not other)

    def accused(self, gateway: str, alarm: Alarm) -> None:
        """Take note of what the aggregator reports of a gateway, which must have been handled so."""
        if not alarm.cause.startswith(BY_AGGREGATOR):
            return
        if alarm.state == "cleared":
            for one in self._accusations[gateway]:
                one.until_s = min(one.until_s, self._elapsed_s()) if one.alarm_id == alarm.id else one.until_s
            return
        self._accusations[gateway].append(Accusation(alarm.id, alarm.cause, self._elapsed_s()))
        if not any(alarm.cause in MAY_BE_REPORTED[how] for how in self.handled[gateway]):
            done = ", ".join(sorted(self.handled[gateway])) or "nothing"
            self._violate(f"{alarm.cause} of {gateway}, to which was done: {done}")

    def audit(self) -> dict[str, int]:
        """See that what the aggregator must have noticed was reported; return how often that was so."""
        due = self._due.values()
        unreported = {(one.gateway, one.kind) for one in due if not self._is_reported(one)}
        for gateway, kind in sorted(unreported):
            self._violate(f"{gateway}: {UNREPORTED[kind]}, and nobody said so")
        return {kind: sum(one.kind == kind for one in due) for kind in ("restored", "twins")}

    def _is_reported(self, due: Due) -> bool:
        """Tell whether the aggregator reported it in time; since the first of the two sessions was received, for
        whoever was accused then is known to have put it behind.
        """
        return any(
            (due.kind == "restored" or one.cause == "identity-twin")
            and one.from_s <= due.known_s
            and one.until_s >= due.first_s
            for one in self._accusations[due.gateway]
        )
