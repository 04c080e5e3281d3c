"""The aggregator's machine with its store: all events that wait share one commit, and what fails is contained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator import containment, machine, orders, presence
from fedgate.cloud_aggregator.attempts import attempt
from fedgate.cloud_aggregator.events import ACTION, AlarmEvent, Durable, Effect, Event, Ordered, Outward, Received
from fedgate.cloud_aggregator.releases import releases
from fedgate.cloud_aggregator.rounds.compression import settle_compression
from fedgate.cloud_aggregator.runtime import defence
from fedgate.cloud_aggregator.state import State, Stored, restore
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import ALARMS_AT_ONCE_MAX, LARGEST
from fedgate.config.runtime import service
from fedgate.config.settings.settings import AggregatorSettings

ORDERS_AT_ONCE = 100  # of one tick, each a commit of its own: alarms that come meanwhile wait for them


class Service(service.Service[State]):
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
        step: service.Step[State] = machine.step,
    ) -> None:
        """Go on with what the store holds; `beginning` names a training that starts anew."""
        stored = _read(store)
        settings = settle_compression(settings)
        algorithm = defence.build_algorithm(settings, material)
        state = restore(settings, key, algorithm, stored, uptime_ns, beginning, anchor_ns)
        state = replace(state, presence=presence.start(store.service(), state.context))
        state, ended = machine.start_with_registry(state, store.read_registry(), store.months.read_present())
        super().__init__(state, step, self._commit_at_once)
        self.store = store
        if ended:
            store.commit(ended)

    def _commit_at_once(
        self, state: State, effects: list[Effect], _events: Sequence[Event]
    ) -> tuple[State, list[Outward], list[Event]]:
        if durable := [effect for effect in effects if isinstance(effect, Durable)]:
            self.store.commit(durable)
        return state, [effect for effect in effects if not isinstance(effect, Durable)], []

    def step_all(self, uptime_ns: int, events: Sequence[Event]) -> list[Outward]:
        """As any service. Where that fails, events are taken in one by one, and a gateway's message or an operator's
        order that fails alone is contained. Errors of the store, of memory and of the aggregator's own events are
        nobody's: they are raised, and what was stored before them is told after a restart.
        """
        before, together = self.state, partial(super().step_all, uptime_ns, events)
        result = attempt(together)
        if not isinstance(result, Exception):
            return result
        self.state = before
        return [effect for event in events for effect in self._step_in_order(uptime_ns, event)]

    def _step_in_order(self, uptime_ns: int, event: Event) -> list[Outward]:
        before = self.state
        result = attempt(partial(self.run, machine.take_in, uptime_ns, [event]))
        if isinstance(result, Exception):
            self.state = replace(before, context=replace(before.context, uptime_ns=uptime_ns))
            if isinstance(event, Received):
                self.state, effects = machine.apply(*containment.contain(self.state, event, result))
            elif isinstance(event, Ordered):  # it would be there again at every start
                refused = containment.refuse_order(event, result)
                self.state, effects = machine.apply(*orders.answer_sender(self.state, refused, event))
            else:
                raise result
            result = self.commit(uptime_ns, effects)
        self.state, effects = machine.advance(self.state, event)
        return [*result, *self.commit(uptime_ns, effects)]

    def read_orders(self) -> list[Ordered]:
        """Return what was ordered since, oldest first, and so much at once; the rest is for the next tick, and what has
        no answer is asked for again.
        """
        return [self._with_stored(order) for order in self.store.read_orders(ORDERS_AT_ONCE)]

    def _with_stored(self, order: Ordered) -> Ordered:
        """Return an order with the stored model or alarms that it names."""
        if order.kind in ("alarm", "samples") or order.kind.startswith(ACTION):
            return self._with_alarms(order)
        version = order.body.get("version")
        if not isinstance(version, int) or version > LARGEST:  # beyond which the store cannot look for one
            return order
        return replace(order, model=self.store.models.read_version(version))

    def _with_alarms(self, order: Ordered) -> Ordered:
        """Return an order with the whole names of its alarms, where those that it has mean one each."""
        names = order.body.get("alarms")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return order
        found = {name: self.store.find_alarms(name) for name in dict.fromkeys(names[:ALARMS_AT_ONCE_MAX])}
        whole = {name: alarms[0] for name, alarms in found.items() if len(alarms) == 1}
        stored = dict[str, tuple[AlarmEvent, ...]]()
        for one in whole.values():
            gateway, _, alarm = one.partition("/")
            stored[one] = tuple(self.store.read_alarm_events(gateway=gateway, alarm=alarm))
        body = {**order.body, "alarms": [whole.get(name, name) for name in names]}
        several = {name: alarms for name, alarms in found.items() if len(alarms) > 1}
        return replace(order, body=body, stored=stored, several=several)

    def close(self) -> list[Outward]:
        """Close the store; nothing is left to be told."""
        self.store.close()
        return []


def _read(store: Store) -> Stored:
    return Stored(
        training=store.read_training(),
        releases=releases.restore(store.models.read_rollout(), store.models.read_version, store.models.read_latest()),
        gateways=store.read_statuses(),
        alarms=store.read_alarms(),
        held=store.read_held(),
        sessions=store.read_sessions(),
        seen=store.read_seen(),
        fetches=store.read_fetches(),
    )
