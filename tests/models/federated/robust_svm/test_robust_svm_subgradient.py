"""FDR-SVM by subgradients: each step by the letter, and the optimum it goes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import FEATURES, LABELS, RADIUS, WEIGHT, Arrays, generator
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.robust_svm.ball import Ball, Norm
from fedgate.models.federated.robust_svm.box import Box, worst_case
from fedgate.models.federated.robust_svm.gateway import imported
from fedgate.models.federated.robust_svm.subgradient import SLOPES, STEP, WEIGHTS
from tests.models.federated.robust_svm.test_robust_svm_admm import fleet, labelled, parts_of, value
from tests.support.given_width import build
from tests.support.robust_twins import mixture_optimum
from tests.support.soak import crossed

NAME = "robust-svm-subgradient"
PLAIN: dict[str, Any] = {"normalisation": "none", "radius": 0.05, "kappa": 0.7}
UNIT, WIDE = (0.0, 1.0), (-1e3, 1e3)


def sent_by(data: Arrays, shared: Arrays, **settings: Any) -> Arrays:
    _, update = build(NAME, 2, {**PLAIN, **settings}).phases[0].train(shared, {}, data, generator(0, 0, "a"))
    return update


def somewhere(seed: int) -> Arrays:
    """Return what the cloud may send after some steps."""
    rng = np.random.default_rng(seed)
    return {"weights": rng.normal(size=(1, 2)), "intercept": rng.normal(size=1), STEP: np.array(5.0)}


@pytest.mark.soak
@pytest.mark.parametrize(("norm", "box"), crossed(["1", "2", "inf"], [None, WIDE]))
def test_it_goes_to_the_optimum_of_the_mixture_problem(norm: Norm, box: tuple[float, float] | None) -> None:
    """Where no sample is stopped by the box, that is the optimum that ADMM goes to."""
    data = fleet(small={RADIUS: 0.02}, middle={WEIGHT: 2.0})
    parts = parts_of(data, Ball(0.05, 0.7, norm))
    outcome = run(
        build(NAME, 2, {**PLAIN, "norm": norm, "box": box, "rounds": 300, "step": 5.0, "max_weight": 2.0}), data
    )
    assert value(imported(outcome.server.global_state)[0], parts) == pytest.approx(
        mixture_optimum(parts).value, rel=3e-3
    )


def test_a_step_by_the_letter() -> None:
    """Eq. 10 and the update of Algorithm 1 on two gateways of weights 1 and 3."""
    data = {"a": labelled(1, 20), "b": {**labelled(2, 9), WEIGHT: np.array(3.0)}}
    algorithm = build(NAME, 2, {**PLAIN, "box": UNIT, "step": 2.0, "max_weight": 3.0})
    server = algorithm.start(generator(0, 0, "cloud"))._replace(global_state=somewhere(3))
    w, slopes = imported(server.global_state)[0], []
    for arrays in data.values():
        x = np.column_stack([arrays[FEATURES], np.ones(len(arrays[LABELS]))])
        worst = worst_case(x, np.where(arrays[LABELS] > 0, 1.0, -1.0), w, Ball(0.05, 0.7, "1"), Box(0.0, 1.0))
        g = np.zeros(3)
        for point, label, mass in zip(worst.points, worst.labels, worst.masses, strict=True):
            if label * (point @ w) < 1.0:
                g -= mass * label * point
        slopes.append(g)
    total = Arrays()
    for name, arrays in data.items():
        _, update = algorithm.phases[0].train(server.global_state, {}, arrays, generator(0, 0, name))
        total = algorithm.phases[0].reducer.merge(total, update)
    after = algorithm.phases[0].advance(server, total)
    expected = w - 2.0 / np.sqrt(6.0) * (slopes[0] + 3.0 * slopes[1]) / 4.0
    np.testing.assert_allclose(imported(after.global_state)[0], expected)
    assert float(after.global_state[STEP]) == 6.0


def test_a_box_that_stops_moves_lowers_the_worst_case() -> None:
    data, shared = labelled(4, 30), somewhere(4)
    slopes = [sent_by(data, shared, box=box, radius=0.5)[SLOPES] for box in (UNIT, WIDE, None)]
    assert not np.allclose(slopes[0], slopes[1])
    np.testing.assert_allclose(slopes[1], slopes[2], atol=1e-3)


def test_samples_may_be_the_weight() -> None:
    data, shared = labelled(5, 30), somewhere(5)
    equal, counted = (sent_by(data, shared, weights=how) for how in ("equal", "samples"))
    assert (float(equal[WEIGHTS]), float(counted[WEIGHTS])) == (1.0, 30.0)
    np.testing.assert_allclose(counted[SLOPES], 30.0 * equal[SLOPES])
    assert float(sent_by(data, shared, weights="samples", max_weight=12.0)[WEIGHTS]) == 12.0


def test_nothing_but_its_normalisation_stays_with_a_gateway() -> None:
    outcome = run(build(NAME, 2, {"rounds": 3}), fleet())
    assert all(own.keys() == {"center", "scale"} for own in outcome.local_states.values())


@pytest.mark.parametrize("weight", [0.0, -1.0, 2e5])
def test_no_gateway_counts_for_more_than_it_may(weight: float) -> None:
    algorithm = build(NAME, 2, {})
    server = algorithm.start(generator(0, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, labelled(6, 20), generator(0, 0, "a"))
    with pytest.raises(UpdateError, match=r"weight_sum: expected .*got"):
        algorithm.phases[0].admit(server, {**update, WEIGHTS: np.array(weight)})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"box": (2.0, 3.0)}, "box: expected a range with 1 in it"),
        ({"box": (1.0, 0.0)}, "box: expected a range with 1 in it"),
        ({"radius": 0.0}, "radius"),
        ({"step": 0.0}, "step"),
    ],
)
def test_wrong_settings_teach(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build(NAME, 2, settings)


def test_a_feature_that_leaves_the_declared_box_teaches() -> None:
    data = labelled(7, 20)
    data[FEATURES] = data[FEATURES] * 3.0
    with pytest.raises(ValueError, match="expected all within the box 0 to 1; scale them by the ranges"):
        sent_by(data, somewhere(7), box=UNIT)
