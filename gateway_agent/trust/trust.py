"""What a gateway believes of its site: by which keys messages are signed, and which numbers are the newest.

A message counts that the site signed, for this gateway, and that has not expired. What is older than the newest numbers
that the aggregator has signed is not taken, also by a new store. They are kept for the aggregator too, which may lose
its own. Where they have expired, or name a model that has not come, somebody may be keeping news from this gateway.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedgate.config.protocol.messages import Keys, MessageError, Newest
from fedgate.config.protocol.topics import ALL
from fedgate.gateway_agent.context import SYNCHRONISED, Context, check_signed, format_day
from fedgate.gateway_agent.events import (
    Effect,
    KeysChanged,
    Log,
    Publish,
    PublishStatus,
    Save,
    SetRefusal,
    Wanted,
    refuse,
)
from fedgate.models.time_units import NS

NEWEST, SIGNER = "newest", "signer"  # keys of stored blobs
REFUSED = "keys of the site refused:"
WITHHELD_S = 3_600.0  # for which a model that was signed may be on its way: lost announcements are repeated meanwhile


class KeysOutcome(NamedTuple):
    """What became of a statement of keys: `problem` says why it is not believed."""

    is_new: bool = False
    problem: str = ""


Take = Callable[[bytes], KeysOutcome]


def take_none(_body: bytes) -> KeysOutcome:
    """Refuse any statement, as a gateway does that was not enrolled."""
    return KeysOutcome(problem="this gateway has no root key; 'gateway-agent enrol' fetches it")


@dataclass(frozen=True)
class Trust:
    """By which keys, and by which numbers, what arrives is judged."""

    take_keys: Take = take_none  # keeps a statement of the site's keys
    refused_keys: str = ""  # the statement refused last, by its SHA-256
    signer: str = ""  # whose the numbers of models and trainings here are: the release key, by its SHA-256
    newest: Newest | None = None  # that the aggregator has signed
    newest_ns: int = 0  # when this process took it in, since the boot
    stale: str = ""  # why what is here may not be the newest

    @property
    def signed_version(self) -> int:
        """The newest model that the aggregator has signed to be; 0: not known."""
        return self.newest.version if self.newest else 0


def receive_numbers(trust: Trust, context: Context, payload: bytes) -> tuple[Trust, list[Effect]]:
    """Take in the newest numbers, where none is smaller than before; else tell the aggregator what it once signed.

    Raises `MessageError`.
    """
    message, known = Newest.from_bytes(payload), trust.newest
    if known is not None and not _is_newer(message, known):
        is_older = _list_numbers(message) != _list_numbers(known)
        return trust, repeat_numbers(trust, context) if is_older else []
    if reason := check_signed(context, message, ALL):
        raise MessageError(f"newest: {reason}")
    trust = replace(trust, newest=message, newest_ns=context.uptime_ns)
    return trust, [Save(NEWEST, message.received_bytes()), *repeat_numbers(trust, context)]


def save_newest(trust: Trust) -> list[Effect]:
    """Return the effects that store the numbers, and whose they are, as far as that is known."""
    signer: list[Effect] = [Save(SIGNER, trust.signer.encode())] if trust.signer else []
    return signer if trust.newest is None else [*signer, Save(NEWEST, trust.newest.received_bytes())]


def repeat_numbers(trust: Trust, context: Context) -> list[Effect]:
    """Return the numbers as this gateway keeps them for the aggregator."""
    if trust.newest is None:
        return []
    return [Publish(context.topic("newest", "current"), trust.newest.received_bytes(), retain=True)]


def watch_age(trust: Trust, context: Context, highest_version: int) -> tuple[Trust, list[Wanted]]:
    """Say where what this gateway has, models up to `highest_version`, may not be the newest, and where it is again."""
    stale = _stale(trust, context, highest_version)
    if stale == trust.stale:
        return trust, []
    log = Log("warning", stale) if stale else Log("info", "what the aggregator signed is up to date again")
    return replace(trust, stale=stale), [log, PublishStatus()]


def _list_numbers(message: Newest) -> tuple[int, int, int]:
    return message.version, message.highest_version, message.training


def _is_newer(message: Newest, known: Newest) -> bool:
    ours, theirs = (*_list_numbers(known), known.expires_ns), (*_list_numbers(message), message.expires_ns)
    grown = [theirs[index] > ours[index] for index in range(4)]
    return any(grown) and all(theirs[index] >= ours[index] for index in range(3))


def _stale(trust: Trust, context: Context, highest_version: int) -> str:
    known = trust.newest
    if known is None:
        return ""
    if context.clock == SYNCHRONISED and 0 < known.expires_ns < context.now_ns:
        return (
            f"what the aggregator signed last expired on {format_day(known.expires_ns)}: it has been away since, or "
            "the broker keeps back what it says; the model in force goes on"
        )
    if known.version > highest_version and context.uptime_ns - trust.newest_ns >= WITHHELD_S * NS:
        return f"the aggregator has signed that there is a model {known.version}, and it has not been announced here"
    return ""


def receive_statement(trust: Trust, context: Context, payload: bytes) -> tuple[Trust, list[Wanted]]:
    """Take in a statement of the site's keys; one that was refused is refused again without another look.

    With another release key no number that the one before signed is left: whoever had it may have signed the highest
    there are, and then nothing of the site would ever be new again. Nothing old can come back by that, for what that
    key signed is taken no more; and what counts is announced anew with the new one. Raises `MessageError`.
    """
    message = Keys.from_bytes(payload)  # so that no child is started for what is none
    name = hashlib.sha256(payload).hexdigest()
    if name == trust.refused_keys:
        return trust, []
    taken = trust.take_keys(payload)
    if taken.problem:
        return replace(trust, refused_keys=name), refuse(f"{REFUSED} {taken.problem}")
    effects: list[Wanted] = [SetRefusal("")] if context.refusal.startswith(REFUSED) else []
    signer = hashlib.sha256(message.release_key.encode()).hexdigest()
    is_other = signer != trust.signer and (taken.is_new or trust.signer != "")
    # The files may have them already: of a renewal, or of a start before the power was cut.
    if is_other:
        trust = replace(trust, newest=None)
        effects.append(Save(NEWEST, b""))
    if signer != trust.signer:
        trust = replace(trust, signer=signer)
        effects.append(Save(SIGNER, signer.encode()))
    if not (taken.is_new or is_other):
        return trust, effects
    text = "the site has changed its keys; they are taken"
    return trust, [*effects, KeysChanged(is_other), Log("info", text), PublishStatus()]
