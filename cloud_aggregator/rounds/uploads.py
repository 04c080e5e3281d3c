"""Updates on their way up, in chunks: at most `limits.incoming_bytes` of them at once, however many gateways there are.

Who comes while others fill that is parked: known by name, without a byte of it, and asked for its chunks as soon as
there is room. So a thousand gateways that answer at once cost the memory of a few. None of this is durable: after a
restart chunks that come begin a transfer, and what lacks of it is asked for.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.cloud_aggregator.rounds.rounds import Incoming, Rounds
from fedgate.config.protocol.messages import MessageError, Transfer, Want
from fedgate.config.protocol.transfer import ASK_MAX, Assembly, ChunkHeader
from fedgate.config.settings.settings import Limits

NS = 1_000_000_000
RESEND_S = 5.0  # how long the chunks of an update may pause before the missing ones are asked for
ASKS_MAX = 10  # without an answer; its sender will begin anew when it can
AGE_S = 600.0  # of an update on its way for which another waits


def add(
    rounds: Rounds, context: Context, gateway: str, header: ChunkHeader, piece: bytes
) -> tuple[Rounds, bytes | None]:
    """Return the record with one more chunk of a gateway's update, and the update where it is whole.

    A gateway works on one update at a time, so another takes the place of the one before. A damaged one begins anew.
    """
    transfer = Transfer(digest=header.digest, size_bytes=header.size_bytes, chunks=header.chunks)
    known = rounds.incoming.get(gateway)
    if known is None or known.assembly.transfer != transfer:
        rounds = without(rounds, gateway)
        is_parked = not has_room(rounds, context, transfer.size_bytes)
        # Who changes what he sends is as old as he was: otherwise he could keep others out without end.
        started_ns = context.now_ns if known is None or known.parked else known.started_ns
        known = Incoming(Assembly(transfer), context.now_ns, parked=is_parked, started_ns=started_ns)
    if not known.parked:
        try:
            assembly = known.assembly.add(header, piece)
            if assembly.is_whole:
                return without(rounds, gateway), assembly.body()
        except MessageError:
            known = replace(known, assembly=Assembly(transfer))
        else:
            if assembly is not known.assembly:  # the same again is no sign that it goes on
                known = replace(known, assembly=assembly, received_ns=context.now_ns, asks=0)
    return replace(rounds, incoming={**rounds.incoming, gateway: known}), None


def has_room(rounds: Rounds, context: Context, size_bytes: int) -> bool:
    """Tell whether so much more may come; what is announced counts, so that what has begun can end.

    What is held goes only when a round closes, so one update has room beside it however much that is: also where the
    limits were wider when it was kept.
    """
    limits = context.settings.limits
    coming = sum(one.assembly.transfer.size_bytes for one in rounds.incoming.values() if not one.parked)
    held = sum(len(one.body) for one in rounds.held.values())
    return coming + size_bytes <= max(limits.incoming_bytes - held, limits.max_update_bytes)


def held_most_bytes(limits: Limits) -> int:
    """Return how much may be held until a round closes: half of all, and never what one update of it needs."""
    return min(limits.incoming_bytes // 2, limits.incoming_bytes - limits.max_update_bytes)


def without(rounds: Rounds, gateway: str) -> Rounds:
    """Return the record without what is on its way of a gateway."""
    if gateway not in rounds.incoming:
        return rounds
    return replace(rounds, incoming={name: one for name, one in rounds.incoming.items() if name != gateway})


def unpark(rounds: Rounds, context: Context) -> tuple[Rounds, list[Effect]]:
    """Ask for the updates that were parked, first come first, as far as there is room now."""
    effects: list[Effect] = []
    for gateway, one in list(rounds.incoming.items()):
        if one.parked and has_room(rounds, context, one.assembly.transfer.size_bytes):
            asked = replace(one, parked=False, received_ns=context.now_ns, started_ns=context.now_ns)
            rounds = replace(rounds, incoming={**rounds.incoming, gateway: asked})
            effects.append(_ask(context, gateway, one.assembly, ()))
    return rounds, effects


def ask_for_missing(rounds: Rounds, context: Context) -> tuple[Rounds, list[Effect]]:
    """Ask gateways for the chunks of updates that have paused; forget those that do not answer, or keep others out for
    too long.
    """
    effects: list[Effect] = []
    incoming = dict(rounds.incoming)
    others_wait = any(one.parked for one in incoming.values())
    for gateway, known in rounds.incoming.items():
        if others_wait and not known.parked and context.now_ns - known.started_ns > AGE_S * NS:
            del incoming[gateway]
            continue
        if known.parked or context.now_ns - known.received_ns < RESEND_S * NS:
            continue
        if known.asks >= ASKS_MAX:
            del incoming[gateway]
            continue
        missing = known.assembly.missing[:ASK_MAX] if known.assembly.pieces else ()
        effects.append(_ask(context, gateway, known.assembly, missing))
        incoming[gateway] = replace(known, received_ns=context.now_ns, asks=known.asks + 1)
    rounds, more = unpark(replace(rounds, incoming=incoming), context)
    return rounds, [*effects, *more]


def _ask(context: Context, gateway: str, assembly: Assembly, missing: tuple[int, ...]) -> Publish:
    where = context.topic(gateway, "resend", assembly.transfer.digest)
    return Publish(where, Want(missing=missing).to_bytes())
