"""What an operator's commands ask of the running service.

A command writes an order into the store and waits for its answer; the service takes it at its next tick, or when it is
started. So a command needs no connection to the service and no second way in, and an order survives a restart: what it
changes and its answer are one transaction.
"""

from __future__ import annotations

from cloud_aggregator import admission, release_orders
from cloud_aggregator.events import Answered, Effect, Log, Ordered, OrderError
from cloud_aggregator.state import State


def obeyed(state: State, order: Ordered) -> tuple[State, list[Effect]]:
    """Carry out an order, or say why not."""
    try:
        state, effects, text = _carried_out(state, order)
    except OrderError as error:
        return state, [Answered(order.number, "refused", str(error)), Log("warning", f"order refused: {error}")]
    return state, [Answered(order.number, text), *effects, Log("info", text)]


def _carried_out(state: State, order: Ordered) -> tuple[State, list[Effect], str]:
    match order.kind:
        case "token":
            return admission.token_ordered(state, order.body)
        case "revoke":
            return admission.revoked(state, order.body)
        case "remove":
            return admission.removed(state, order.body)
        case "release":
            return release_orders.release_ordered(state, order)
        case "go-on" | "pause" | "stop":
            return release_orders.decided(state, order.kind)
    raise OrderError(f"{order.kind!r} given, which this version of the aggregator does not know; update it")
