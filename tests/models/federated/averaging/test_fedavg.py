"""Federated averaging against figures worked out by hand and against a plain loop over single samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator
from fedgate.models.detectors.base import linear
from fedgate.models.federated.averaging.averaging import STEP
from fedgate.models.federated.averaging.local_dual import AFTER
from fedgate.models.federated.protocol.algorithm import close_round
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from tests.support.given_width import build

# One full step per round and nothing in the way: figures stay fractions that can be written down.
BY_HAND: dict[str, Any] = {
    "loss": "logistic",
    "components": 0,
    "normalisation": "none",
    "epochs": 1,
    "batch": 100,
    "learning_rate": 1.0,
    "decay": 0.0,
    "rounds": 1,
}
# Two gateways of one feature. At w = b = 0 every row pulls with 1/2 towards its class.
TWO = {
    "first": {FEATURES: np.array([[1.0], [-1.0]]), LABELS: np.array([1, 0])},
    "second": {FEATURES: np.array([[2.0], [2.0], [2.0], [-2.0]]), LABELS: np.array([1, 1, 1, 0])},
}


def values(arrays: Arrays) -> dict[str, Any]:
    return {name: array.tolist() for name, array in arrays.items()}


def test_one_round_of_two_gateways_by_hand() -> None:
    # first:  Δw = (1 + 1)/2 · 1/2 = 1/2, Δb = 0;  second: Δw = (2 + 2 + 2 + 2)/4 · 1/2 = 1, Δb = (3 - 1)/4 · 1/2 = 1/4
    sent: dict[str, Any] = {}
    outcome = run(build("fedavg", 1, BY_HAND), TWO, on_update=lambda name, update: sent.update({name: values(update)}))
    assert sent == {
        "first": {"weights": [1.0], "intercept": 0.0, "samples": 2.0},
        "second": {"weights": [4.0], "intercept": 1.0, "samples": 4.0},
    }
    # w = (2 · 1/2 + 4 · 1) / 6, b = (0 + 4 · 1/4) / 6
    assert outcome.server.global_state["weights"].tolist() == [5 / 6]
    assert float(outcome.server.global_state["intercept"]) == 1 / 6
    assert (outcome.local_states, outcome.server.round_index) == ({"first": {}, "second": {}}, 1)


def test_one_class_rounds_by_hand() -> None:
    # Cap 1/(νn) = 1. Row 1 alone: α = (1 - 0)/1 = 1, so w = 1 and row 3 is past the margin. Border: half of 1 and 3.
    settings = {**BY_HAND, "loss": "one-class", "nu": 0.5}
    outcome = run(build("fedavg", 1, settings), {"a": {FEATURES: np.array([[1.0], [3.0]])}})
    assert values({name: outcome.server.global_state[name] for name in linear.TRAINED}) == {
        "weights": [-1.0],
        "intercept": 2,
    }
    assert outcome.local_states["a"][AFTER].tolist() == [1.0, 0.0]
    # Beside it one with a single row 2, of cap 2: α = 1/4, w = 1/2, border 1. The mean of w is (2 · 1 + 1/2) / 3.
    two = {"a": {FEATURES: np.array([[1.0], [3.0]])}, "b": {FEATURES: np.array([[2.0]])}}
    sent: dict[str, Any] = {}
    outcome = run(build("fedavg", 1, settings), two, on_update=lambda name, update: sent.update({name: values(update)}))
    assert sent["a"] == {"weights": [-2.0], "intercept": 4.0, "samples": 2.0}
    assert sent["b"] == {"weights": [-0.5], "intercept": 1.0, "samples": 1.0}
    assert outcome.server.global_state["weights"].tolist() == [-2.5 / 3]


def naive_logistic(w: list[float], b: float, rows: list[tuple[list[float], int]], decay: float) -> list[float]:
    slope = [decay * each for each in w] + [0.0]
    for x, y in rows:
        t = 1.0 if y else -1.0
        s = sum(p * q for p, q in zip(w, x, strict=True)) + b
        for i, q in enumerate([*x, 1.0]):
            slope[i] += -t * q / (1.0 + math.exp(t * s)) / len(rows)
    return slope


Slope = Callable[[list[float], float, list[tuple[list[float], int]]], list[float]]


def plain_fedavg(
    fleet: list[list[tuple[list[float], int]]], slope: Slope, rounds: int, epochs: int, rate: float
) -> list[float]:
    """McMahan et al. 2017, Algorithm 1, sample by sample: weighted mean of the gateways' own weights."""
    model = [0.0, 0.0, 0.0]
    for _ in range(rounds):
        mean = [0.0, 0.0, 0.0]
        for rows in fleet:
            own = list(model)
            for _ in range(epochs):
                own = [p - 0.1 * g for p, g in zip(own, slope(own[:2], own[2], rows), strict=True)]
            mean = [m + len(rows) / sum(map(len, fleet)) * p for m, p in zip(mean, own, strict=True)]
        model = [old + rate * (new - old) for old, new in zip(model, mean, strict=True)]
    return model


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_it_is_the_plain_loop_of_the_paper(rate: float) -> None:
    rng = np.random.default_rng(2)
    sizes = (3, 11, 7)
    data = {
        f"gateway{size}": {FEATURES: rng.normal(1.0, 1.0, (size, 2)), LABELS: rng.integers(0, 2, size)}
        for size in sizes
    }
    settings = {**BY_HAND, "decay": 0.3, "epochs": 2, "learning_rate": 0.1, "rate": rate}
    outcome = run(build("fedavg", 2, settings), data, rounds=5)
    fleet = [list(zip(part[FEATURES].tolist(), part[LABELS].tolist(), strict=True)) for part in data.values()]
    expected = plain_fedavg(fleet, partial(naive_logistic, decay=0.3), rounds=5, epochs=2, rate=rate)
    found = [*outcome.server.global_state["weights"], float(outcome.server.global_state["intercept"])]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_one_gateway_alone_is_central_training() -> None:
    rng = np.random.default_rng(3)
    data = {FEATURES: rng.normal(5.0, 2.0, (20, 2)), LABELS: rng.integers(0, 2, 20)}
    settings = {"loss": "logistic", "components": 8, "rounds": 1, "epochs": 3, "batch": 7}
    found = run(build("fedavg", 2, settings), {"alone": data}, seed=9).server.global_state
    normal = data[FEATURES][data[LABELS] == 0]  # the units of a gateway are those of its healthy time
    z = (data[FEATURES] - normal.mean(axis=0)) / normal.std(axis=0)
    untrained = linear.initial(generator(9, 0, "cloud"), 2, 8, 0.5, "logistic")
    central = linear.descend(
        untrained,
        linear.mapped(untrained, z),
        data[LABELS],
        generator(9, 0, "alone"),
        partial(linear.logistic_gradient, decay=1e-3),
        epochs=3,
        batch=7,
        learning_rate=1.0,
    )
    assert found.keys() == central.keys() | {STEP}
    for name, array in central.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-15)


def test_one_step_of_many_gateways_is_one_step_on_all_their_data() -> None:
    rng = np.random.default_rng(4)
    parts = {
        name: {FEATURES: rng.normal(size=(size, 2)), LABELS: rng.integers(0, 2, size)}
        for name, size in {"a": 2, "b": 9, "c": 30}.items()
    }
    pooled = {"all": {key: np.concatenate([part[key] for part in parts.values()]) for key in (FEATURES, LABELS)}}
    algorithm = build("fedavg", 2, {**BY_HAND, "components": 16, "decay": 0.1})
    found, expected = (run(algorithm, data, rounds=4).server.global_state for data in (parts, pooled))
    for name in linear.TRAINED:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10, atol=1e-14)


def test_every_row_is_visited_once_per_epoch() -> None:
    # With a vanishing step the model stands still, so the changes of single rows, t x / 2, add up.
    x = 2.0 ** np.arange(7)[:, None]
    settings = {**BY_HAND, "batch": 1, "epochs": 3, "learning_rate": 1e-9}
    outcome = run(build("fedavg", 1, settings), {"a": {FEATURES: x, LABELS: np.ones(7)}})
    np.testing.assert_allclose(outcome.server.global_state["weights"] / 1e-9, 3 * 127 / 2, rtol=1e-5)


def test_batches_are_drawn_by_the_generator_alone() -> None:
    x = np.random.default_rng(5).normal(size=(9, 1))
    data = {FEATURES: x, LABELS: x[:, 0] > 0.0}
    for batch, differs in ((4, True), (9, False)):
        algorithm = build("fedavg", 1, {**BY_HAND, "batch": batch})
        shared, train = algorithm.start(generator(0, 0, "cloud")).global_state, algorithm.phases[0].train
        one, again, two = (train(shared, {}, data, generator(0, 0, name))[1]["weights"] for name in ("a", "a", "b"))
        assert one.tolist() == again.tolist()
        assert (abs(one[0] - two[0]) > 1e-6) == differs


def objective(params: Arrays, x: Floats, y: Floats, decay: float) -> float:
    s = x @ params["weights"] + params["intercept"]
    square = float(params["weights"] @ params["weights"]) / 2.0
    return float(np.log1p(np.exp(-np.where(y > 0, 1.0, -1.0) * s)).mean() + decay * square)


@given(seed=st.integers(0, 2**32 - 1), decay=st.floats(0.0, 2.0))
def test_the_gradient_is_the_slope_of_the_loss(seed: int, decay: float) -> None:
    rng, step = np.random.default_rng(seed), 1e-6
    x, y = rng.normal(size=(8, 3)), rng.integers(0, 2, 8).astype(float)
    params = {"weights": rng.normal(size=3), "intercept": np.asarray(rng.normal())}
    slope = linear.logistic_gradient(params, x, y, decay)
    for name in linear.TRAINED:
        for index in np.ndindex(params[name].shape):
            bent = []
            for sign in (1.0, -1.0):
                moved = {key: array.copy() for key, array in params.items()}
                moved[name][index] += sign * step
                bent.append(objective(moved, x, y, decay))
            assert slope[name][index] == pytest.approx((bent[0] - bent[1]) / (2.0 * step), abs=1e-5)


def test_far_points_bend_nothing_and_warn_of_nothing() -> None:
    params = {"weights": np.array([1.0]), "intercept": np.array(0.0)}
    x = np.array([[1e6], [-1e6]])
    right = linear.logistic_gradient(params, x, np.array([1, 0]), 0.0)
    wrong = linear.logistic_gradient(params, x, np.array([0, 1]), 0.0)
    assert right["weights"].tolist() == [0.0]
    assert wrong["weights"].tolist() == [1e6]


@pytest.mark.parametrize("rate", [0.25, 2.0])
def test_the_rate_stretches_the_step_of_the_server(rate: float) -> None:
    plain, stretched = (
        run(build("fedavg", 1, {**BY_HAND, "rate": each}), TWO).server.global_state for each in (1.0, rate)
    )
    for name in linear.TRAINED:
        np.testing.assert_allclose(stretched[name], rate * plain[name], rtol=1e-12)


def test_a_gateway_with_more_rows_than_the_limit_counts_for_the_limit() -> None:
    algorithm = build("fedavg", 1, {**BY_HAND, "max_samples": 2})
    outcome = run(algorithm, TWO)
    assert outcome.server.global_state["weights"].tolist() == [(2 * 0.5 + 2 * 1.0) / 4]
    with pytest.raises(UpdateError, match="samples: expected 1 to 2, got 3"):
        update = {name: outcome.server.global_state[name] for name in linear.TRAINED}
        algorithm.phases[0].admit(outcome.server, {**update, "samples": np.array(3)})


def admitted(change: Arrays, **settings: Any) -> None:
    """Judge the change of a gateway of seven rows, after a step that left the shared weights at 0.5."""
    algorithm = build("fedavg", 3, {"components": 16, "nu": 0.5, **settings})
    server = algorithm.start(generator(0, 0, "cloud"))
    moved = {name: np.full(server.global_state[name].shape, 0.5) for name in linear.TRAINED}
    server = server._replace(global_state={**server.global_state, **moved})
    sent = {name: 7.0 * np.broadcast_to(array, server.global_state[name].shape) for name, array in change.items()}
    algorithm.phases[0].admit(server, {**sent, "samples": np.array(7.0)})


def test_a_contribution_that_no_rows_make_is_refused() -> None:
    """At ν = 1/2 no w_k is longer than 2 √2 and no border larger than 4; 16 equal weights of 0.7 have length 2.8."""
    for weight, border in ((0.7, 4.0), (-0.7, -4.0), (0.0, 0.0)):
        admitted({"weights": np.array(weight - 0.5), "intercept": np.array(border - 0.5)})
        for change, reason in (((0.71 - 0.5, 0.0), "weights: .*up to 2.82"), ((0.0, -5.0), "intercept: .*up to 4, ")):
            with pytest.raises(UpdateError, match=reason):
                admitted({"weights": np.array(change[0]), "intercept": np.array(change[1])})


def test_the_longest_contribution_that_rows_can_make_is_admitted() -> None:
    rows = {FEATURES: np.ones((15, 3))}
    algorithm = build("fedavg", 3, {"components": 1, "nu": 0.5, "normalisation": "none", "epochs": 50})
    for seed in range(5):
        run(algorithm, {"a": rows, "b": {FEATURES: -rows[FEATURES]}}, rounds=5, seed=seed)


@pytest.mark.parametrize("settings", [{"loss": "logistic"}, {"components": 0}], ids=str)
def test_where_the_loss_has_no_bound_the_change_has(settings: dict[str, Any]) -> None:
    small, large = np.array(0.9), np.array(1.1e3)
    admitted({"weights": small, "intercept": small}, **settings)
    for change in ({"weights": large, "intercept": small}, {"weights": small, "intercept": -large}):
        with pytest.raises(UpdateError, match=r"largest_change.*: expected a size up to 1000, got"):
            admitted(change, **settings)
        admitted(change, **settings, largest_change=5e3)


def test_a_thousand_gateways_weigh_as_one_with_all_their_rows() -> None:
    algorithm = build("fedavg", 1, BY_HAND)
    server, phase = algorithm.start(generator(0, 0, "cloud")), algorithm.phases[0]
    _, update = phase.train(server.global_state, {}, TWO["second"], generator(0, 0, "any"))
    total = Arrays()
    for _ in range(1_000):
        total = SUM.merge(total, phase.admit(server, update))
    once, often = (close_round(algorithm, server, each).global_state for each in (update, total))
    for name in linear.TRAINED:
        np.testing.assert_allclose(often[name], once[name], rtol=1e-12)


def test_logistic_training_without_labels_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"needs labels .* without labels use 'one-class'"):
        run(build("fedavg", 1, BY_HAND), {"a": {FEATURES: np.zeros((3, 1))}})
