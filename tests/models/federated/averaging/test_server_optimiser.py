"""The steps of the cloud against the paper's lines, one number at a time, and against plain averaging."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator
from fedgate.models.detectors.base import linear
from fedgate.models.federated.averaging.averaging import SAMPLES
from fedgate.models.federated.averaging.server_optimiser import FIRST, SECOND, ServerOptimiser, stepping
from fedgate.models.federated.protocol.run import run
from tests.support.given_width import build

PLAIN: dict[str, Any] = {"loss": "logistic", "components": 8, "rounds": 4, "epochs": 2}


def table(seed: int, count: int) -> Arrays:
    x = np.random.default_rng(seed).normal(size=(count, 3))
    return {FEATURES: x, LABELS: (x[:, 0] + 0.5 * x[:, 1] > 0.3).astype(np.int64)}


FLEET = {name: table(seed, count) for seed, (name, count) in enumerate([("north", 12), ("south", 40), ("west", 25)])}


def trained(**settings: Any) -> tuple[Arrays, Arrays]:
    outcome = run(build("fedavg", 3, {**PLAIN, **settings}), FLEET)
    return outcome.server.global_state, outcome.server.server_state


def twin(changes: list[float], kind: str, rate: float, first: float, second: float, tau: float) -> float:
    """Reddi et al. 2021, Algorithm 2, for one weight that begins at 1: lines 10 to 15, FedYogi or FedAdam."""
    x, m, v = 1.0, 0.0, tau**2
    for delta in changes:
        m = first * m + (1 - first) * delta
        if kind == "adam":
            v = second * v + (1 - second) * delta**2
        else:
            v = v - (1 - second) * delta**2 * math.copysign(1.0, v - delta**2)
        x = x + rate * m / (math.sqrt(v) + tau)
    return x


@given(
    changes=st.lists(st.floats(-5.0, 5.0).filter(lambda change: change**2 != 1e-4), min_size=1, max_size=6),
    kind=st.sampled_from(["adam", "yogi"]),
    weight=st.integers(1, 900),
)
def test_adaptive_steps_are_those_of_the_paper(changes: list[float], kind: Any, weight: int) -> None:
    optimiser = ServerOptimiser(kind=kind, rate=0.3, momentum=0.7, second_momentum=0.8, adaptivity=0.01)
    shared, kept = {"w": np.ones(2)}, Arrays()
    for change in changes:
        total = {"w": weight * np.array([change, -2.0 * change])}
        moved, kept = optimiser.stepped(shared, kept, total, np.array(float(weight)), ["w"])
        shared |= moved
    for found, factor in zip(shared["w"], (1.0, -2.0), strict=True):
        scaled = [factor * change for change in changes]
        assert found == pytest.approx(twin(scaled, kind, 0.3, 0.7, 0.8, 0.01), rel=1e-6, abs=1e-9)
    assert kept.keys() == {f"{FIRST}w", f"{SECOND}w"}


def test_momentum_by_hand() -> None:
    """Changes 4 and 1 with β = 1/2 and η = 1/4: m is 4, then 3, so that w goes from 0 to 1 and to 7/4."""
    optimiser = ServerOptimiser(rate=0.25, momentum=0.5)
    shared, kept = {"w": np.zeros(1)}, {"other": np.ones(1)}
    for change, expected in ((4.0, 1.0), (1.0, 1.75)):
        moved, kept = optimiser.stepped(shared, kept, {"w": np.array([3.0 * change])}, np.array(3.0), ["w"])
        shared |= moved
        assert shared["w"].tolist() == [expected]
    assert kept["other"].tolist() == [1.0] and kept[f"{FIRST}w"].tolist() == [3.0]


@pytest.mark.parametrize("rate", [1.0, 0.37])
def test_sgd_is_plain_averaging_to_the_byte(rate: float) -> None:
    plain, none = trained(rate=rate)
    optimised, kept = trained(server_optimiser={"kind": "sgd", "rate": rate})
    assert encode(plain) == encode(optimised)
    assert none == kept == {}


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"kind": "adam"}, {"kind": "yogi"}], ids=str)
def test_the_moments_stay_in_the_cloud_and_the_order_of_rounds_matters(settings: dict[str, Any]) -> None:
    plain, _ = trained()
    shared, kept = trained(server_optimiser=settings)
    assert shared.keys() == plain.keys()
    moments = {FIRST} if "momentum" in settings else {FIRST, SECOND}
    assert kept.keys() == {moment + name for moment in moments for name in linear.TRAINED}
    assert not np.allclose(shared["weights"], plain["weights"])


def test_the_first_adaptive_step_is_as_long_as_its_settings_say() -> None:
    """Whatever the change: far above τ, m / sqrt(v) is (1 - β) / sqrt(1 - β₂)."""
    for size in (1.0, 1e3):
        moved, _ = ServerOptimiser(kind="adam", rate=0.01).stepped(
            {"w": np.zeros(1)}, {}, {"w": np.array([size])}, np.array(1.0), ["w"]
        )
        assert float(moved["w"][0]) == pytest.approx(0.01 * 0.1 / math.sqrt(0.01), rel=0.02)


def test_weights_keep_their_precision() -> None:
    for settings in ({}, {"momentum": 0.5}, {"kind": "yogi"}):
        optimiser = ServerOptimiser.model_validate(settings)
        total = {"w": np.ones(3), SAMPLES: np.array(2.0)}
        moved, _ = optimiser.stepped({"w": np.zeros(3, np.float32)}, {}, total, total[SAMPLES], ["w"])
        assert moved["w"].dtype == np.float32


def test_an_adaptive_step_learns() -> None:
    settings = {"components": 0, "normalisation": "none", "rounds": 60}
    shared, _ = trained(**settings, server_optimiser={"kind": "adam", "rate": 0.1})
    before = build("fedavg", 3, {**PLAIN, "components": 0}).start(generator(0, 0, "cloud")).global_state
    x, y = (np.concatenate([part[name] for part in FLEET.values()]) for name in (FEATURES, LABELS))
    losses = [np.logaddexp(0.0, -np.where(y, 1, -1) * linear.score(part, x)).mean() for part in (shared, before)]
    assert losses[0] < 0.5 * losses[1]


def test_the_defaults_are_those_of_the_kind() -> None:
    adam = ServerOptimiser(kind="adam")
    assert (adam.rate, adam.momentum, adam.second_momentum, adam.adaptivity) == (0.01, 0.9, 0.99, 1e-3)
    assert ServerOptimiser.model_validate(adam.model_dump()) == adam
    assert (ServerOptimiser().rate, ServerOptimiser().momentum) == (1.0, 0.0)
    assert stepping(0.5, None) == ServerOptimiser(rate=0.5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"server_optimiser": {"kind": "adagrad"}}, "'sgd', 'adam' or 'yogi'"),
        ({"server_optimiser": {"momentum": 1.0}}, "less than 1"),
        ({"server_optimiser": {"rate": 0.0}}, "greater than 0"),
        ({"server_optimiser": {"adaptivity": 0.1}}, "adaptivity 0.1 given, expected none for kind 'sgd'"),
        ({"server_optimiser": {"second_momentum": 0.5}}, "second_momentum 0.5 given, expected none for kind 'sgd'"),
        ({"server_optimiser": {"beta": 0.5}}, "beta"),
        ({"server_optimiser": {}, "rate": 0.5}, "rate 0.5 given beside server_optimiser, expected it in there"),
        ({"server_optimiser": {}, "loss": "one-class"}, "local 'dual', expected 'sgd'"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build("fedavg", 3, {**PLAIN, **settings})
