"""One-class SVM with RBF kernel (Schölkopf et al. 2001): the border is f(x) = ρ, scikit-learn solves, ONNX scores."""

from __future__ import annotations

import numpy as np

from models.arrays import Array, Arrays
from models.detectors import kernel
from models.detectors.detector import Detector


def fit(x: Array, *, nu: float = 0.1, gamma: float | None = None) -> Arrays:
    """Fit on features (n, F), n >= 2, and return the parameters; `gamma` defaults to 1 / F, for standardised features.

    ρ is the decision value of the margin vectors, taken from the solver.
    """
    z = np.asarray(x, dtype=np.float64)
    border, params = kernel.solve(z, nu, gamma if gamma is not None else 1.0 / z.shape[1])
    return {**params, "offset": np.array(-border)}


OCSVM = Detector(score=kernel.score, graph=kernel.graph, fit=fit)
