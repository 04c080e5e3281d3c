"""The readout from sums against least squares on the rows themselves, and the error that it promises."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.checks import FitError
from fedgate.models.detectors.base.moments import symmetric
from fedgate.models.detectors.esn import ridge_readout
from fedgate.models.detectors.esn.ridge_readout import RankError

ROWS, SIZE, OUTPUTS = 90, 12, 3


def lesson(seed: int, rows: int = ROWS, size: int = SIZE, noise: float = 0.3) -> tuple[Array, Floats]:
    """Return states (rows, size) in float32 with a constant at their end, and targets (rows, OUTPUTS)."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows, size)).astype(np.float32)
    states[:, -1] = 1.0
    truth = np.random.default_rng(0).normal(size=(OUTPUTS, size))
    return states, states @ truth.T + noise * rng.normal(size=(rows, OUTPUTS))


def stacked(states: Array, targets: Array, beta: float) -> Floats:
    """Return W (c, M) of ridge regression as the least squares solution with √β I below the rows."""
    wide = np.vstack([states.astype(np.float64), np.sqrt(beta) * np.eye(states.shape[1])])
    goal = np.vstack([targets, np.zeros((states.shape[1], targets.shape[1]))])
    return np.asarray(np.linalg.lstsq(wide, goal, rcond=None)[0].T)


@pytest.mark.parametrize("rows", [1, 1023, 1024, 2500])
def test_sums_are_sums_over_the_rows(rows: int) -> None:
    states, targets = lesson(1, rows)
    wide, total = states.astype(np.float64), ridge_readout.sums(states, targets)
    np.testing.assert_allclose(symmetric(total["gram"], SIZE), wide.T @ wide, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(total["cross"], targets.T @ wide, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(total["squares"], (targets**2).sum(axis=0), rtol=1e-12)
    assert total["samples"] == rows
    assert {name: array.shape for name, array in total.items()} == {
        "gram": (SIZE * (SIZE + 1) // 2,),
        "cross": (OUTPUTS, SIZE),
        "squares": (OUTPUTS,),
        "samples": (),
    }
    assert all(array.dtype == np.float64 for array in total.values())


def test_no_rows_are_sums_of_zero() -> None:
    total = ridge_readout.sums(np.zeros((0, SIZE), np.float32), np.zeros((0, OUTPUTS)))
    assert all(not array.any() for array in total.values())


def test_a_weight_of_two_is_a_row_twice() -> None:
    states, targets = lesson(2)
    weights = np.arange(ROWS) % 3
    heavy = ridge_readout.sums(states, targets, weights)
    repeated = ridge_readout.sums(np.repeat(states, weights, axis=0), np.repeat(targets, weights, axis=0))
    for name, array in repeated.items():
        np.testing.assert_allclose(heavy[name], array, rtol=1e-11, atol=1e-9)


@given(cut=st.integers(0, ROWS), ridge=st.floats(1e-8, 10.0), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=40)
def test_the_readout_of_parts_is_ridge_regression_on_all_rows(cut: int, ridge: float, seed: int) -> None:
    states, targets = lesson(seed)
    parts = [ridge_readout.sums(states[rows], targets[rows]) for rows in (slice(cut), slice(cut, None))]
    found = ridge_readout.solve({name: parts[0][name] + parts[1][name] for name in parts[0]}, ridge)
    beta = ridge * float((states.astype(np.float64) ** 2).sum()) / SIZE
    assert found.beta == pytest.approx(beta, rel=1e-12)
    np.testing.assert_allclose(found.weights, stacked(states, targets, beta), rtol=0.0, atol=1e-10)


def test_a_relative_ridge_does_not_depend_on_how_long_the_recording_is() -> None:
    states, targets = lesson(4)
    once, often = (ridge_readout.sums(np.tile(states, (k, 1)), np.tile(targets, (k, 1))) for k in (1, 50))
    np.testing.assert_allclose(
        ridge_readout.solve(often, 0.1).weights, ridge_readout.solve(once, 0.1).weights, rtol=1e-10
    )


def test_the_condition_is_that_of_the_sums_and_the_ridge() -> None:
    states, targets = lesson(5)
    found = ridge_readout.solve(ridge_readout.sums(states, targets), 0.5)
    wide = states.astype(np.float64)
    exact = np.linalg.cond(wide.T @ wide + found.beta * np.eye(SIZE), 1)
    assert exact / 3.0 <= found.condition <= exact * (1.0 + 1e-9)  # LAPACK estimates it from below


def flat(rows: int) -> Arrays:
    """Return sums in which two states are the same, or of fewer rows than states."""
    states, targets = lesson(6, rows)
    states[:, 3] = states[:, 5]
    return ridge_readout.sums(states, targets)


@pytest.mark.parametrize("rows", [ROWS, 4, 1])
def test_states_that_leave_directions_undetermined_are_refused_with_a_ridge_that_would_do(rows: int) -> None:
    with pytest.raises(RankError, match=rf"{rows} rows of {SIZE} states .*expected a ridge of") as caught:
        ridge_readout.solve(flat(rows), 0.0)
    assert isinstance(caught.value, FitError)
    named = re.search(r"a ridge of ([0-9.e+-]+)", str(caught.value))
    assert named is not None
    found = ridge_readout.solve(flat(rows), float(named[1]))
    assert f"β = {found.beta:.3g}" in str(caught.value) and np.isfinite(found.weights).all()


def test_no_rows_at_all_are_refused() -> None:
    nothing = ridge_readout.sums(np.zeros((0, SIZE), np.float32), np.zeros((0, OUTPUTS)))
    with pytest.raises(RankError, match="0 rows of 12 states"):
        ridge_readout.solve(nothing, 0.1)


def test_float32_states_keep_the_digits_of_the_sums() -> None:
    """A nearly flat direction: in float32 the sums would lose it, in float64 the readout finds what it carries."""
    rng = np.random.default_rng(7)
    states = rng.normal(size=(4_000, 2)).astype(np.float32)
    states[:, 1] = states[:, 0] + np.float32(1e-3) * states[:, 1]
    truth = np.array([[500.0, -500.0]])
    found = ridge_readout.solve(ridge_readout.sums(states, states @ truth.T), 0.0)
    np.testing.assert_allclose(found.weights, truth, rtol=1e-6)


@pytest.mark.parametrize(("rows", "ridge"), [(30, 0.01), (60, 1e-6), (60, 0.3), (400, 0.0)])
def test_the_variance_is_the_error_on_new_rows(rows: int, ridge: float) -> None:
    promised, kept = [], []
    fresh, goal = lesson(999, 5_000)
    for seed in range(60):
        total = ridge_readout.sums(*lesson(seed, rows))
        found = ridge_readout.solve(total, ridge)
        promised.append(ridge_readout.variance(total, found))
        kept.append(np.mean((goal - fresh @ found.weights.T) ** 2, axis=0))
    np.testing.assert_allclose(np.mean(promised, axis=0), np.mean(kept, axis=0), rtol=0.15)


def test_the_variance_from_sums_is_that_from_rows() -> None:
    states, targets = lesson(8)
    total = ridge_readout.sums(states, targets)
    found = ridge_readout.solve(total, 0.2)
    wide = states.astype(np.float64)
    hat = wide @ np.linalg.solve(wide.T @ wide + found.beta * np.eye(SIZE), wide.T)
    residual = targets - wide @ found.weights.T
    expected = (residual**2).mean(axis=0) / (1.0 - np.trace(hat) / ROWS) ** 2
    np.testing.assert_allclose(ridge_readout.variance(total, found), expected, rtol=1e-9)


def test_a_target_that_never_moves_has_a_variance_still() -> None:
    states, _ = lesson(9)
    total = ridge_readout.sums(states, np.zeros((ROWS, OUTPUTS)))
    assert (ridge_readout.variance(total, ridge_readout.solve(total, 0.01)) > 0.0).all()
