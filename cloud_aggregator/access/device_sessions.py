"""Who speaks under the name of a gateway: one device, two of them, or one that was set back.

A gateway is known by its certificate, and a copied SD card copies that too. What a copy cannot have is the boot: each
status names its store, the boot, how often an agent was started on the store, and how long after the boot it was said.
A *life* is one boot on one store. Statuses come late, repeated and in any order, so the order in which they come proves
nothing. Two things do:

- The starts are on the disk before they are told and only grow, so those of two boots of one device never overlap,
  whenever they are heard. Where they do, the store was set back.
- The moments at which a live device is heard follow its monotonic clock. A life that was heard in that *pace* for
  `PACE_S` was there; what is late by less, or comes at once after an outage, has no such pace. Two lives that were
  there together are two devices, and one that was there with an older count, or another store, was put in its place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Literal

from fedgate.config.protocol.messages import Alarm, Status
from fedgate.models.records import replace

NS = 1_000_000_000
PACE_S = 300.0  # five statuses, as gateways are shipped
PACE_TIMES = 4  # statuses in pace at least: a late one meets the pace of another late one now and then
JITTER_NS = 30 * NS  # by which a message that keeps pace may be later or earlier than the first that did
STANDS_S = 600.0  # how long after its last sign a trouble is believed: ten statuses, as gateways are shipped
LIVES_KEPT = 8  # of a gateway
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
class Life:
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


STORED = tuple(one.name for one in fields(Life))[:8]


@dataclass(frozen=True)
class Lives:
    """The lives of one gateway, the present one first, and what is wrong with them."""

    known: tuple[Life, ...] = ()
    trouble: Trouble | None = None
    since_ns: int = 0
    until_ns: int = 0

    @property
    def is_twin(self) -> bool:
        """True while two devices speak under one id."""
        return self.trouble == "identity-twin"


def told(lives: Lives, status: Status, now_ns: int) -> tuple[Lives, bool]:
    """Return what is known after one more status, and whether that tells how the gateway is now.

    A last will names no store: of that nothing is known.
    """
    if not status.store_id or status.monotonic_ns is None:
        return lives, True
    before = next((one for one in lives.known if _is(one, status)), None)
    if before is not None and status.monotonic_ns <= before.said_ns:  # repeated, or overtaken
        is_present = before is lives.known[0] and status.monotonic_ns == before.said_ns
        return _overtaken(lives, before, status, now_ns), is_present
    life = _heard(before, status, status.monotonic_ns, now_ns)
    others = tuple(one for one in lives.known if one is not before)
    trouble = _trouble(life, others, is_back=before is not None and status.starts < before.last_start)
    place = lives.known.index(before) if before is not None else None
    is_twin = trouble == "identity-twin"
    until_ns = now_ns + round(STANDS_S * NS)
    if is_twin and place == 0:  # the other one may have gone meanwhile
        until_ns = max(one.heard_ns for one in others if _together(life, one)) + round(STANDS_S * NS)
    if trouble is not None and until_ns > now_ns:
        lives = _troubled(lives, trouble, now_ns, until_ns)
    if trouble is not None and (not is_twin or until_ns <= now_ns):
        life, others = replace(life, is_past=False), _replaced(life, others)
    is_news = place == 0 or trouble is not None or lives.is_twin or not _is_late(life, others)
    known = (life, *others) if is_news else (others[0], life, *others[1:])
    return replace(lives, known=known[:LIVES_KEPT]), is_news


def cards(lives: Lives) -> dict[str, str]:
    """Return, by boot, the card it was on: one that was set back, or gave way to another, is one by itself."""
    return {one.boot_id: f"{one.boot_id} of {one.store_id}" if one.is_past else one.store_id for one in lives.known}


def over(lives: Lives, now_ns: int) -> bool:
    """Tell whether a trouble has given no sign for so long that it is over; also where our clock went back since."""
    is_to_come = now_ns < lives.until_ns <= now_ns + round(STANDS_S * NS)
    return lives.trouble is not None and not is_to_come


def alarm_of(gateway: str, lives: Lives, now_ns: int) -> Alarm | None:
    """Return the alarm of the trouble as it stands at `now_ns`, None where there is none."""
    if lives.trouble is None:
        return None
    is_over = over(lives, now_ns)
    return Alarm(
        id=f"{gateway}.{lives.trouble}.{lives.since_ns}",
        cause=lives.trouble,
        kind="sensor",
        state="cleared" if is_over else "raised",
        severity="major",
        text=f"no further sign of it for {STANDS_S:g} s" if is_over else TEXTS[lives.trouble],
        onset_ns=lives.since_ns,
        t_ns=now_ns,
        boot_id=lives.known[0].boot_id if lives.known else "",
    )


def to_text(lives: Lives) -> str:
    """Return what is stored of the lives of a gateway: all but the pace, which belongs to a running clock."""
    held = asdict(lives)
    held["known"] = [{name: one[name] for name in STORED} for one in held["known"]]
    return json.dumps(held)


def restored_lives(rows: Iterable[tuple[str, str | None]]) -> dict[str, Lives]:
    """Return what a store holds, by gateway."""
    found = {}
    for gateway, text in rows:
        held = json.loads(text) if text else {}
        known = tuple(Life(**one) for one in held.pop("known", ()))
        found[gateway] = Lives(known, **held)
    return found


def _is(life: Life, status: Status) -> bool:
    return (life.store_id, life.boot_id) == (status.store_id, status.boot_id)


def _heard(before: Life | None, status: Status, said_ns: int, now_ns: int) -> Life:
    """Return a life with one more status, which keeps its pace or begins another."""
    is_sure = status.store_problem != FULL
    behind_ns = now_ns - said_ns
    if before is None:
        before = Life(status.store_id, status.boot_id, status.starts, status.starts, said_ns, is_sure, first_ns=now_ns)
    first = status.starts if status.starts < before.last_start else before.first_start
    life = replace(before, first_start=first, last_start=status.starts, said_ns=said_ns)
    life = replace(life, is_sure=before.is_sure or is_sure)
    late_ns = behind_ns - life.behind_ns
    # Beside a pace of late ones one in time begins another; where only late ones come, the clocks went apart.
    if life.times == 0 or late_ns < -JITTER_NS or (late_ns > JITTER_NS and now_ns - life.heard_ns >= PACE_S * NS):
        life = replace(life, began_ns=now_ns, heard_ns=now_ns, behind_ns=behind_ns, times=1)
    elif late_ns <= JITTER_NS:
        life = replace(life, heard_ns=now_ns, times=life.times + 1)
    return replace(life, was_live=life.was_live or life.was_there(0))


def _overtaken(lives: Lives, before: Life, status: Status, now_ns: int) -> Lives:
    """Return what is known after a status that a later one of its life overtook: its start was of that life, too.

    Which life is the present one is left to the next status that none overtook.
    """
    if status.store_problem == FULL or status.starts >= before.first_start:
        return lives
    life = replace(before, first_start=status.starts)
    lives = replace(lives, known=tuple(life if one is before else one for one in lives.known))
    is_restored = _is_doubled(life, (one for one in lives.known if one is not life))
    return _troubled(lives, "identity-restored", now_ns, now_ns + round(STANDS_S * NS)) if is_restored else lives


def _trouble(life: Life, others: tuple[Life, ...], *, is_back: bool) -> Trouble | None:
    """Return what a life shows beside the others; `is_back`: it counts fewer starts than it did."""
    if any(_together(life, one) for one in others):
        return "identity-twin"
    present = [one for one in others if not one.is_past]
    of_store = [one for one in present if one.store_id == life.store_id]
    if is_back or _is_doubled(life, of_store):
        return "identity-restored"
    if any(life.was_there(one.first_ns) for one in of_store if life.is_past or one.last_start > life.last_start):
        return "identity-restored"
    strangers = [one for one in present if one.store_id != life.store_id and one.was_live]
    came_after = [one for one in strangers if life.is_past or life.began_ns >= one.first_ns]
    return "identity-replaced" if any(life.was_there(one.first_ns) for one in came_after) else None


def _together(one: Life, other: Life) -> bool:
    """Tell whether two lives were there at the same time, for longer than the one's late messages explain."""
    return one.was_there(other.began_ns, other.heard_ns) and other.was_there(one.began_ns, one.heard_ns)


def _is_doubled(life: Life, others: Iterable[Life]) -> bool:
    """Tell whether a start is on the disks of two lives of one store, neither of which is known to be past."""
    doubles = [one for one in others if one.store_id == life.store_id and _overlap(one, life)]
    return any(all(each.is_sure and not each.is_past for each in (life, one)) for one in doubles)


def _overlap(one: Life, other: Life) -> bool:
    return one.first_start <= other.last_start and other.first_start <= one.last_start


def _is_late(life: Life, others: tuple[Life, ...]) -> bool:
    """Tell whether a life is one from before the present, as far as is known."""
    of_store = [one for one in others if one.store_id == life.store_id and not one.is_past]
    return life.is_past or any(one.last_start > life.last_start for one in of_store)


def _replaced(life: Life, others: tuple[Life, ...]) -> tuple[Life, ...]:
    """Return the others as the past of a life that took their place; what came of its own store before it stays."""
    return tuple(
        replace(one, is_past=True) if one.store_id != life.store_id or one.last_start >= life.first_start else one
        for one in others
    )


def _troubled(lives: Lives, trouble: Trouble, now_ns: int, until_ns: int) -> Lives:
    """Return the lives with a sign of trouble; a twin explains whatever else its store looks like."""
    if lives.is_twin and trouble != "identity-twin":
        return lives
    since_ns = lives.since_ns if lives.trouble == trouble else now_ns
    return replace(lives, trouble=trouble, since_ns=since_ns, until_ns=until_ns)
