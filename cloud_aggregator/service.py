"""The machine with its store: events in, what they changed made durable, and then what is to be told.

The order is the promise of the whole aggregator, so it stands in one place, which the running service and the simulated
world share: a receipt leaves only when what it acknowledges is on disk.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cloud_aggregator import defence, machine
from cloud_aggregator.events import Durable, Effect, Event, Ordered, Outward
from cloud_aggregator.state import restore
from cloud_aggregator.store import Store
from config.settings import AggregatorSettings


class Service:
    """An aggregator between its start and its end; use it from one thread."""

    def __init__(
        self,
        settings: AggregatorSettings,
        store: Store,
        key: Ed25519PrivateKey,
        *,
        now_ns: int,
        beginning: str,
        material: defence.Material = defence.NOTHING,
    ) -> None:
        """Go on with what the store holds; `beginning` names a training that starts anew."""
        self.store = store
        self.state = restore(
            settings,
            key,
            store.training(),
            store.latest_model(),
            store.statuses(),
            now_ns,
            beginning,
            material,
            store.outward(),
        )

    def step(self, now_ns: int, event: Event) -> list[Outward]:
        """Take in one event and return what is to be told, all it rests on being on disk."""
        self.state, effects = machine.step(self.state, now_ns, event)
        return self._stored(effects)

    def orders(self) -> list[Ordered]:
        """Return what the operator has ordered since, oldest first; each is asked for again until it is answered."""
        return self.store.orders()

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _stored(self, effects: list[Effect]) -> list[Outward]:
        durable = [effect for effect in effects if isinstance(effect, Durable)]
        if durable:
            self.store.commit(durable)
        return [effect for effect in effects if not isinstance(effect, Durable)]
