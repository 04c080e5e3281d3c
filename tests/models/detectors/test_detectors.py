"""Detectors against scikit-learn, scipy's optimiser and double loops: the same numbers by another way."""

from __future__ import annotations

import math
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM

from fedgate.models.arrays import Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base import linear, random_features
from fedgate.models.detectors.base.checks import NARROW, FitWarning, median_distance, warn_of_share
from fedgate.models.detectors.svm import kernel, ocsvm, svdd
from tests.models.detectors.test_graph import FEATURES as FEATURE_COUNT
from tests.models.detectors.test_graph import FITS
from tests.support.sphere import squared_radius

SCORES = {"ocsvm": (ocsvm.fit, kernel.score), "svdd": (svdd.fit, kernel.score)}


def noise(seed: int, rows: int = 80, features: int = 3) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, features))


def rbf(a: Floats, b: Floats, gamma: float) -> float:
    return math.exp(-gamma * math.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True)))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), nu=st.floats(0.02, 0.98), gamma=st.floats(0.05, 3.0))
@pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")  # of one kernel
def test_ocsvm_is_scikit_learn_on_a_scale_that_keeps_growing(seed: int, nu: float, gamma: float) -> None:
    x, probes = noise(seed), noise(seed + 1, 200) * 3.0
    theirs = OneClassSVM(kernel="rbf", nu=nu, gamma=gamma, tol=kernel.SOLVER_TOLERANCE).fit(x)
    params = ocsvm.fit(x, nu=nu, gamma=gamma)
    scores = ocsvm.OCSVM.score(params, probes)
    samples = np.exp(-(scores + params["offset"])) * nu * len(x)
    np.testing.assert_allclose(samples, theirs.score_samples(probes), rtol=1e-9, atol=1e-11)
    decisions = theirs.decision_function(probes)
    clear = np.abs(decisions) > 1e-6
    assert np.array_equal(scores[clear] > 0.0, decisions[clear] < 0.0)
    assert np.diff(decisions[np.argsort(-scores)]).min() > -1e-10


def test_the_border_of_ocsvm_is_where_the_decision_is_zero() -> None:
    x = noise(1)
    theirs = OneClassSVM(kernel="rbf", nu=0.2, gamma=1 / 3, tol=kernel.SOLVER_TOLERANCE).fit(x)
    params, inside, outside = ocsvm.fit(x, nu=0.2, gamma=1 / 3), np.zeros((1, 3)), np.full((1, 3), 5.0)
    for _ in range(60):  # bisection along a ray
        middle = (inside + outside) / 2.0
        inside, outside = (middle, outside) if theirs.decision_function(middle) > 0.0 else (inside, middle)
    assert abs(ocsvm.OCSVM.score(params, inside)[0]) < 1e-9


def best_coefficients(x: Floats, cap: float, gamma: float) -> Floats:
    """Solve the dual of SVDD, min βᵀKβ, Σβ = 1, 0 <= β <= C, with a solver that knows nothing of support vectors."""
    gram = np.array([[rbf(a, b, gamma) for b in x] for a in x])
    found = minimize(
        lambda beta: beta @ gram @ beta,
        np.full(len(x), 1.0 / len(x)),
        jac=lambda beta: 2.0 * gram @ beta,
        bounds=[(0.0, cap)] * len(x),
        constraints={"type": "eq", "fun": lambda beta: beta.sum() - 1.0, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1_000},
    )
    assert found.success
    return np.asarray(found.x)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("cap", [0.15, 0.3, 1.0])
def test_svdd_solves_the_quadratic_programme(seed: int, cap: float) -> None:
    x, gamma = noise(seed, 10, 2), 0.5
    beta = best_coefficients(x, cap, gamma)
    params = svdd.fit(x, c=cap, gamma=gamma)
    probes = noise(seed + 9, 20, 2) * 2.0
    constant = sum(p * q * rbf(a, b, gamma) for p, a in zip(beta, x, strict=True) for q, b in zip(beta, x, strict=True))
    radii = [1.0 - 2.0 * sum(p * rbf(a, z, gamma) for p, a in zip(beta, x, strict=True)) + constant for z in probes]
    np.testing.assert_allclose(squared_radius(params, probes), radii, atol=2e-5)
    free = (beta > 1e-4) & (beta < cap - 1e-4)
    border = np.mean([-math.log(sum(p * rbf(a, z, gamma) for p, a in zip(beta, x, strict=True))) for z in x[free]])
    assert float(params["offset"]) == pytest.approx(border, abs=1e-4)


@given(seed=st.integers(0, 2**32 - 1), gamma=st.floats(0.01, 3.0), origin=st.sampled_from([0.0, 1e3, 1e6]))
@settings(max_examples=30)
def test_squared_radius_is_equation_1(seed: int, gamma: float, origin: float) -> None:
    rng = np.random.default_rng(seed)
    beta = rng.dirichlet(np.ones(6))
    vectors, z = origin + rng.normal(size=(6, 4)), origin + rng.normal(size=(5, 4))
    params = {"vectors": vectors, "coefficients": beta, "gamma": np.array(gamma)}
    for found, point in zip(squared_radius(params, z), z, strict=True):
        expected = 1.0 - 2.0 * sum(b * rbf(v, point, gamma) for b, v in zip(beta, vectors, strict=True))
        for b, v in zip(beta, vectors, strict=True):
            expected += sum(b * c * rbf(v, w, gamma) for c, w in zip(beta, vectors, strict=True))
        assert found == pytest.approx(expected, abs=1e-8)


def test_score_orders_as_the_radius_does_and_is_zero_on_it() -> None:
    x, probes = noise(2), noise(3, 300) * 2.0
    params = svdd.fit(x, nu=0.2, gamma=1 / 3)
    scores, radii = svdd.SVDD.score(params, probes), squared_radius(params, probes)
    assert np.array_equal(np.argsort(scores), np.argsort(radii))
    free = params["coefficients"] < params["coefficients"].max() * (1.0 - 1e-6)
    border = squared_radius(params, params["vectors"][free]).mean()
    clear = np.abs(radii - border) > 1e-5
    assert np.array_equal(scores[clear] > 0.0, radii[clear] > border)
    on_border = svdd.SVDD.score(params, params["vectors"][free])
    assert np.abs(on_border).max() < 1e-4


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("nu", [1e-6, 0.05, 0.5, 0.9, 1.0])
def test_nu_bounds_the_rows_outside_from_above_and_the_vectors_from_below(name: str, nu: float) -> None:
    fit, score = SCORES[name]
    x = noise(4, 100)
    params = fit(x, nu=nu)
    assert (score(params, x) > 1e-3).sum() <= nu * len(x) + 1e-6
    assert len(params["vectors"]) >= nu * len(x) - 1e-6
    assert params["coefficients"].sum() == pytest.approx(1.0)
    assert params["coefficients"].min() > 0.0
    assert all(type(array) is np.ndarray and array.dtype == np.float64 for array in params.values())


@pytest.mark.parametrize("name", SCORES)
def test_all_rows_at_the_cap_leave_the_innermost_on_the_border(name: str) -> None:
    """With nu = 1 no row is inside; libsvm itself puts the border at infinity there."""
    fit, score = SCORES[name]
    x = noise(5, 30)
    scores = score(fit(x, nu=1.0, gamma=1 / 3), x)
    assert scores.min() == pytest.approx(0.0, abs=1e-12)
    nearly = score(fit(x, nu=0.999, gamma=1 / 3), x)
    np.testing.assert_allclose(scores, nearly, atol=0.05)


@pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")  # of the kernel with a width
@pytest.mark.parametrize("features", [2, 6, 20])
@pytest.mark.parametrize("name", SCORES)
def test_about_a_share_nu_of_new_rows_lies_outside_where_no_width_is_given(name: str, features: int) -> None:
    """The default kernel is so narrow that a border through its vectors would leave nearly every new row outside."""
    fit, score = SCORES[name]
    rng = np.random.default_rng(features)
    x, fresh = rng.normal(size=(2, 300, features))
    assert (score(fit(x, nu=0.1), fresh) > 0.0).mean() == pytest.approx(0.1, abs=0.06)
    assert (score(fit(x, nu=0.1, gamma=NARROW / (2.0 * median_distance(x) ** 2)), fresh) > 0.0).mean() > 0.3


@pytest.mark.parametrize("name", SCORES)
def test_rows_that_come_several_times_have_the_border_of_rows_that_come_once(name: str) -> None:
    """Twins are no others: judged by each other, they left more than twice as many new rows outside."""
    fit, score = SCORES[name]
    rng = np.random.default_rng(1)
    x, fresh = rng.normal(size=(150, 3)), rng.normal(size=(1_000, 3))
    shares = [(score(fit(np.repeat(x, times, axis=0)), fresh) > 0.0).mean() for times in (1, 2, 3)]
    assert shares[1:] == pytest.approx([shares[0]] * 2, abs=0.01)


def expanded(vectors: Floats) -> Arrays:
    count = len(vectors)
    return {"vectors": vectors, "coefficients": np.full(count, 1.0 / count), "gamma": np.array(2.0)}


def test_the_border_of_the_others_is_that_of_a_double_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.concatenate([noise(11, 40), noise(11, 7), np.full((1, 3), 9.0)])
    params = expanded(x[:30])
    every = []
    for row in x:
        others = [rbf(row, each, 2.0) / 30 for each in x[:30] if not np.array_equal(each, row)]
        every.append(math.log(math.fsum(others)))
    for block in (1, 100, kernel.BLOCK):
        monkeypatch.setattr(kernel, "BLOCK", block)
        assert kernel.border_of_others(x, 0.3, params) == pytest.approx(float(np.quantile(every, 0.3)), rel=1e-9)


def test_rows_that_equal_every_vector_are_judged_by_them() -> None:
    x = np.zeros((5, 2))
    assert kernel.border_of_others(x, 0.1, expanded(x[:2])) == 0.0


@pytest.mark.soak
def test_the_border_of_the_others_takes_blocks_and_no_whole_matrix() -> None:
    x = noise(12, 4_000)
    tracemalloc.start()
    try:
        kernel.border_of_others(x, 0.1, expanded(x))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * 8 * kernel.BLOCK < 8 * 4_000**2


@pytest.mark.parametrize("name", SCORES)
def test_far_is_told_from_farther(name: str) -> None:
    fit, score = SCORES[name]
    params = fit(noise(6))
    distances = 10.0 ** np.arange(0, 7)[:, None]
    for direction in np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3))]):
        scores = score(params, distances * direction)
        assert np.isfinite(scores).all()
        assert (np.diff(scores) > 0.0).all()


@pytest.mark.parametrize("name", FITS)
def test_own_centre_and_scale_are_applied_before_the_score(name: str) -> None:
    x = np.random.default_rng(7).normal(size=(80, FEATURE_COUNT))
    own = {"center": np.linspace(-5.0, 5.0, FEATURE_COUNT), "scale": 10.0 ** np.linspace(-9, 9, FEATURE_COUNT)}
    detector, fit = FITS[name]
    params, score = fit(x), DETECTORS[detector].score
    moved, expected = score({**params, **own}, x * own["scale"] + own["center"]), score(params, x)
    # The score of a forecast is the logarithm of a squared error: a rounding of it moves that by 2 roundings / error.
    rounding = 2.0 * np.finfo(np.float32).eps * np.exp(-np.minimum(expected, 0.0) / 2.0)
    assert (np.abs(moved - expected) <= 1e-5 + 1e-7 * np.abs(expected) + rounding).all()


@pytest.mark.soak
def test_logistic_regression_finds_what_scikit_learn_finds() -> None:
    rng = np.random.default_rng(8)
    y = rng.integers(0, 2, 300)
    x = rng.normal(size=(300, 4)) + 0.8 * y[:, None] * np.array([1.0, 0.5, 0.0, -1.0])
    ours = linear.fit(x, y, rng, decay=0.05, batch=300, epochs=2_000, learning_rate=0.5)
    theirs = LogisticRegression(C=1.0 / (300 * 0.05), tol=1e-10).fit(x, y)
    np.testing.assert_allclose(ours["weights"], theirs.coef_[0], atol=1e-5)
    assert float(ours["intercept"]) == pytest.approx(theirs.intercept_[0], abs=1e-5)
    quick = linear.fit(x, y, rng)
    cosine = quick["weights"] @ theirs.coef_[0] / np.linalg.norm(quick["weights"]) / np.linalg.norm(theirs.coef_[0])
    assert cosine > 0.99
    best = roc_auc_score(y, theirs.decision_function(x))
    assert roc_auc_score(y, linear.LINEAR.score(quick, x)) > best - 0.01


def test_the_random_map_approximates_the_kernel() -> None:
    z, gamma = noise(9, 30), 0.4
    expected = np.array([[rbf(a, b, gamma) for b in z] for a in z])
    errors = []
    for components in (200, 20_000):
        params = linear.initial(np.random.default_rng(1), 3, components, gamma)
        phi = linear.mapped(params, z)
        errors.append(float(np.sqrt(np.mean((phi @ phi.T - expected) ** 2))))
    assert errors[1] < 0.01
    assert 3.0 < errors[0] / errors[1] < 30.0  # falls with the root of the components: 10


@pytest.mark.soak
def test_the_one_class_loss_finds_the_one_class_svm() -> None:
    """With the map in place of the kernel, that is: as Algorithm 1 finds it, margin fixed and ν no share."""
    x, probes = noise(10, 200, 2), noise(11, 500, 2) * 2.0
    params = linear.fit(x, None, np.random.default_rng(2), loss="one-class", components=4_000, nu=0.2)
    exact = ocsvm.fit(x, nu=0.2, solver="sgd")
    assert spearmanr(linear.LINEAR.score(params, probes), ocsvm.OCSVM.score(exact, probes)).statistic > 0.98
    assert (linear.LINEAR.score(params, x) > 0.0).mean() == pytest.approx(0.2)


def test_without_a_map_width_one_over_the_features_is_taken() -> None:
    default, given_width = (linear.initial(np.random.default_rng(0), 4, 6, gamma) for gamma in (None, 0.25))
    assert all(np.array_equal(default[name], given_width[name]) for name in default)
    assert not random_features.held(linear.initial(np.random.default_rng(0), 4, 0, None))


@pytest.mark.parametrize(
    ("rows", "outside", "is_said"), [(200, 0, True), (200, 200, True), (200, 20, False), (30, 0, False)]
)
def test_a_border_that_tells_no_row_apart_says_so(rows: int, outside: int, is_said: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_share(np.arange(rows) < outside, 0.1)
    assert [warning.category for warning in caught] == [FitWarning] * is_said


def test_a_fit_whose_kernel_is_far_too_narrow_says_so() -> None:
    """Then each row is the middle of a sphere of its own, on whose border it lies."""
    with pytest.warns(FitWarning, match="none of the 200 rows.*expected about 10%"):
        svdd.fit(noise(5, 200) * 1e3, nu=0.1, gamma=1.0)
