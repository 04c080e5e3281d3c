"""The robust SVM on data in one place (Shafieezadeh-Abadeh et al. 2019, Corollary 3.12): the baseline "Central".

It is the gateway's problem with one gateway and nothing to agree with. Without a proximal term it is a linear program
for the norms 1 and inf, which HiGHS solves at a vertex however small the radius; the norm 2 has the interior point
method.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import LABELS, Array, Arrays, Floats
from fedgate.models.detectors.base.fault_classes import MultiClass, machines, signs
from fedgate.models.federated.robust_svm.ball import Ball, SolverError
from fedgate.models.federated.robust_svm.gateway import exported, labels_of, with_bias
from fedgate.models.federated.robust_svm.interior_point import solve
from fedgate.models.federated.robust_svm.problem import Proximal


def central(x: Array, y: Array, ball: Ball, *, classes: int = 1, multiclass: MultiClass = "one-vs-all") -> Arrays:
    """Fit on features (n, F) and labels (n,) of 0 (normal) to K; return parameters of detector `linear-svm`.

    Raises:
        ValueError: labels out of range, or a ball that hedges against nothing.
        SolverError: the optimum was not reached.
    """
    features, ball = with_bias(x), ball.checked()
    sides = machines(classes, multiclass)
    best = _by_interior_point if ball.norm == "2" else _by_program
    every = signs(labels_of({LABELS: y}, classes), sides)  # (M, n)
    fitted = [best(features[sign != 0.0] * sign[sign != 0.0, None], ball) for sign in every]
    return exported(np.array(fitted), sides)


def _by_interior_point(z: Array, ball: Ball) -> Floats:
    return solve(z, ball, Proximal(np.zeros(z.shape[1]))).w


def _by_program(z: Array, ball: Ball) -> Floats:
    """Return the best weights (P,) on rows z = y x (N, P): variables are w, λ, the sizes |w_j| and the losses s."""
    from scipy import sparse
    from scipy.optimize import linprog

    n, p = z.shape
    eye, one, none = sparse.identity(p), np.ones((p, 1)), np.zeros((n, p))
    hinge = [sparse.hstack([-z, np.zeros((n, 1)), none, -sparse.identity(n)])]
    if ball.kappa is not None:
        hinge.append(sparse.hstack([z, np.full((n, 1), -ball.kappa), none, -sparse.identity(n)]))
    nothing = sparse.csr_matrix((p, n))
    sizes = [sparse.hstack([sign * eye, np.zeros((p, 1)), -eye, nothing]) for sign in (1.0, -1.0)]
    if ball.norm == "1":  # the largest size is within λ
        within = sparse.hstack([sparse.csr_matrix((p, p)), -one, eye, nothing])
    else:
        within = sparse.csr_matrix(np.concatenate([np.zeros(p), [-1.0], np.ones(p), np.zeros(n)])[None])
    rows = sparse.vstack([*hinge, *sizes, within]).tocsr()
    limits = np.concatenate([np.full(n * len(hinge), -1.0), np.zeros(rows.shape[0] - n * len(hinge))])
    objective = np.concatenate([np.zeros(p), [ball.radius], np.zeros(p), np.full(n, 1.0 / n)])
    bounds = [(None, None)] * p + [(0.0, None)] * (1 + p + n)
    found = linprog(objective, A_ub=rows, b_ub=limits, bounds=bounds, method="highs")
    if found.status != 0:
        raise SolverError(f"HiGHS on the central problem: {found.message}")
    return np.asarray(found.x[:p])
