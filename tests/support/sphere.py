"""The sphere of an SVDD by the letter of its paper, beside which scores are put (federated-svdd paper, Eq. 1)."""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.detector import standardised
from fedgate.models.detectors.svm.kernel import log_expansion, squared_distances


def squared_radius(params: Arrays, x: Array) -> Floats:
    """Return R²(x) of Eq. 1 as (n,) for features (n, F)."""
    vectors, beta, gamma = params["vectors"], params["coefficients"], float(params["gamma"])
    own = beta @ np.exp(-gamma * squared_distances(vectors, vectors)) @ beta
    f = np.exp(log_expansion(vectors, beta, gamma, standardised(params, x)))
    return np.asarray(1.0 - 2.0 * f + own)
