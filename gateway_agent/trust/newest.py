"""The newest numbers that the aggregator has signed, as this gateway has them.

What is older than they say is not taken, also by a new store. They are kept for the aggregator too, which may lose its
own. Where they have expired, or name a model that has not come, somebody may be keeping news from this gateway.
"""

from __future__ import annotations

from fedgate.config.protocol.messages import MessageError, Newest
from fedgate.config.protocol.topics import ALL
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import Effect, Log, Publish, PublishStatus, Save, Wanted
from fedgate.gateway_agent.trust.signatures import NS, SYNCHRONISED, check_signed, date
from fedgate.gateway_agent.trust.trust import NEWEST, SIGNER, Trust
from fedgate.models.records import replace

WITHHELD_S = 3_600.0  # for which a model that was signed may be on its way: lost announcements are repeated meanwhile


def receive_numbers(trust: Trust, context: Context, payload: bytes) -> tuple[Trust, list[Effect]]:
    """Take in the newest numbers, where none is smaller than before; else tell the aggregator what it once signed.

    Raises `MessageError`.
    """
    message, known = Newest.from_bytes(payload), trust.newest
    if known is not None and not _is_newer(message, known):
        is_older = _numbers(message) != _numbers(known)
        return trust, repeat_numbers(trust, context) if is_older else []
    if reason := check_signed(trust, context, message, ALL):
        raise MessageError(f"newest: {reason}")
    trust = replace(trust, newest=message, newest_ns=context.uptime_ns)
    return trust, [Save(NEWEST, message.received_bytes()), *repeat_numbers(trust, context)]


def save(trust: Trust) -> list[Effect]:
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


def _numbers(message: Newest) -> tuple[int, int, int]:
    return message.version, message.highest_version, message.training


def _is_newer(message: Newest, known: Newest) -> bool:
    ours, theirs = (*_numbers(known), known.expires_ns), (*_numbers(message), message.expires_ns)
    grown = [theirs[index] > ours[index] for index in range(4)]
    return any(grown) and all(theirs[index] >= ours[index] for index in range(3))


def _stale(trust: Trust, context: Context, highest_version: int) -> str:
    known = trust.newest
    if known is None:
        return ""
    if context.clock == SYNCHRONISED and 0 < known.expires_ns < context.now_ns:
        return (
            f"what the aggregator signed last expired on {date(known.expires_ns)}: it has been away since, or the "
            "broker keeps back what it says; the model in force goes on"
        )
    if known.version > highest_version and context.uptime_ns - trust.newest_ns >= WITHHELD_S * NS:
        return f"the aggregator has signed that there is a model {known.version}, and it has not been announced here"
    return ""
