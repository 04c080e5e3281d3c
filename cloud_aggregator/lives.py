"""Who speaks under the name of a gateway: one device, two of them, or one that was set back.

A gateway is known by its certificate, and a copied SD card copies that too. What a copy cannot have is the boot: each
status names its store, the boot, and how long after it was said. A *life* is one boot on one store. Since a boot that
ended never speaks again, one that does after another began is a second device. When something was said is told by the
monotonic clock of its boot, so a status that was late, repeated or kept by a broker is known as such and dropped,
whatever the order in which the messages come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

from config.messages import Alarm, Status

NS = 1_000_000_000
LATE_NS = 30 * NS  # what a message is believed to take at most longer than the fastest of its boot
STANDS_S = 600.0  # how long after its last sign a trouble is believed: ten statuses, as gateways are shipped
LIVES_KEPT = 8  # of a gateway; what a broker still retains of a boot before these looks like an old image

Trouble = Literal["identity-twin", "identity-restored", "identity-replaced"]
TEXTS: dict[Trouble, str] = {
    "identity-twin": "two devices speak under this id by turns; its updates are refused while they do. Give one of "
    "them another id, or take it off the network",
    "identity-restored": "its store went back to an earlier state, such as an old SD card image; what it sent since is "
    "here and it does not know. Where the algorithm remembers gateways (docs/run-aggregator.md), begin a new training",
    "identity-replaced": "it speaks with another store: it lost the one before, or is another device under this id. "
    "Nothing to do if that was meant",
}


@dataclass(frozen=True)
class Life:
    """One boot of a device on one store, as far as it has told."""

    store_id: str
    boot_id: str
    starts: int
    sequence: int
    said_ns: int  # on its monotonic clock, latest
    boot_ns: int  # on our clock, earliest that it can have been
    first_ns: int  # when it was first heard, on our clock


@dataclass(frozen=True)
class Lives:
    """The lives of one gateway, latest first, and what is wrong with them."""

    known: tuple[Life, ...] = ()
    trouble: Trouble | None = None
    since_ns: int = 0
    until_ns: int = 0

    @property
    def is_twin(self) -> bool:
        """True while two devices speak under one id."""
        return self.trouble == "identity-twin"


def told(lives: Lives, status: Status, now_ns: int) -> Lives | None:
    """Return what is known after one more status; None for one that was said before what is known already.

    Gateways before 0.5 do not name their store, and a last will names nothing: of those nothing is known.
    """
    if not status.store_id or status.monotonic_ns is None:
        return lives
    said_ns = status.monotonic_ns
    life = Life(status.store_id, status.boot_id, status.starts, status.sequence, said_ns, now_ns - said_ns, now_ns)
    place = next((index for index, one in enumerate(lives.known) if _is_same(one, life)), None)
    if place is None:
        return _pushed(_troubled(lives, _setback(lives.known, life), now_ns), life)
    before = lives.known[place]
    boot_ns = min(before.boot_ns, life.boot_ns)
    if place > 0 and boot_ns + said_ns <= lives.known[0].first_ns + LATE_NS:
        return None  # from before the present life began
    if place == 0 and said_ns < before.said_ns:
        return None  # repeated, or overtaken
    trouble: Trouble | None = "identity-twin" if place > 0 else _setback((before,), life, same_boot=True)
    kept = replace(life, boot_ns=boot_ns, first_ns=now_ns if place > 0 else before.first_ns)
    others = tuple(one for one in lives.known if one is not before)
    return _pushed(replace(_troubled(lives, trouble, now_ns), known=others), kept)


def over(lives: Lives, now_ns: int) -> bool:
    """Tell whether a trouble has given no sign for so long that it is over."""
    return lives.trouble is not None and now_ns >= lives.until_ns


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
    """Return what is stored of the lives of a gateway."""
    return json.dumps(asdict(lives))


def restored_lives(rows: Iterable[tuple[str, str | None]]) -> dict[str, Lives]:
    """Return what a store holds, by gateway; stores before 0.5 hold nothing."""
    found = {}
    for gateway, text in rows:
        held = json.loads(text) if text else {}
        known = tuple(Life(**one) for one in held.pop("known", ()))
        found[gateway] = Lives(known, **held)
    return found


def _is_same(one: Life, other: Life) -> bool:
    return (one.store_id, one.boot_id) == (other.store_id, other.boot_id)


def _setback(known: tuple[Life, ...], life: Life, *, same_boot: bool = False) -> Trouble | None:
    """Return what a life that follows others tells of its store: counters that only grow must have grown."""
    of_store = [one for one in known if one.store_id == life.store_id]
    if not of_store:
        return "identity-replaced" if known else None
    starts, sequence = max(one.starts for one in of_store), max(one.sequence for one in of_store)
    is_back = life.starts < starts or (life.starts == starts and not same_boot) or life.sequence < sequence
    return "identity-restored" if is_back else None


def _troubled(lives: Lives, trouble: Trouble | None, now_ns: int) -> Lives:
    """Return the lives with a sign of trouble; a twin explains whatever else its store looks like."""
    if trouble is None or (lives.is_twin and trouble != "identity-twin"):
        return lives
    since_ns = lives.since_ns if lives.trouble == trouble else now_ns
    return replace(lives, trouble=trouble, since_ns=since_ns, until_ns=now_ns + round(STANDS_S * NS))


def _pushed(lives: Lives, life: Life) -> Lives:
    return replace(lives, known=(life, *lives.known)[:LIVES_KEPT])
