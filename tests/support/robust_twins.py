"""The robust SVM once more, slowly and by programs that are written out: what the solvers are held against."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from fedgate.models.arrays import Array, Floats
from fedgate.models.federated.robust_svm.ball import ORDERS, Ball
from fedgate.models.federated.robust_svm.box import Box

CUTS_MAX, LONGER = 400, 1e-5  # cuts end where w is longer than λ by no more than this share


class Part(NamedTuple):
    """One gateway's share of the mixture: rows z = y x (N, P), its ball and its weight."""

    z: Floats
    ball: Ball
    weight: float = 1.0


class Optimum(NamedTuple):
    w: Floats  # (P,)
    value: float


def mixture_optimum(parts: Sequence[Part]) -> Optimum:
    """Minimise Σ ω_k (ε_k λ_k + mean s) over one w at once, with HiGHS; the Euclidean norm by cuts d·w <= λ."""
    cuts = [np.zeros(parts[0].z.shape[1])]
    for _ in range(CUTS_MAX):
        optimum, longest = _program(parts, cuts)
        if parts[0].ball.norm != "2" or np.linalg.norm(optimum.w) <= longest * (1.0 + LONGER):
            return optimum
        cuts.append(optimum.w / np.linalg.norm(optimum.w))
    raise AssertionError("the cuts did not end")


def _program(parts: Sequence[Part], cuts: Sequence[Array]) -> tuple[Optimum, float]:
    """Variables: w (P), t (P) with t >= |w|, λ per part, and all s."""
    p, kinds = parts[0].z.shape[1], len(parts)
    total, rows, limits = sum(part.weight for part in parts), [], []
    width = 2 * p + kinds + sum(len(part.z) for part in parts)
    objective = np.zeros(width)

    def add(limit: float, *entries: tuple[int, float]) -> None:
        row = np.zeros(width)
        for at, value in entries:
            row[at] += value
        rows.append(row)
        limits.append(limit)

    for j in range(p):
        add(0.0, (j, 1.0), (p + j, -1.0))
        add(0.0, (j, -1.0), (p + j, -1.0))
    s = 2 * p + kinds
    for k, part in enumerate(parts):
        at, share = 2 * p + k, part.weight / total
        objective[at] = share * part.ball.radius
        if part.ball.norm == "1":
            for j in range(p):
                add(0.0, (p + j, 1.0), (at, -1.0))
        elif part.ball.norm == "inf":
            add(0.0, *((p + j, 1.0) for j in range(p)), (at, -1.0))
        else:
            for cut in cuts:
                add(0.0, *enumerate(cut), (at, -1.0))
        for z in part.z:
            objective[s] = share / len(part.z)
            add(-1.0, *enumerate(-z), (s, -1.0))
            if part.ball.kappa is not None:
                add(-1.0, *enumerate(z), (at, -part.ball.kappa), (s, -1.0))
            s += 1
    bounds = [(None, None)] * p + [(0.0, None)] * (width - p)
    found = linprog(objective, A_ub=np.array(rows), b_ub=limits, bounds=bounds, method="highs")
    assert found.status == 0, found.message
    return Optimum(found.x[:p], float(found.fun)), float(found.x[2 * p : 2 * p + kinds].min())


def brute_force_worst_case(x: Array, y: Array, w: Array, ball: Ball, box: Box, grid: int) -> float:
    """Move mass between all samples and all candidate points, both labels, by the transport program itself.

    Candidates are a grid over the box and, for each sample, its coordinates moved by any of its distances to the sides:
    for the norms 1 and inf the best point is among those.
    """
    steps = np.linspace(box.low, box.high, grid)
    everywhere = np.array(list(itertools.product(steps, repeat=x.shape[1])))
    losses, costs, owners = [], [], []
    for i, (sample, label) in enumerate(zip(x, y, strict=True)):
        ways = np.unique(np.concatenate([sample - box.low, box.high - sample, [0.0]]))
        axes = [np.unique(np.clip([*(v - ways), *(v + ways)], box.low, box.high)) for v in sample]
        points = np.concatenate([everywhere, np.array(list(itertools.product(*axes)))])
        for other in (label, -label):
            if other != label and ball.kappa is None:
                continue
            losses.append(np.maximum(0.0, 1.0 - other * points @ w))
            way = np.linalg.norm(points - sample, ORDERS[ball.norm], axis=1)
            costs.append(way + (ball.kappa or 0.0) * (other != label))
            owners.append(np.full(len(points), i))
    owner = np.concatenate(owners)
    shares = (owner == np.arange(len(x))[:, None]).astype(float)
    found = linprog(
        -np.concatenate(losses),
        A_ub=np.concatenate(costs)[None, :],
        b_ub=[ball.radius],
        A_eq=shares,
        b_eq=np.full(len(x), 1.0 / len(x)),
        method="highs",
    )
    assert found.status == 0, found.message
    return float(-found.fun)
