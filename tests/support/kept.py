"""Agents on real stores: the service as the shell runs it, without a broker and a clock."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fedgate.config.identity.signing import verify
from fedgate.gateway_agent.events import CLASSES, Effect, Event, Item, Outward, Publish, Tick
from fedgate.gateway_agent.runtime.service import Service
from fedgate.gateway_agent.state import Host, State
from fedgate.gateway_agent.storage.store import Store
from tests.support.agents import deliver
from tests.support.sites import KEY, T0_NS, gateway_settings, topic

ME = "north"
TICK = Tick("synchronised", 0, 0)


class Small(Store):
    """A store without the megabytes that a real one lays in: most tests need no reserve."""

    reserve_bytes = 4 * 1024
    log_bytes = start_bytes = 0


def service(store_: Store, now_ns: int = T0_NS, /, *, boot_id: str = "boot", **tables: Any) -> Service:
    return Service(
        gateway_settings(ME, **tables),
        store_,
        Host(
            boot_id=boot_id,
            uptime_ns=now_ns,
            verified=partial(verify, KEY.public_key()),
            random_bytes=lambda: bytes(range(32)),
            clock="synchronised",
            can_train=True,
        ),
    )


def opened(path: Path, now_ns: int = T0_NS, /, **tables: Any) -> Service:
    return service(Small(path), now_ns, **tables)


def item(name: str, priority: int, size_bytes: int = 100, t_ns: int = T0_NS) -> Item:
    """Return an item of a class whose message says its name, and is as long as wanted."""
    channel = {0: "alarm", 1: "alarm", 2: "evidence", 3: "update", 4: "telemetry", 5: "samples"}[priority]
    return Item(topic(ME, channel, name), (name.encode().ljust(size_bytes, b" "),), False, priority, t_ns)


def queued(state: State, *named: tuple[str, Item]) -> tuple[State, list[Effect]]:
    effects: list[Effect] = []
    for name, one in named:
        state, more = deliver(state, name, one)
        effects += more
    return state, effects


def give(agent: Service, name: str, one: Item) -> list[Outward]:
    """Let the agent queue something, as its machine does in a step."""
    agent.state, effects = deliver(agent.state, name, one)
    return agent.commit(agent.state.context.uptime_ns, effects)


def said(effects: Iterable[Effect], channel: str) -> list[Publish]:
    return [one for one in effects if isinstance(one, Publish) and one.topic.split("/")[4] == channel]


def names(state: State, kind: str) -> list[str]:
    """Return what waits of a class, tombstones apart."""
    return [
        name
        for name, one in state.outbox.items.items()
        if CLASSES[one.priority] == kind and not name.endswith(".tombstone")
    ]


def ticked(agent: Service, seconds: float = 1.0, event: Event = TICK) -> list[Outward]:
    return agent.step(agent.state.context.uptime_ns + round(seconds * 1e9), event)
