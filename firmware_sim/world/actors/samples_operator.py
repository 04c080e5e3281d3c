"""Who asks for raw samples around alarms in a simulated world: of any gateway and any alarm, past or present."""

from __future__ import annotations

from fedgate.config.protocol.topics import ALL
from fedgate.firmware_sim.world.actors.operator import Operator
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.setup import stream_of
from fedgate.firmware_sim.world.promises.alarms.states import Key

OF_ANOMALIES = 0.9  # share of the requests that can bring something
AT_THE_END = 5  # of each gateway


class SamplesOperator:
    """Who orders fetches, by way of `operator`."""

    def __init__(self, world: World, operator: Operator) -> None:
        self._world, self._operator = world, operator
        self._rng = stream_of(world.seed, "samples operator")
        self._is_on, self._has_finished = world.network.faults.samples.fetches > 0, False

    def schedule_faults(self) -> None:
        """Arrange for the orders."""
        self._world.scheduler.again(self._rng, self._world.network.faults.samples.fetches, self._order)

    def finish(self) -> None:
        """Ask once more, after the last fault, for the samples around some anomalies of each gateway that is honest."""
        if self._has_finished or not self._is_on:
            return
        self._has_finished = True
        of_gateways: dict[str, list[Key]] = {}
        for key in self._list_known(is_of_anomaly=True):
            of_gateways.setdefault(key.gateway, []).append(key)
        for gateway, keys in of_gateways.items():
            for key in keys[-AT_THE_END:] if gateway != self._world.witness.hostile else ():
                self._ask(key)

    def _list_known(self, *, is_of_anomaly: bool) -> list[Key]:
        known = self._world.witness.log.states.alarms.items()
        return [key for key, one in known if key.gateway != ALL and (one.cause == "anomaly") == is_of_anomaly]

    def _order(self) -> None:
        keys = self._list_known(is_of_anomaly=self._rng.random() < OF_ANOMALIES)
        gateways = sorted({key.gateway for key in keys})
        if not gateways:
            return
        gateway = gateways[int(self._rng.integers(len(gateways)))]
        of_it = [key for key in keys if key.gateway == gateway]
        self._ask(of_it[int(self._rng.integers(len(of_it)))])

    def _ask(self, key: Key) -> None:
        if number := self._operator.give("samples", {"alarms": ["/".join(key)]}):
            self._world.witness.fetches.ordered(number, key)
