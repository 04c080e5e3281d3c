"""How gateways train the linear detector: each `local` against its paper, by hand or on the rows of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import EPOCHS, FEATURES, LABELS, Arrays, Floats, generator
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.dual_ascent import ascend, objective
from fedgate.models.federated.averaging.averaging import SAMPLES, STEP
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from tests.support.given_width import build
from tests.support.soak import some

NU = 0.2
SGD: dict[str, Any] = {"local": "sgd", "components": 24, "normalisation": "none", "nu": NU, "decay": 0.05}
LOSSES = ("one-class", "logistic")
ALL_AT_ONCE = {"batch": 1_000, "epochs": 1}


def fleet(seed: int, *, apart: float = 1.0, sizes: tuple[int, ...] = (30, 30, 30)) -> dict[str, Arrays]:
    """Return labelled rows of gateways whose features lie so far apart."""
    rng, found = np.random.default_rng(seed), {}
    for place, size in enumerate(sizes):
        x = rng.normal(apart * (place - 1.0), 1.0, (size, 3))
        found[f"gateway{place}"] = {FEATURES: x, LABELS: (x.sum(axis=1) + rng.normal(size=size) > 0.0).astype(int)}
    return found


def pooled(data: dict[str, Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in data.values()]) for name in (FEATURES, LABELS)}


def one_class(data: dict[str, Arrays]) -> dict[str, Arrays]:
    return {name: {FEATURES: part[FEATURES]} for name, part in data.items()}


def under(loss: str, data: dict[str, Arrays]) -> dict[str, Arrays]:
    return data if loss == "logistic" else one_class(data)


def loss_of(loss: str, shared: Arrays, weights: Floats, intercept: float, rows: Arrays) -> float:
    """Return the loss of the detector, written down anew."""
    products = linear.mapped(shared, rows[FEATURES]) @ weights
    if loss == "one-class":
        return float(weights @ weights) / 2.0 + float(np.maximum(1.0 + products, 0.0).mean()) / NU
    signs = np.where(rows[LABELS] > 0, 1.0, -1.0)
    penalty = float(SGD["decay"]) / 2.0 * float(weights @ weights)
    return float(np.log1p(np.exp(-signs * (products + intercept))).mean()) + penalty


def numerical_gradient(loss: str, shared: Arrays, rows: Arrays, bend: float = 1e-6) -> Floats:
    """Return the slope (M + 1,) of the loss in weights and intercept at those that are shared."""
    middle = np.append(shared["weights"], shared["intercept"])
    found = []
    for place in range(len(middle)):
        ends = [middle + sign * bend * (np.arange(len(middle)) == place) for sign in (1.0, -1.0)]
        high, low = (loss_of(loss, shared, end[:-1], float(end[-1]), rows) for end in ends)
        found.append((high - low) / (2.0 * bend))
    return np.array(found)


def begun(algorithm: Algorithm, seed: int = 3) -> Server:
    """Return the server behind a first step, at weights that are neither zero nor good."""
    server, rng = algorithm.start(generator(0, 0, "cloud")), np.random.default_rng(seed)
    weights = rng.normal(0.0, 0.3, server.global_state["weights"].shape)
    return server._replace(global_state={**server.global_state, "weights": weights, STEP: np.array(1)})


def moved(algorithm: Algorithm, shared: Arrays, rows: Arrays) -> Floats:
    """Return by how much a gateway moves the weights."""
    _, update = algorithm.phases[0].train(shared, {}, rows, generator(0, 0, "any"))
    return np.asarray(update["weights"] / update[SAMPLES])


@pytest.mark.parametrize("loss", LOSSES)
def test_one_gateway_one_epoch_and_one_batch_are_one_step_along_the_gradient(loss: str) -> None:
    algorithm = build("fedavg", 3, {**SGD, **ALL_AT_ONCE, "loss": loss, "learning_rate": 0.25})
    shared, rows = begun(algorithm).global_state, fleet(1)["gateway0"]
    slope = numerical_gradient(loss, shared, rows)
    assert np.linalg.norm(slope) > 0.1
    np.testing.assert_allclose(moved(algorithm, shared, rows), -0.25 * slope[:-1], atol=1e-6)


def test_a_row_met_alone_comes_to_its_margin_by_the_default_step() -> None:
    """At w = 0 the slope is -x / ν; the step ν / F of features whose mean square is 1 makes w = x / F and w·x = 1."""
    algorithm = build("fedavg", 4, {"local": "sgd", "components": 0, "normalisation": "none", **ALL_AT_ONCE, "nu": 0.3})
    row = np.array([[1.0, -1.0, 1.0, 1.0]])
    shared = run(algorithm, {"alone": {FEATURES: row}}, rounds=1).server.global_state
    np.testing.assert_allclose(shared["weights"], -row[0] / 4.0, rtol=1e-15)


@pytest.mark.parametrize("loss", LOSSES)
def test_single_steps_of_equal_gateways_are_descent_on_all_their_rows(loss: str) -> None:
    data = under(loss, fleet(2))
    whole = {"all": {name: np.concatenate([part[name] for part in data.values()]) for name in data["gateway0"]}}
    algorithm = build("fedavg", 3, {**SGD, **ALL_AT_ONCE, "loss": loss})
    found, expected = (run(algorithm, each, rounds=30).server.global_state["weights"] for each in (data, whole))
    assert np.linalg.norm(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def optimum(shared: Arrays, data: dict[str, Arrays]) -> Floats:
    """Return w of the one-class SVM of all rows, by its dual."""
    phi = linear.mapped(shared, pooled(data)[FEATURES])
    return np.asarray(ascend(phi @ phi.T, NU, tolerance=1e-9, most_sweeps=50_000).multipliers @ phi)


def gap(settings: dict[str, Any], data: dict[str, Arrays], seed: int) -> float:
    """Return by how much the objective of all rows is above its least after the rounds."""
    algorithm = build("fedavg", 3, {**SGD, "batch": 10, "rounds": 40, **settings})
    shared = run(algorithm, one_class(data), seed=seed).server.global_state
    phi = linear.mapped(shared, pooled(data)[FEATURES])
    ends = (-shared["weights"], optimum(shared, data))
    found, least = (objective(float(w @ w), phi @ w, NU) for w in ends)
    return (found - least) / least


@pytest.mark.soak
@pytest.mark.parametrize(("draws", "most_that_do_not"), some([(2, 0), (20, 2)]))
def test_many_epochs_drift_from_the_pooled_optimum_and_the_proximal_term_holds_them(
    draws: int, most_that_do_not: int
) -> None:
    """Unlike gateways: drift in every draw, and less of it with the term; a dual gateway knows the others."""
    holds, dual = [], []
    for seed in range(draws):
        data = fleet(seed, apart=1.5)
        few, many = gap({"epochs": 1}, data, seed), gap({"epochs": 30}, data, seed)
        held = gap({"epochs": 30, "mu": 3.0}, data, seed)
        holds.append((many > 2.0 * few, held < 0.8 * many))
        dual.append(gap({"local": "dual", "epochs": 30}, data, seed))
    assert np.sum(holds, axis=0).min() >= draws - most_that_do_not
    assert max(dual) < 1e-3


def bytes_of(name: str, settings: dict[str, Any]) -> list[bytes]:
    """Return all that is sent, and what is shared at the end."""
    sent: list[bytes] = []
    outcome = run(build(name, 3, settings), fleet(3), rounds=3, on_update=lambda _, update: sent.append(encode(update)))
    return [*sent, encode(outcome.server.global_state)]


@pytest.mark.parametrize("loss", LOSSES)
def test_without_the_term_fedprox_is_fedavg_to_the_byte(loss: str) -> None:
    settings = {**SGD, "loss": loss, "batch": 7}
    assert bytes_of("fedprox", {**settings, "mu": 0.0}) == bytes_of("fedavg", settings)
    assert bytes_of("fedprox", settings) != bytes_of("fedavg", settings)


def test_the_heavier_the_term_the_shorter_the_way_and_in_the_end_there_is_none() -> None:
    rows, ways = fleet(4)["gateway0"], []
    for mu in (0.0, 1.0, 10.0, 1e3, 1e12):
        algorithm = build("fedprox", 3, {**SGD, "mu": mu, "epochs": 20, "learning_rate": 1.0})
        ways.append(float(np.linalg.norm(moved(algorithm, begun(algorithm).global_state, rows))))
    assert (np.diff(ways) < 0.0).all() and ways[0] > 0.3 and ways[-1] < 1e-9


def test_the_more_epochs_the_less_inexact_is_what_a_gateway_solves() -> None:
    """Li et al. 2020, Definition 1: γ = |∇h(w)| / |∇h(w_t)| of h = loss + µ/2 |w - w_t|²."""
    mu, rows = 0.5, fleet(6)["gateway0"]
    settings = {**SGD, "loss": "logistic", "mu": mu, "batch": 1_000, "learning_rate": 0.5, "epochs": 60}
    algorithm = build("fedprox", 3, settings)
    shared, train = begun(algorithm).global_state, algorithm.phases[0].train
    before = float(np.linalg.norm(numerical_gradient("logistic", shared, rows)))
    inexact = []
    for epochs in (1, 5, 20, 60):
        update = train(shared, {}, {**rows, EPOCHS: np.array(epochs)}, generator(0, 0, "a"))[1]
        change = {name: update[name] / update[SAMPLES] for name in linear.TRAINED}
        after = {**shared, **{name: shared[name] + change[name] for name in linear.TRAINED}}
        pull = mu * np.append(change["weights"], change["intercept"])
        inexact.append(float(np.linalg.norm(numerical_gradient("logistic", after, rows) + pull)) / before)
    assert inexact[0] < 1.0 and (np.diff(inexact) < 0.0).all() and inexact[-1] < 0.01


@pytest.mark.parametrize("loss", LOSSES)
def test_the_head_stays_goes_on_from_round_to_round_and_is_trained_with_the_base(loss: str) -> None:
    data = under(loss, fleet(7))
    algorithm = build("fedper", 3, {**SGD, **ALL_AT_ONCE, "loss": loss, "share": 0.25, "learning_rate": 0.25})
    sent: list[Arrays] = []
    outcome = run(algorithm, data, rounds=3, on_update=lambda _, update: sent.append(update))
    assert len(sent) == 9
    assert all(update.keys() == {"weights", "intercept", SAMPLES} for update in sent)
    assert all(update["weights"].shape == (6,) for update in sent)
    assert linear.HOME in algorithm.personal and not outcome.server.global_state[linear.HOME].any()
    shared, own, rows = outcome.server.global_state, outcome.local_states["gateway1"], data["gateway1"]
    after, update = algorithm.phases[0].train(shared, own, rows, generator(0, 0, "any"))
    whole = {**shared, "weights": np.concatenate([shared["weights"], own[linear.HOME]])}
    del whole[linear.HOME]
    slope = numerical_gradient(loss, whole, rows)[:-1]
    found = np.concatenate([update["weights"] / update[SAMPLES], after[linear.HOME] - own[linear.HOME]])
    np.testing.assert_allclose(found, -0.25 * slope, atol=1e-6)


def as_printed(kernel: Floats, eta: float, nu: float, epochs: int) -> Floats:
    """Return the multipliers of Algorithm 1 of the paper, line by line."""
    n = len(kernel)
    alpha = [0.0] * n
    for _ in range(epochs):
        for k in range(n):
            alpha[k] += eta * (1.0 - sum(alpha[i] * float(kernel[i, k]) for i in range(n)))
            alpha[k] = min(max(alpha[k], 0.0), 1.0 / (nu * n))
    return np.array(alpha)


@pytest.mark.parametrize("eta", [0.1, 0.9])
def test_sgd_on_the_dual_is_the_listing_of_the_paper(eta: float) -> None:
    algorithm = build("fedavg", 3, {**SGD, "local": "dual-sgd", "learning_rate": eta, "epochs": 4})
    shared, rows = algorithm.start(generator(0, 0, "cloud")).global_state, fleet(8)["gateway0"]
    phi = linear.mapped(shared, rows[FEATURES])
    expected = as_printed(phi @ phi.T, eta, NU, 4) @ phi
    np.testing.assert_allclose(moved(algorithm, shared, rows), -expected, rtol=1e-10, atol=1e-12)


@pytest.mark.soak
def test_sgd_on_the_dual_ends_at_the_pooled_optimum_with_or_without_the_term() -> None:
    for mu in (0.0, 1.0):
        assert gap({"local": "dual-sgd", "mu": mu, "rounds": 150}, fleet(9), 0) < 1e-3


def test_a_step_that_overshoots_is_refused() -> None:
    rows = {"a": {FEATURES: np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]])}}
    for eta, is_refused in ((0.2, False), (0.23, True)):  # 2 / 9 is the border
        settings = {"local": "dual-sgd", "components": 0, "normalisation": "none", "learning_rate": eta}
        algorithm = build("fedavg", 3, settings)
        if is_refused:
            with pytest.raises(ValueError, match=r"step 0.23 given, expected above 0 and below .* = 0.22"):
                run(algorithm, rows)
        else:
            run(algorithm, rows)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss": "logistic", "local": "dual"}, "local 'dual' given for loss 'logistic', expected 'sgd'"),
        ({"loss": "logistic", "local": "dual-sgd"}, "local 'dual-sgd' given for loss 'logistic', expected 'sgd'"),
        ({"local": "sgd", "learning_rate": 1.5}, "learning_rate 1.5 given, expected up to 1"),
        ({"local": "sgd", "learning_rate": 0.0}, "(?s)learning_rate.*greater than 0"),
        ({"local": "smo"}, "(?s)local.*'dual', 'dual-sgd' or 'sgd'"),
        ({"local": "dual-sgd", "server_optimiser": {"kind": "adam"}}, "given for local 'dual-sgd', expected 'sgd'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build("fedavg", 3, settings)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedper"])
def test_the_longest_honest_way_is_admitted_and_a_longer_one_is_not(name: str) -> None:
    """w stays among itself and rows over ν: |w| <= √2 / ν, whatever step up to 1 and however many epochs."""
    settings = {**SGD, "learning_rate": 1.0, "batch": 1, "epochs": 20}
    algorithm = build(name, 3, settings)
    outcome = run(algorithm, one_class(fleet(10)), rounds=5)  # raises where an update is not admitted
    server, phase = outcome.server, algorithm.phases[0]
    size = len(server.global_state["weights"])
    for length, is_refused in ((np.sqrt(2.0) / NU, False), (1.01 * np.sqrt(2.0) / NU, True)):
        given = np.full(size, length / np.sqrt(size))
        update = {"weights": given - server.global_state["weights"], "intercept": np.array(0.0), SAMPLES: np.array(1.0)}
        if is_refused:
            with pytest.raises(UpdateError, match="weights: expected a size up to"):
                phase.admit(server, update)
        else:
            phase.admit(server, update)


def test_the_border_leaves_the_share_outside_on_rows_that_are_alike() -> None:
    data = one_class(fleet(11, apart=0.0, sizes=(300, 300, 300)))
    shared = run(build("fedavg", 3, {**SGD, "components": 128}), data, rounds=20).server.global_state
    outside = float((linear.score(shared, pooled_features(data)) > 0.0).mean())
    assert 0.5 * NU < outside < 1.5 * NU


def pooled_features(data: dict[str, Arrays]) -> Floats:
    return np.concatenate([part[FEATURES] for part in data.values()])


def test_an_adaptive_step_of_the_cloud_goes_with_sgd() -> None:
    settings = {**SGD, "server_optimiser": {"kind": "adam", "rate": 0.05}, "rounds": 60}
    algorithm, data = build("fedavg", 3, settings), fleet(12, apart=0.0)
    shared = run(algorithm, one_class(data)).server.global_state
    phi = linear.mapped(shared, pooled(data)[FEATURES])
    found, zero = (objective(float(w @ w), phi @ w, NU) for w in (-shared["weights"], np.zeros(24)))
    best = optimum(shared, data)
    assert found < objective(float(best @ best), phi @ best, NU) + 0.1 * zero
