"""FedPer: all shared is FedAvg, what stays at home is the gateway's own, and the shipped model has room for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, Arrays, Floats, equal, generator
from fedgate.models.detectors.base import linear
from fedgate.models.federated.protocol.run import run
from fedgate.models.testing.fleet import auc, onnx_scores
from tests.support.given_width import build

PLAIN: dict[str, Any] = {"components": 40, "normalisation": "none", "nu": 0.2}


def fleet(seed: int) -> dict[str, Arrays]:
    rng = np.random.default_rng(seed)
    sizes = {"a": (15, -1.5), "b": (20, 0.0), "c": (25, 1.5)}
    return {name: {FEATURES: rng.normal(level, 1.0, (size, 3))} for name, (size, level) in sizes.items()}


def updates_of(name: str, settings: dict[str, Any]) -> list[Arrays]:
    sent: list[Arrays] = []
    run(build(name, 3, settings), fleet(1), on_update=lambda _, update: sent.append(update))
    return sent


def test_with_all_of_it_shared_it_is_fedavg() -> None:
    settings = {**PLAIN, "rounds": 5}
    ours, theirs = updates_of("fedper", {**settings, "share": 1.0}), updates_of("fedavg", settings)
    assert len(ours) == 15
    assert all(equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("share", "count"), [(0.5, 20), (0.25, 10), (1e-9, 1), (1.0, 40)])
def test_only_the_shared_block_travels(share: float, count: int) -> None:
    sent: list[Arrays] = []
    algorithm = build("fedper", 3, {**PLAIN, "share": share, "rounds": 1})
    outcome = run(algorithm, fleet(2), on_update=lambda _, update: sent.append(update))
    for update in sent:
        assert {name: array.shape for name, array in update.items()} == {
            "weights": (count,),
            "intercept": (),
            "samples": (),
        }
    assert {own[linear.HOME].shape for own in outcome.local_states.values()} == {(40 - count,)}
    assert outcome.server.global_state["weights"].shape == (count,)


@pytest.mark.soak
def test_it_ends_at_the_joint_optimum_of_shared_and_own_weights() -> None:
    """The whole problem at once, in the weights themselves: Σ p_k (1/2 |w|² + 1/2 |h_k|² + mean hinge / ν)."""
    data, nu, shared_count = fleet(3), 0.5, 4
    settings = {**PLAIN, "nu": nu, "components": 8, "share": 0.5}
    outcome = run(build("fedper", 3, settings), data, rounds=400)
    shared = outcome.server.global_state
    maps = [
        linear.mapped({**shared, linear.HOME: np.zeros(8 - shared_count)}, part[FEATURES]) for part in data.values()
    ]
    rows = sum(map(len, maps))

    def joint(w: Floats, homes: list[Floats]) -> float:
        total = 0.0
        for phi, home in zip(maps, homes, strict=True):
            v = np.concatenate([w, home])
            total += len(phi) / rows * float(v @ v / 2.0 + np.maximum(1.0 - phi @ v, 0.0).mean() / nu)
        return total

    found = joint(-shared["weights"], [-own[linear.HOME] for own in outcome.local_states.values()])
    # The same dual at once: rows of the shared block, and of each gateway's own block set apart from the others'.
    scale = np.concatenate([np.full(len(phi), len(phi) / rows) for phi in maps])  # p_k
    together = np.concatenate([phi[:, :shared_count] for phi in maps])
    gram = together @ together.T
    start = 0
    for phi in maps:
        part = slice(start, start + len(phi))
        gram[part, part] += phi[:, shared_count:] @ phi[:, shared_count:].T / (len(phi) / rows)
        start += len(phi)
    best = minimize(
        lambda beta: beta @ gram @ beta / 2.0 - beta.sum(),
        np.zeros(rows),
        jac=lambda beta: gram @ beta - 1.0,
        bounds=[(0.0, float(share) / (nu * share * rows)) for share in scale],
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 20_000},
    )
    assert found == pytest.approx(-best.fun, rel=1e-4)


def test_a_gateways_own_weights_help_it_and_are_used_by_the_model_that_is_shipped() -> None:
    rng, data = np.random.default_rng(4), fleet(4)
    algorithm = build("fedper", 3, {**PLAIN, "components": 256, "share": 0.3})
    outcome = run(algorithm, data, rounds=20)
    model = linear.graph(outcome.server.global_state, algorithm.personal)
    for name, level in (("a", -1.5), ("c", 1.5)):
        x = np.concatenate([rng.normal(level, 1.0, (60, 3)), rng.normal(level + 5.0, 1.0, (60, 3))])
        truth = np.arange(120) >= 60
        personal = linear.score({**outcome.server.global_state, **outcome.local_states[name]}, x)
        shared = linear.score(outcome.server.global_state, x)
        assert auc(personal, truth) > 0.97
        assert np.abs(personal - shared).max() > 0.1
        np.testing.assert_allclose(onnx_scores(model, x, outcome.local_states[name]), personal, atol=1e-3)
        np.testing.assert_allclose(onnx_scores(model, x), shared, atol=1e-3)


def test_training_twice_for_one_step_is_training_once() -> None:
    algorithm, data = build("fedper", 3, PLAIN), fleet(5)
    outcome = run(algorithm, data, rounds=3)
    train, shared = algorithm.phases[0].train, outcome.server.global_state
    once, sent = train(shared, outcome.local_states["b"], data["b"], generator(0, 0, "b"))
    twice, again = train(shared, once, data["b"], generator(0, 1, "b"))
    assert encode(once) == encode(twice) and encode(sent) == encode(again)
