"""Bodies on their way down: take the chunks as they come, ask for what is missing, with growing patience
(`outbox.connection`).
"""

from __future__ import annotations

import hashlib

from fedgate.config.protocol.messages import MessageError, Transfer, Want
from fedgate.config.protocol.transfer import ASK_MAX, Assembly, parse_chunk
from fedgate.gateway_agent.events import Effect, Publish
from fedgate.gateway_agent.outbox.connection import wait_ns
from fedgate.gateway_agent.state import Fetch, State, counted, topic
from fedgate.models.records import replace

NS = 1_000_000_000
FIRST_WAIT_S = 1.0  # the aggregator sends the chunks to all right after the announcement


def digest_of(body: bytes) -> str:
    """Return the name of a body: its SHA-256."""
    return hashlib.sha256(body).hexdigest()


def want(state: State, transfer: Transfer) -> tuple[State, list[Effect]]:
    """Begin to fetch a body, unless it is here or on its way."""
    known = state.fetches.get(transfer.digest)
    if transfer.digest in state.bodies or (known is not None and known.assembly.transfer == transfer):
        return state, []
    fetch = Fetch(Assembly(transfer), state.now_ns + round(FIRST_WAIT_S * NS))
    return replace(state, fetches={**state.fetches, transfer.digest: fetch}), []


def arrived(state: State, payload: bytes) -> State:
    """Take in a chunk; chunks that nobody waits for are ignored. A body that is whole moves to `bodies`."""
    header, piece = parse_chunk(payload)
    fetch = state.fetches.get(header.digest)
    if fetch is None:
        return state
    others = {digest: other for digest, other in state.fetches.items() if digest != header.digest}
    try:
        assembly = fetch.assembly.add(header, piece)
        if assembly.missing:
            return replace(state, fetches={**others, header.digest: replace(fetch, assembly=assembly)})
        body = assembly.body()
    except MessageError:  # damaged on the way, this piece or one before it: begin again, and count it
        fresh = Fetch(Assembly(fetch.assembly.transfer), state.now_ns + round(FIRST_WAIT_S * NS), fetch.tries)
        return counted(replace(state, fetches={**others, header.digest: fresh}), "dropped.damaged_body")
    return replace(state, fetches=others, bodies={**state.bodies, header.digest: body})


def ask(state: State) -> tuple[State, list[Effect]]:
    """Ask for the chunks that are overdue; every try doubles the wait."""
    if not state.connected:
        return state, []
    effects: list[Effect] = []
    fetches = dict(state.fetches)
    for digest, fetch in state.fetches.items():
        if state.now_ns >= fetch.ask_at_ns:
            missing = fetch.assembly.missing[:ASK_MAX] if fetch.assembly.pieces else ()
            effects.append(Publish(topic(state, "want", digest), Want(missing=missing).to_bytes()))
            pause_ns = wait_ns(FIRST_WAIT_S, fetch.tries + 2, state.settings.gateway.id, digest)
            fetches[digest] = replace(fetch, ask_at_ns=state.now_ns + pause_ns, tries=fetch.tries + 1)
    return replace(state, fetches=fetches), effects


def ask_anew(state: State) -> State:
    """Start the patience of every fetch afresh: after an outage nobody should wait out the longest pause."""
    ask_at_ns = state.now_ns + round(FIRST_WAIT_S * NS)
    fresh = {digest: replace(fetch, ask_at_ns=ask_at_ns, tries=0) for digest, fetch in state.fetches.items()}
    return replace(state, fetches=fresh)


def forget(state: State) -> State:
    """Drop bodies and fetches that no round and no candidate needs any more."""
    digests = {state.candidate.model.digest} if state.candidate else set()
    if state.round is not None:
        digests.add(state.round.shared.digest)
    return replace(
        state,
        fetches={digest: fetch for digest, fetch in state.fetches.items() if digest in digests},
        bodies={digest: body for digest, body in state.bodies.items() if digest in digests},
    )
