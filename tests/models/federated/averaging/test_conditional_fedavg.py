"""Conditional FedAvg: who is elected, what it costs to be, and what it equals where it must equal something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, Arrays, Floats, generator
from fedgate.models.detectors.base import linear
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.protocol.run import Outcome, run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.fleet import auc
from tests.support.given_width import build

NAME = "conditional-fedavg"
PLAIN: dict[str, Any] = {"components": 64, "normalisation": "none", "nu": 0.2}


def blob(seed: int, rows: int = 40, level: float = 0.0) -> Floats:
    return np.random.default_rng(seed).normal(level, 1.0, (rows, 3))


def fleet(*levels: float, rows: int = 40) -> dict[str, Arrays]:
    return {f"g{k}": {FEATURES: blob(k, rows, level)} for k, level in enumerate(levels)}


def loss_of(x: Floats, settings: dict[str, Any]) -> float:
    """Return the loss that one gateway tells in the first handshake."""
    algorithm = build(NAME, 3, {**PLAIN, **settings})
    shared = algorithm.start(generator(0, 0, "cloud")).global_state
    _, update = algorithm.phases[0].train(shared, {}, {FEATURES: x}, generator(0, 0, "a"))
    return float(update["loss"][0])


@pytest.mark.parametrize("personalise", [True, False])
def test_with_equal_losses_it_is_fedavg(personalise: bool) -> None:
    data = {name: {FEATURES: blob(1)} for name in "abc"}
    ours = run(build(NAME, 3, {**PLAIN, "personalise": personalise}), data, rounds=6).server
    theirs = run(build("fedavg", 3, PLAIN), data, rounds=6).server
    assert float(ours.global_state["elected"]) == float(ours.global_state["asked"]) == 3
    for name in linear.TRAINED:
        np.testing.assert_allclose(ours.global_state[name], theirs.global_state[name], rtol=1e-10, atol=1e-12)


def test_the_loss_is_the_one_class_objective_of_what_was_trained() -> None:
    x = blob(2)
    algorithm = build(NAME, 3, {**PLAIN, "personalise": False, "epochs": 7})
    server = run(algorithm, {"a": {FEATURES: x}}, rounds=1).server
    w = -server.global_state["weights"]
    hinge = [max(0.0, 1.0 - float(w @ phi)) for phi in linear.mapped(server.global_state, x)]
    expected = float(w @ w) / 2.0 + sum(hinge) / len(x) / 0.2
    assert loss_of(x, {"epochs": 7}) == pytest.approx(expected, rel=1e-9)


def elections_of(outcome: Outcome) -> dict[str, tuple[int, int]]:
    return {name: (int(own["elections"]), int(own["handshakes"])) for name, own in outcome.local_states.items()}


@pytest.mark.parametrize(("count", "elected"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 4)])
def test_the_median_elects_half_and_the_median_itself(count: int, elected: int) -> None:
    outcome = run(build(NAME, 3, {**PLAIN, "personalise": False}), fleet(*[0.0] * count), rounds=3)
    assert (float(outcome.server.global_state["elected"]), int(outcome.server.global_state["asked"])) == (
        elected,
        count,
    )
    assert sum(elections for elections, _ in elections_of(outcome).values()) == 3 * elected
    assert {handshakes for _, handshakes in elections_of(outcome).values()} == {3}


def test_the_mean_of_the_elected_goes_to_all() -> None:
    data = fleet(0.0, 0.0, 0.0, 0.0)
    sent: list[tuple[str, Arrays]] = []
    algorithm = build(NAME, 3, {**PLAIN, "personalise": False})
    outcome = run(algorithm, data, rounds=1, on_update=lambda name, update: sent.append((name, update)))
    losses = {name: float(update["loss"][0]) for name, update in sent if "loss" in update}
    chosen = sorted(losses, key=lambda name: losses[name])[:2]
    given = {name: update["sum.weights"] / update["samples"] for name, update in sent if "samples" in update}
    assert sorted(given) == sorted(chosen)
    np.testing.assert_allclose(outcome.server.global_state["weights"], sum(given.values()) / 2.0, rtol=1e-12)


def test_who_is_not_elected_sends_its_loss_and_nothing_more() -> None:
    sent: dict[str, list[int]] = {}
    algorithm = build(NAME, 3, {**PLAIN, "components": 512, "personalise": False})
    outcome = run(
        algorithm,
        fleet(0.0, 0.0, 0.0),
        rounds=1,
        on_update=lambda name, update: sent.setdefault(name, []).append(len(encode(update)) if update else 0),
    )
    for name, (elected, _) in elections_of(outcome).items():
        handshake, coefficients = sent[name]
        assert handshake < 200
        assert 8 * 512 < coefficients < 8 * 512 + 400 if elected else coefficients == 0


@pytest.mark.soak
@pytest.mark.parametrize("normalisation", ["none", "own"])
def test_a_gateway_with_garbage_is_never_elected(normalisation: str) -> None:
    """Noise that fills space instead of a cloud, whatever unit it is in: no sphere is small around it."""
    rng = np.random.default_rng(5)
    healthy = {
        name: {FEATURES: rng.normal(size=(60, 1)) @ rng.normal(size=(1, 12)) + rng.normal(0, 0.2, (60, 12))}
        for name in ("a", "b", "c", "d")
    }
    garbage = {"broken": {FEATURES: rng.standard_cauchy((60, 12)) * 50.0 if normalisation == "none" else noise(rng)}}
    outcome = run(build(NAME, 12, {**PLAIN, "normalisation": normalisation}), {**healthy, **garbage}, rounds=8)
    assert elections_of(outcome)["broken"] == (0, 8)
    assert sum(elections for elections, _ in elections_of(outcome).values()) == 8 * 3


def test_a_stuck_sensor_is_always_elected() -> None:
    """A limit of the rule, not a wish: rows that are all the same have the smallest loss there is."""
    data = fleet(0.0, 0.0, 0.0, 0.0) | {"stuck": {FEATURES: np.ones((40, 3))}}
    assert elections_of(run(build(NAME, 3, PLAIN), data, rounds=4))["stuck"] == (4, 4)


def noise(rng: np.random.Generator) -> Floats:
    return rng.normal(size=(60, 12))


def steps(data: dict[str, Arrays], rounds: int, **settings: Any) -> tuple[Algorithm, Server, dict[str, Arrays]]:
    algorithm = build(NAME, 3, {**PLAIN, **settings})
    outcome = run(algorithm, data, rounds=rounds)
    return algorithm, outcome.server, outcome.local_states


def shake(algorithm: Algorithm, server: Server, own: dict[str, Arrays], data: dict[str, Arrays]) -> Server:
    """Run the handshake of all, leave their state in `own` and return the server that knows the median."""
    total, phase = Arrays(), algorithm.phases[0]
    for name, part in data.items():
        own[name], update = phase.train(server.global_state, own[name], part, generator(0, 0, name))
        total = phase.reducer.merge(total, phase.admit(server, update))
    return close_round(algorithm, server, total)


@pytest.mark.parametrize("rounds", [0, 3])
def test_each_phase_twice_for_one_step_is_once(rounds: int) -> None:
    data = fleet(0.0, 0.5, 2.0)
    algorithm, server, own = steps(data, rounds)
    for phase in algorithm.phases:
        total = Arrays()
        for name, part in data.items():
            once, sent = phase.train(server.global_state, own[name], part, generator(0, 0, name))
            twice, again = phase.train(server.global_state, once, part, generator(0, 1, name))
            assert encode(once) == encode(twice) and encode(sent) == encode(again)
            own[name] = once
            if sent:
                total = phase.reducer.merge(total, phase.admit(server, sent))
        server = close_round(algorithm, server, total)


def test_a_handshake_that_is_repeated_counts_once() -> None:
    """If no coefficients arrive the round begins anew, and the first handshake must leave no trace."""
    data = fleet(0.0, 0.0, 0.0)
    algorithm, server, own = steps(data, 2, personalise=False)
    first = shake(algorithm, server, own, data)
    for name, part in data.items():
        own[name], _ = algorithm.phases[1].train(first.global_state, own[name], part, generator(0, 0, name))
    before = {name: encode(state) for name, state in own.items()}
    again = close_round(algorithm, first, {})
    assert again.phase == 0
    second = shake(algorithm, again, own, data)
    assert float(second.global_state["median"]) == float(first.global_state["median"])
    for name, part in data.items():
        own[name], _ = algorithm.phases[1].train(second.global_state, own[name], part, generator(0, 0, name))
    assert {name: encode(state) for name, state in own.items()} == before


def test_who_was_not_in_the_handshake_stays_silent() -> None:
    data = fleet(0.0, 0.0, 0.0)
    algorithm, server, own = steps(data, 2)
    present = {name: part for name, part in data.items() if name != "g1"}
    for index in (0, 1, 2):
        total, phase = Arrays(), algorithm.phases[index]
        for name, part in present.items():
            own[name], update = phase.train(server.global_state, own[name], part, generator(0, 0, name))
            total = phase.reducer.merge(total, update)
        assert index == 0 or phase.train(server.global_state, own["g1"], data["g1"], generator(0, 0, "g1")) == (
            own["g1"],
            {},
        )
        assert index == 0 or phase.train(server.global_state, {}, data["g1"], generator(0, 0, "g1")) == ({}, {})
        server = close_round(algorithm, server, total)


@pytest.mark.soak
def test_a_gateway_of_another_regime_is_left_out_and_its_own_vectors_make_up_for_it() -> None:
    """Election keeps it out of the shared model, which calls all it sees an anomaly; its personal model does not."""
    data = fleet(0.0, 0.0, 0.0, 0.0, rows=80) | {"odd": {FEATURES: blob(9, 80, 6.0) * 1.3}}
    outcome = run(build(NAME, 3, {**PLAIN, "components": 2_000, "nu": 0.1}), data, rounds=6)
    assert elections_of(outcome)["odd"][0] == 0
    fresh, anomalies = blob(10, 100, 6.0) * 1.3, blob(11, 100, 16.0)
    own, shared = outcome.local_states["odd"], outcome.server.global_state
    assert (linear.score(shared, fresh) > 0.0).mean() > 0.95
    assert (linear.score({**shared, **own}, fresh) > 0.0).mean() < 0.45
    truth = np.arange(200) >= 100
    assert auc(linear.score({**shared, **own}, np.concatenate([fresh, anomalies])), truth) > 0.95


def test_the_counts_of_vectors_tell_how_many_were_removed() -> None:
    sent: list[Arrays] = []
    outcome = run(
        build(NAME, 3, {**PLAIN, "nu": 0.05, "edge_dimensions": 2}),
        fleet(0.0, 0.0, rows=200),
        rounds=1,
        on_update=lambda _, update: sent.append(update) if "vectors.before" in update else None,
    )
    for name in ("vectors.before", "vectors.after"):
        assert float(outcome.server.global_state[name]) == sum(float(update[name]) for update in sent)
    assert (
        0
        < float(outcome.server.global_state["vectors.after"])
        < 0.7 * float(outcome.server.global_state["vectors.before"])
    )


def test_what_the_shared_model_does_well_is_left_as_it_is() -> None:
    """No row at its cap and all margins met: nothing to add at any edge vector."""
    data = {"only": {FEATURES: blob(12)}}
    settings = {**PLAIN, "nu": 0.01, "epochs": 300}
    outcome = run(build(NAME, 3, settings), data, rounds=3)
    np.testing.assert_allclose(
        outcome.local_states["only"]["weights"], outcome.server.global_state["weights"], atol=1e-6
    )


def test_the_border_of_a_personal_model_leaves_the_share_outside() -> None:
    data = fleet(0.0, 1.0, 2.0, rows=100)
    outcome = run(build(NAME, 3, {**PLAIN, "components": 256, "nu": 0.1}), data, rounds=3)
    for name, part in data.items():
        scores = linear.score({**outcome.server.global_state, **outcome.local_states[name]}, part[FEATURES])
        assert (scores > 1e-12).mean() == pytest.approx(0.1)


REFUSED = [
    (0, {"loss": np.array([-0.5])}, r"loss: expected 0 to 1e\+15, got -0.5"),
    (0, {"loss": np.array([0.5, 0.5])}, r"loss: expected shape \(1,\), got \(2,\)"),
    (1, {"members": np.array(3.0)}, "members: expected 1, got 3"),
    (1, {"samples": np.array(1e9)}, "samples: expected 1 to 20000, got 1e"),
    (1, {"sum.weights": np.full(64, 0.9)}, "weights: expected a size up to 7.07107, got 7.2"),
    (1, {"sum.intercept": np.array(-10.1)}, "intercept: expected a size up to 10, got 10.1"),
    (2, {"vectors.before": np.array(3.0), "vectors.after": np.array(4.0)}, "expected 0 <= after <= before"),
    (2, {"vectors.before": np.array(9e9), "vectors.after": np.array(4.0)}, "expected 0 <= after <= before"),
]


@pytest.mark.parametrize(("phase", "change", "reason"), REFUSED)
def test_an_update_that_claims_too_much_is_refused(phase: int, change: Arrays, reason: str) -> None:
    algorithm = build(NAME, 3, PLAIN)
    server = algorithm.start(generator(0, 0, "cloud"))
    plain = {"sum.weights": np.zeros(64), "sum.intercept": np.zeros(()), "samples": np.ones(()), "members": np.ones(())}
    with pytest.raises(UpdateError, match=reason):
        algorithm.phases[phase].admit(server, {**(plain if phase == 1 else {}), **change})
