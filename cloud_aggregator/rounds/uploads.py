"""Updates on their way up, one a gateway: at most `limits.incoming_bytes` of them at once, so that a thousand gateways
that answer at once cost the memory of a few.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, Publish
from fedgate.cloud_aggregator.rounds.rounds import Rounds
from fedgate.config.protocol.transfer import ChunkHeader
from fedgate.config.settings.settings import Limits
from fedgate.models.records import replace


def add(
    rounds: Rounds, context: Context, gateway: str, header: ChunkHeader, piece: bytes
) -> tuple[Rounds, bytes | None]:
    """Return the record with one more chunk of a gateway's update, and the update where it is whole.

    A gateway works on one update at a time, so another takes the place of the one before.
    """
    receiver = rounds.uploads.expect(gateway, header.transfer, context.now_ns, _budget_bytes(rounds, context))
    receiver, body = receiver.add(gateway, header, piece, context.now_ns)
    return replace(rounds, uploads=receiver), body


def _budget_bytes(rounds: Rounds, context: Context) -> int:
    """Return how much may come at once.

    What is held goes only when a round closes, so one update has space beside it however much that is: also where the
    limits were wider when it was kept.
    """
    limits = context.settings.limits
    return max(limits.incoming_bytes - sum(len(one.body) for one in rounds.held.values()), limits.max_update_bytes)


def held_most_bytes(limits: Limits) -> int:
    """Return how much may be held until a round closes: half of all, and never what one update of it needs."""
    return min(limits.incoming_bytes // 2, limits.incoming_bytes - limits.max_update_bytes)


def ask_for_missing(rounds: Rounds, context: Context) -> tuple[Rounds, list[Effect]]:
    """Ask gateways for the chunks of updates that have paused, or that were parked and have space now."""
    receiver, questions = rounds.uploads.ask(context.now_ns, _budget_bytes(rounds, context))
    asks: list[Effect] = [
        Publish(context.topic(one.key, "resend", one.digest), one.want.to_bytes()) for one in questions
    ]
    return replace(rounds, uploads=receiver), asks
