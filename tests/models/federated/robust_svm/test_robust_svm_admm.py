"""FDR-SVM by ADMM: its limit is the optimum of the mixture problem solved at once, whoever takes part and whatever is
lost on the way.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, KAPPA, LABELS, RADIUS, WEIGHT, Arrays, Floats, generator
from fedgate.models.detectors.base import fault_classes
from fedgate.models.federated.protocol.algorithm import Server
from fedgate.models.federated.protocol.run import Outcome, run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.robust_svm.admm import (
    DISAGREEMENT,
    GATEWAYS,
    LOCAL,
    MARGIN,
    PROPOSALS,
    STEP,
    STRONG_CONVEXITY,
    WEIGHTS,
    least_strong_convexity,
)
from fedgate.models.federated.robust_svm.ball import Ball, Norm
from fedgate.models.federated.robust_svm.gateway import imported, with_bias
from fedgate.models.federated.robust_svm.open_support import risk
from tests.support.given_width import build
from tests.support.robust_twins import Part, mixture_optimum
from tests.support.soak import crossed, some

NAME = "robust-svm-admm"
NORMS: tuple[Norm, ...] = ("1", "2", "inf")
PLAIN: dict[str, Any] = {"normalisation": "none", "radius": 0.02, "kappa": 0.7, "rho": 0.3}
SIZES = {"large": 40, "middle": 15, "small": 6}


def labelled(seed: int, count: int) -> Arrays:
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(count, 2))
    return {FEATURES: x, LABELS: (x[:, 0] + 0.5 * rng.normal(size=count) > 0.5).astype(np.int64)}


def fleet(**extra: dict[str, float]) -> dict[str, Arrays]:
    """Return gateways of unequal size; `extra` gives arrays that some of them hold besides."""
    data = {name: labelled(seed, count) for seed, (name, count) in enumerate(SIZES.items())}
    return {
        name: arrays | {key: np.array(value) for key, value in extra.get(name, {}).items()}
        for name, arrays in data.items()
    }


def signed(data: Arrays) -> Floats:
    rows = with_bias(data[FEATURES])
    rows[np.asarray(data[LABELS]) == 0] *= -1.0
    return rows


def parts_of(data: dict[str, Arrays], ball: Ball, weights: str = "equal") -> list[Part]:
    parts: list[Part] = []
    for arrays in data.values():
        weight = float(arrays.get(WEIGHT, len(arrays[LABELS]) if weights == "samples" else 1.0))
        kappa = float(arrays.get(KAPPA, np.inf if ball.kappa is None else ball.kappa))
        own = Ball(float(arrays.get(RADIUS, ball.radius)), None if kappa == np.inf else kappa, ball.norm)
        parts.append(Part(signed(arrays), own, weight))
    return parts


def value(w: Floats, parts: list[Part]) -> float:
    total = sum(part.weight for part in parts)
    return sum(part.weight / total * risk(w, part.z, part.ball) for part in parts)


def trained(data: dict[str, Arrays], **settings: Any) -> Outcome:
    return run(build(NAME, 2, {**PLAIN, **settings}), data)


def weights_of(outcome: Outcome) -> Floats:
    w: Floats = imported(outcome.server.global_state)[0]
    return w


@pytest.mark.soak
@pytest.mark.parametrize(("norm", "kappa"), crossed(NORMS, [0.7, None]))
def test_the_limit_is_the_optimum_of_the_mixture_problem(norm: Norm, kappa: float | None) -> None:
    data, ball = fleet(), Ball(PLAIN["radius"], kappa, norm)
    w = weights_of(trained(data, norm=norm, kappa=kappa, rounds=200))
    parts = parts_of(data, ball)
    assert value(w, parts) == pytest.approx(mixture_optimum(parts).value, rel=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("kappa", some([0.7, None]))
def test_label_costs_of_their_own_count(kappa: float | None) -> None:
    data = fleet(large={KAPPA: 0.1}, middle={KAPPA: np.inf}, small={KAPPA: 3.0, RADIUS: 0.1})
    parts = parts_of(data, Ball(PLAIN["radius"], kappa, "1"))
    w = weights_of(trained(data, kappa=kappa, rounds=200))
    assert value(w, parts) == pytest.approx(mixture_optimum(parts).value, rel=1e-4)
    others = [part._replace(ball=part.ball._replace(kappa=0.7)) for part in parts]
    assert value(w, others) > mixture_optimum(others).value * 1.001


@pytest.mark.parametrize("name", [NAME, "robust-svm-subgradient"])
def test_balls_of_their_own_that_are_those_of_all_change_no_byte(name: str) -> None:
    settings = {**PLAIN, "rounds": 3} if name == NAME else {"rounds": 3, "radius": 0.02, "kappa": 0.7}
    same = {who: {RADIUS: 0.02, KAPPA: 0.7} for who in SIZES}
    outcomes = [run(build(name, 2, settings), data) for data in (fleet(), fleet(**same))]
    assert encode(outcomes[0].server.global_state) == encode(outcomes[1].server.global_state)


@pytest.mark.soak
@pytest.mark.parametrize("weights", some(["samples", "equal"]))
def test_radii_and_weights_of_their_own_count(weights: str) -> None:
    data = fleet(large={RADIUS: 0.1}, middle={WEIGHT: 9.0}, small={RADIUS: 0.005, WEIGHT: 0.5})
    parts = parts_of(data, Ball(PLAIN["radius"], 0.7, "1"), weights)
    w = weights_of(trained(data, weights=weights, max_weight=40.0, rounds=200))
    assert value(w, parts) == pytest.approx(mixture_optimum(parts).value, rel=1e-4)
    others = [part._replace(weight=1.0) for part in parts]
    assert value(w, others) > mixture_optimum(others).value * 1.001


@pytest.mark.parametrize(("weights", "most"), [("equal", 1.0), ("samples", 20_000.0)])
@pytest.mark.parametrize("name", [NAME, "robust-svm-subgradient"])
def test_a_weight_of_its_own_is_bounded_on_both_sides(name: str, weights: str, most: float) -> None:
    algorithm, rng = build(name, 2, {"weights": weights}), generator(0, 0, "a")
    phase, server = algorithm.phases[0], algorithm.start(rng)
    _, update = phase.train(server.global_state, {}, {**labelled(10, 20), WEIGHT: np.array(most)}, rng)
    assert float(phase.admit(server, update)[WEIGHTS]) == most
    with pytest.raises(ValueError, match=rf"weight: expected .* up to {most:g}, got .*operator raise .*'max_weight'"):
        phase.train(server.global_state, {}, {**labelled(10, 20), WEIGHT: np.array(1.1 * most)}, rng)
    with pytest.raises(UpdateError, match=rf"weight_sum: expected a number above 0 and up to {most:g}, got"):
        phase.admit(server, {**update, WEIGHTS: np.array(1.1 * most)})
    raised = build(name, 2, {"weights": weights, "max_weight": 2.0 * most}).phases[0]
    _, update = raised.train(server.global_state, {}, {**labelled(10, 20), WEIGHT: np.array(1.1 * most)}, rng)
    raised.admit(server, update)


@pytest.mark.parametrize(("name", "values"), [(NAME, "proposals"), ("robust-svm-subgradient", "slopes")])
def test_no_gateway_pulls_farther_than_it_may(name: str, values: str) -> None:
    algorithm, rng = build(name, 2, {"max_weight": 5.0, "largest_weight": 30.0}), generator(0, 0, "a")
    phase, server = algorithm.phases[0], algorithm.start(rng)
    _, update = phase.train(server.global_state, {}, labelled(11, 20), rng)
    shape = update[values].shape
    for weight in (5e-324, 0.5, 1.0, 5.0):
        honest = {**update, values: np.full(shape, -30.0 * weight), WEIGHTS: np.array(weight)}
        phase.admit(server, honest)
        with pytest.raises(UpdateError, match=rf"{values}: expected values up to 30 .*'largest_weight'.* got"):
            phase.admit(server, {**honest, values: np.full(shape, 31.0 * weight + 1e-300)})


@pytest.mark.parametrize("name", [NAME, "robust-svm-subgradient"])
def test_of_many_rows_an_even_spread_is_trained_on_and_all_count(name: str) -> None:
    data, rng = labelled(12, 101), generator(0, 0, "a")
    thin = {FEATURES: data[FEATURES][::10], LABELS: data[LABELS][::10]}
    shared = {"weights": np.ones((1, 2)), "intercept": np.ones(1), STEP: np.ones(()), STRONG_CONVEXITY: np.zeros(())}
    sent = []
    for arrays, most in ((data, 11), (thin, 5_000)):
        algorithm = build(name, 2, {"normalisation": "none", "max_rows": most, "weights": "samples"})
        sent.append(algorithm.phases[0].train(shared, {}, arrays, rng)[1])
    assert [float(update[WEIGHTS]) for update in sent] == [101.0, 11.0]
    values = (set(sent[0]) - {WEIGHTS, GATEWAYS}).pop()
    np.testing.assert_allclose(sent[0][values] / 101.0, sent[1][values] / 11.0, rtol=1e-12)


@pytest.mark.soak
@pytest.mark.parametrize("norm", some(NORMS))
def test_one_gateway_alone_finds_its_optimum(norm: Norm) -> None:
    data, ball = labelled(5, 60), Ball(0.02, 0.7, norm)
    w = weights_of(trained({"only": data}, norm=norm, rounds=150))
    assert risk(w, signed(data), ball) == pytest.approx(mixture_optimum([Part(signed(data), ball)]).value, rel=1e-6)


@pytest.mark.soak
def test_two_gateways_with_the_same_data_are_one() -> None:
    data = labelled(6, 30)
    both, one = (trained(dict.fromkeys(names, data), rounds=30) for names in ("ab", "a"))
    np.testing.assert_allclose(weights_of(both), weights_of(one), atol=1e-7)


def test_a_wrong_answer_to_the_same_question_is_not_counted_twice() -> None:
    """A round repeated because nobody was counted finds the gateway where it was."""
    algorithm, data, rng = build(NAME, 2, PLAIN), labelled(7, 20), generator(0, 0, "a")
    train = algorithm.phases[0].train
    server = algorithm.start(rng)
    own: Arrays = {}
    for step in range(3):
        once, update = train(server.global_state, own, data, rng)
        again, repeated = train(server.global_state, once, data, rng)
        assert all(np.array_equal(again[name], array) for name, array in once.items())
        assert all(np.array_equal(repeated[name], array) for name, array in update.items())
        if step > 0:
            expected = own[DISAGREEMENT] + own[LOCAL] - imported(server.global_state)
            np.testing.assert_array_equal(again[DISAGREEMENT], expected)
        server, own = algorithm.phases[0].advance(server, {**update, PROPOSALS: update[PROPOSALS] * 0.9}), again


@pytest.mark.soak
def test_lost_updates_do_no_harm() -> None:
    """A gateway whose updates are lost for a while has moved on its own; what it sends later is as good as ever."""
    algorithm, data = build(NAME, 2, PLAIN), fleet()
    phase, own = algorithm.phases[0], {name: Arrays() for name in data}
    server = algorithm.start(generator(0, 0, "cloud"))
    for index in range(260):
        total = Arrays()
        for name in data:
            own[name], update = phase.train(server.global_state, own[name], data[name], generator(0, index, name))
            if not (name == "middle" and 10 <= index < 40):
                total = phase.reducer.merge(total, phase.admit(server, update))
        server = phase.advance(server, total)
    parts = parts_of(data, Ball(0.02, 0.7, "1"))
    assert value(imported(server.global_state)[0], parts) == pytest.approx(mixture_optimum(parts).value, rel=1e-4)


@pytest.mark.soak
def test_reg_is_admm_with_labels_too_dear_to_change() -> None:
    regular, dear = (weights_of(trained(fleet(), kappa=kappa, rounds=40)) for kappa in (None, 1e6))
    np.testing.assert_allclose(regular, dear, atol=1e-4)


def test_strong_convexity_by_theorem_3() -> None:
    """Written out for three gateways, four blocks: i = 2, 3 and the last."""
    assert least_strong_convexity(0.5, 3) == 0.5 * max(6 * 1, 5 * 2, 2 * 5) / 2
    assert least_strong_convexity(1.0, 1) == 0.0  # two blocks converge by themselves
    assert least_strong_convexity(0.01, 10) == pytest.approx(0.54)
    growing = [least_strong_convexity(0.1, count) for count in range(1, 40)]
    assert all(a < b for a, b in itertools.pairwise(growing))


@pytest.mark.soak
def test_auto_takes_what_theorem_3_asks_for_and_shrinks_the_weights() -> None:
    data = fleet()
    auto = trained(data, strong_convexity="auto", rounds=40)
    assert float(auto.server.global_state[STRONG_CONVEXITY]) == least_strong_convexity(PLAIN["rho"], 3)
    assert float(auto.server.server_state[MARGIN]) == 0.0
    assert np.abs(weights_of(auto)).sum() < 0.7 * np.abs(weights_of(trained(data, rounds=40))).sum()


def test_a_strong_convexity_too_weak_for_theorem_3_is_told() -> None:
    needed = least_strong_convexity(PLAIN["rho"], 3)
    for mu in (None, 0.1, needed, 2.0 * needed):
        kept = trained(fleet(), strong_convexity=mu, rounds=2).server.server_state
        assert float(kept[MARGIN]) == pytest.approx((mu or 0.0) - needed)


@pytest.mark.soak
def test_strong_convexity_is_part_of_the_limit() -> None:
    """With µ the limit minimises risk plus µ/2 |w|²; no point near it is better."""
    data, mu = fleet(), 0.2
    parts = parts_of(data, Ball(0.02, 0.7, "1"))
    w = weights_of(trained(data, strong_convexity=mu, rounds=150))
    here = value(w, parts) + mu / 2.0 * w @ w
    rng = np.random.default_rng(8)
    for other in w + rng.normal(size=(50, 3)) * 10.0 ** rng.uniform(-3, 0, (50, 1)):
        assert value(other, parts) + mu / 2.0 * other @ other >= here - 1e-6


@pytest.mark.soak
def test_fault_classes_are_told_apart() -> None:
    rng = np.random.default_rng(9)
    middles = np.array([(0.0, 0.0), (4.0, 0.0), (0.0, 4.0)])
    y = np.arange(90) % 3
    data = {name: {FEATURES: middles[y] + rng.normal(size=(90, 2)), LABELS: y} for name in "ab"}
    params = trained(data, classes=2, radius=1e-3, rounds=40).server.global_state
    fresh = middles[y] + rng.normal(size=(90, 2))
    assert (fault_classes.classify(params, fresh) == y).mean() > 0.9


@pytest.mark.soak
def test_a_gateway_that_knows_one_class_only_takes_part() -> None:
    data = fleet()
    data["healthy"] = {FEATURES: data["large"][FEATURES], LABELS: np.zeros(SIZES["large"], dtype=np.int64)}
    parts = parts_of(data, Ball(0.02, 0.7, "1"))
    assert value(weights_of(trained(data, rounds=200)), parts) == pytest.approx(mixture_optimum(parts).value, rel=1e-4)


BAD: list[tuple[dict[str, Any], str]] = [
    ({LABELS: None}, "needs labels in the data and found none"),
    ({LABELS: np.full(20, -1)}, r"label -1: expected 0 \(normal\) to 1"),
    ({LABELS: np.full(20, 2)}, "label 2: .*renumber the fault classes or raise the setting"),
    ({RADIUS: np.array(0.0)}, "radius: expected a number above 0, got 0; .*plain SVM"),
    ({RADIUS: np.array([0.1])}, r"radius: expected one number, got float64 of shape \(1,\)"),
    ({KAPPA: np.array(0.0)}, "kappa: expected a number above 0"),
    ({KAPPA: np.array(np.nan)}, "kappa: expected a number above 0"),
    ({WEIGHT: np.array(-1.0)}, "weight: expected one number of at least 0"),
    ({WEIGHT: np.array(1e9)}, "weight: expected a number from 0 up to"),
    ({WEIGHT: np.array(float("nan"))}, "weight: expected one number of at least 0"),
]


@pytest.mark.parametrize(("change", "reason"), BAD)
def test_data_that_cannot_be_used_teaches(change: dict[str, Any], reason: str) -> None:
    data = {name: array for name, array in {**labelled(10, 20), **change}.items() if array is not None}
    for name in (NAME, "robust-svm-subgradient"):
        algorithm = build(name, 2, {})
        with pytest.raises(ValueError, match=reason):
            algorithm.phases[0].train(
                algorithm.start(generator(0, 0, "a")).global_state, {}, data, generator(0, 0, "a")
            )


@pytest.mark.parametrize("setting", [{"radius": 0.0}, {"kappa": -1.0}, {"norm": "3"}, {"strong_convexity": "least"}])
def test_wrong_settings_are_named(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        build(NAME, 2, setting)


@pytest.mark.parametrize(
    "change",
    [{WEIGHTS: 1e6}, {WEIGHTS: 0.0}, {WEIGHTS: -2.0}, {GATEWAYS: 2.0}, {GATEWAYS: 0.0}],
    ids=str,
)
def test_no_gateway_counts_for_more_than_it_may(change: dict[str, float]) -> None:
    algorithm = build(NAME, 2, {})
    server: Server = algorithm.start(generator(0, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, labelled(11, 20), generator(0, 0, "a"))
    assert update[GATEWAYS] == 1.0
    with pytest.raises(UpdateError, match=r"expected .*got"):
        algorithm.phases[0].admit(server, update | {name: np.array(number) for name, number in change.items()})


def test_the_step_counts_rounds_that_counted() -> None:
    assert float(trained(fleet(), rounds=7).server.global_state[STEP]) == 7.0
