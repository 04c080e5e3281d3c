"""Times of maintenance as gateways are told of them, who then learn nothing in them.

They are told now and then again: brokers forget, and a gateway whose clock was wrong has refused what it took for
expired.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.alarms.workflow import Workflow
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Publish
from fedgate.config.protocol.messages import WORKS_MAX, Works, WorksWindow
from fedgate.config.protocol.topics import ALL
from fedgate.models.time_units import HOUR_NS, NS

AGAIN_S = 600.0


def remind(alarms: Alarms, context: Context) -> tuple[Alarms, list[Publish]]:
    """Return what is announced of maintenance, where that was some time ago."""
    last_ns = alarms.announced_ns
    if last_ns is not None and context.uptime_ns - last_ns < AGAIN_S * NS:
        return alarms, []
    published = publish_works(alarms.workflow, context)
    return (replace(alarms, announced_ns=context.uptime_ns) if published else alarms), published


def publish_works(workflow: Workflow, context: Context) -> list[Publish]:
    """Return what is announced of maintenance that is at hand or to come, signed; nothing where there never was any."""
    if not workflow.changed_ns or not context.is_connected:
        return []
    windows = tuple(
        WorksWindow(gateway=one.gateway, from_ns=one.from_ns, to_ns=one.to_ns)
        for one in workflow.windows
        if context.now_ns < one.to_ns + HOUR_NS  # of one that has just ended a window may still be under way
    )[-WORKS_MAX:]
    signed = context.sign(Works(changed_ns=workflow.changed_ns, windows=windows))
    return [Publish(context.topic(ALL, "works", "current"), signed.to_bytes(), retain=True)]
