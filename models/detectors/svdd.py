"""Support vector data description with RBF kernel (Tax and Duin 2004; federated-svdd paper, Eq. 1).

minimise ΣΣ β_i β_j k_ij  subject to Σβ = 1, 0 <= β_i <= C. With an RBF kernel this is the ν one-class SVM with C = 1 /
(ν n), so scikit-learn's solver serves both. The radius is R²(x) on the support vectors that are not at the cap C, as
the paper takes it.
"""

from __future__ import annotations

import numpy as np

from models.arrays import Array, Arrays, Floats
from models.detectors import kernel
from models.detectors.detector import Detector, standardised

AT_CAP = 1.0 - 1e-6


def share_outside(count: int, nu: float, c: float | None) -> float:
    """Return ν for `count` rows: as given, or 1 / (C n) where the cap C is given (C >= 1 / n or there is no
    solution).
    """
    return nu if c is None else min(1.0 / (c * count), 1.0)


def fit(x: Array, *, nu: float = 0.1, c: float | None = None, gamma: float | None = None) -> Arrays:
    """Fit on features (n, F), n >= 2; `gamma` defaults to 1 / F. `c` is the paper's cap and overrides `nu`."""
    z = np.asarray(x, dtype=np.float64)
    share = share_outside(len(z), nu, c)
    _, params = kernel.solve(z, share, gamma if gamma is not None else 1.0 / z.shape[1])
    cap = 1.0 / (share * len(z))
    free = params["coefficients"] < AT_CAP * cap
    log_f = kernel.log_expansion(
        params["vectors"], params["coefficients"], float(params["gamma"]), params["vectors"]
    )  # (S,)
    # Where all are at the cap, all are outside, and the innermost is as near to the border as is known.
    border = log_f[free].mean() if free.any() else log_f.max()
    return {**params, "offset": np.array(-border)}


def squared_radius(params: Arrays, x: Array) -> Floats:
    """Return R²(x) of Eq. 1 as (n,) for features (n, F)."""
    vectors, beta, gamma = params["vectors"], params["coefficients"], float(params["gamma"])
    own = beta @ np.exp(-gamma * kernel.squared_distances(vectors, vectors)) @ beta
    f = np.exp(kernel.log_expansion(vectors, beta, gamma, standardised(params, x)))
    return np.asarray(1.0 - 2.0 * f + own)


SVDD = Detector(score=kernel.score, graph=kernel.graph, fit=fit)
