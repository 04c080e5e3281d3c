"""What gateways had to give up, and what they scored while nobody could hear them: stored, then acknowledged.

Both are messages of a gateway's outbox, which it repeats until it has a receipt. The store keeps the newest of each
gateway, so that a fleet that talks for years needs no more room than one that talks for weeks.
"""

from __future__ import annotations

import hashlib

from fedgate.cloud_aggregator.context import Context, Statuses
from fedgate.cloud_aggregator.events import Effect, Log, RecordLoss, RecordScores
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import MessageError
from fedgate.config.protocol.scores import Scores


def record_loss(context: Context, statuses: Statuses, gateway: str, tombstone: Tombstone) -> list[Effect]:
    """Take in what a gateway had to give up."""
    _is_known(statuses, gateway)
    what = f"{tombstone.items} items of class {tombstone.kind}, {tombstone.size_bytes} bytes"
    return [
        RecordLoss(gateway, tombstone, context.now_ns),
        context.receipt(gateway, tombstone.item),
        Log("warning", f"{gateway}: {what} are lost: {', '.join(tombstone.why)}"),
    ]


def record_scores(context: Context, statuses: Statuses, gateway: str, item: str, payload: bytes) -> list[Effect]:
    """Take in a batch of scores; a whole one that makes no sense never will, so its sender need not keep it."""
    _is_known(statuses, gateway)
    if item != hashlib.sha256(payload).hexdigest():
        raise MessageError(f"scores of {gateway}: they were damaged on their way, or are not {item[:12]}")
    try:
        scores = Scores.from_bytes(payload)
    except MessageError as error:
        log = Log("warning", f"{gateway}: scores refused: {error}")
        return [context.receipt(gateway, item, str(error)), log]
    return [RecordScores(gateway, item, scores, context.now_ns), context.receipt(gateway, item)]


def _is_known(statuses: Statuses, gateway: str) -> None:
    if gateway not in statuses:
        raise MessageError(f"{gateway} has not reported its status yet")
