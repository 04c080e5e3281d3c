"""FedProx: FedAvg without its term, a leash with it, and in the one-class SVM the same end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.dual_ascent import ascend, ascend_in_map
from fedgate.models.federated.averaging.local_dual import AFTER
from fedgate.models.federated.protocol.run import run
from tests.support.given_width import build

PLAIN: dict[str, Any] = {"components": 48, "normalisation": "none"}


def fleet(seed: int) -> dict[str, Arrays]:
    rng = np.random.default_rng(seed)
    sizes = {"a": (20, -1.5), "b": (35, 0.0), "c": (50, 1.5)}
    return {
        name: {FEATURES: rng.normal(level, 1.0, (size, 3)), LABELS: rng.integers(0, 2, size)}
        for name, (size, level) in sizes.items()
    }


def bytes_of(name: str, settings: dict[str, Any]) -> list[bytes]:
    """Return all that is sent and all that is left at the end."""
    sent: list[bytes] = []
    algorithm = build(name, 3, {**PLAIN, **settings, "rounds": 4})
    outcome = run(algorithm, fleet(1), seed=3, on_update=lambda _, update: sent.append(encode(update)))
    return [*sent, encode(outcome.server.global_state), *map(encode, outcome.local_states.values())]


@pytest.mark.parametrize("settings", [{}, {"loss": "logistic", "batch": 7}, {"normalisation": "own"}], ids=str)
def test_without_its_term_it_is_fedavg_to_the_byte(settings: dict[str, Any]) -> None:
    assert bytes_of("fedprox", {**settings, "mu": 0.0}) == bytes_of("fedavg", settings)
    assert bytes_of("fedprox", settings) != bytes_of("fedavg", settings)


@pytest.mark.parametrize("loss", ["one-class", "logistic"])
def test_the_larger_mu_the_shorter_the_step(loss: str) -> None:
    steps = []
    for mu in (0.0, 0.5, 5.0, 50.0):
        algorithm = build("fedprox", 3, {**PLAIN, "loss": loss, "mu": mu, "epochs": 20, "learning_rate": 0.01})
        steps.append(float(np.linalg.norm(run(algorithm, fleet(2), rounds=1).server.global_state["weights"])))
    assert (np.diff(steps) < 0.0).all()
    assert steps[-1] < 0.2 * steps[0]


def dual_of_one_gateway(phi: Floats, anchor: Floats, nu: float, mu: float) -> Floats:
    """Return ΔW of the α that maximise Σ α - w_t·ΔW - (1 + µ)/2 |ΔW|², solved all at once."""
    n, margins = len(phi), 1.0 - phi @ anchor
    gram = (1.0 + mu) * phi @ phi.T
    found = minimize(
        lambda alpha: alpha @ gram @ alpha / 2.0 - margins @ alpha,
        np.zeros(n),
        jac=lambda alpha: gram @ alpha - margins,
        bounds=[(0.0, 1.0 / (nu * n))] * n,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1_000},
    )
    assert found.success
    return np.asarray(found.x @ phi)


def test_a_gateways_step_is_the_optimum_of_its_proximal_problem() -> None:
    rng, nu, mu = np.random.default_rng(3), 0.2, 0.7
    phi, anchor = rng.normal(size=(15, 6)), rng.normal(size=6) / 5.0
    _, change = ascend_in_map(phi, anchor, np.zeros(15), cap=1.0 / (nu * 15), sweeps=2_000, proximity=mu)
    np.testing.assert_allclose(change, dual_of_one_gateway(phi, anchor, nu, mu), atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_it_ends_where_fedavg_ends(mu: float) -> None:
    """The term is on how far a round moves, so it vanishes where nothing moves: later, the same model."""
    data, nu = fleet(4), 0.1
    algorithm = build("fedprox", 3, {**PLAIN, "nu": nu, "mu": mu})
    apart = []
    for rounds in (5, 200):
        shared = run(algorithm, data, rounds=rounds).server.global_state
        phi = linear.mapped(shared, np.concatenate([part[FEATURES] for part in data.values()]))
        expected = ascend(phi @ phi.T, nu, tolerance=1e-11, most_sweeps=50_000).multipliers @ phi
        apart.append(float(np.linalg.norm(shared["weights"] + expected) / np.linalg.norm(expected)))
    assert apart[0] > 1e-2 and apart[1] < 1e-3


def test_who_starts_afresh_solves_its_own_rows_without_the_term() -> None:
    sent = []
    for mu in (0.0, 50.0):
        algorithm, data = build("fedprox", 3, {**PLAIN, "mu": mu}), fleet(6)
        shared = {**run(algorithm, data, rounds=1).server.global_state, "weights": np.full(48, 0.01)}
        sent.append(algorithm.phases[0].train(shared, {}, data["a"], generator(0, 0, "a"))[1]["weights"])
    assert np.array_equal(sent[0], sent[1])


def test_training_twice_for_one_step_is_training_once() -> None:
    algorithm, data = build("fedprox", 3, PLAIN), fleet(5)
    outcome = run(algorithm, data, rounds=2)
    train, shared = algorithm.phases[0].train, outcome.server.global_state
    once, sent = train(shared, outcome.local_states["a"], data["a"], generator(0, 0, "a"))
    twice, again = train(shared, once, data["a"], generator(0, 1, "a"))
    assert encode(once) == encode(twice) and encode(sent) == encode(again)
    assert AFTER not in sent
