"""Scores: published while there is a link, kept in batches while there is none.

What was published in the last moments of a link that then broke may have been lost, since nobody acknowledges it and a
dead line is noticed late. So those scores are kept too: the first batch begins with them.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.config.protocol import scores as telemetry
from fedgate.config.protocol.messages import Score
from fedgate.config.protocol.transfer import digest_of
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import TELEMETRY_PRIORITY, Effect, Item, Publish
from fedgate.gateway_agent.outbox.outbox import Outbox, enqueue
from fedgate.models.time_units import NS

WINDOWS = 60  # in a batch: about 1.5 kB
UNNOTICED = 1.5  # keep-alives, until a dead line is known to be


def publish(outbox: Outbox, context: Context, score: Score) -> tuple[Outbox, list[Effect]]:
    """Publish the score of a window, or keep it."""
    exchange = context.settings.exchange
    effects: list[Effect] = []
    if context.is_connected:
        effects.append(Publish(context.topic("score", "window"), score.to_bytes(), qos=0))
    if not exchange.keep_scores:
        return outbox, effects
    kept = (*outbox.scores, score)
    if context.is_connected:
        since_ns = score.t_ns - round(UNNOTICED * context.settings.broker.keepalive_s * NS)
        recent = tuple(one for one in kept[-WINDOWS:] if since_ns < one.t_ns <= score.t_ns)
        return replace(outbox, scores=recent), effects
    outbox = replace(outbox, scores=kept)
    return queue_unsent(outbox, context) if len(kept) >= WINDOWS else (outbox, effects)


def queue_unsent(outbox: Outbox, context: Context) -> tuple[Outbox, list[Effect]]:
    """Queue what was kept."""
    batches, effects = _split_into_batches(outbox.scores), list[Effect]()
    outbox = replace(outbox, scores=())
    for batch in batches:
        body = telemetry.gather(batch, context.clock, context.boot_id).to_bytes()
        digest = digest_of(body)
        item = Item(context.topic("telemetry", digest), (body,), retain=False, priority=TELEMETRY_PRIORITY)
        outbox, queued = enqueue(outbox, context, digest, item)
        effects += queued
    return outbox, effects


def _split_into_batches(scores: tuple[Score, ...]) -> list[list[Score]]:
    """Return scores as batches of one model and level each, times rising: where they fall the clock was set back."""
    batches: list[list[Score]] = []
    for score in scores:
        last = batches[-1][-1] if batches else None
        is_of_last = last is not None and (last.model_version, last.level) == (score.model_version, score.level)
        if last is None or not is_of_last or score.t_ns < last.t_ns:
            batches.append([])
        batches[-1].append(score)
    return batches


def save_unsent(outbox: Outbox, context: Context) -> list[Effect]:
    """Return what is to be stored of the scores at the end of the agent: those that it could not publish."""
    return [] if context.is_connected else queue_unsent(outbox, context)[1]
