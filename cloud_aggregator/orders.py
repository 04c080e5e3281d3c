"""What an operator's commands ask of the running service.

A command writes an order into the store and waits for its answer; the service takes it at its next tick, or when it is
started. So a command needs no connection to the service and no second way in, and an order survives a restart: what it
changes and its answer are one transaction.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.access import admission
from fedgate.cloud_aggregator.access.registry import Bar, Barred, TakeKeys
from fedgate.cloud_aggregator.events import Answered, Effect, Log, Ordered, OrderError
from fedgate.cloud_aggregator.releases import release_orders
from fedgate.cloud_aggregator.state import State
from fedgate.models.records import replace


def carry_out(state: State, order: Ordered) -> tuple[State, list[Effect]]:
    """Carry out an order, or say why not."""
    try:
        state, effects, text = _carried_out(state, order)
    except OrderError as error:
        return state, [Answered(order.number, "refused", str(error)), Log("warning", f"order refused: {error}")]
    if not any(isinstance(effect, Bar | TakeKeys) for effect in effects):
        return state, [Answered(order.number, text), *effects, Log("info", text)]
    # It is done, and its answer waits for the broker: see `told`.
    answered = [replace(one, order=order.number, answer=text) if isinstance(one, Bar) else one for one in effects]
    return state, [Answered(order.number, ""), *answered, Log("info", text)]


def answer_order(state: State, barred: Barred) -> tuple[State, list[Effect]]:
    """Answer an order now that the broker was told who is shut out, or could not be."""
    if not barred.problem:
        return state, [Answered(barred.order, barred.answer)]
    problem = f"{barred.answer}; but the broker does not know it yet: {barred.problem}"
    return state, [Answered(barred.order, barred.answer, problem)]


def _carried_out(state: State, order: Ordered) -> tuple[State, list[Effect], str]:
    match order.kind:
        case "token":
            return admission.token_ordered(state, order.body)
        case "certified":
            return admission.certified(state, order.body)
        case "revoke":
            return admission.revoke_gateway(state, order.body)
        case "remove":
            return admission.remove_gateway(state, order.body)
        case "keys":
            return state, [TakeKeys(order.number)], "new keys of the site are looked at"
        case "release":
            return release_orders.release_ordered(state, order)
        case "go-on" | "pause" | "stop":
            return release_orders.decided(state, order.kind)
    raise OrderError(f"{order.kind!r} given, which this version of the aggregator does not know; update it")
