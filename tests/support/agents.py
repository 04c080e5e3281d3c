"""One agent at a time: its machine fed with events, and what it wants done, sorted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fedgate.config.protocol.messages import Transfer
from fedgate.config.protocol.transfer import split
from fedgate.gateway_agent import machine
from fedgate.gateway_agent.events import Connection, Deliver, Effect, Event, Fetch, Item, Publish, Received, Tick
from fedgate.gateway_agent.monitor.alarms import Finding
from fedgate.gateway_agent.state import State
from fedgate.models.arrays import Array, Arrays, Floats
from tests.support.sites import WINDOWS, Shelf, agent, frame, gateway_settings, samples, topic

ME = "north"
LIMIT = 1_024  # of a message
TICK = Tick("synchronised", 0, 0)


def heard(channel: str, item: str, payload: bytes, gateway: str = ME) -> Received:
    return Received(topic(gateway, channel, item), payload)


def chunks(body: bytes) -> list[Event]:
    return [heard("chunk", "x", piece, "all") for piece in split(body, LIMIT)]


def after(state: State, *events: Event, now_ns: int | None = None) -> tuple[State, list[Effect]]:
    """Take steps, at this time of day or that of the state."""
    effects: list[Effect] = []
    for event in events:
        uptime_ns = state.context.uptime_ns if now_ns is None else now_ns - state.context.anchor_ns
        state, more = machine.step(state, uptime_ns, event)
        effects += more
    return state, effects


def commissioned(shelf: Shelf | None = None, **tables: Any) -> State:
    """Return an agent with a whole baseline and a link; what it stored is on the shelf."""
    shelf = shelf or Shelf()
    state, effects = after(
        agent(gateway_settings(**tables), shelf), heard("sample", "deck", frame(samples(1, WINDOWS)))
    )
    assert state.monitor.pipeline.commissioned
    shelf.commit(effects)
    return after(state, Connection(True))[0]


def changed(state: State, part: str, **changes: Any) -> State:
    """Return a state with one of its records changed."""
    return replace(state, **{part: replace(getattr(state, part), **changes)})


def deliver(state: State, name: str, item: Item) -> tuple[State, list[Effect]]:
    """Queue an item for the aggregator, as a component asks for it."""
    return _with_sends(machine._apply(state, [Deliver(name, item)]))


def _with_sends(result: tuple[State, list[Effect]]) -> tuple[State, list[Effect]]:
    """Return a result with what is due now sent, as at the end of a step."""
    state, effects = result
    state, sends = machine._send_due(state)
    return state, [*effects, *sends]


def fetch(state: State, transfer: Transfer) -> State:
    """Begin to fetch a body, as a component asks for it."""
    return machine._apply(state, [Fetch(transfer)])[0]


def raise_fault(state: State, cause: str, text: str, t_ns: int) -> tuple[State, list[Effect]]:
    """Raise a sensor fault."""
    return _with_sends(machine._report(state, Finding(cause, t_ns, text)))


def clear_fault(state: State, cause: str, t_ns: int) -> tuple[State, list[Effect]]:
    """Clear a sensor fault."""
    return _with_sends(machine._report(state, Finding(cause, t_ns)))


def kinds(effects: Iterable[Effect], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def sent(effects: Iterable[Effect], channel: str) -> list[Publish]:
    return [effect for effect in kinds(effects, Publish) if f"/{channel}/" in effect.topic]


class Told:
    """A model that says what it is told, window by window, and remembers nothing."""

    washout_rows = max_gap_rows = 0

    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def __call__(self, x: Array) -> Floats:
        return np.full(len(x), self.value)

    def carried(self, x: Array, memory: Arrays) -> tuple[Floats, Arrays]:
        return self(x), memory
