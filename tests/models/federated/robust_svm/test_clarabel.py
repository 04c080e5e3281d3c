"""The solvers of the robust SVM against Clarabel, a conic interior point solver of others.

Method: the problems of the papers are written out as cone programs, from their definitions and for all three norms, and
random ones are solved by both. Clarabel measures its residuals against 1, so it is asked in units near 1, and ours in
units that are up to 2^20 times smaller or larger: the optimum is the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import clarabel
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedgate.models.arrays import Floats
from fedgate.models.federated.robust_svm.ball import Ball, Norm
from fedgate.models.federated.robust_svm.box import ACCEPTED, Box, worst_case
from fedgate.models.federated.robust_svm.interior_point import solve
from fedgate.models.federated.robust_svm.open_support import risk
from fedgate.models.federated.robust_svm.problem import Proximal

NORMS: tuple[Norm, ...] = ("1", "2", "inf")
STATED = 1e-8  # Clarabel's gap and residuals, relative to what they are of
SEEDS = st.integers(0, 2**32 - 1)
DEGENERATE = st.sampled_from(["", "one class", "one row", "constant", "repeated", "separable"])


class Optimum(NamedTuple):
    """What Clarabel found: the variables, their value, and how far it may be from the optimum."""

    x: Floats
    value: float
    accuracy: float


class Program:
    """minimise ½ x·diag(curvature) x + slope·x subject to rows x >= right or in a second-order cone."""

    def __init__(self, width: int) -> None:
        self.curvature, self.slope = np.zeros(width), np.zeros(width)
        self._rows: list[Floats] = []
        self._right: list[Floats] = []
        self._cones: list[Any] = []

    def add(self, rows: Floats, right: float) -> None:
        """Ask for rows x >= right."""
        self._append(rows, right, clarabel.NonnegativeConeT(len(rows)))

    def add_cone(self, rows: Floats) -> None:
        """Ask for the first of rows x to be at least the Euclidean length of the others."""
        self._append(rows, 0.0, clarabel.SecondOrderConeT(len(rows)))

    def _append(self, rows: Floats, right: float, cone: Any) -> None:
        self._rows.append(-rows)
        self._right.append(np.full(len(rows), -right))
        self._cones.append(cone)

    def solve(self) -> Optimum:
        quiet = clarabel.DefaultSettings()
        quiet.verbose = False
        A, b = sparse.csc_matrix(np.concatenate(self._rows)), np.concatenate(self._right)
        P = sparse.csc_matrix(np.diag(self.curvature))
        found = clarabel.DefaultSolver(P, self.slope, A, b, self._cones, quiet).solve()
        assert found.status == clarabel.SolverStatus.Solved, found.status
        x, s, z = (np.array(part) for part in (found.x, found.s, found.z))
        lengths = {name: float(np.abs(part).max()) for name, part in (("b", b), ("x", x), ("s", s))}
        primal = STATED * max(1.0, sum(lengths.values())) * float(np.abs(z).sum())
        dual = STATED * max(1.0, float(np.abs(self.slope).max())) * float(np.abs(x).sum())
        return Optimum(x, found.obj_val, STATED * max(1.0, abs(found.obj_val)) + primal + dual)


def best_weights(z: Floats, ball: Ball, proximal: Proximal) -> Optimum:
    """Solve the problem in `fedgate.models.federated.robust_svm.problem`; variables are w and their sizes (P,), λ and s
    (N,)."""
    n, p = z.shape
    eye = np.eye(2 * p + 1 + n)
    w, sizes, lam, s = eye[:p], eye[p : 2 * p], eye[2 * p], eye[2 * p + 1 :]
    program = Program(len(eye))
    program.curvature[:p] = proximal.rho + proximal.mu
    program.slope += ball.radius * lam + s.mean(axis=0) - proximal.rho * (proximal.center @ w)
    program.add(s + z @ w, 1.0)
    program.add(s, 0.0)
    if ball.kappa is not None:
        program.add(s - z @ w + ball.kappa * lam, 1.0)
    program.add(np.concatenate([sizes - w, sizes + w]), 0.0)
    if ball.norm == "1":
        program.add(lam - sizes, 0.0)
    elif ball.norm == "inf":
        program.add((lam - sizes.sum(axis=0))[None], 0.0)
    else:
        program.add_cone(np.concatenate([lam[None], w]))
    found = program.solve()
    return found._replace(x=found.x[:p], value=found.value + proximal.value(np.zeros(p)))


def worst_in_box(x: Floats, y: Floats, w: Floats, ball: Ball, box: Box) -> Optimum:
    """Solve Eq. 9: the masses that keep and that change their label, what they move, and how long those moves are.

    Masses are parts of 1 / N; a move is given times its mass, by its size in each feature.
    """
    n, p = x.shape
    eye = np.eye(2 * n * (2 + p))
    masses, lengths, moves = eye[: 2 * n], eye[2 * n : 4 * n], eye[4 * n :].reshape(2 * n, p, -1)
    toward = -np.outer(y, np.sign(w))  # what raises the loss of the label as it is
    ways = np.concatenate([toward, -toward])
    rooms = np.where(ways > 0.0, box.high - np.concatenate([x, x]), np.concatenate([x, x]) - box.low)
    program = Program(len(eye))
    losses = np.concatenate([1.0 - y * (x @ w), 1.0 + y * (x @ w)])
    program.slope -= (losses @ masses + (np.abs(w) @ moves).sum(axis=0)) / n
    kept, changed = masses[:n], masses[n:]
    program.add(np.concatenate([masses, moves.reshape(2 * n * p, -1)]), 0.0)
    program.add(-kept - changed, -1.0)
    program.add((rooms[:, :, None] * masses[:, None] - moves).reshape(2 * n * p, -1), 0.0)
    if ball.kappa is None:
        program.add(-changed, 0.0)
    cost = lengths.sum(axis=0) + (ball.kappa or 0.0) * changed.sum(axis=0)
    program.add(-cost[None] / n, -ball.radius)
    for length, move in zip(lengths, moves, strict=True):
        if ball.norm == "1":
            program.add((length - move.sum(axis=0))[None], 0.0)
        elif ball.norm == "inf":
            program.add(length - move, 0.0)
        else:
            program.add_cone(np.concatenate([length[None], move]))
    found = program.solve()
    return found._replace(value=-found.value)


def samples(rng: np.random.Generator, shape: tuple[int, int], degenerate: str) -> tuple[Floats, Floats]:
    """Return features (N, P) around 0 and labels of -1 and 1."""
    x, y = rng.normal(size=shape), rng.choice([-1.0, 1.0], size=shape[0])
    if degenerate == "one class":
        y[:] = 1.0
    elif degenerate == "one row":
        x[:] = x[0]
    elif degenerate == "constant":
        x[:, 0] = 0.0
    elif degenerate == "repeated":
        x[:, -1] = x[:, 0]
    elif degenerate == "separable":
        x[:, 0] = y * (1.0 + np.abs(x[:, 0]))
    return x, y


@st.composite
def balls(draw: st.DrawFn) -> Ball:
    radius, kappa = draw(st.floats(1e-3, 2.0)), draw(st.none() | st.floats(0.05, 20.0))
    return Ball(radius, kappa, draw(st.sampled_from(NORMS)))


def in_units(ball: Ball, unit: float) -> Ball:
    return ball._replace(radius=ball.radius * unit, kappa=None if ball.kappa is None else ball.kappa * unit)


@pytest.mark.soak
@settings(max_examples=100, deadline=None)
@given(
    seed=SEEDS,
    ball=balls(),
    shape=st.sampled_from([(1, 1), (1, 8), (2, 3), (14, 20), (40, 3)]),
    rho=st.sampled_from([0.0, 1e-3, 1.0, 50.0]),
    mu=st.sampled_from([0.0, 0.5]),
    unit=st.sampled_from([2.0**-20, 1.0, 2.0**20]),
    degenerate=DEGENERATE,
)
@example(868216133, Ball(0.0058, 0.228, "inf"), (2, 3), 50.0, 0.5, 2.0**-20, "one row")  # from a unit far from 1
@example(2610407256, Ball(0.00122, 0.0791, "2"), (1, 8), 0.0, 0.0, 2.0**-20, "one row")
def test_the_best_weights_are_clarabels(
    seed: int, ball: Ball, shape: tuple[int, int], rho: float, mu: float, unit: float, degenerate: str
) -> None:
    rng = np.random.default_rng(seed)
    x, y = samples(rng, shape, degenerate)
    z, center = x * y[:, None], rng.normal(size=shape[1])
    theirs, here = best_weights(z, ball, Proximal(center, rho, mu)), solve(z, ball, Proximal(center, rho, mu))
    ours = solve(z * unit, in_units(ball, unit), Proximal(center / unit, rho * unit**2, mu * unit**2))
    assert ours.value == pytest.approx(theirs.value, rel=0.0, abs=ours.gap + theirs.accuracy)
    at_theirs = risk(theirs.x, z, ball) + Proximal(center, rho, mu).value(theirs.x)
    assert ours.value - ours.gap <= at_theirs * (1.0 + 1e-12)
    assert ours.value == here.value and np.array_equal(ours.w * unit, here.w)


@pytest.mark.soak
@settings(max_examples=100, deadline=None)
@given(
    seed=SEEDS,
    ball=balls(),
    shape=st.sampled_from([(1, 1), (1, 4), (2, 3), (12, 3), (8, 6)]),
    size=st.sampled_from([0.0, 0.1, 1.0, 30.0]),
    unit=st.sampled_from([2.0**-20, 1.0, 2.0**20]),
    degenerate=DEGENERATE,
)
def test_the_worst_case_in_a_box_is_clarabels(
    seed: int, ball: Ball, shape: tuple[int, int], size: float, unit: float, degenerate: str
) -> None:
    rng = np.random.default_rng(seed)
    x, y = samples(rng, shape, degenerate)
    w, box = rng.normal(size=shape[1]) * size, Box(-1.0, 1.0)
    x = np.clip(x, box.low, box.high)  # many lie on a side
    theirs = worst_in_box(x, y, w, ball, box)
    ours = worst_case(x * unit, y, w / unit, in_units(ball, unit), Box(box.low * unit, box.high * unit))
    accuracy = ACCEPTED * (1.0 + ours.value) + theirs.accuracy
    assert ours.value == pytest.approx(theirs.value, rel=0.0, abs=accuracy)
    assert ours.bound - ours.value <= ACCEPTED * (1.0 + ours.value)
