"""Who speaks under the name of a gateway: one device, two of them, or one that was set back.

A gateway is known by its certificate, and a copied SD card copies that too. What a copy cannot have is the boot: each
status names its store, the boot, how often an agent was started on the store, and how long after the boot it was said.
A *life* is one boot on one store. Statuses come late, repeated and in any order, so the order in which they come proves
nothing. Two things do:

- The starts are on the disk before they are told and only grow, so those of two boots of one device never overlap,
  whenever they are heard. Where they do, the store was set back.
- The moments at which a live device is heard follow its monotonic clock. A life that was heard in that *pace* for
  `PACE_S` was there; what is late by less, or comes at once after an outage, has no such pace. Two sessions that were
  there together are two devices, and one that was there with an older count, or another store, was put in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal

from fedgate.config.protocol.messages import Alarm, Status

NS = 1_000_000_000
PACE_S = 300.0  # five statuses, as gateways are shipped
PACE_TIMES = 4  # statuses in pace at least: a late one meets the pace of another late one now and then
JITTER_NS = 30 * NS  # by which a message that keeps pace may be later or earlier than the first that did
STANDS_S = 600.0  # how long after its last sign a trouble is believed: ten statuses, as gateways are shipped
SESSIONS_KEPT = 8  # of a gateway
FULL = "disk-full"  # a store that says so may not hold its latest start

Trouble = Literal["identity-twin", "identity-restored", "identity-replaced"]
TEXTS: dict[Trouble, str] = {
    "identity-twin": "two devices speak under this id by turns; its updates stay unanswered while they do. Give one of "
    "them another id, or take it off the network",
    "identity-restored": "its store went back to an earlier state, such as an old SD card image; what it sent since is "
    "here and it does not know. Where the algorithm remembers gateways, begin a new training "
    "(docs/reference/aggregator.md, A round)",
    "identity-replaced": "it speaks with another store: it lost the one before, or is another device under this id. "
    "Nothing to do if that was meant",
}


@dataclass(frozen=True, slots=True)
class DeviceSession:
    """One boot of a device on one store, as far as it has told."""

    store_id: str
    boot_id: str
    first_start: int
    last_start: int
    said_ns: int  # on its monotonic clock, latest
    is_sure: bool  # its starts are on its disk
    is_past: bool = False  # another took its place
    was_live: bool = False
    # On our clock, so forgotten at the end of this process: when it was first heard, and since when, until when and how
    # often in pace.
    first_ns: int = 0
    began_ns: int = 0
    heard_ns: int = 0
    times: int = 0
    behind_ns: int = 0  # our clock minus its own, when the pace began

    def was_there(self, since_ns: int, until_ns: int | None = None) -> bool:
        """Tell whether it was heard in pace for so long within this time that these are not only its late messages."""
        until_ns = self.heard_ns if until_ns is None else min(self.heard_ns, until_ns)
        return self.times >= PACE_TIMES and until_ns - max(self.began_ns, since_ns) >= PACE_S * NS


STORED = tuple(one.name for one in fields(DeviceSession))[:8]


@dataclass(frozen=True)
class DeviceSessions:
    """The sessions of one gateway, the present one first, and what is wrong with them."""

    known: tuple[DeviceSession, ...] = ()
    trouble: Trouble | None = None
    since_ns: int = 0
    until_ns: int = 0

    @property
    def is_twin(self) -> bool:
        """True while two devices speak under one id."""
        return self.trouble == "identity-twin"

    @property
    def cards(self) -> dict[str, str]:
        """By boot, the card it was on: one that was set back, or gave way to another, is one by itself."""
        return {one.boot_id: f"{one.boot_id} of {one.store_id}" if one.is_past else one.store_id for one in self.known}


def note_status(sessions: DeviceSessions, status: Status, now_ns: int) -> tuple[DeviceSessions, bool]:
    """Return what is known after one more status, and whether that tells how the gateway is now.

    A last will names no store: of that nothing is known.
    """
    if not status.store_id or status.monotonic_ns is None:
        return sessions, True
    before = next((one for one in sessions.known if _is(one, status)), None)
    if before is not None and status.monotonic_ns <= before.said_ns:  # repeated, or overtaken
        is_present = before is sessions.known[0] and status.monotonic_ns == before.said_ns
        return _overtaken(sessions, before, status, now_ns), is_present
    session = _extend(before, status, status.monotonic_ns, now_ns)
    others = tuple(one for one in sessions.known if one is not before)
    trouble = _find_conflict(session, others, is_back=before is not None and status.starts < before.last_start)
    place = sessions.known.index(before) if before is not None else None
    is_twin = trouble == "identity-twin"
    until_ns = now_ns + round(STANDS_S * NS)
    if is_twin and place == 0:  # the other one may have gone meanwhile
        until_ns = max(one.heard_ns for one in others if _together(session, one)) + round(STANDS_S * NS)
    if trouble is not None and until_ns > now_ns:
        sessions = _with_conflict(sessions, trouble, now_ns, until_ns)
    if trouble is not None and (not is_twin or until_ns <= now_ns):
        session, others = replace(session, is_past=False), _replaced(session, others)
    is_news = place == 0 or trouble is not None or sessions.is_twin or not _is_late(session, others)
    known = (session, *others) if is_news else (others[0], session, *others[1:])
    return replace(sessions, known=known[:SESSIONS_KEPT]), is_news


def over(sessions: DeviceSessions, now_ns: int) -> bool:
    """Tell whether a trouble has given no sign for so long that it is over; also where our clock went back since."""
    is_to_come = now_ns < sessions.until_ns <= now_ns + round(STANDS_S * NS)
    return sessions.trouble is not None and not is_to_come


def alarm_of(gateway: str, sessions: DeviceSessions, now_ns: int) -> Alarm | None:
    """Return the alarm of the trouble as it stands at `now_ns`, None where there is none."""
    if sessions.trouble is None:
        return None
    is_over = over(sessions, now_ns)
    return Alarm(
        id=f"{gateway}.{sessions.trouble}.{sessions.since_ns}",
        cause=sessions.trouble,
        kind="sensor",
        state="cleared" if is_over else "raised",
        severity="major",
        text=f"no further sign of it for {STANDS_S:g} s" if is_over else TEXTS[sessions.trouble],
        onset_ns=sessions.since_ns,
        t_ns=now_ns,
        boot_id=sessions.known[0].boot_id if sessions.known else "",
    )


def to_text(sessions: DeviceSessions) -> str:
    """Return what is stored of the sessions of a gateway: all but the pace, which belongs to a running clock."""
    held = asdict(sessions)
    held["known"] = [{name: one[name] for name in STORED} for one in held["known"]]
    return json.dumps(held)


def restore_sessions(rows: Iterable[tuple[str, str | None]]) -> dict[str, DeviceSessions]:
    """Return what a store holds, by gateway."""
    found = {}
    for gateway, text in rows:
        held = json.loads(text) if text else {}
        known = tuple(DeviceSession(**one) for one in held.pop("known", ()))
        found[gateway] = DeviceSessions(known, **held)
    return found


def _is(session: DeviceSession, status: Status) -> bool:
    return (session.store_id, session.boot_id) == (status.store_id, status.boot_id)


def _extend(before: DeviceSession | None, status: Status, stated_ns: int, now_ns: int) -> DeviceSession:
    """Return a life with one more status, which keeps its pace or begins another."""
    is_sure = status.store_problem != FULL
    behind_ns = now_ns - stated_ns
    if before is None:
        before = DeviceSession(
            status.store_id, status.boot_id, status.starts, status.starts, stated_ns, is_sure, first_ns=now_ns
        )
    first = status.starts if status.starts < before.last_start else before.first_start
    session = replace(before, first_start=first, last_start=status.starts, said_ns=stated_ns)
    session = replace(session, is_sure=before.is_sure or is_sure)
    late_ns = behind_ns - session.behind_ns
    # Beside a pace of late ones one in time begins another; where only late ones come, the clocks went apart.
    if session.times == 0 or late_ns < -JITTER_NS or (late_ns > JITTER_NS and now_ns - session.heard_ns >= PACE_S * NS):
        session = replace(session, began_ns=now_ns, heard_ns=now_ns, behind_ns=behind_ns, times=1)
    elif late_ns <= JITTER_NS:
        session = replace(session, heard_ns=now_ns, times=session.times + 1)
    return replace(session, was_live=session.was_live or session.was_there(0))


def _overtaken(sessions: DeviceSessions, before: DeviceSession, status: Status, now_ns: int) -> DeviceSessions:
    """Return what is known after a status that a later one of its life overtook: its start was of that life, too.

    Which life is the present one is left to the next status that none overtook.
    """
    if status.store_problem == FULL or status.starts >= before.first_start:
        return sessions
    session = replace(before, first_start=status.starts)
    sessions = replace(sessions, known=tuple(session if one is before else one for one in sessions.known))
    is_restored = _is_doubled(session, (one for one in sessions.known if one is not session))
    return (
        _with_conflict(sessions, "identity-restored", now_ns, now_ns + round(STANDS_S * NS))
        if is_restored
        else sessions
    )


def _find_conflict(session: DeviceSession, others: tuple[DeviceSession, ...], *, is_back: bool) -> Trouble | None:
    """Return what a life shows beside the others; `is_back`: it counts fewer starts than it did."""
    if any(_together(session, one) for one in others):
        return "identity-twin"
    present = [one for one in others if not one.is_past]
    of_store = [one for one in present if one.store_id == session.store_id]
    if is_back or _is_doubled(session, of_store):
        return "identity-restored"
    if any(
        session.was_there(one.first_ns) for one in of_store if session.is_past or one.last_start > session.last_start
    ):
        return "identity-restored"
    strangers = [one for one in present if one.store_id != session.store_id and one.was_live]
    came_after = [one for one in strangers if session.is_past or session.began_ns >= one.first_ns]
    return "identity-replaced" if any(session.was_there(one.first_ns) for one in came_after) else None


def _together(one: DeviceSession, other: DeviceSession) -> bool:
    """Tell whether two sessions were there at the same time, for longer than the one's late messages explain."""
    return one.was_there(other.began_ns, other.heard_ns) and other.was_there(one.began_ns, one.heard_ns)


def _is_doubled(session: DeviceSession, others: Iterable[DeviceSession]) -> bool:
    """Tell whether a start is on the disks of two sessions of one store, neither of which is known to be past."""
    doubles = [one for one in others if one.store_id == session.store_id and _overlap(one, session)]
    return any(all(each.is_sure and not each.is_past for each in (session, one)) for one in doubles)


def _overlap(one: DeviceSession, other: DeviceSession) -> bool:
    return one.first_start <= other.last_start and other.first_start <= one.last_start


def _is_late(session: DeviceSession, others: tuple[DeviceSession, ...]) -> bool:
    """Tell whether a life is one from before the present, as far as is known."""
    of_store = [one for one in others if one.store_id == session.store_id and not one.is_past]
    return session.is_past or any(one.last_start > session.last_start for one in of_store)


def _replaced(session: DeviceSession, others: tuple[DeviceSession, ...]) -> tuple[DeviceSession, ...]:
    """Return the others as the past of a life that took their place; what came of its own store before it stays."""
    return tuple(
        replace(one, is_past=True) if one.store_id != session.store_id or one.last_start >= session.first_start else one
        for one in others
    )


def _with_conflict(sessions: DeviceSessions, trouble: Trouble, now_ns: int, until_ns: int) -> DeviceSessions:
    """Return the sessions with a sign of trouble; a twin explains whatever else its store looks like."""
    if sessions.is_twin and trouble != "identity-twin":
        return sessions
    since_ns = sessions.since_ns if sessions.trouble == trouble else now_ns
    return replace(sessions, trouble=trouble, since_ns=since_ns, until_ns=until_ns)
