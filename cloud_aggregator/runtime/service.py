"""The machine with its store: events in, what they changed made durable, and then what is to be told.

The order is the promise of the whole aggregator, so it stands in one place, which the running service and the simulated
world share: a receipt leaves only when what it acknowledges is on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator import containment, machine, presence
from fedgate.cloud_aggregator.attempts import attempt
from fedgate.cloud_aggregator.events import Durable, Effect, Event, Ordered, Outward, Received
from fedgate.cloud_aggregator.releases import releases
from fedgate.cloud_aggregator.runtime import defence
from fedgate.cloud_aggregator.state import State, Stored, restore
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import LARGEST
from fedgate.config.settings.settings import AggregatorSettings


class Service:
    """An aggregator between its start and its end; use it from one thread."""

    def __init__(
        self,
        settings: AggregatorSettings,
        store: Store,
        key: Ed25519PrivateKey,
        *,
        uptime_ns: int,
        anchor_ns: int,
        beginning: str,
        material: defence.Material = defence.NOTHING,
    ) -> None:
        """Go on with what the store holds; `beginning` names a training that starts anew."""
        self.store = store
        self.state = restore(settings, key, _read(store), uptime_ns, beginning, material, anchor_ns)
        self.state = replace(self.state, presence=presence.start(store.service(), self.state.context))
        self.state = machine.start_with_registry(self.state, store.registry())

    def step(self, uptime_ns: int, event: Event) -> list[Outward]:
        """Take in one event and return what is to be told, all it rests on being on disk."""
        return self.step_all(uptime_ns, [event])

    def step_all(self, uptime_ns: int, events: Sequence[Event]) -> list[Outward]:
        """Take in events in their order and return what is to be told, all of it resting on one commit: an update that
        waits for others costs no commit of its own.

        Where that fails, events are taken in one by one, and a gateway's message or an operator's order that fails
        alone is contained. Errors of the store, of memory and of the aggregator's own events are nobody's: they are
        raised, and what was stored before them is told after a restart.
        """
        before = self.state
        result = attempt(lambda: self._run_events(machine.step, uptime_ns, events))
        if not isinstance(result, Exception):
            return result
        self.state = before
        return [effect for event in events for effect in self._step_in_order(uptime_ns, event)]

    def _step_in_order(self, uptime_ns: int, event: Event) -> list[Outward]:
        before = self.state
        result = attempt(lambda: self._run_events(machine.take_in, uptime_ns, [event]))
        if isinstance(result, Exception):
            before = replace(before, context=replace(before.context, uptime_ns=uptime_ns))
            if isinstance(event, Received):
                self.state, effects = containment.contain(before, event, result)
            elif isinstance(event, Ordered):  # it would be there again at every start
                self.state, effects = before, containment.refuse_order(event, result)
            else:
                raise result
            result = self._stored(effects)
        self.state, effects = machine.advance(self.state, event)
        return [*result, *self._stored(effects)]

    def _run_events(
        self, act: Callable[[State, int, Event], machine.Result], uptime_ns: int, events: Sequence[Event]
    ) -> list[Outward]:
        effects: list[Effect] = []
        for event in events:
            self.state, more = act(self.state, uptime_ns, event)
            effects += more
        return self._stored(effects)

    def orders(self) -> list[Ordered]:
        """Return what the operator has ordered since, oldest first; each is asked for again until it is answered."""
        return [self._with_model(order) for order in self.store.orders()]

    def _with_model(self, order: Ordered) -> Ordered:
        """Return an order with the stored model that it names."""
        version = order.body.get("version")
        if not isinstance(version, int) or version > LARGEST:  # beyond which the store cannot look for one
            return order
        return replace(order, model=self.store.models.of(version))

    def close(self) -> list[Outward]:
        """Close the store; nothing is left to be told."""
        self.store.close()
        return []

    def _stored(self, effects: list[Effect]) -> list[Outward]:
        durable = [effect for effect in effects if isinstance(effect, Durable)]
        if durable:
            self.store.commit(durable)
        return [effect for effect in effects if not isinstance(effect, Durable)]


def _read(store: Store) -> Stored:
    return Stored(
        training=store.training(),
        releases=releases.restore(store.models.rollout(), store.models.of, store.models.latest()),
        gateways=store.statuses(),
        alarms=store.alarms(),
        held=store.held(),
        sessions=store.sessions(),
        seen=store.seen(),
    )
