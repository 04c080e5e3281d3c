"""Algorithm 1 against a quadratic programme solved by other means, against libsvm, and by the letter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.svm import OneClassSVM

from fedgate.models.arrays import Floats
from fedgate.models.detectors.base.checks import ConvergenceError, SettingError
from fedgate.models.detectors.base.dual_ascent import EFFECTIVE_NU, ascend, ascend_in_map, objective
from fedgate.models.detectors.svm import kernel
from fedgate.models.detectors.svm.ocsvm import OCSVM


def noise(seed: int, rows: int = 40, features: int = 3) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, features))


def gram_of(x: Floats, gamma: float = 0.5) -> Floats:
    return np.asarray(np.exp(-gamma * kernel.squared_distances(x, x)))


def programme(gram: Floats, cap: float) -> Floats:
    """Solve Eq. 4 without Σα = 1 by a solver that knows nothing of coordinates."""
    found = minimize(
        lambda alpha: alpha @ gram @ alpha / 2.0 - alpha.sum(),
        np.full(len(gram), cap / 2.0),
        jac=lambda alpha: gram @ alpha - 1.0,
        bounds=[(0.0, cap)] * len(gram),
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 1_000},
    )
    assert found.success
    return np.asarray(found.x)


@pytest.mark.parametrize("nu", [0.05, 0.2, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_it_solves_the_quadratic_programme(nu: float, seed: int) -> None:
    gram = gram_of(noise(seed, 14))
    expected = programme(gram, 1.0 / (nu * 14))
    found = ascend(gram, nu, tolerance=1e-10)
    np.testing.assert_allclose(gram @ found.multipliers, gram @ expected, atol=1e-6)
    assert found.effective_nu == pytest.approx(nu * expected.sum(), abs=1e-6)


def by_the_letter(gram: Floats, nu: float, eta: float, epsilon: float) -> list[float]:
    """Algorithm 1 line by line."""
    n = len(gram)
    alpha = [0.0] * n
    while True:
        before = list(alpha)
        for k in range(n):
            alpha[k] += eta * (1.0 - sum(alpha[i] * gram[i, k] for i in range(n)))
            if alpha[k] <= 0.0:
                alpha[k] = 0.0
            if alpha[k] >= 1.0 / (nu * n):
                alpha[k] = 1.0 / (nu * n)
        if sum((a - b) ** 2 for a, b in zip(alpha, before, strict=True)) ** 0.5 <= epsilon:
            return alpha


@pytest.mark.parametrize("eta", [0.3, 1.0, 1.7])
def test_it_is_the_algorithm_by_the_letter(eta: float) -> None:
    gram = gram_of(noise(4, 12))
    found = ascend(gram, 0.2, step=eta, tolerance=1e-5)
    np.testing.assert_allclose(found.multipliers, by_the_letter(gram, 0.2, eta, 1e-5), atol=1e-12)


@pytest.mark.parametrize(("nu", "gamma"), [(0.05, 0.2), (0.1, 1.0), (0.3, 0.5)])
def test_it_is_the_one_class_svm_of_its_effective_share(nu: float, gamma: float) -> None:
    """α / Σα is what libsvm finds with Σα = 1 and ν' for ν, and 1 / Σα is its ρ."""
    x, probes = noise(5, 100), noise(6, 200) * 2.0
    found = ascend(gram_of(x, gamma), nu)
    assert nu <= found.effective_nu < 1.0
    theirs = OneClassSVM(kernel="rbf", gamma=gamma, nu=found.effective_nu, tol=1e-8).fit(x)
    total = found.multipliers.sum()
    ours = np.exp(-gamma * kernel.squared_distances(probes, x)) @ found.multipliers
    scale = found.effective_nu * len(x)
    np.testing.assert_allclose(ours / total, theirs.score_samples(probes) / scale, atol=1e-5)
    assert 1.0 / total == pytest.approx(theirs.offset_[0] / scale, abs=1e-4)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")  # which is what it says
def test_nu_is_not_the_share_outside_and_what_acts_is_told() -> None:
    """In many dimensions a small ν acts as a large one, and a moderate ν as all rows being at the cap."""
    x = noise(0, 1_000, 300)
    acting = {nu: float(OCSVM.fit(x, nu=nu, gamma=1 / 300, solver="sgd")[EFFECTIVE_NU]) for nu in (0.05, 0.2)}
    assert acting == {0.05: pytest.approx(0.402, abs=5e-4), 0.2: pytest.approx(1.0)}


@pytest.mark.parametrize("step", [0.0, -0.1, 2.0, 5.0, float("nan")])
def test_a_step_that_would_overshoot_is_refused(step: float) -> None:
    with pytest.raises(SettingError, match=r"step .* given, expected above 0 and below 2 / max K_kk = 2"):
        ascend(gram_of(noise(7)), 0.1, step=step)


def test_a_step_just_below_the_limit_arrives() -> None:
    gram = gram_of(noise(8))
    slow, quick = ascend(gram, 0.1, step=1.95, tolerance=1e-9), ascend(gram, 0.1, tolerance=1e-9)
    np.testing.assert_allclose(gram @ slow.multipliers, gram @ quick.multipliers, atol=1e-6)
    assert slow.sweeps > quick.sweeps


def test_what_did_not_arrive_is_no_result() -> None:
    with pytest.raises(ConvergenceError, match=r"after 3 sweeps .* expected at most 1e-06: take a narrower kernel"):
        ascend(gram_of(noise(9), 1e-3), 0.01, most_sweeps=3)


def test_rows_at_the_origin_end_at_the_cap() -> None:
    gram = np.zeros((4, 4))
    assert ascend(gram, 0.5).multipliers.tolist() == [0.5] * 4
    alpha, change = ascend_in_map(np.zeros((4, 2)), np.zeros(2), np.zeros(4), cap=0.5, sweeps=1)
    assert (alpha.tolist(), change.tolist()) == ([0.5] * 4, [0.0, 0.0])


@pytest.mark.soak
@pytest.mark.parametrize("nu", [0.1, 0.5])
def test_in_a_map_it_is_the_same(nu: float) -> None:
    phi = noise(10, 30, 8) / 3.0
    expected = ascend(phi @ phi.T, nu, tolerance=1e-11).multipliers @ phi
    _, found = ascend_in_map(phi, np.zeros(8), np.zeros(30), cap=1.0 / (nu * 30), sweeps=3_000)
    np.testing.assert_allclose(found, expected, atol=1e-7)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), mu=st.floats(0.0, 10.0), nu=st.floats(0.05, 1.0))
def test_in_a_map_each_sweep_raises_what_it_says(seed: int, mu: float, nu: float) -> None:
    """Σα - w_t·ΔW - (1 + µ)/2 |ΔW|² never falls, and ΔW is that of the multipliers."""
    rng = np.random.default_rng(seed)
    phi, anchor = rng.normal(size=(12, 5)), rng.normal(size=5)
    cap = 1.0 / (nu * 12)
    before = rng.uniform(0.0, cap, 12)
    settings: dict[str, Any] = {"cap": cap, "proximity": mu}
    reached = [float(before.sum())]
    for sweeps in range(1, 6):
        alpha, change = ascend_in_map(phi, anchor, before, sweeps=sweeps, **settings)
        np.testing.assert_allclose(change, (alpha - before) @ phi, atol=1e-10)
        assert alpha.min() >= 0.0 and alpha.max() <= cap
        reached.append(float(alpha.sum() - anchor @ change - (1.0 + mu) / 2.0 * change @ change))
    assert np.diff(reached).min() > -1e-10


def test_the_objective_meets_the_dual_at_the_end() -> None:
    """Strong duality: the loss of the handshake is the dual value where the gateway is done."""
    gram = gram_of(noise(11))
    alpha = ascend(gram, 0.2, tolerance=1e-10).multipliers
    products = gram @ alpha
    primal = objective(float(alpha @ products), products, 0.2)
    assert primal == pytest.approx(float(alpha.sum() - alpha @ products / 2.0), rel=1e-8)
