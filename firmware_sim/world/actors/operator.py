"""The operator of a simulated world: he orders releases, and goes on with, pauses and stops them, at any time.

An order comes into the aggregator's store as the command brings it there: from another process, by a connection of its
own, whether or not the service runs.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.firmware_sim.world.actors.hosts import CloudHost
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.disk import SharedEngine
from fedgate.firmware_sim.world.environment.setup import stream_of

DECISIONS = ("go-on", "pause", "stop")
RELEASES = 0.5  # share of the orders that begin a release; the others decide on one that is under way


class Operator:
    """Who gives orders to the aggregator of a world, whose gateways have these names."""

    def __init__(self, world: World, cloud: CloudHost, names: tuple[str, ...]) -> None:
        self._world, self._cloud, self._names = world, cloud, names
        self._rng = stream_of(world.seed, "operator")

    def schedule_faults(self) -> None:
        """Arrange for the orders."""
        self._world.scheduler.again(self._rng, self._world.network.faults.operator.orders, self._order)

    def _order(self) -> None:
        if self._rng.random() < RELEASES:
            self.give("release", self._release())
        else:
            self.give(str(self._rng.choice(DECISIONS)), {})

    def _release(self) -> dict[str, Any]:
        """Return what `cloud-aggregator release` orders: to all, to a share or to one by name."""
        whom, share, version = self._rng.random(3).tolist()
        name = str(self._rng.choice(self._names))
        body = {"gateways": [name] if whom < 0.3 else [], "share": round(share, 2), "to_all": whom > 0.7}
        body |= {"share": 1.0} if body["to_all"] else {}
        newest = max(self._world.witness.released, default=0)
        return body if version < 0.5 or newest == 0 else {**body, "version": int(self._rng.integers(1, newest + 1))}

    def give(self, kind: str, body: dict[str, Any]) -> int:
        """Bring an order into the aggregator's store and return its number; 0 where that takes none now."""
        if self._cloud.disk.is_full:  # for the command too
            return 0
        try:
            with closing(self._opened()) as store:
                number = store.order(kind, body)
        except StoreError:  # the aggregator has never run
            return 0
        self._world.note("world", f"order {number}: {kind} {body}")
        self._world.witness.releases.ordered(number, kind)
        return number

    def answer(self, number: int) -> tuple[str, str] | None:
        """Return what the store holds as the answer to an order; None while it waits."""
        with closing(self._opened()) as store:
            return store.answer(number)

    def _opened(self) -> Store:
        return Store(SharedEngine(self._cloud.disk.path), create=False)

    def finish(self) -> None:
        """Bring to an end what waits for an operator, after the last fault."""
        service = self._cloud.service
        if service is None or self._world.witness.releases.has_waiting:
            return
        state = service.state
        stage = state.releases.rollout
        if stage.stage == "paused":
            can_stop = state.releases.manifest is not None
            self.give("stop" if can_stop and self._rng.random() < 0.5 else "go-on", {})
        elif state.releases.manifest is None and not stage.is_under_way:
            to_all = {"gateways": [], "share": 1.0, "to_all": True}
            if state.releases.waiting is not None:
                self.give("release", to_all)
            elif stage.stage == "stopped":  # by its canaries, and the training makes the same again
                self.give("release", {**to_all, "version": stage.version})
