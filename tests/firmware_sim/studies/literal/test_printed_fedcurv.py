"""FedCurv and the discriminator as the thesis lists them: what the listing computes, and what its faults make of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.studies.literal.printed_fedcurv import (
    batch_fisher,
    passed_off,
    printed_fedcurv,
    softmax_of_one,
    sums_of_algorithm_2,
    with_printed_discriminator,
)
from fedgate.models.arrays import Floats, generator
from fedgate.models.detectors.esn.gradient_readout import Descent
from fedgate.models.detectors.esn.network import Network
from fedgate.models.federated.averaging.esn_fedavg import READOUT, averaging, readout_fedavg
from fedgate.models.federated.averaging.esn_fedcurv import readout_fedcurv
from fedgate.models.federated.defences.discriminator import ContextError, check_context, train_discriminator
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Algorithm
from fedgate.models.federated.protocol.run import run
from tests.models.federated.averaging.test_esn_fedavg import FEATURE_COUNT, FLEET, table

ROUNDS = 5
STEP = averaging(
    Network(task="classify", units=10, washout=5),
    Descent(1, 20, "adam", 0.1),
    None,
    rate=0.1,
    largest_change=1e3,
    max_samples=MAX_SAMPLES,
    normalisation="none",
)
FEDAVG = readout_fedavg(STEP, FEATURE_COUNT, ROUNDS)


def trained(algorithm: Algorithm) -> Floats:
    return run(algorithm, FLEET).server.global_state[READOUT]


def printed(**form: Any) -> Floats:
    return trained(printed_fedcurv(STEP, FEATURE_COUNT, ROUNDS, penalty=1.0, **form))


def test_it_is_another_than_fedcurv_and_fedavg_where_it_has_no_penalty() -> None:
    plain, listed, ours = trained(FEDAVG), printed(), trained(readout_fedcurv(STEP, 1.0, FEATURE_COUNT, ROUNDS))
    assert np.array_equal(plain, trained(printed_fedcurv(STEP, FEATURE_COUNT, ROUNDS, penalty=0.0)))
    assert np.abs(listed - plain).max() > 1e-6 and np.abs(listed - ours).max() > 1e-6


@pytest.mark.parametrize("fault", [{"fisher_of": softmax_of_one}, {"is_in_tape": False}])
def test_either_fault_makes_it_fedavg_bit_for_bit(fault: dict[str, Any]) -> None:
    assert printed(**fault).tobytes() == trained(FEDAVG).tobytes()


def test_the_softmax_of_one_output_knows_nothing_and_sums_run_away() -> None:
    rng = np.random.default_rng(0)
    assert not softmax_of_one(rng.normal(size=(1, 3)), rng.normal(size=(7, 3))).any()
    assert sums_of_algorithm_2([np.array([1.0]), np.array([2.0])], 3) == [-3.0, -9.0, -21.0]


@pytest.mark.soak
def test_the_listed_fisher_information_is_that_of_autograd() -> None:
    torch = pytest.importorskip("torch", reason="torch is in the extra [lstm] only")
    rng = np.random.default_rng(0)
    for outputs in (1, 3):
        states, readout = rng.normal(size=(9, 4)), rng.normal(size=(outputs, 4))
        W = torch.tensor(readout, requires_grad=True)
        logits = torch.tensor(states) @ W.T
        logits = torch.cat([torch.zeros((9, 1)), logits], dim=1) if outputs == 1 else logits
        logs: Any = torch.log_softmax(logits, dim=1)
        (gradient,) = torch.autograd.grad(logs.sum(), W)
        np.testing.assert_allclose(batch_fisher(readout, states), np.square(gradient.numpy()) / 9, rtol=1e-10)


@pytest.mark.parametrize("is_rejected", [True, False])
def test_a_rejected_gateway_counts_with_its_rows_and_no_change(is_rejected: bool) -> None:
    network = train_discriminator(FEDAVG, [table(50, 120)], generator(0, 0, "cloud"), rounds=2)
    network["layer2.weights"] = 0.0 * network["layer2.weights"]
    network["layer2.bias"] = np.array([-9.0 if is_rejected else 9.0])  # takes everything for noisy, or for clean
    rejections: list[None] = []
    guarded = with_printed_discriminator(FEDAVG, network, lambda: rejections.append(None))
    server = guarded.start(generator(0, 0, "cloud"))
    _, update = FEDAVG.phases[0].train(server.global_state, {}, next(iter(FLEET.values())), generator(0, 0, "a"))
    found, plain = (each.phases[0].admit(server, update) for each in (guarded, FEDAVG))
    assert float(found["samples"]) == float(plain["samples"]) == float(update["samples"])
    assert np.array_equal(found[READOUT], 0.0 * plain[READOUT] if is_rejected else plain[READOUT])
    assert len(rejections) == is_rejected


def test_a_network_of_another_reservoir_starts_only_where_it_is_passed_off() -> None:
    network = train_discriminator(FEDAVG, [table(50, 120)], generator(0, 0, "other cloud"), rounds=2)
    shared = FEDAVG.start(generator(0, 0, "cloud")).global_state
    with pytest.raises(ContextError, match="reservoir"):
        check_context(network, shared)
    check_context(passed_off(network, FEDAVG, 0), shared)
