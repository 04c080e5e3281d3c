"""Who speaks under the name of a gateway: one device, two of them, or one that was set back.

A gateway is known by its certificate, and a copied SD card copies that too. What a copy cannot have is the boot, so a
*session* is one boot on one store. Statuses come late, repeated and in any order, so neither their order nor our clock
proves anything. A challenge does: a number that is new when a session is first received, and that a gateway names in
its statuses from when it has come there. A session that names it was there after the other was received: it *outlasts*
it.

One device ends a session before it begins the next, so of two sessions of one device only the later outlasts the other.

| what outlasts what                               | what it is                                     |
|--------------------------------------------------|------------------------------------------------|
| two sessions each other                          | two devices: `identity-twin`                   |
| one another of its store, and has no more starts | a store that was set back: `identity-restored` |
| one the present session, of another store        | a store in its place: `identity-replaced`      |

A boot that counts fewer starts than before is a store that was set back, too. More starts on the present store are a
restart, and that needs no proof: they are on the disk before they are published. More starts on another store than the
present one begin a known session anew, with a challenge of its own: that store was taken out and put back within one
boot. What is none of this came late.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from fedgate.config.protocol.messages import Status

SESSIONS_KEPT = 8  # of a gateway
FULL = "disk-full"  # a store with this problem may not hold its latest start
Conflict = Literal["identity-twin", "identity-restored", "identity-replaced"]


@dataclass(frozen=True, slots=True)
class DeviceSession:
    """One boot of a device on one store, as its statuses show it."""

    store_id: str
    boot_id: str
    challenge: int  # that was new when this session was first received
    monotonic_ns: int = -1  # of the latest of its statuses
    starts: int = 0  # on its store, and ...
    starts_stored: int = 0  # ... how many of them are certainly on its disk
    answered: int = 0  # the highest challenge that it named
    was_present: bool = False
    is_undone: bool = False  # its store was set back to before it

    @property
    def card(self) -> str:
        """Its card by name; one that was set back since is one by itself, and empty means that it may be one."""
        if self.is_undone:
            return f"{self.boot_id} of {self.store_id}"
        return self.store_id if self.was_present else ""

    def outlasts(self, other: DeviceSession) -> bool:
        """Tell whether it was there after another session was first received."""
        return self.answered >= other.challenge


@dataclass(frozen=True)
class DeviceSessions:
    """The sessions of one gateway, the present one first."""

    known: tuple[DeviceSession, ...] = ()
    challenge: int = 0  # the newest
    is_twin: bool = False  # two devices speak under one id

    @property
    def cards(self) -> dict[str, str]:
        """By boot, the card it was on."""
        return {one.boot_id: one.card for one in self.known}

    def challenged(self, now_ns: int) -> DeviceSessions:
        """Return the sessions with a new challenge, above all before it also where our clock or our store went back."""
        return replace(self, challenge=max(now_ns, self.challenge + 1))


def note_status(sessions: DeviceSessions, status: Status, now_ns: int) -> tuple[DeviceSessions, bool, Conflict | None]:
    """Return what is known after one more status, whether that shows how the gateway is now, and a conflict it shows.

    Of a gateway that names no store nothing is known.
    """
    if not status.store_id or status.monotonic_ns is None:
        return sessions, True, None
    known = next((one for one in sessions.known if _is_of(one, status)), None)
    if known is not None and status.monotonic_ns <= known.monotonic_ns:  # repeated, or overtaken
        return sessions, known is sessions.known[0] and status.monotonic_ns == known.monotonic_ns, None
    before = known or DeviceSession(status.store_id, status.boot_id, 0)
    if known is None or (sessions.known[0].store_id != known.store_id and status.starts > known.starts):
        sessions = sessions.challenged(now_ns)
        before = replace(before, challenge=sessions.challenge, answered=0)
    session = _take_status(before, status, status.monotonic_ns, sessions.challenge)
    others = tuple(one for one in sessions.known if one is not known)
    present = next(iter(sessions.known), before)
    conflict = _find_conflict(session, before, others, present)
    is_news = present is before or conflict == "identity-twin" or _is_present(session, present)
    sessions = replace(sessions, known=_arrange(session, others, is_news=is_news))
    if conflict == "identity-twin":
        return _doubt(sessions, now_ns), is_news, conflict
    return sessions, is_news, None if sessions.is_twin else conflict  # two devices explain all else


def to_text(sessions: DeviceSessions) -> str:
    """Return what is stored of the sessions of a gateway."""
    return json.dumps(asdict(sessions))


def restore_sessions(rows: Iterable[tuple[str, str | None]]) -> dict[str, DeviceSessions]:
    """Return what a store holds, by gateway."""
    found = {}
    for gateway, text in rows:
        held = json.loads(text) if text else {}
        known = tuple(DeviceSession(**one) for one in held.pop("known", ()))
        found[gateway] = DeviceSessions(known, **held)
    return found


def _is_of(session: DeviceSession, status: Status) -> bool:
    return (session.store_id, session.boot_id) == (status.store_id, status.boot_id)


def _take_status(before: DeviceSession, status: Status, monotonic_ns: int, newest: int) -> DeviceSession:
    """Return a session with one more status; a challenge above the newest one is not of this store of ours."""
    answered = status.challenge if status.challenge <= newest else 0
    return replace(
        before,
        monotonic_ns=monotonic_ns,
        starts=status.starts,
        starts_stored=before.starts_stored if status.store_problem == FULL else status.starts,
        answered=max(before.answered, answered),
    )


def _arrange(session: DeviceSession, others: tuple[DeviceSession, ...], *, is_news: bool) -> tuple[DeviceSession, ...]:
    """Return the sessions that are kept, the present one first: this one, or the one that was."""
    others = tuple(replace(one, is_undone=one.is_undone or _is_undone(one, session)) for one in others)
    session = replace(session, was_present=True, is_undone=False) if is_news else session
    known = (session, *others) if is_news else (others[0], session, *others[1:])
    return known[:SESSIONS_KEPT]


def _find_conflict(
    session: DeviceSession, before: DeviceSession, others: tuple[DeviceSession, ...], present: DeviceSession
) -> Conflict | None:
    """Return what a session shows beside the others; `before` is the same with one status less."""
    if any(session.outlasts(one) and one.outlasts(session) for one in others):
        return "identity-twin"
    if session.starts < before.starts_stored or any(_is_undone(one, session) for one in others):
        return "identity-restored"
    is_replaced = present.store_id != session.store_id and session.outlasts(present)
    return "identity-replaced" if is_replaced else None


def _is_undone(one: DeviceSession, session: DeviceSession) -> bool:
    """Tell whether a session that came later goes on from before another on its store."""
    is_later = one.store_id == session.store_id and not one.is_undone and session.outlasts(one)
    return is_later and session.starts <= one.starts_stored


def _is_present(session: DeviceSession, present: DeviceSession) -> bool:
    """Tell whether a session is the present one now, and does not only come late."""
    is_restart = session.store_id == present.store_id and session.starts > present.starts
    return session.outlasts(present) or (is_restart and not session.is_undone)


def _doubt(sessions: DeviceSessions, now_ns: int) -> DeviceSessions:
    """Return the sessions of two devices; that there are two is to be shown anew, or one of them has gone."""
    sessions = sessions.challenged(now_ns)
    known = tuple(replace(one, challenge=sessions.challenge) for one in sessions.known)
    return replace(sessions, known=known, is_twin=True)
