"""Bodies on their way down: take the chunks as they come, ask for what is missing, with growing patience."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedgate.config.protocol.messages import MessageError, Transfer, Want
from fedgate.config.protocol.transfer import ASK_MAX, Assembly, parse_chunk
from fedgate.config.runtime.backoff import wait_ns
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import Effect, Publish

NS = 1_000_000_000
FIRST_WAIT_S = 1.0  # the aggregator sends the chunks to all right after the announcement


@dataclass(frozen=True)
class Download:
    """A body on its way down, and when to ask for what is still missing."""

    assembly: Assembly
    ask_at_ns: int
    tries: int = 0


@dataclass(frozen=True)
class Downloads:
    """Bodies that were asked for, and those that are here."""

    fetches: dict[str, Download] = field(default_factory=dict)
    bodies: dict[str, bytes] = field(default_factory=dict)  # fetched whole, not used yet
    damaged: int = 0  # bodies that were not what they should be


def want(downloads: Downloads, context: Context, transfer: Transfer) -> Downloads:
    """Begin to fetch a body, unless it is here or on its way."""
    known = downloads.fetches.get(transfer.digest)
    if transfer.digest in downloads.bodies or (known is not None and known.assembly.transfer == transfer):
        return downloads
    fetch = Download(Assembly(transfer), context.now_ns + round(FIRST_WAIT_S * NS))
    return replace(downloads, fetches={**downloads.fetches, transfer.digest: fetch})


def take_chunk(downloads: Downloads, context: Context, payload: bytes) -> Downloads:
    """Take in a chunk; chunks that nobody waits for are ignored. A body that is whole moves to `bodies`.

    Raises `MessageError`.
    """
    header, piece = parse_chunk(payload)
    fetch = downloads.fetches.get(header.digest)
    if fetch is None:
        return downloads
    others = {digest: other for digest, other in downloads.fetches.items() if digest != header.digest}
    try:
        assembly = fetch.assembly.add(header, piece)
        if assembly.missing:
            return replace(downloads, fetches={**others, header.digest: replace(fetch, assembly=assembly)})
        body = assembly.body()
    except MessageError:  # damaged on the way, this piece or one before it: begin again, and count it
        fresh = Download(Assembly(fetch.assembly.transfer), context.now_ns + round(FIRST_WAIT_S * NS), fetch.tries)
        return replace(downloads, fetches={**others, header.digest: fresh}, damaged=downloads.damaged + 1)
    return replace(downloads, fetches=others, bodies={**downloads.bodies, header.digest: body})


def ask(downloads: Downloads, context: Context) -> tuple[Downloads, list[Effect]]:
    """Ask for the chunks that are overdue; every try doubles the wait."""
    if not context.is_connected:
        return downloads, []
    effects: list[Effect] = []
    fetches = dict(downloads.fetches)
    for digest, fetch in downloads.fetches.items():
        if context.now_ns >= fetch.ask_at_ns:
            missing = fetch.assembly.missing[:ASK_MAX] if fetch.assembly.pieces else ()
            effects.append(Publish(context.topic("want", digest), Want(missing=missing).to_bytes()))
            pause_ns = wait_ns(FIRST_WAIT_S, fetch.tries + 2, context.settings.gateway.id, digest)
            fetches[digest] = replace(fetch, ask_at_ns=context.now_ns + pause_ns, tries=fetch.tries + 1)
    return replace(downloads, fetches=fetches), effects


def ask_again(downloads: Downloads, context: Context) -> Downloads:
    """Start the patience of every fetch afresh: after an outage nobody should wait out the longest pause."""
    ask_at_ns = context.now_ns + round(FIRST_WAIT_S * NS)
    fresh = {digest: replace(fetch, ask_at_ns=ask_at_ns, tries=0) for digest, fetch in downloads.fetches.items()}
    return replace(downloads, fetches=fresh)


def forget(downloads: Downloads, needed: set[str]) -> Downloads:
    """Drop bodies and fetches but those of the digests that somebody still needs."""
    return replace(
        downloads,
        fetches={digest: fetch for digest, fetch in downloads.fetches.items() if digest in needed},
        bodies={digest: body for digest, body in downloads.bodies.items() if digest in needed},
    )


def move_times(downloads: Downloads, by_ns: int) -> Downloads:
    """Return the downloads after the timeline was moved."""
    moved = {name: replace(one, ask_at_ns=one.ask_at_ns + by_ns) for name, one in downloads.fetches.items()}
    return replace(downloads, fetches=moved)
