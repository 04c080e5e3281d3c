"""The solvers behind the robust SVM against programs written out, and against the definition of an optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fedgate.models.arrays import Floats
from fedgate.models.federated.robust_svm import box as box_module
from fedgate.models.federated.robust_svm import interior_point
from fedgate.models.federated.robust_svm.ball import ORDERS, Ball, Norm, SolverError
from fedgate.models.federated.robust_svm.box import Box, worst_case
from fedgate.models.federated.robust_svm.cones import SecondOrder
from fedgate.models.federated.robust_svm.interior_point import solve
from fedgate.models.federated.robust_svm.open_support import risk, subgradient
from fedgate.models.federated.robust_svm.problem import Proximal, lower_bound, rows_of
from tests.support.robust_twins import Part, brute_force_worst_case, mixture_optimum
from tests.support.soak import crossed

NORMS: tuple[Norm, ...] = ("1", "2", "inf")
UNIT = Box(0.0, 1.0)
SEEDS = st.integers(0, 2**32 - 1)


def samples(seed: int, count: int = 12, features: int = 3) -> tuple[Floats, Floats]:
    """Return features in [0, 1] with a constant behind them, and labels of -1 and 1 that they explain in part."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.uniform(size=(count, features - 1)), np.ones(count)])
    return x, np.where(x[:, 0] + 0.4 * rng.normal(size=count) > 0.5, 1.0, -1.0)


def rows(seed: int, count: int = 12, features: int = 3) -> Floats:
    x, y = samples(seed, count, features)
    return x * y[:, None]


def hinge(w: Floats, z: Floats) -> float:
    return float(np.maximum(0.0, 1.0 - z @ w).mean())


def optimal(z: Floats, ball: Ball) -> Floats:
    return solve(z, ball, Proximal(np.zeros(z.shape[1]))).w


@st.composite
def balls(draw: st.DrawFn, least: float = 1e-4) -> Ball:
    kappa = draw(st.none() | st.floats(0.05, 20.0))
    return Ball(draw(st.floats(least, 2.0)), kappa, draw(st.sampled_from(NORMS)))


@pytest.mark.soak
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("kappa", "radius"), crossed([None, 0.3, 3.0], [0.01, 0.1, 0.6]))
def test_the_worst_case_against_brute_force_on_four_points(norm: Norm, kappa: float | None, radius: float) -> None:
    x = np.array([[0.2, 0.9], [0.5, 0.1], [1.0, 0.4], [0.0, 0.75]])
    y, ball = np.array([1.0, -1.0, 1.0, -1.0]), Ball(radius, kappa, norm)
    for w in (np.array([2.0, -1.0]), np.array([-0.3, 0.3]), np.array([0.0, 4.0])):
        found = worst_case(x, y, w, ball, UNIT)
        expected = brute_force_worst_case(x, y, w, ball, UNIT, grid=61 if norm == "2" else 2)
        assert found.value >= expected - 1e-9
        assert found.value <= expected + (2e-3 if norm == "2" else 1e-9)
        assert found.bound <= found.value + 1e-8


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, ball=balls(), size=st.floats(0.1, 30.0), tenths=st.booleans())
def test_the_worst_case_is_a_distribution_with_that_loss(seed: int, ball: Ball, size: float, tenths: bool) -> None:
    x, y = samples(seed)
    x = np.round(x, 1) if tenths else x  # ties
    w = np.random.default_rng(seed).normal(size=3) * size
    direct = worst_case(x, y, w, ball, UNIT)
    assert direct.bound - direct.value <= 1e-8 * (1.0 + direct.value)
    assert direct.masses.sum() == pytest.approx(1.0)
    assert direct.points.min() >= -1e-9 and direct.points.max() <= 1.0 + 1e-9
    suffered = direct.masses @ np.maximum(0.0, 1.0 - direct.labels * (direct.points @ w))
    assert suffered == pytest.approx(direct.value, rel=1e-6, abs=1e-6)


@pytest.mark.soak
@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, ball=balls())
def test_a_wide_box_is_no_box(seed: int, ball: Ball) -> None:
    x, y = samples(seed)
    w = np.random.default_rng(seed).normal(size=3)
    wide = worst_case(x, y, w, ball, Box(-1e6, 1e6))
    assert wide.value == pytest.approx(risk(w, x * y[:, None], ball), rel=1e-5)
    assert worst_case(x, y, w, ball, UNIT).value <= wide.value + 1e-9


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, ball=balls())
def test_subgradients_lie_below_the_risk(seed: int, ball: Ball) -> None:
    x, y = samples(seed)
    rng = np.random.default_rng(seed)
    w, z = rng.normal(size=3), x * y[:, None]
    here, boxed = risk(w, z, ball), worst_case(x, y, w, ball, UNIT)
    for other in (w + rng.normal(size=3) * 0.1, rng.normal(size=3) * 10.0, np.zeros(3), optimal(z, ball)):
        assert risk(other, z, ball) >= here + subgradient(w, z, ball) @ (other - w) - 1e-9
        there = worst_case(x, y, other, ball, UNIT).value
        assert there >= boxed.value + boxed.subgradient(w) @ (other - w) - 1e-7


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, ball=balls())
def test_the_risk_is_the_smallest_over_lambda(seed: int, ball: Ball) -> None:
    z = rows(seed)
    w = np.random.default_rng(seed).normal(size=3) * 2.0
    least = np.linalg.norm(w, {"1": np.inf, "2": 2, "inf": 1}[ball.norm])
    ends = [least] if ball.kappa is None else [least, *((1.0 + z @ w) / ball.kappa), *(2.0 * (z @ w) / ball.kappa)]
    values = [
        ball.radius * end
        + np.maximum(
            np.maximum(0.0, 1.0 - z @ w), -np.inf if ball.kappa is None else 1.0 + z @ w - ball.kappa * end
        ).mean()
        for end in ends
        if end >= least
    ]
    assert risk(w, z, ball) == pytest.approx(min(values), rel=1e-12)
    assert risk(w, z, ball) >= hinge(w, z)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kappa", [None, 0.5, 5.0])
@pytest.mark.parametrize("radius", [1e-3, 0.05])
def test_the_optimum_is_that_of_the_program_written_out(norm: Norm, kappa: float | None, radius: float) -> None:
    z, ball = rows(3, 20), Ball(radius, kappa, norm)
    solution = solve(z, ball, Proximal(np.zeros(3)))
    assert solution.value == pytest.approx(mixture_optimum([Part(z, ball)]).value, rel=1e-6)
    assert solution.gap <= 1e-7


@pytest.mark.soak
@settings(max_examples=80, deadline=None)
@given(
    seed=SEEDS,
    ball=balls(),
    rho=st.floats(1e-3, 10.0),
    mu=st.sampled_from([0.0, 0.5]),
    size=st.sampled_from([(1, 2), (5, 8), (40, 3)]),
)
def test_the_proximal_solution_satisfies_the_definition(
    seed: int, ball: Ball, rho: float, mu: float, size: tuple[int, int]
) -> None:
    """w is best when -ρ (w - v) - µ w is a subgradient of the risk there: no other point lies below that plane."""
    z, rng = rows(seed, *size), np.random.default_rng(seed)
    center = rng.normal(size=size[1]) * 3.0
    w = solve(z, ball, Proximal(center, rho, mu)).w
    slope, here = -rho * (w - center) - mu * w, risk(w, z, ball)
    for other in (np.zeros(size[1]), center, *(w + rng.normal(size=(20, size[1])) * 10.0 ** rng.uniform(-2, 1))):
        slack = 1e-5 * (1.0 + np.abs(other - w).sum()) * (1.0 + rho)
        assert risk(other, z, ball) >= here + slope @ (other - w) - slack


@pytest.mark.soak
@settings(max_examples=80, deadline=None)
@given(seed=SEEDS, ball=balls(), rho=st.sampled_from([0.0, 0.01, 3.0]))
def test_the_lower_bound_holds_for_any_multipliers(seed: int, ball: Ball, rho: float) -> None:
    z, rng = rows(seed), np.random.default_rng(seed)
    shape, proximal = rows_of(z, ball), Proximal(rng.normal(size=3), rho)
    hinges = rng.normal(size=(len(shape.signs), len(z))) * 10.0 ** rng.uniform(-3, 0)
    bound = lower_bound(shape, ball, proximal, hinges, rng.normal(size=len(shape.norm)))
    best = solve(z, ball, proximal).w
    assert bound <= risk(best, z, ball) + proximal.value(best) + 1e-9


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    ball=balls(),
    count=st.sampled_from([1, 2, 14, 60]),
    features=st.sampled_from([1, 2, 20, 61]),
    scale=st.sampled_from([0.05, 1.0, 20.0]),
    rho=st.sampled_from([0.0, 1e-3, 1.0, 50.0]),
    strange=st.sampled_from(["", "one class", "one row", "constant"]),
)
def test_it_is_solved_whatever_the_data(
    seed: int, ball: Ball, count: int, features: int, scale: float, rho: float, strange: str
) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, features)) * scale, np.sign(rng.normal(size=count))
    y = np.ones(count) if strange == "one class" else y
    x = np.repeat(x[:1], count, axis=0) if strange == "one row" else x
    x[:, 0] = 0.0 if strange == "constant" else x[:, 0]
    solution = solve(x * y[:, None], ball, Proximal(rng.normal(size=features) * 5.0, rho))
    assert np.isfinite(solution.w).all()


@pytest.mark.parametrize("norm", NORMS)
def test_dear_labels_are_certain_labels(norm: Norm) -> None:
    """κ to infinity leaves an SVM regularised by the dual norm."""
    z = rows(5, 30)
    dear, certain = optimal(z, Ball(0.02, 1e6, norm)), optimal(z, Ball(0.02, None, norm))
    np.testing.assert_allclose(dear, certain, atol=1e-5)
    order = {"1": np.inf, "2": 2, "inf": 1}[norm]
    assert risk(certain, z, Ball(0.02, None, norm)) == pytest.approx(
        hinge(certain, z) + 0.02 * np.linalg.norm(certain, order)
    )


def test_a_radius_that_vanishes_leaves_the_plain_hinge_loss() -> None:
    x, y = samples(6, 40)
    y[:10] *= -1.0  # not separable
    z = x * y[:, None]
    tiny = Ball(1e-7, None, "1")
    assert hinge(optimal(z, tiny), z) == pytest.approx(mixture_optimum([Part(z, tiny)]).value, abs=1e-5)


def test_wrong_labels_are_hedged_against() -> None:
    """Where a changed label is cheap, the risk is what hinge loss would be with some labels changed."""
    z = rows(7, 10)
    w = optimal(z, Ball(0.01, 0.1, "1"))
    changed = z.copy()
    changed[int((z @ w).argmax())] *= -1.0
    assert risk(w, z, Ball(0.01, 0.1, "1")) >= hinge(w, changed) - 1e-9  # one of ten labels costs 0.1 / 10
    assert np.abs(w).max() < np.abs(optimal(z, Ball(0.01, None, "1"))).max()


@pytest.mark.parametrize("norm", NORMS)
def test_a_move_is_as_long_as_its_norm_says(norm: Norm) -> None:
    """With certain labels and room for all, the worst case is the hinge loss plus ε |w|_*."""
    x, y, w = np.array([[0.5, 0.5]]), np.array([1.0]), np.array([0.6, -0.8])
    found = worst_case(x, y, w, Ball(0.1, None, norm), UNIT)
    dual = {"1": 0.8, "2": 1.0, "inf": 1.4}[norm]
    assert found.value == pytest.approx(1.0 - float(x[0] @ w) + 0.1 * dual)
    ways = np.linalg.norm(found.points - x, ORDERS[norm], axis=1)
    assert found.masses @ ways == pytest.approx(0.1)


def test_the_second_order_cone_keeps_its_laws() -> None:
    cone, rng = SecondOrder(), np.random.default_rng(8)
    s, y = (np.concatenate([[4.0 + rng.random()], rng.normal(size=4)]) for _ in range(2))
    W, inverse = cone.scaling(s, y)
    np.testing.assert_allclose(W @ inverse, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(W @ y, inverse @ s)
    np.testing.assert_allclose(cone.product(s, cone.inverse(s)), cone.unit((5,)), atol=1e-12)
    u = rng.normal(size=5)
    np.testing.assert_allclose(cone.product(s, cone.quotient(u, s)), u)
    for step in (*(rng.normal(size=(20, 5)) * 9.0), np.array([-1.0, 0, 0, 0, 0])):
        room = cone.room(s, step)
        border = s + min(room, 1e9) * step
        across = np.linalg.norm(border[1:])
        assert across == pytest.approx(border[0]) if np.isfinite(room) else across < border[0]


@pytest.mark.parametrize(
    ("ball", "reason"),
    [
        (Ball(0.0, 1.0, "1"), "radius.*above 0.*linear-svm"),
        (Ball(-1.0, 1.0, "1"), "radius.*above 0"),
        (Ball(float("nan"), 1.0, "1"), "radius.*above 0"),
        (Ball(0.1, 0.0, "1"), "kappa.*above 0"),
    ],
)
def test_a_ball_without_extent_teaches(ball: Ball, reason: str) -> None:
    x, y = samples(10)
    for attempt in (
        lambda: solve(x * y[:, None], ball, Proximal(np.zeros(3))),
        lambda: worst_case(x, y, np.ones(3), ball, UNIT),
    ):
        with pytest.raises(ValueError, match=reason):
            attempt()


def bounded_risk(x: Floats, y: Floats, w: Floats, ball: Ball, box: Box) -> float:
    """Return the objective of Shafieezadeh-Abadeh et al. 2019, Corollary 3.12, at w, with support C x <= d and norm 1
    (dual inf), as a program over λ, s and multipliers p, q >= 0 of the support:

        ε λ + Σ s / N,   s >= 1 - y w·x + p·(d - C x),   |Cᵀp + y w|_* <= λ
                         s >= 1 + y w·x + q·(d - C x) - κ λ,   |Cᵀq - y w|_* <= λ
    """
    (n, count), z = x.shape, y[:, None] * w
    C = np.concatenate([np.eye(count), -np.eye(count)])
    room = np.concatenate([np.full(count, box.high), np.full(count, -box.low)]) - x @ C.T  # (n, 2P)
    size = 1 + n + 2 * n * 2 * count
    limits: list[Floats] = []
    least: list[float] = []
    for i in range(n):
        for place, sign, cost in ((i, 1.0, 0.0), (n + i, -1.0, ball.kappa or 0.0)):
            at = slice(1 + n + place * 2 * count, 1 + n + (place + 1) * 2 * count)
            loss = np.zeros(size)
            loss[1 + i], loss[0], loss[at] = -1.0, -cost, room[i]
            limits.append(loss)
            least.append(-1.0 + sign * float(z[i] @ x[i]))
            for turned in (1.0, -1.0):
                for axis in range(count):
                    norm = np.zeros(size)
                    norm[0], norm[at] = -1.0, turned * C[:, axis]
                    limits.append(norm)
                    least.append(-turned * sign * float(z[i, axis]))
    objective = np.concatenate([[ball.radius], np.full(n, 1.0 / n), np.zeros(size - 1 - n)])
    return float(linprog(objective, A_ub=np.array(limits), b_ub=np.array(least), method="highs").fun)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, radius=st.floats(1e-3, 1.0), kappa=st.floats(0.05, 5.0))
def test_the_worst_case_on_a_box_is_the_bounded_support_of_remark_4(seed: int, radius: float, kappa: float) -> None:
    x, y = samples(seed, 6)
    w = np.random.default_rng(seed).normal(0.0, 2.0, 3)
    ball = Ball(radius, kappa, "1")
    assert worst_case(x, y, w, ball, UNIT).value == pytest.approx(bounded_risk(x, y, w, ball, UNIT), abs=1e-7)


def test_features_outside_the_box_teach() -> None:
    x, y = samples(11)
    with pytest.raises(ValueError, match=r"reach from .* box 0 to 0\.5; scale them"):
        worst_case(x, y, np.ones(3), Ball(0.1, 1.0, "1"), Box(0.0, 0.5))
    with pytest.raises(ValueError, match="low end below a high end"):
        worst_case(x, y, np.ones(3), Ball(0.1, 1.0, "1"), Box(1.0, 1.0))


def test_what_does_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = samples(12)
    monkeypatch.setattr(interior_point, "STEPS_MAX", 2)
    with pytest.raises(SolverError, match=r"interior point method: gap .* at best, expected at most"):
        solve(x * y[:, None], Ball(0.1, 1.0, "2"), Proximal(np.zeros(3)))
    monkeypatch.setattr(box_module, "EVALUATIONS_MAX", 1)
    with pytest.raises(SolverError, match="worst case on the box: gap"):
        worst_case(x, y, np.array([1.0, 2.0, -3.0]), Ball(0.1, 1.0, "2"), UNIT)
