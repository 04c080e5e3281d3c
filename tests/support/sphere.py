"""The sphere of an SVDD by the letter of its paper, beside which scores are put (federated-svdd paper, Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def own_term(params: Arrays) -> float:
    """Return ΣΣ β_i β_j k_ij of Eq. 1, in double sums."""
    gamma, pairs = float(params["gamma"]), list(zip(params["coefficients"], params["vectors"], strict=True))
    return math.fsum(float(p * q) * math.exp(-gamma * float(((a - b) ** 2).sum())) for p, a in pairs for q, b in pairs)


def literal_score(members: Sequence[Arrays], x: Array) -> Floats:
    """Return minus the score of section 4.1 as (n,): of an inlier of any member the largest, else the sum of all."""
    above = np.stack(
        [1.0 - 2.0 * np.exp(-each["offset"]) + own_term(each) - squared_radius(each, x) for each in members]
    )
    return np.asarray(-np.where((above >= 0.0).any(axis=0), above.max(axis=0), above.sum(axis=0)))
