"""The machine with its store: an event in, what it changed made durable, and then what is to be done outside.

The order is the promise of the whole agent, so it stands in one place, which the running agent and the simulated world
share: whoever cuts the power between two lines of this file loses nothing that anyone was told.
"""

from __future__ import annotations

from dataclasses import replace

from config.clock import Quality
from config.settings import GatewaySettings
from gateway_agent import machine
from gateway_agent.events import Durable, Effect, Event, Outward, Save
from gateway_agent.release_key import Verified
from gateway_agent.state import SECRET, restore, save_memory
from gateway_agent.store import Store
from models.arrays import Arrays


class Service:
    """An agent between its start and its end; use it from one thread."""

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        verified: Verified,
        *,
        boot_id: str,
        can_train: bool,
        libraries: tuple[str, ...],
        now_ns: int,
        clock: Quality,
        labelled: Arrays,
        secret: bytes,
    ) -> None:
        """Go on with what the store holds; `begun` is what a start has to tell. The store takes `secret` where it
        holds none yet.
        """
        self.store = store
        if SECRET not in store.read().blobs:
            store.commit([Save(SECRET, secret)])
        stored = store.read()
        state = restore(
            settings,
            verified,
            stored,
            boot_id=boot_id,
            can_train=can_train,
            libraries=libraries,
            now_ns=now_ns,
            labelled=labelled,
        )
        self.state, effects = machine.begin(replace(state, clock=clock), stored)
        self.begun = self._stored(effects)

    def step(self, now_ns: int, event: Event) -> list[Outward]:
        """Take in one event and return what is to be done outside, all it rests on being on disk."""
        self.state, effects = machine.step(self.state, now_ns, event)
        return self._stored(effects)

    def close(self) -> None:
        """Store what is kept in memory to spare the flash, and close the store."""
        self._stored(save_memory(self.state))
        self.store.close()

    def _stored(self, effects: list[Effect]) -> list[Outward]:
        durable = [effect for effect in effects if isinstance(effect, Durable)]
        if durable:
            self.store.commit(durable)
        return [effect for effect in effects if not isinstance(effect, Durable)]
