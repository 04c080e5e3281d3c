"""One-class SVM and SVDD with a linear kernel: a plane and a sphere, against libsvm, a programme and geometry."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.svm import OneClassSVM

from fedgate.models.arrays import Floats
from fedgate.models.detectors import Detector
from fedgate.models.detectors.base.checks import DataError, SettingError
from fedgate.models.detectors.svm.linear_svdd import CENTER, SQUARED_RADIUS
from fedgate.models.detectors.svm.ocsvm import OCSVM
from fedgate.models.detectors.svm.svdd import SVDD


def noise(seed: int, rows: int = 60, features: int = 3, at: float = 0.0) -> Floats:
    return np.random.default_rng(seed).normal(at, 1.0, (rows, features))


@pytest.mark.parametrize("nu", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e6])
def test_the_plane_is_that_of_scikit_learn_in_any_unit(nu: float, unit: float) -> None:
    x, probes = noise(1, at=4.0), noise(2, 200, at=3.0)
    theirs = OneClassSVM(kernel="linear", nu=nu, tol=1e-9).fit(x)
    params = OCSVM.fit(x * unit, nu=nu, kernel="linear")
    scores = OCSVM.score(params, probes * unit) / unit**2
    np.testing.assert_allclose(scores, -theirs.decision_function(probes) / (nu * len(x)), atol=1e-4)


def test_the_plane_with_all_rows_outside_has_the_innermost_on_its_border() -> None:
    x = noise(3, at=4.0)
    scores = OCSVM.score(OCSVM.fit(x, nu=1.0, kernel="linear"), x)
    assert scores.min() == pytest.approx(0.0, abs=1e-12)


def test_the_plane_by_ascent_is_that_of_its_effective_share() -> None:
    x, probes = noise(4, 40, 2, at=3.0), noise(5, 100, 2, at=3.0)
    params = OCSVM.fit(x, nu=0.4, kernel="linear", solver="sgd")
    same = OCSVM.fit(x, nu=float(params["effective_nu"]), kernel="linear")
    np.testing.assert_allclose(OCSVM.score(params, probes), OCSVM.score(same, probes), atol=1e-2)


@pytest.mark.parametrize("solver", ["libsvm", "sgd"])
def test_rows_around_the_origin_have_no_plane(solver: str) -> None:
    with pytest.raises(DataError, match=r"no plane parts the rows from the origin.*use kernel 'rbf'"):
        OCSVM.fit(np.concatenate([noise(6, 400, 2), -noise(6, 400, 2)]), nu=0.9, kernel="linear", solver=solver)


def best_sphere(x: Floats, cap: float) -> Floats:
    """Solve Tax and Duin's dual as it stands."""
    gram = x @ x.T
    found = minimize(
        lambda beta: beta @ gram @ beta - beta @ gram.diagonal(),
        np.full(len(x), 1.0 / len(x)),
        jac=lambda beta: 2.0 * gram @ beta - gram.diagonal(),
        bounds=[(0.0, cap)] * len(x),
        constraints={"type": "eq", "fun": lambda beta: beta.sum() - 1.0, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1_000},
    )
    assert found.success or found.status == 8, found.message  # 8: no direction improves it any more, to rounding
    return np.asarray(found.x)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cap", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("at", [0.0, 50.0])
def test_the_sphere_solves_the_quadratic_programme(seed: int, cap: float, at: float) -> None:
    x = noise(seed, 14, 2)
    beta = best_sphere(x, cap)
    params = SVDD.fit(x + at, c=cap, kernel="linear")
    np.testing.assert_allclose(params[CENTER], beta @ x + at, atol=1e-4)
    free = (beta > 1e-4) & (beta < cap - 1e-4)
    squares = ((x - beta @ x) ** 2).sum(axis=1)
    expected = squares[free].mean() if free.any() else squares[beta > 1e-4].min()
    assert float(params[SQUARED_RADIUS]) == pytest.approx(expected, abs=1e-3)


def test_a_hard_sphere_is_the_smallest_that_holds_all() -> None:
    square = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0], [1.0, 1.5], [0.7, 1.0]])
    params = SVDD.fit(square, c=1.0, kernel="linear")
    np.testing.assert_allclose(params[CENTER], [1.0, 1.0], atol=1e-6)
    assert float(params[SQUARED_RADIUS]) == pytest.approx(2.0, abs=1e-6)
    scores = SVDD.score(params, np.array([[1.0, 1.0], [3.0, 1.0], [1.0, 1.0 + 2.0**0.5]]))
    np.testing.assert_allclose(scores, [-2.0, 2.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("nu", [0.05, 0.3, 1.0])
def test_nu_bounds_the_rows_outside_the_sphere(nu: float) -> None:
    x = noise(7, 100)
    assert (SVDD.score(SVDD.fit(x, nu=nu, kernel="linear"), x) > 1e-3).sum() <= nu * 100 + 1e-6


@pytest.mark.parametrize("detector", [OCSVM, SVDD])
def test_equal_rows_are_a_stuck_sensor(detector: Detector) -> None:
    with pytest.raises(DataError, match="all 5 rows are the same, expected rows that differ"):
        detector.fit(np.full((5, 2), 3.0), kernel="linear")


@pytest.mark.parametrize(
    ("detector", "settings", "reason"),
    [
        (OCSVM, {"kernel": "linear", "gamma": 0.1}, "gamma 0.1 given, expected none: the linear kernel has no width"),
        (OCSVM, {"step": 0.5}, "step 0.5 given, expected none: solver 'libsvm' has no step, 'sgd' has"),
        (SVDD, {"step": 0.5}, "step 0.5 given, expected none"),
        (SVDD, {"kernel": "linear", "solver": "sgd"}, "expected solver 'libsvm'"),
        (SVDD, {"kernel": "linear", "gamma": 0.5}, "takes no gamma"),
        (SVDD, {"c": 0.0}, "c 0 given, expected above 0"),
        (SVDD, {"c": float("nan")}, "c nan given, expected above 0"),
    ],
)
def test_settings_that_do_not_go_together_are_explained(
    detector: object, settings: dict[str, object], reason: str
) -> None:
    fit = OCSVM.fit if detector is OCSVM else SVDD.fit
    with pytest.raises(SettingError, match=reason):
        fit(noise(8, at=4.0), **settings)
