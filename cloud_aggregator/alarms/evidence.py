"""Evidence of a gateway's alarms: checked, stored under its alarm, and acknowledged.

It is told apart by gateway and alarm, so nobody's evidence says anything of another's. Whether its alarm is here yet
does not matter: messages overtake each other. The first of an alarm is what stays.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.context import Context, Statuses
from fedgate.cloud_aggregator.events import Effect, Log, RecordEvidence
from fedgate.cloud_aggregator.limits import Allowance
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import MessageError

ITEM = re.compile(r"[0-9a-f]{32}\.evidence")
AT_ONCE, AGAIN_S = 250, 10.0  # of one gateway that are taken as they come, and in which time one more is


def receive_evidence(
    alarms: Alarms, context: Context, statuses: Statuses, gateway: str, item: str, payload: bytes
) -> tuple[Alarms, list[Effect]]:
    """Take in the evidence of an alarm; what makes no sense never will, so its sender need not keep it.

    Raises `MessageError` where too much came lately, or from a stranger: that has no answer, and is sent again.
    """
    if gateway not in statuses:
        raise MessageError(f"{gateway} has not reported its status yet")
    if not ITEM.fullmatch(item):
        raise MessageError(f"evidence of {gateway}: {item!r} is no item of evidence")
    try:
        evidence = AlarmEvidence.from_bytes(payload)
        if item != evidence.item:
            raise MessageError(f"its item is {item!r}, and of its alarm {evidence.item!r}")
    except MessageError as error:
        log = Log("warning", f"{gateway}: evidence refused: {error}")
        return alarms, [context.receipt(gateway, item, str(error)), log]
    used = alarms.evidence.get(gateway, Allowance()).compute_used(context.uptime_ns, AGAIN_S) + 1
    if used > AT_ONCE:
        raise MessageError(f"{gateway} sends evidence of more than {AT_ONCE} alarms at once")
    alarms = replace(alarms, evidence={**alarms.evidence, gateway: Allowance(used, context.uptime_ns)})
    return alarms, [RecordEvidence(gateway, evidence, context.now_ns), context.receipt(gateway, item)]
