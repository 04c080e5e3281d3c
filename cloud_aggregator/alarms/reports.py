"""What gateways had to give up, what they scored while nobody could hear them, and what chosen features were: stored,
then acknowledged.

These are messages of a gateway's outbox, which it repeats until it has a receipt. The store keeps the newest of each
gateway, so that a fleet that talks for years needs no more room than one that talks for weeks.
"""

from __future__ import annotations

import hashlib

from fedgate.cloud_aggregator.context import Context, Statuses
from fedgate.cloud_aggregator.events import Effect, Log, RecordLoss, RecordScores, RecordSummary
from fedgate.config.protocol.feature_summary import FeatureSummary
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


def record_batch(
    context: Context, statuses: Statuses, gateway: str, channel: str, item: str, payload: bytes
) -> list[Effect]:
    """Take in a batch of scores or a summary of features; a whole one that makes no sense never will, so its sender
    need not keep it.
    """
    _is_known(statuses, gateway)
    if item != hashlib.sha256(payload).hexdigest():
        raise MessageError(f"{channel} of {gateway}: it was damaged on its way, or is not {item[:12]}")
    record: RecordScores | RecordSummary
    try:
        if channel == "telemetry":
            record = RecordScores(gateway, item, Scores.from_bytes(payload), context.now_ns)
        else:
            record = RecordSummary(gateway, item, FeatureSummary.from_bytes(payload), context.now_ns)
    except MessageError as error:
        log = Log("warning", f"{gateway}: {channel} refused: {error}")
        return [context.receipt(gateway, item, str(error)), log]
    return [record, context.receipt(gateway, item)]


def _is_known(statuses: Statuses, gateway: str) -> None:
    if gateway not in statuses:
        raise MessageError(f"{gateway} has not reported its status yet")
