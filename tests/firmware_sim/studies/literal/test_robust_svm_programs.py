"""What only studies run of the robust SVM: the paper's linear program on a box, and the baseline "Central"."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.firmware_sim.studies.literal.robust_svm_central import central
from fedgate.firmware_sim.studies.literal.worst_case_program import solve_worst_case
from fedgate.models.arrays import Floats
from fedgate.models.federated.robust_svm.ball import Ball, Norm
from fedgate.models.federated.robust_svm.box import Box, worst_case
from fedgate.models.federated.robust_svm.gateway import imported, with_bias
from fedgate.models.federated.robust_svm.open_support import risk
from tests.support.robust_twins import Part, mixture_optimum

UNIT = Box(0.0, 1.0)


def samples(seed: int, count: int = 12) -> tuple[Floats, Floats]:
    """Return features (N, 3) in [0, 1], the last one constant, and labels of -1 and 1 that they explain in part."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(size=(count, 2)), np.ones(count)])
    return x, np.where(x[:, 0] + 0.4 * rng.normal(size=count) > 0.5, 1.0, -1.0)


@pytest.mark.soak
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    radius=st.floats(1e-4, 2.0),
    kappa=st.none() | st.floats(0.05, 20.0),
    norm=st.sampled_from(["1", "inf"]),
    size=st.floats(0.1, 30.0),
)
def test_the_linear_program_finds_the_worst_case(
    seed: int, radius: float, kappa: float | None, norm: Norm, size: float
) -> None:
    (x, y), ball = samples(seed), Ball(radius, kappa, norm)
    w = np.random.default_rng(seed).normal(size=3) * size
    found = solve_worst_case(x, y, w, ball, UNIT)
    assert found == pytest.approx(worst_case(x, y, w, ball, UNIT).value, rel=1e-7, abs=1e-7)


@pytest.mark.soak
@pytest.mark.parametrize("norm", ["1", "inf"])
def test_the_direct_subgradient_is_the_slope_of_the_linear_program(norm: Norm) -> None:
    """At a point without ties the worst case is smooth."""
    for seed in range(5):
        (x, y), w, ball = samples(seed, 25), np.random.default_rng(seed).normal(size=3), Ball(0.01, 1.0, norm)
        steps = 1e-5 * np.eye(3)
        slopes = [
            (solve_worst_case(x, y, w + e, ball, UNIT) - solve_worst_case(x, y, w - e, ball, UNIT)) / 2e-5
            for e in steps
        ]
        np.testing.assert_allclose(worst_case(x, y, w, ball, UNIT).subgradient(w), slopes, atol=1e-5)


def test_what_the_linear_program_cannot_solve_teaches() -> None:
    x, y = samples(11)
    with pytest.raises(ValueError, match="norm '2' makes no linear program"):
        solve_worst_case(x, y, np.ones(3), Ball(0.1, 1.0, "2"), UNIT)
    with pytest.raises(ValueError, match=r"reach from .* box 0 to 0\.5; scale them"):
        solve_worst_case(x, y, np.ones(3), Ball(0.1, 1.0, "1"), Box(0.0, 0.5))
    with pytest.raises(ValueError, match=r"radius.*above 0"):
        solve_worst_case(x, y, np.ones(3), Ball(0.0, 1.0, "1"), UNIT)


def test_central_is_the_optimum() -> None:
    (x, y), ball = samples(5, 30), Ball(0.02, 0.7, "1")
    z = with_bias(x) * y[:, None]
    (w,) = imported(central(x, np.where(y > 0.0, 1, 0), radius=0.02, kappa=0.7))
    assert risk(w, z, ball) == pytest.approx(mixture_optimum([Part(z, ball)]).value, rel=1e-6)


def test_central_is_one_against_the_rest() -> None:
    rng = np.random.default_rng(9)
    x = np.concatenate([rng.normal(at, 1.0, (30, 2)) for at in ((0, 0), (6, 0), (0, 6))])
    labels = np.repeat([0, 1, 2], 30)
    both = central(x, labels, radius=0.01, kappa=1.0, classes=2)
    alone = central(x, (labels == 2).astype(int), radius=0.01, kappa=1.0)
    np.testing.assert_allclose(both["weights"][1], alone["weights"][0])
    assert both["weights"].shape == (2, 2) and both["intercept"].shape == (2,)
