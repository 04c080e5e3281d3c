"""Bodies on their way down, each under its digest."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from fedgate.config.protocol.messages import Transfer
from fedgate.config.protocol.receiver import Patience, Receiver
from fedgate.config.protocol.transfer import parse_chunk
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import Effect, Publish

PATIENCE = Patience(first_s=1.0)  # the aggregator sends the chunks to all right after the announcement


@dataclass(frozen=True)
class Downloads:
    """Bodies that were asked for, and those that are here."""

    receiver: Receiver = field(default_factory=lambda: Receiver(PATIENCE))
    bodies: dict[str, bytes] = field(default_factory=dict)  # fetched whole, not used yet


def _budget_bytes(context: Context) -> int:
    """Return how much may come at once: a model, and the shared parameters of a round."""
    return context.settings.limits.max_model_bytes + context.settings.limits.max_update_bytes


def want(downloads: Downloads, context: Context, transfer: Transfer) -> Downloads:
    """Begin to fetch a body, unless it is here or on its way."""
    if transfer.digest in downloads.bodies:
        return downloads
    receiver = downloads.receiver.expect(transfer.digest, transfer, context.uptime_ns, _budget_bytes(context))
    return replace(downloads, receiver=receiver)


def take_chunk(downloads: Downloads, context: Context, payload: bytes) -> Downloads:
    """Take in a chunk; chunks that nobody waits for are ignored. A body that is whole moves to `bodies`.

    Raises `MessageError`.
    """
    header, piece = parse_chunk(payload)
    if header.digest not in downloads.receiver.incoming:
        return downloads
    receiver, body = downloads.receiver.add(header.digest, header, piece, context.uptime_ns)
    bodies = downloads.bodies if body is None else {**downloads.bodies, header.digest: body}
    return replace(downloads, receiver=receiver, bodies=bodies)


def ask(downloads: Downloads, context: Context) -> tuple[Downloads, list[Effect]]:
    """Ask for the chunks that are overdue."""
    if not context.is_connected:
        return downloads, []
    who = context.settings.gateway.id
    receiver, asked = downloads.receiver.ask(context.uptime_ns, _budget_bytes(context), who)
    wants: list[Effect] = [Publish(context.topic("want", digest), one.want.to_bytes()) for digest, one in asked.items()]
    return replace(downloads, receiver=receiver), wants


def ask_again(downloads: Downloads, context: Context) -> Downloads:
    """Begin the patience for every body afresh, over a new connection."""
    return replace(downloads, receiver=downloads.receiver.restart(context.uptime_ns))


def forget(downloads: Downloads, needed: Collection[str]) -> Downloads:
    """Drop bodies, here or on their way, but those of the digests that somebody still needs."""
    receiver = downloads.receiver
    for digest in receiver.incoming.keys() - needed:
        receiver = receiver.without(digest)
    bodies = {digest: body for digest, body in downloads.bodies.items() if digest in needed}
    return replace(downloads, receiver=receiver, bodies=bodies)
