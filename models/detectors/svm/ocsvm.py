"""One-class SVM (Schölkopf et al. 2001) with RBF or linear kernel: the border is f(x) = ρ, libsvm or Algorithm 1 of
PC-FedAvg solves, ONNX scores.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.checks import (
    MOST_ROWS,
    ON_BORDER,
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
from fedgate.models.detectors.svm import linear_ocsvm


def fit(
    x: Array,
    *,
    nu: float = 0.1,
    gamma: Width = None,
    kernel: Kernel = "rbf",
    solver: Solver = "libsvm",
    step: float | None = None,
    most_rows: int = MOST_ROWS,
) -> Arrays:
    """Fit on features (n, F), n >= 2, and return the parameters.

    :param nu: share of rows outside, in (0, 1]; under `sgd` what acts is returned as `effective_nu`.
    :param gamma: width of the RBF kernel as `training.kernel_width` takes it; from the distances of rows by default.
    :param solver: `libsvm`, with Σβ = 1 in the dual, or `sgd`, the paper's ascent without it (`dual_ascent`).
    :param step: η of that ascent.
    :param most_rows: of more rows an even spread is fitted.

    ρ is the decision value of the margin vectors, taken from the solver, and where no width is given that of the rows
    by the vectors of the others (`kernel.border_of_others`). Raises `FitError`.
    """
    known(kernel, solver, step)
    z = training_rows(x, nu, most_rows)
    if kernel == "linear":
        if gamma is not None:
            raise SettingError(f"gamma {gamma} given, expected none: the linear kernel has no width, 'rbf' has")
        return linear_ocsvm.fit(z, nu, solver, step)
    border, params = expansion.solve(z, nu, kernel_width(gamma, z), solver, step, border_for(gamma, None))
    fitted = {**params, "offset": np.array(-border)}
    if gamma is not None:  # else by the vectors of the others, of which a share ν is outside
        warn_of_share(expansion.score(fitted, z) > ON_BORDER, nu)
    return fitted


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F) by the kernel that the parameters are of."""
    return linear_ocsvm.score(params, x) if linear_ocsvm.NORMAL in params else expansion.score(params, x)


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX."""
    return linear_ocsvm.graph(params, personal) if linear_ocsvm.NORMAL in params else expansion.graph(params, personal)


OCSVM = Detector(score=score, graph=graph, fit=fit)
