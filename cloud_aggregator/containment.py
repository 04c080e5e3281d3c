"""An error while a message of one gateway is handled stops that gateway, and nobody else.

What a gateway may send is checked before it is used, so an exception in between is a defect of ours that its message
has found. The state is that of before the message. The gateway gets an answer where the protocol has one, and the log
its name. After `FAILURES_MAX` of them within an hour nothing more of it is handled until that hour is over, and an
alarm says so. What is retained comes again after a restart, and is contained again.
"""

from __future__ import annotations

from dataclasses import replace
from traceback import walk_tb

from fedgate.cloud_aggregator.events import Answered, ClearAlarm, Effect, Log, Ordered, RaiseAlarm, Received, Wanted
from fedgate.cloud_aggregator.limits import HourlyCount, count_one_more
from fedgate.cloud_aggregator.state import State
from fedgate.config.protocol import topics
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, MessageError

FAILURES_MAX = 8  # within an hour, before a gateway is blocked for the rest of it
CAUSE = "identity-blocked"
SHOWN = 200  # characters of an error
OURS = ("fedgate.cloud_aggregator.", "fedgate.config.", "fedgate.models.")  # whose lines an error is reported with


def is_blocked(state: State, gateway: str) -> bool:
    """Tell whether nothing of a gateway is handled now."""
    known = state.failures.get(gateway, HourlyCount())
    return known.count >= FAILURES_MAX and known.is_running(state.context.uptime_ns)


def contain(state: State, message: Received, error: Exception) -> tuple[State, list[Wanted]]:
    """Return the state of before a message, and what is reported of the error that it led to."""
    where = topics.parse(message.topic)
    failures = count_one_more(state.failures.get(where.gateway), state.context.uptime_ns)
    state = replace(state, failures={**state.failures, where.gateway: failures})
    text = f"{where.gateway}: a message of channel {where.channel} could not be handled ({_describe(error)})"
    log = Log("warning", f"{text}; number {failures.count} within an hour")
    blocked = f"{FAILURES_MAX} of its messages could not be handled; nothing of it is, for an hour from the first"
    is_full = failures.count == FAILURES_MAX
    raised = [RaiseAlarm(where.gateway, CAUSE, "major", blocked)] if is_full else []
    return state, [log, *_answer(state, where, message.payload), *raised]


def refuse_order(order: Ordered, error: Exception) -> list[Effect]:
    """Return the answer to an order that could not be carried out: one without an answer is obeyed at every start."""
    problem = f"it could not be carried out, nothing was changed ({_describe(error)})"
    return [Answered(order.number, "refused", problem), Log("warning", f"order {order.number} refused: {problem}")]


def unblock(state: State) -> list[ClearAlarm]:
    """End the alarms of gateways that are blocked no more: their hour is over, or this process began since."""
    free = [gateway for gateway in state.alarms.book if not is_blocked(state, gateway)]
    return [ClearAlarm(gateway, CAUSE, "its messages are handled again") for gateway in free]


def _describe(error: Exception) -> str:
    return f"{type(error).__name__} at {_place(error)}: {str(error)[:SHOWN]!r}"


def _place(error: Exception) -> str:
    """Return the last line of ours that an error passed: where it was raised may be in a library."""
    lines = [
        f"{frame.f_globals['__name__']}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals["__name__"].startswith(OURS)
    ]
    return lines[-1]


def _answer(state: State, where: topics.Topic, payload: bytes) -> list[Effect]:
    """Return the refusal of what its sender would otherwise send again without end."""
    item = where.item
    try:
        if where.channel == "alarm":
            item = Alarm.from_bytes(payload).item
        elif where.channel == "tombstone":
            item = Tombstone.from_bytes(payload).item
        elif where.channel not in ("update", "telemetry", "summary", "evidence", "samples"):
            return []
    except MessageError:
        return []
    return [state.context.receipt(where.gateway, item, "the aggregator failed at it; its log says more")]
