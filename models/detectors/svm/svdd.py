"""Support vector data description (Tax and Duin 2004; federated-svdd paper, Eq. 1) with RBF or linear kernel.

minimise ΣΣ β_i β_j k_ij  subject to Σβ = 1, 0 <= β_i <= C. With an RBF kernel this is the ν one-class SVM with C = 1 /
(ν n), so the same solvers serve both; the linear one is in `sphere`. The radius is R²(x) on the support vectors that
are not at the cap C, as the paper takes it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.checks import (
    MOST_ROWS,
    ON_BORDER,
    Border,
    Kernel,
    SettingError,
    Solver,
    Width,
    border_for,
    kernel_width,
    known,
    training_rows,
    warn_of_share,
)
from fedgate.models.detectors.base.detector import Detector
from fedgate.models.detectors.svm import kernel as expansion
from fedgate.models.detectors.svm import linear_svdd


def share_outside(count: int, nu: float, c: float | None) -> float:
    """Return ν for `count` rows: as given, or 1 / (C n) where the cap C is given, 1 at most: with C < 1 / n there is no
    solution, and ν = 1, the nearest that has one, gives every row the same share.
    """
    return nu if c is None else min(1.0 / (c * count), 1.0)


def fit(
    x: Array,
    *,
    nu: float = 0.1,
    c: float | None = None,
    gamma: Width = None,
    kernel: Kernel = "rbf",
    solver: Solver = "libsvm",
    step: float | None = None,
    most_rows: int = MOST_ROWS,
    border: Border | None = None,
) -> Arrays:
    """Fit on features (n, F), n >= 2, and return the parameters.

    `c` is the paper's cap and overrides `nu`; the other settings are those of the one-class SVM. `border` runs through
    the free `vectors`, or where a share ν of the rows lies outside by the vectors of the `others`, as it does where no
    width is given. Raises `FitError`.
    """
    known(kernel, solver, step)
    z = training_rows(x, nu, most_rows)
    if c is not None and not c > 0.0:
        raise SettingError(f"c {c:g} given, expected above 0: it is the largest share of one row in the centre")
    share = share_outside(len(z), nu, c)
    if kernel == "linear":
        if gamma is not None or solver == "sgd":
            raise SettingError("kernel 'linear' takes no gamma, and no ascent without Σβ = 1: expected solver 'libsvm'")
        return linear_svdd.fit(z, share)
    taken = border_for(gamma, border)
    log_border, params = expansion.solve(z, share, kernel_width(gamma, z), solver, step, taken)
    if solver == "sgd" or taken == "others":  # whose margin is where the free vectors are; which runs through none
        return {**params, "offset": np.array(-log_border)}
    cap = 1.0 / (share * len(z))
    free = params["coefficients"] < expansion.AT_CAP * cap
    log_f = expansion.log_expansion(
        params["vectors"], params["coefficients"], float(params["gamma"]), params["vectors"]
    )  # (S,)
    # Where all are at the cap, all are outside, and the innermost is as near to the border as is known.
    inner = log_f[free].mean() if free.any() else log_f.max()
    fitted = {**params, "offset": np.array(-inner)}
    warn_of_share(expansion.score(fitted, z) > ON_BORDER, share)
    return fitted


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F) by the kernel that the parameters are of."""
    return linear_svdd.score(params, x) if linear_svdd.CENTER in params else expansion.score(params, x)


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX."""
    return linear_svdd.graph(params, personal) if linear_svdd.CENTER in params else expansion.graph(params, personal)


SVDD = Detector(score=score, graph=graph, fit=fit)
