"""A training of an evaluation is the plain loop, to the last bit, and weighs what is sent as the wire format has it."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.evaluate.training import train_fleet
from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run


def fleet() -> dict[str, Arrays]:
    """Return the rows of three gateways, each with another number of them."""
    rng = np.random.default_rng(0)
    return {f"gateway-{count}": {FEATURES: rng.normal(size=(count, 3))} for count in (30, 40, 50)}


@pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")
@pytest.mark.parametrize("name", ["fedavg", "support-vector-election"])  # with updates of one size, and of many
def test_a_fleet_is_trained_as_by_the_plain_loop_and_weighed(name: str) -> None:
    algorithm, data = build(name, 3, {}), fleet()
    sent_bytes, received_bytes = dict.fromkeys(data, 0), list[int]()

    def weigh(gateway: str, update: Arrays) -> None:
        sent_bytes[gateway] += len(encode(update)) if update else 0

    def weigh_shared(shared: Arrays) -> None:
        received_bytes.append(len(encode(shared)))

    plain = run(algorithm, data, seed=1, rounds=2, on_update=weigh, on_exchange=weigh_shared)
    weigh_shared(plain.server.global_state)
    fit = train_fleet(algorithm, data, seed=1, rounds=2)
    assert encode(fit.shared) == encode(plain.server.global_state)
    assert {gateway: encode(kept) for gateway, kept in fit.own.items()} == {
        gateway: encode(kept) for gateway, kept in plain.local_states.items()
    }
    assert fit.sent_bytes == sent_bytes
    assert fit.received_bytes == sum(received_bytes)
