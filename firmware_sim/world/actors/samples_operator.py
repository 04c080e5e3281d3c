"""Who asks for raw samples around alarms in a simulated world: of any gateway and any alarm, past or present."""

from __future__ import annotations

from fedgate.config.protocol.topics import ALL
from fedgate.firmware_sim.world.actors.operator import Operator
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.setup import stream_of

OF_ANOMALIES = 0.9  # share of the requests that can bring something


class SamplesOperator:
    """Who orders fetches, by way of `operator`."""

    def __init__(self, world: World, operator: Operator) -> None:
        self._world, self._operator = world, operator
        self._rng = stream_of(world.seed, "samples operator")

    def schedule_faults(self) -> None:
        """Arrange for the orders."""
        self._world.scheduler.again(self._rng, self._world.network.faults.samples.fetches, self._order)

    def _order(self) -> None:
        is_of_anomaly = self._rng.random() < OF_ANOMALIES
        known = self._world.witness.log.states.alarms.items()
        keys = [key for key, one in known if key.gateway != ALL and (one.cause == "anomaly") == is_of_anomaly]
        gateways = sorted({key.gateway for key in keys})
        if not gateways:
            return
        gateway = gateways[int(self._rng.integers(len(gateways)))]
        of_it = [key for key in keys if key.gateway == gateway]
        key = of_it[int(self._rng.integers(len(of_it)))]
        if number := self._operator.give("samples", {"alarms": ["/".join(key)]}):
            self._world.witness.fetches.ordered(number, key)
