"""Summaries of chosen features: gathered window by window, queued when their hour is over."""

from __future__ import annotations

from dataclasses import replace

from fedgate.config.protocol.feature_summary import Gathered, Spread, join, summarise
from fedgate.config.protocol.transfer import digest_of
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import TELEMETRY_PRIORITY, Effect, Item
from fedgate.gateway_agent.feature_row import Row
from fedgate.gateway_agent.outbox.outbox import Outbox, enqueue
from fedgate.models.features.spec import feature_names
from fedgate.models.time_units import HOUR_NS


def take_in(outbox: Outbox, context: Context, end_ns: int, row: Row) -> tuple[Outbox, list[Effect]]:
    """Take in the features (F,) of a window, as far as they are chosen; the summary of the hour before it is queued."""
    before, effects = outbox.gathered, list[Effect]()
    if before is not None and (end_ns // HOUR_NS != before.t_ns // HOUR_NS or end_ns < before.last_ns):
        outbox, effects = queue_gathered(outbox, context)
    names = feature_names(context.settings.features)
    values = [float(row[names.index(name)]) for name in context.settings.exchange.publish_features]
    seen = tuple(Spread(1, value, 0.0, value, value) for value in values)
    if outbox.gathered is None:
        return replace(outbox, gathered=Gathered(end_ns, end_ns, seen)), effects
    spreads = tuple(map(join, zip(outbox.gathered.spreads, seen, strict=True)))
    return replace(outbox, gathered=replace(outbox.gathered, last_ns=end_ns, spreads=spreads)), effects


def queue_gathered(outbox: Outbox, context: Context) -> tuple[Outbox, list[Effect]]:
    """Queue the summary of what was gathered so far; nothing where nothing was."""
    if outbox.gathered is None:
        return outbox, []
    chosen, meanings = context.settings.exchange.publish_features, context.settings.describe_features()
    units = [meanings[name].unit for name in chosen]
    body = summarise(outbox.gathered, chosen, units, context.clock, context.boot_id).to_bytes()
    digest = digest_of(body)
    item = Item(context.topic("summary", digest), (body,), retain=False, priority=TELEMETRY_PRIORITY)
    return enqueue(replace(outbox, gathered=None), context, digest, item)
