"""The discriminator against differences and against data that it must and must not tell apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import decode, encode
from fedgate.models.arrays import FEATURES, Array, Arrays, Floats, equal, generator
from fedgate.models.federated.defences.discriminator import (
    ACCURACY,
    DROPOUT,
    MOVES,
    SIZES,
    ContextError,
    check_context,
    fit,
    judged_clean,
    train_discriminator,
    with_noise,
)
from fedgate.models.federated.defences.discriminator import _initial as initial
from fedgate.models.federated.defences.discriminator import _slopes as slopes
from fedgate.models.federated.protocol.algorithm import Algorithm
from tests.models.federated.averaging.test_esn_fedavg import FEATURE_COUNT, FLEET, PLAIN, table
from tests.support.given_width import build

TRUSTED = [table(50, 120), table(51, 90)]


def algorithm(**settings: Any) -> Algorithm:
    return build("esn-fedavg", FEATURE_COUNT, {**PLAIN, **settings})


def cloud(seed: int = 0) -> np.random.Generator:
    return generator(seed, 0, "cloud")


def loss(params: Arrays, changes: Floats, clean: Array, rng: np.random.Generator) -> float:
    """Return the mean cross-entropy under one draw of the dropout."""
    values = changes
    for index in range(len(SIZES)):
        passes = (rng.random((len(changes), SIZES[index])) >= DROPOUT) / (1.0 - DROPOUT)
        values = np.maximum(values @ params[f"layer{index}.weights"] + params[f"layer{index}.bias"], 0.0) * passes
    logits = (values @ params[f"layer{len(SIZES)}.weights"] + params[f"layer{len(SIZES)}.bias"])[:, 0]
    return float(np.mean(np.logaddexp(0.0, logits) - clean * logits))


def test_slopes_are_those_of_differences() -> None:
    rng = np.random.default_rng(0)
    params, changes, clean = initial(6, rng), rng.normal(size=(9, 6)), rng.random(9) > 0.5
    found = dict(slopes(params, changes, clean, np.random.default_rng(5)))
    assert found.keys() == params.keys()
    for name, array in params.items():
        assert found[name].shape == array.shape
        for at in [tuple(rng.integers(size) for size in array.shape) for _ in range(15)]:
            ends = []
            for step in (1e-6, -1e-6):
                moved = array.copy()
                moved[at] += step
                ends.append(loss({**params, name: moved}, changes, clean, np.random.default_rng(5)))
            assert found[name][at] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_it_learns_what_can_be_told_apart_whatever_the_unit(unit: float) -> None:
    rng = np.random.default_rng(1)
    clean = rng.random(2_000) > 0.5
    changes = unit * (rng.normal(size=(2_000, 20)) + 0.8 * clean[:, None])
    network = fit(changes, clean, generator(0, 0, "a"))
    assert float(network[ACCURACY]) > 0.95
    assert np.mean((judged_clean(network, changes) > 0.5) == clean) > 0.95


def test_on_what_cannot_be_told_apart_it_says_so() -> None:
    rng = np.random.default_rng(2)
    network = fit(rng.normal(size=(2_000, 20)), rng.random(2_000) > 0.5, generator(0, 0, "a"))
    assert 0.4 < float(network[ACCURACY]) < 0.6


def test_the_same_generator_gives_the_same_bytes_and_they_survive_the_wire() -> None:
    networks = [train_discriminator(algorithm(), TRUSTED, cloud(), rounds=3) for _ in range(2)]
    assert encode(networks[0]) == encode(networks[1])
    received, _ = decode(encode(networks[0]))
    assert equal(received, networks[0])
    changes = np.random.default_rng(0).normal(size=(5, networks[0]["layer0.weights"].shape[0]))
    np.testing.assert_array_equal(judged_clean(received, changes), judged_clean(networks[0], changes))


@pytest.mark.soak
def test_it_tells_updates_of_noisy_gateways_from_others() -> None:
    defended = algorithm()
    network = train_discriminator(defended, TRUSTED, cloud(), noise=5.0, rounds=60, epochs=40)
    assert float(network[ACCURACY]) > 0.8
    assert network[MOVES]
    server, rng = defended.start(cloud()), np.random.default_rng(3)
    verdicts: dict[float, list[float]] = {0.0: [], 5.0: []}
    for deviations, found in verdicts.items():
        for data in FLEET.values():
            noisy = with_noise(data, deviations, rng)
            _, update = defended.phases[0].train(server.global_state, {}, noisy, rng)
            admitted = defended.phases[0].admit(server, update)
            change = np.ravel(admitted["readout"] / admitted["samples"])
            found.append(float(judged_clean(network, -change[None])[0]))
    assert np.mean(verdicts[0.0]) > np.mean(verdicts[5.0])


def test_noise_is_in_deviations_of_each_feature() -> None:
    data = {FEATURES: np.random.default_rng(0).normal(size=(5_000, 2)) * [1e-6, 1e6]}
    noisy = with_noise(data, 2.0, np.random.default_rng(1))
    np.testing.assert_allclose(
        (noisy[FEATURES] - data[FEATURES]).std(axis=0) / data[FEATURES].std(axis=0), 2.0, rtol=0.05
    )


@pytest.mark.parametrize(
    ("settings", "seed", "reason"),
    [
        ({"learning_rate": 0.2}, 0, "recipe.learning_rate: expected 0.1, with which .* got 0.2; train it anew"),
        ({"class_weights": (1.0, 2.0)}, 0, r"recipe.class_weights: expected \[1. 1.\], .* got \[1. 2.\]"),
        ({"batch": 10}, 0, "recipe.batch: expected 20.*got 10"),
        ({"network": {"task": "classify", "units": 13, "washout": 3}}, 0, "expected .* got"),
        ({}, 1, "reservoir.digest: expected [0-9a-f]{64}, .* got [0-9a-f]{64}"),
    ],
)
def test_another_training_is_refused_naming_both(settings: dict[str, Any], seed: int, reason: str) -> None:
    network = train_discriminator(algorithm(), TRUSTED, cloud(), rounds=2)
    check_context(network, algorithm().start(cloud()).global_state)
    with pytest.raises(ContextError, match=reason):
        check_context(network, algorithm(**settings).start(cloud(seed)).global_state)


@pytest.mark.soak
def test_it_needs_tables_that_teach_and_an_algorithm_of_one_exchange() -> None:
    short = {name: array[:2] for name, array in TRUSTED[0].items()}
    for tables, reason in (([], "got none"), ([short], "may be shorter than a washout")):
        with pytest.raises(ValueError, match=reason):
            train_discriminator(algorithm(), tables, cloud())
    with pytest.raises(ValueError, match="of 1 exchange a round, got 3"):
        train_discriminator(build("conditional-fedavg", FEATURE_COUNT, {}), TRUSTED, cloud())
