"""The newest numbers that the aggregator has signed, as this gateway has them.

What is older than they say is not taken, also by a new store. They are kept for the aggregator too, which may lose its
own. Where they have expired, or name a model that has not come, somebody may be keeping news from this gateway.
"""

from __future__ import annotations

from fedgate.config.protocol.messages import MessageError, Newest
from fedgate.config.protocol.topics import ALL
from fedgate.gateway_agent.events import Effect, Log, Publish, Save
from fedgate.gateway_agent.state import NEWEST, SIGNER, State, tell
from fedgate.gateway_agent.trust.signatures import NS, SYNCHRONISED, date, problem
from fedgate.models.records import replace

WITHHELD_S = 3_600.0  # for which a model that was signed may be on its way: lost announcements are repeated meanwhile


def announced(state: State, payload: bytes) -> tuple[State, list[Effect]]:
    """Take in the newest numbers, where none is smaller than before; else tell the aggregator what it once signed.

    Raises `MessageError`.
    """
    message, known = Newest.from_bytes(payload), state.trust.newest
    if known is not None and not _is_newer(message, known):
        is_older = _numbers(message) != _numbers(known)
        return state, repeated(state) if is_older else []
    if reason := problem(state.trust, state.context, message, ALL):
        raise MessageError(f"newest: {reason}")
    state = replace(state, trust=replace(state.trust, newest=message, newest_ns=state.context.now_ns))
    return state, [Save(NEWEST, message.received_bytes()), *repeated(state)]


def save(state: State) -> list[Effect]:
    """Return the effects that store the numbers, and whose they are, as far as that is known."""
    signer: list[Effect] = [Save(SIGNER, state.trust.signer.encode())] if state.trust.signer else []
    return signer if state.trust.newest is None else [*signer, Save(NEWEST, state.trust.newest.received_bytes())]


def repeated(state: State) -> list[Effect]:
    """Return the numbers as this gateway keeps them for the aggregator."""
    if state.trust.newest is None:
        return []
    return [Publish(state.context.topic("newest", "current"), state.trust.newest.received_bytes(), retain=True)]


def watch_age(state: State) -> tuple[State, list[Effect]]:
    """Say where what this gateway has may not be the newest, and where it is again."""
    stale = _stale(state)
    if stale == state.trust.stale:
        return state, []
    state, told = tell(replace(state, trust=replace(state.trust, stale=stale)))
    said = Log("warning", stale) if stale else Log("info", "what the aggregator signed is up to date again")
    return state, [said, *told]


def _numbers(message: Newest) -> tuple[int, int, int]:
    return message.version, message.highest_version, message.training


def _is_newer(message: Newest, known: Newest) -> bool:
    ours, theirs = (*_numbers(known), known.expires_ns), (*_numbers(message), message.expires_ns)
    grown = [theirs[index] > ours[index] for index in range(4)]
    return any(grown) and all(theirs[index] >= ours[index] for index in range(3))


def _stale(state: State) -> str:
    known = state.trust.newest
    if known is None:
        return ""
    if state.context.clock == SYNCHRONISED and 0 < known.expires_ns < state.context.now_ns:
        return (
            f"what the aggregator signed last expired on {date(known.expires_ns)}: it has been away since, or the "
            "broker keeps back what it says; the model in force goes on"
        )
    refused = max((one.version for one in state.deployment.models.rejected), default=0)
    candidate = state.deployment.candidate.version if state.deployment.candidate else 0
    seen = max(state.deployment.models.newest, state.deployment.announced, refused, candidate)
    if known.version > seen and state.context.now_ns - state.trust.newest_ns >= WITHHELD_S * NS:
        return f"the aggregator has signed that there is a model {known.version}, and it has not been announced here"
    return ""
