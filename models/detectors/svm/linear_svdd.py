"""Support vector data description with a linear kernel: the smallest sphere in the space of the features themselves.

    score(x) = |z - a|² - R²,   a = Σ β_i z_i, Σβ = 1, 0 <= β_i <= C                          (Tax and Duin 2004, Eq. 8)

Since Σβ = 1, the dual Σ β_i |z_i|² - ΣΣ β_i β_j z_i·z_j is 1/2 ΣΣ β_i β_j |z_i - z_j|². To maximise it is to minimise
βᵀKβ with K_ij = c - 1/2 |z_i - z_j|² for any c: the dual of the one-class SVM, which libsvm solves.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.detector import standardised
from fedgate.models.detectors.base.graph_builder import model_of, node
from fedgate.models.detectors.svm import kernel

CENTER = "sphere.center"
SQUARED_RADIUS = "sphere.squared_radius"


def squared_distance(params: Arrays, x: Array) -> Floats:
    """Return |z - a|² as (n,) for features (n, F)."""
    away = standardised(params, x) - params[CENTER]
    return np.asarray((away * away).sum(axis=1))


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F); zero on the sphere, positive outside."""
    return np.asarray(squared_distance(params, x) - params[SQUARED_RADIUS])


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX."""
    count = len(params[CENTER])
    nodes = [
        node("Sub", f"z {CENTER}", "away"),
        node("Mul", "away away", "squares"),
        node("MatMul", "squares ones", "squared_distance"),
        node("Sub", f"squared_distance {SQUARED_RADIUS}", "score"),
    ]
    return model_of("sphere", params, personal, nodes, {"ones": np.ones(count)}, count)


def fit(z: Floats, nu: float) -> Arrays:
    """Return the sphere of rows (n, F) with C = 1 / (ν n)."""
    beta = _multipliers(z, nu)
    center = beta @ z
    squares = ((z - center) ** 2).sum(axis=1)  # (n,)
    vectors = beta > 0.0
    free = vectors & (beta < kernel.AT_CAP / (nu * len(z)))
    # Where all vectors are at the cap, all are outside, and the innermost is as near to the border as is known.
    radius = squares[free].mean() if free.any() else squares[vectors].min()
    return {CENTER: center, SQUARED_RADIUS: np.asarray(radius)}


def _multipliers(z: Floats, nu: float) -> Floats:
    """Return β (n,) with Σβ = 1."""
    squares = kernel.squared_distances(z, z)
    largest = float(squares.max())
    if nu == 1.0 or largest == 0.0:
        return np.full(len(z), 1.0 / len(z))
    gram = 1.0 - squares / largest
    beta = kernel.multipliers_of(kernel.one_class(gram, nu, kernel="precomputed"), len(z))
    return np.asarray(beta / beta.sum())
