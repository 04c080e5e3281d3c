"""The literal form of PC-FedAvg against Algorithm 2 written down line by line, and what it asks of a fleet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.literal.aligned_events import COEFFICIENTS, aligned_events
from fedgate.models.arrays import FEATURES, Arrays, Floats
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.dual_ascent import ascend
from fedgate.models.detectors.svm.kernel import squared_distances
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.averaging.local_dual import AFTER
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.fleet import auc

EVENTS = 12
PAPER: dict[str, Any] = {"events": EVENTS, "normalisation": "none", "nu": 0.3, "gamma": 0.4}


def sensors(seed: int, count: int = 5, rows: int = EVENTS) -> dict[str, Arrays]:
    """Return the same events as seen by sensors that are less and less exact."""
    rng = np.random.default_rng(seed)
    events = rng.normal(size=(rows, 3))
    return {f"s{k}": {FEATURES: events + 0.3 * k * rng.normal(size=(rows, 3))} for k in range(count)}


class Client:
    """One client of Algorithm 2."""

    def __init__(self, x: Floats, nu: float, gamma: float) -> None:
        self.n, self.nu = len(x), nu
        self.K = [[math.exp(-gamma * float((a - b) @ (a - b))) for b in x] for a in x]
        self.alpha, self.w = [0.0] * self.n, [0.0] * self.n

    def update(self, w: list[float], epochs: int) -> float:
        """Run the epochs of ClientUpdate and return the loss."""
        for _ in range(epochs):
            for k in range(self.n):
                self.alpha[k] += (1.0 - w[k]) / self.n
                self.alpha[k] = min(max(self.alpha[k], 0.0), 1.0 / (self.nu * self.n))
            w = [sum(self.alpha[i] * self.K[i][j] for i in range(self.n)) for j in range(self.n)]
        self.w = w
        square = sum(a * value for a, value in zip(self.alpha, w, strict=True))
        return square / 2.0 + sum(max(0.0, 1.0 - value) for value in w) / self.n / self.nu


def by_the_letter(
    data: dict[str, Arrays], rounds: int, epochs: int
) -> tuple[dict[str, Client], list[float], list[int]]:
    """Return the clients at the end, the last mean, and how many were elected each round."""
    clients = {name: Client(part[FEATURES], 0.3, 0.4) for name, part in data.items()}
    told = {name: [0.0] * EVENTS for name in data}
    mean, elected = [0.0] * EVENTS, []
    for _ in range(rounds):
        losses = {name: client.update(told[name], epochs) for name, client in clients.items()}
        median = float(np.median(list(losses.values())))
        chosen = [name for name, loss in losses.items() if loss <= median]
        mean = [sum(clients[name].w[k] for name in chosen) / len(chosen) for k in range(EVENTS)]
        told = {name: mean if name in chosen else client.w for name, client in clients.items()}
        elected.append(len(chosen))
    return clients, mean, elected


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("personalise", [True, False])
def test_it_is_algorithm_2_line_by_line(rounds: int, epochs: int, personalise: bool) -> None:
    data = sensors(1)
    outcome = run(aligned_events(3, **{**PAPER, "epochs": epochs, "personalise": personalise}), data, rounds=rounds)
    clients, mean, elected = by_the_letter(data, rounds, epochs)
    np.testing.assert_allclose(outcome.server.global_state[COEFFICIENTS], mean, rtol=1e-10)
    assert float(outcome.server.global_state["elected"]) == elected[-1]
    for name, client in clients.items():
        np.testing.assert_allclose(outcome.local_states[name][AFTER], client.alpha, rtol=1e-10, atol=1e-14)


def test_coefficients_that_no_multipliers_make_are_refused() -> None:
    algorithm = aligned_events(3, **PAPER)
    server, admit = algorithm.start(np.random.default_rng(0)), algorithm.phases[1].admit
    sent = {"sum.coefficients": np.full(EVENTS, 7.0 / 0.3), "samples": np.array(7.0), "members": np.ones(())}
    assert admit(server, sent).keys() == sent.keys()
    with pytest.raises(UpdateError, match=r"coefficients: expected a size up to 3.33333, got 3.33667"):
        admit(server, {**sent, "sum.coefficients": 1.001 * sent["sum.coefficients"]})


def test_alone_it_solves_the_dual() -> None:
    """One client is always elected, its mean is its own w, and then Eq. 8 is projected ascent on Eq. 4."""
    data = sensors(2, count=1)
    outcome = run(aligned_events(3, **{**PAPER, "epochs": 200, "personalise": False}), data, rounds=20)
    K = np.exp(-0.4 * squared_distances(data["s0"][FEATURES], data["s0"][FEATURES]))
    np.testing.assert_allclose(outcome.local_states["s0"][AFTER] @ K, ascend(K, 0.3).multipliers @ K, atol=1e-5)


@pytest.mark.parametrize("rows", [1, EVENTS - 1, EVENTS + 1])
def test_another_number_of_events_is_explained(rows: int) -> None:
    data = sensors(3) | sensors(3, 1, rows)
    with pytest.raises(ValueError, match=rf"{rows} rows given, expected {EVENTS}, the events that all gateways saw"):
        run(aligned_events(3, **PAPER), data, rounds=1)


def test_a_handshake_twice_for_one_step_is_once() -> None:
    data = sensors(8)
    outcome = run(aligned_events(3, **PAPER), data, rounds=2)
    learn = aligned_events(3, **PAPER).phases[0].train
    once, sent = learn(outcome.server.global_state, outcome.local_states["s1"], data["s1"], np.random.default_rng(0))
    twice, again = learn(outcome.server.global_state, once, data["s1"], np.random.default_rng(1))
    assert encode(once) == encode(twice) and encode(sent) == encode(again)


def test_no_operator_can_choose_it() -> None:
    assert "aligned-events" not in ALGORITHMS
    with pytest.raises(ValueError, match="setting 'paper' is unknown to conditional-fedavg"):
        build("conditional-fedavg", 3, {"paper": True})


def test_what_travels_is_one_number_for_each_event() -> None:
    sent: dict[str, list[int]] = {}
    outcome = run(
        aligned_events(3, **{**PAPER, "personalise": False}),
        sensors(4),
        rounds=1,
        on_update=lambda name, update: sent.setdefault(name, []).append(len(encode(update)) if update else 0),
    )
    for name, own in outcome.local_states.items():
        handshake, coefficients = sent[name]
        assert handshake < 200
        assert (8 * EVENTS < coefficients < 8 * EVENTS + 400) if int(own["elections"]) else coefficients == 0


def test_the_projection_onto_the_map_costs_about_one_over_its_root() -> None:
    data, probes = sensors(5), np.random.default_rng(6).normal(size=(200, 3))
    apart = []
    for components in (100, 10_000):
        outcome = run(aligned_events(3, **{**PAPER, "components": components, "personalise": False}), data, rounds=3)
        params = {**outcome.server.global_state, **outcome.local_states["s0"]}
        products = linear.mapped(params, probes) @ -params["weights"]
        x = data["s0"][FEATURES]
        exact = [
            sum(a * math.exp(-0.4 * float((p - r) @ (p - r))) for a, r in zip(params[AFTER], x, strict=True))
            for p in probes
        ]
        apart.append(float(np.sqrt(np.mean((products - exact) ** 2)) / params[AFTER].sum()))
    assert apart[0] < 2.0 / math.sqrt(100) and apart[1] < 2.0 / math.sqrt(10_000)


@pytest.mark.parametrize("personalise", [True, False])
def test_each_gateway_has_a_model_of_its_own(personalise: bool) -> None:
    rng = np.random.default_rng(7)
    data = {name: {FEATURES: rng.normal(size=(60, 3))} for name in "abc"}
    settings: dict[str, Any] = {"events": 60, "components": 512, "personalise": personalise}
    algorithm = aligned_events(3, **settings)
    outcome = run(algorithm, data, rounds=10)
    assert not outcome.server.global_state["weights"].any()
    assert set(linear.TRAINED) <= set(algorithm.personal)
    x = np.concatenate([rng.normal(size=(50, 3)), rng.normal(5.0, 1.0, (50, 3))])
    for own in outcome.local_states.values():
        assert auc(linear.score({**outcome.server.global_state, **own}, x), np.arange(100) >= 50) > 0.95
