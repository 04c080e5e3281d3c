"""An error while a message of one gateway is handled stops that gateway, and nobody else.

What a gateway may send is checked before it is used, so an exception in between is a defect of ours that its message
has found. The state is that of before the message. The gateway gets an answer where the protocol has one, and the log
its name. After `FAILURES_MAX` of them within an hour nothing more of it is handled until that hour is over, and an
alarm says so. What is retained comes again after a restart, and is contained again.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from typing import TypeVar

from fedgate.cloud_aggregator.alarms import handling
from fedgate.cloud_aggregator.events import Answered, Effect, Log, Ordered, Publish, Received
from fedgate.cloud_aggregator.state import HourlyCount, State, topic
from fedgate.config.protocol import topics
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, MessageError, Receipt
from fedgate.models.records import replace

NS = 1_000_000_000
HOUR_NS = 3_600 * NS
FAILURES_MAX = 8  # within an hour, before a gateway is blocked for the rest of it
CAUSE = "identity-blocked"
SHOWN = 200  # characters of an error
OURS = ("fedgate.cloud_aggregator.", "fedgate.config.", "fedgate.models.")  # whose lines an error is reported with
Result = tuple[State, list[Effect]]
T = TypeVar("T")


def attempt(act: Callable[[], T]) -> T | Exception:
    """Return what `act` returns, or its error; errors of the store and of memory are nobody's and are raised."""
    try:
        return act()
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return error


def one_more(known: HourlyCount | None, now_ns: int) -> HourlyCount:
    """Return a count with one more, which begins anew each hour and where the clock was set back."""
    if known is None or not _is_running(known, now_ns):
        return HourlyCount(1, now_ns)
    return replace(known, count=known.count + 1)


def is_blocked(state: State, gateway: str) -> bool:
    """Tell whether nothing of a gateway is handled now."""
    known = state.failures.get(gateway, HourlyCount())
    return known.count >= FAILURES_MAX and _is_running(known, state.now_ns)


def contain(state: State, message: Received, error: Exception) -> Result:
    """Return the state of before a message, and what is told of the error that it led to."""
    where = topics.parse(message.topic)
    failures = one_more(state.failures.get(where.gateway), state.now_ns)
    state = replace(state, failures={**state.failures, where.gateway: failures})
    text = f"{where.gateway}: a message of channel {where.channel} could not be handled ({_described(error)})"
    log = Log("warning", f"{text}; number {failures.count} within an hour")
    blocked = f"{FAILURES_MAX} of its messages could not be handled; nothing of it is, for an hour from the first"
    is_full = failures.count == FAILURES_MAX
    state, raised = handling.raise_ours(state, where.gateway, CAUSE, "major", blocked) if is_full else (state, [])
    return state, [log, *_answer(state, where, message.payload), *raised]


def refused(order: Ordered, error: Exception) -> list[Effect]:
    """Return the answer to an order that could not be carried out: one without an answer is obeyed at every start."""
    problem = f"it could not be carried out, nothing was changed ({_described(error)})"
    return [Answered(order.number, "refused", problem), Log("warning", f"order {order.number} refused: {problem}")]


def unblock(state: State) -> Result:
    """End the alarms of gateways that are blocked no more: their hour is over, or this process began since."""
    effects: list[Effect] = []
    for gateway in state.outward.alarms:
        for alarm in () if is_blocked(state, gateway) else handling.of_ours(state, gateway, CAUSE):
            state, log = handling.end_ours(state, gateway, alarm, "its messages are handled again")
            effects += log
    return state, effects


def _is_running(known: HourlyCount, now_ns: int) -> bool:
    return 0 <= now_ns - known.started_ns < HOUR_NS


def _described(error: Exception) -> str:
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
        elif where.channel not in ("update", "telemetry"):
            return []
    except MessageError:
        return []
    receipt = Receipt(accepted=False, reason="the aggregator failed at it; its log says more")
    return [Publish(topic(state, where.gateway, "receipt", item), receipt.to_bytes())]
