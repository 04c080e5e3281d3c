"""What an operator's commands ask of the running service.

A command writes an order into the store and waits for its answer; the service takes it at its next tick, or when it is
started. So a command needs no connection to the service and no second way in, and an order survives a restart: what it
changes and its answer are one transaction.
"""

from __future__ import annotations

from cloud_aggregator.events import Answered, Effect, Log, Ordered
from cloud_aggregator.state import State


class OrderError(ValueError):
    """An order that cannot be carried out; the message says why and what to do."""


def obeyed(state: State, order: Ordered) -> tuple[State, list[Effect]]:
    """Carry out an order, or say why not."""
    try:
        state, effects, text = _carried_out(state, order)
    except OrderError as error:
        return state, [Answered(order.number, "refused", str(error)), Log("warning", f"order refused: {error}")]
    return state, [Answered(order.number, text), *effects, Log("info", text)]


def _carried_out(state: State, order: Ordered) -> tuple[State, list[Effect], str]:
    raise OrderError(f"{order.kind!r} given, which this version of the aggregator does not know; update it")
