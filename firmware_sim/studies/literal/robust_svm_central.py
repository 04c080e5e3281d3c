"""The robust SVM on data in one place (Shafieezadeh-Abadeh et al. 2019, Corollary 3.12): the baseline "Central".

It is the gateway's problem with one gateway and nothing to agree with. Without a proximal term it is a linear program
for the norm 1, which HiGHS solves at a vertex however small the radius.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import LABELS, Array, Arrays, Floats
from fedgate.models.detectors.base.fault_classes import MultiClass, machines, signs
from fedgate.models.federated.robust_svm.ball import SolverError
from fedgate.models.federated.robust_svm.gateway import exported, labels_of, with_bias


def central(
    x: Array, y: Array, *, radius: float, kappa: float, classes: int = 1, multiclass: MultiClass = "one-vs-all"
) -> Arrays:
    """Fit on features (n, F) and labels (n,) of 0 (normal) to K; return parameters of detector `linear-svm`.

    `radius` and `kappa`, the cost of a changed label, are those of the ball around the rows, in the norm 1.

    Raises:
        ValueError: labels out of range.
        SolverError: the optimum was not reached.
    """
    features, sides = with_bias(x), machines(classes, multiclass)
    every = signs(labels_of({LABELS: y}, classes), sides)  # (M, n)
    fitted = [_solve(features[sign != 0.0] * sign[sign != 0.0, None], radius, kappa) for sign in every]
    return exported(np.array(fitted), sides)


def _solve(z: Array, radius: float, kappa: float) -> Floats:
    """Return the best weights (P,) on rows z = y x (N, P): variables are w, λ, the sizes |w_j| and the losses s."""
    from scipy import sparse
    from scipy.optimize import linprog

    n, p = z.shape
    eye, one, none = sparse.identity(p), np.ones((p, 1)), np.zeros((n, p))
    right = sparse.hstack([-z, np.zeros((n, 1)), none, -sparse.identity(n)])
    changed = sparse.hstack([z, np.full((n, 1), -kappa), none, -sparse.identity(n)])
    nothing = sparse.csr_matrix((p, n))
    sizes = [sparse.hstack([sign * eye, np.zeros((p, 1)), -eye, nothing]) for sign in (1.0, -1.0)]
    within = sparse.hstack([sparse.csr_matrix((p, p)), -one, eye, nothing])  # the largest size is within λ
    rows = sparse.vstack([right, changed, *sizes, within]).tocsr()
    limits = np.concatenate([np.full(2 * n, -1.0), np.zeros(3 * p)])
    objective = np.concatenate([np.zeros(p), [radius], np.zeros(p), np.full(n, 1.0 / n)])
    bounds = [(None, None)] * p + [(0.0, None)] * (1 + p + n)
    found = linprog(objective, A_ub=rows, b_ub=limits, bounds=bounds, method="highs")
    if found.status != 0:
        raise SolverError(f"HiGHS on the central problem: {found.message}")
    return np.asarray(found.x[:p])
