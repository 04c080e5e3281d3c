"""What people do to a gateway of a simulated world: an old card, one that rots, a copy switched on beside it."""

from __future__ import annotations

from collections.abc import Callable

from fedgate.config.runtime import sqlite
from fedgate.firmware_sim.world.actors.hosts import GatewayHost
from fedgate.firmware_sim.world.actors.machines import RESTART_S
from fedgate.firmware_sim.world.actors.node import Node
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.disk import Image, image, restore
from fedgate.firmware_sim.world.environment.setup import stream_of

AWAY_S = (20.0, 120.0)
COPIES_PER_RESTORE = 2.0
ROTTEN_BYTES = (16, 4_096)
FIRST_PAGE_BYTES = 1_024  # which says whose file it is: who damages that has no store of ours


class Hands:
    """The hands in which one gateway is; `twin` and its `node` are dark until somebody makes them a copy."""

    def __init__(self, world: World, host: GatewayHost, twin: GatewayHost, node: Node) -> None:
        self._world, self._host, self._twin, self._node = world, host, twin, node
        self._rng = stream_of(world.seed, "handling")
        self._card: Image | None = None
        self._faults = world.network.faults.handling

    def schedule_faults(self) -> None:
        """Arrange for all that will be done."""
        again, faults, rng = self._world.scheduler.again, self._faults, self._rng
        again(rng, min(faults.restores * COPIES_PER_RESTORE, 3_600.0), self._copy)
        again(rng, faults.restores, self._set_back)
        again(rng, faults.rots, self._rot)
        again(stream_of(self._world.seed, "anew"), faults.anew, self._begin_anew)
        again(rng, faults.twins, self._double)

    @property
    def has_copy(self) -> bool:
        """True while a copy is switched on: that ends of itself, and no fault is needed for it to be in the way."""
        return self._twin.boots > 0 and not self._twin.is_retired

    def _take_away(self) -> None:
        self._twin.is_retired = True
        if self._twin.is_up:
            self._twin.fall("power", "for good")
        witness = self._world.witness
        witness.devices.removed(self._twin.name, witness.missing())

    def _copy(self) -> None:
        self._card = image(self._host.disk.path)

    def _set_back(self) -> None:
        card = self._card
        if card is not None and self._host.is_up:  # of one whose process is about to start nobody takes the card
            self._handle("an old card is put in", lambda: restore(self._host.disk.path, card))
            self._host.disk.doubt = None
            self._world.witness.devices.touched(self._host.name, "restored")

    def _rot(self) -> None:
        if not self._host.is_up:
            return

        def rot() -> None:
            file = self._host.disk.path
            body = bytearray(file.read_bytes())
            count = int(self._rng.integers(*ROTTEN_BYTES))
            if len(body) > FIRST_PAGE_BYTES + count:
                first = int(self._rng.integers(FIRST_PAGE_BYTES, len(body) - count))
                body[first : first + count] = self._rng.bytes(count)
                file.write_bytes(bytes(body))

        self._handle("its card rots", rot)
        self._world.witness.devices.touched(self._host.name, "rotten")

    def _begin_anew(self) -> None:
        if not self._host.is_up:
            return
        self._host.fall("kill", "for its store to be removed")
        sqlite.remove(self._host.disk.path)
        self._host.disk.doubt = None
        self._world.witness.devices.touched(self._host.name, "anew")
        self._world.scheduler.after(RESTART_S, self._host.boot)

    def _handle(self, text: str, act: Callable[[], None]) -> None:
        self._world.note(self._host.name, text)
        self._host.cut_off(float(self._rng.uniform(*AWAY_S)), act)

    def _double(self) -> None:
        if self._twin.boots > 0 or self._twin.is_retired:
            return
        self._world.note(self._twin.name, "a copy is switched on")
        restore(self._twin.disk.path, image(self._host.disk.path))
        self._twin.disk.doubt = self._host.disk.doubt
        self._world.witness.doubled(self._twin.name, self._host.name)
        self._twin.power_on()
        self._node.start()
        self._world.scheduler.after(self._faults.twin_s, self._take_away)
