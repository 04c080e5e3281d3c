"""FedAvg of the readout of an echo state network against autograd, against plain gradients, and against itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models.arrays import FEATURES, LABELS, MISSING, Array, Arrays, Floats, equal, generator
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.gradient_readout import Descent, descended, examples, fisher, probabilities, slope
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.esn.reservoir import IDENTITY
from fedgate.models.federated.averaging.averaging import SAMPLES, STEP
from fedgate.models.federated.averaging.esn_fedavg import READOUT, RECIPE
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from tests.support.given_width import build

FEATURE_COUNT = 2
NETWORK = {"task": "classify", "units": 12, "washout": 3}
PLAIN: dict[str, Any] = {"network": NETWORK, "normalisation": "none", "rate": 1.0, "rounds": 3}


def table(seed: int, rows: int = 80, classes: int = 2) -> Arrays:
    """Return a series whose level rises with its class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    return {FEATURES: rng.normal(size=(rows, FEATURE_COUNT)) + 1.5 * y[:, None], LABELS: y}


FLEET = {name: table(seed, rows) for seed, (name, rows) in enumerate([("north", 40), ("south", 90), ("west", 63)])}


def taught(shared: Arrays, data: Arrays) -> tuple[Floats, Array]:
    """Return the states after the washout and their classes, without the modules that training uses."""
    states, usable = esn.states_of(shared, data[FEATURES])
    return np.asarray(states[usable], dtype=np.float64), data[LABELS][usable]


def autograd(classes: int, weights: Floats, seed: int) -> tuple[Floats, Floats]:
    """Return loss slope and expected squared gradient of a random readout, by torch; and what ours are."""
    torch = pytest.importorskip("torch", reason="torch is in the extra [lstm] only")
    rng = np.random.default_rng(seed)
    states, labels = rng.normal(size=(17, 5)), rng.integers(0, classes, 17)
    readout = rng.normal(size=(1 if classes == 2 else classes, 5))
    W = torch.tensor(readout, requires_grad=True)

    def log_p(row: int) -> Any:
        logits = torch.tensor(states[row]) @ W.T
        return torch.log_softmax(torch.cat([torch.zeros(1), logits]) if classes == 2 else logits, dim=0)

    share = weights[labels] / weights[labels].mean() / len(labels)
    loss = -sum(share[row] * log_p(row)[labels[row]] for row in range(len(labels)))
    (found_slope,) = torch.autograd.grad(loss, W)
    expected = np.zeros_like(readout)
    for row in range(len(labels)):
        for label in range(classes):
            (gradient,) = torch.autograd.grad(log_p(row)[label], W)
            expected += log_p(row)[label].exp().item() * np.square(gradient.numpy()) / len(labels)
    rows = examples(states, labels, classes, tuple(weights))
    np.testing.assert_allclose(slope(readout, rows), found_slope.numpy(), rtol=1e-12, atol=1e-14)
    return expected, fisher(readout, states)


@pytest.mark.soak
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_slope_and_fisher_information_are_those_of_autograd(classes: int) -> None:
    expected, found = autograd(classes, np.linspace(1.0, 4.0, classes), seed=classes)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.soak
def test_adam_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is in the extra [lstm] only")
    rng = np.random.default_rng(4)
    rows = examples(rng.normal(size=(30, 4)), rng.integers(0, 2, 30), 2, None)
    found = descended(np.zeros((1, 4)), rows, generator(0, 0, "a"), Descent(3, 7, "adam", 0.1))
    W = torch.zeros((1, 4), dtype=torch.float64, requires_grad=True)
    optimiser, order_of = torch.optim.Adam([W], lr=0.1, eps=1e-7), generator(0, 0, "a")
    for _ in range(3):
        order = order_of.permutation(30)
        for start in range(0, 30, 7):
            batch = order[start : start + 7]
            optimiser.zero_grad()
            logits = torch.tensor(rows.states[batch]) @ W.T
            torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(rows.targets[batch])).backward()
            optimiser.step()
    np.testing.assert_allclose(found, W.detach().numpy(), rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_full_batch_step_of_all_is_the_central_gradient_step(classes: int) -> None:
    data = {name: table(seed, rows, classes) for seed, (name, rows) in enumerate([("a", 30), ("b", 75), ("c", 51)])}
    network = {**NETWORK, "classes": classes}
    plain = {**PLAIN, "network": network, "optimiser": "sgd", "batch": 100, "learning_rate": 0.5}
    algorithm = build("esn-fedavg", FEATURE_COUNT, plain)
    shared = algorithm.start(generator(0, 0, "cloud")).global_state
    W = shared[READOUT]
    states, labels = (
        np.concatenate(parts) for parts in zip(*(taught(shared, each) for each in data.values()), strict=True)
    )
    for _ in range(3):
        p = probabilities(W, states)
        p = np.column_stack([1.0 - p, p]) if classes == 2 else p
        error = p - (labels[:, None] == np.arange(classes))
        error = error[:, 1:] if classes == 2 else error
        W = W - 0.5 * error.T @ states / len(states)
    outcome = run(algorithm, data)
    np.testing.assert_allclose(outcome.server.global_state[READOUT], W, rtol=1e-10, atol=1e-13)
    assert int(outcome.server.global_state[STEP]) == 3


def test_only_the_ratio_of_class_weights_matters() -> None:
    found = []
    for weights in ((12.0, 88.0), (1.2, 8.8), (1.0, 1.0)):
        algorithm = build("esn-fedavg", FEATURE_COUNT, {**PLAIN, "class_weights": weights, "optimiser": "sgd"})
        found.append(run(algorithm, FLEET).server.global_state[READOUT])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    assert not np.allclose(found[0], found[2])


def test_the_rate_scales_the_step_and_nothing_else() -> None:
    steps = {}
    for rate in (1.0, 0.1, 1e-3):
        algorithm = build("esn-fedavg", FEATURE_COUNT, {**PLAIN, "rate": rate})
        steps[rate] = run(algorithm, FLEET, rounds=1).server.global_state[READOUT]
    for rate in (0.1, 1e-3):
        np.testing.assert_allclose(steps[rate], rate * steps[1.0], rtol=1e-12)


def test_gateways_with_the_same_rows_are_one() -> None:
    algorithm = build("esn-fedavg", FEATURE_COUNT, {**PLAIN, "batch": 200})  # in one batch the order does not matter
    alone = run(algorithm, {"a": FLEET["south"]}).server.global_state[READOUT]
    three = run(algorithm, dict.fromkeys(("a", "b", "c"), FLEET["south"])).server.global_state[READOUT]
    np.testing.assert_allclose(three, alone, rtol=1e-9)


@pytest.mark.soak
@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(4, 30), min_size=1, max_size=4))
def test_an_update_counts_the_rows_that_taught(counts: list[int]) -> None:
    data = {str(index): table(index, count) for index, count in enumerate(counts)}
    sent: dict[str, Arrays] = {}
    run(
        build("esn-fedavg", FEATURE_COUNT, PLAIN),
        data,
        rounds=1,
        on_update=lambda name, update: sent.update({name: update}),
    )
    assert [float(sent[name][SAMPLES]) for name in data] == [count - 3 for count in counts]


def test_who_has_only_a_washout_sends_nothing_and_unknown_classes_do_not_teach() -> None:
    algorithm = build("esn-fedavg", FEATURE_COUNT, PLAIN)
    server, phase = algorithm.start(generator(0, 0, "cloud")), algorithm.phases[0]
    short = {FEATURES: np.zeros((3, FEATURE_COUNT)), LABELS: np.array([0, 1, 0])}
    assert phase.train(server.global_state, {}, short, generator(0, 0, "a"))[1] == {}
    partly = {**FLEET["north"], LABELS: np.where(np.arange(40) % 2, FLEET["north"][LABELS], -1)}
    assert float(phase.train(server.global_state, {}, partly, generator(0, 0, "a"))[1][SAMPLES]) == 19
    new_series = {**FLEET["north"], MISSING: np.where(np.arange(40) % 20, 0, -1)}
    assert float(phase.train(server.global_state, {}, new_series, generator(0, 0, "a"))[1][SAMPLES]) == 34


def test_an_update_of_another_reservoir_is_refused_with_both_seeds() -> None:
    algorithm = build("esn-fedavg", FEATURE_COUNT, PLAIN)
    servers = [algorithm.start(generator(seed, 0, "cloud")) for seed in (0, 1)]
    _, update = algorithm.phases[0].train(servers[1].global_state, {}, FLEET["north"], generator(0, 0, "a"))
    seeds = [server.global_state["reservoir.seed"].tobytes().hex() for server in servers]
    with pytest.raises(UpdateError, match=f"expected {seeds[0]}.* got {seeds[1]}"):
        algorithm.phases[0].admit(servers[0], update)
    assert IDENTITY not in algorithm.phases[0].admit(servers[1], update)


def test_a_change_beyond_the_setting_is_refused() -> None:
    algorithm = build("esn-fedavg", FEATURE_COUNT, {**PLAIN, "largest_change": 2.0})
    server = algorithm.start(generator(0, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, FLEET["north"], generator(0, 0, "a"))
    unit = update[READOUT] / np.linalg.norm(update[READOUT])
    algorithm.phases[0].admit(server, {**update, READOUT: 1.99 * update[SAMPLES] * unit})
    with pytest.raises(UpdateError, match=r"largest_change.*expected a size up to 2, got 2\.01"):
        algorithm.phases[0].admit(server, {**update, READOUT: 2.01 * update[SAMPLES] * unit})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"network": {"task": "predict"}}, "'predict' given, expected 'classify'.*take incfed"),
        ({"class_weights": (1.0, 2.0, 3.0)}, "3 numbers given, expected one for each of 2 classes"),
        ({"class_weights": (1.0, 0.0)}, "greater than 0"),
        ({"rate": 0.0}, "greater than 0"),
        ({"optimiser": "newton"}, "'adam' or 'sgd'"),
        ({"network": {"task": "classify", "unit": 3}}, "unit"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build("esn-fedavg", FEATURE_COUNT, {**PLAIN, **wrong})


def test_labels_are_needed_and_must_be_classes() -> None:
    algorithm = build("esn-fedavg", FEATURE_COUNT, PLAIN)
    server, phase = algorithm.start(generator(0, 0, "cloud")), algorithm.phases[0]
    for data, reason in (
        ({FEATURES: FLEET["north"][FEATURES]}, "needs labels"),
        ({**FLEET["north"], LABELS: np.full(40, 2)}, "class 2 given, expected whole numbers from 0 to 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            phase.train(server.global_state, {}, data, generator(0, 0, "a"))


def test_it_learns_and_how_it_trains_stands_in_what_is_shared() -> None:
    outcome = run(build("esn-fedavg", FEATURE_COUNT, {**PLAIN, "rounds": 20, "class_weights": (1.0, 3.0)}), FLEET)
    test = table(99, 300)
    found = esn.score(outcome.server.global_state, test[FEATURES]) > 0.0
    assert np.mean([np.mean(found[test[LABELS] == label] == label) for label in (0, 1)]) > 0.7
    recipe = {name.removeprefix(RECIPE): value for name, value in outcome.server.global_state.items() if RECIPE in name}
    assert equal(
        recipe,
        {
            "adam": np.array(1.0),
            "learning_rate": np.array(0.1),
            "epochs": np.array(1.0),
            "batch": np.array(20.0),
            "class_weights": np.array([1.0, 3.0]),
            "rate": np.array(1.0),
        },
    )


def test_the_default_is_a_network_that_classifies() -> None:
    assert build("esn-fedavg", FEATURE_COUNT, {}).detector == "esn"
    assert Network(task="classify").classes == 2
