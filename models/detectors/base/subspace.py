"""Distance from a principal subspace: beside it, inside it, or both (ours; the parts are classical).

With r the residual (mean one on healthy data), d² = Σ coordinate² and k directions out of m,

    residual   q = r                            Jackson and Mudholkar 1979: the Q statistic
    distance   q = d² / k                       Hotelling's T²
    both       q = (d² + (m - k) r) / m         Tipping and Bishop 1999: minus the log likelihood of probabilistic PCA

    score(x) = log(q + floor) - log(border + floor)

so that far is told from farther (docs/decisions/04). The border is the value of q that a share `outside` of normally
distributed data exceeds; q times its freedom is about χ² (Box 1954), its quantile that of Wilson and Hilferty 1931.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.checks import FEWEST_ROWS, DataError, SettingError, training_rows
from fedgate.models.detectors.base.detector import Detector, standardised
from fedgate.models.detectors.base.graph_builder import model_of, node
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR, graph_nodes, graph_tensors, measured

Which = Literal["residual", "distance", "both"]
PREFIX = "subspace."
OUTSIDE = 0.05  # share of healthy rows past the border


def bordered(params: Arrays, which: Which, outside: float) -> Arrays:
    """Return the parameters of a principal subspace with the weights of d² and r in q, and the border of q."""
    m, k = params["components"].shape
    rest, freedom = m - k, float(params["freedom"])
    weights, chi_freedom = {
        "residual": ((0.0, 1.0), freedom),
        "distance": ((1.0 / k, 0.0), float(k)),
        "both": ((1.0 / m, rest / m), m**2 / (k + rest**2 / freedom)),
    }[which]
    return {**params, "parts": np.array(weights), "border": np.array(exceeded_by(outside, chi_freedom))}


def exceeded_by(share: float, freedom: float) -> float:
    """Return what χ² / freedom exceeds in so great a share (Wilson and Hilferty 1931)."""
    spread = 2.0 / (9.0 * freedom)
    return max((1.0 - spread + NormalDist().inv_cdf(1.0 - share) * math.sqrt(spread)) ** 3, 0.0)


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F); zero on the border, positive outside."""
    coordinates, residual = measured(params, standardised(params, x))
    inside, beside = params["parts"]
    q = inside * np.square(coordinates).sum(axis=1) + beside * residual
    return np.asarray(np.log(q + RESIDUAL_FLOOR) - np.log(float(params["border"]) + RESIDUAL_FLOOR))


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX; the residual is computed as v - vPPᵀ, never as a difference of squares."""
    inside, beside = params["parts"]
    tensors = graph_tensors(params, PREFIX) | {
        "inside_share": np.full((params["components"].shape[1], 1), inside),
        "beside_share": np.array(beside),
        "least": np.array(RESIDUAL_FLOOR),
        "log_border": np.log(params["border"] + RESIDUAL_FLOOR),
        "flat": np.array([-1]),
    }
    nodes = [
        *graph_nodes(params, PREFIX, "z"),
        node("Mul", f"{PREFIX}coordinates {PREFIX}coordinates", "squares"),
        node("Gemm", "squares inside_share", "inside_part"),
        node("Mul", f"{PREFIX}residual beside_share", "beside_part"),
        node("Add", "inside_part beside_part", "q"),
        node("Add", "q least", "at_least"),
        node("Log", "at_least", "log_q"),
        node("Sub", "log_q log_border", "column"),
        node("Reshape", "column flat", "score"),
    ]
    return model_of("subspace", params, personal, nodes, tensors, len(params["mean"]))


def fit(x: Array, *, components: int = 10, which: Which = "both", outside: float = OUTSIDE) -> Arrays:
    """Fit on features (n, F), F >= 2: at most F - 1 `components`; a share `outside` of healthy rows is past the border.

    Raises `FitError`.
    """
    from fedgate.models.detectors.base.moments import moments, reference_of, subspace

    if components < 1:
        raise SettingError(f"components {components} given, expected at least 1, and fewer than there are features")
    if which not in get_args(Which):
        raise SettingError(f"which {which!r} given, expected one of {', '.join(get_args(Which))}")
    if not 0.0 < outside < 1.0:
        raise SettingError(
            f"outside {outside:g} given, expected a share between 0 and 1 of healthy rows past the border"
        )
    rows = training_rows(x, nu=1.0, most_rows=max(len(x), FEWEST_ROWS))  # moments take no memory for more rows
    if rows.shape[1] < FEWEST_ROWS:
        raise DataError("1 feature given, expected at least 2: one direction is kept and one is left for the residual")
    reference = reference_of(rows.mean(axis=0), rows.var(axis=0))
    found = subspace(moments((rows - reference.point) / reference.unit), components, reference)
    return bordered(found, which, outside)


SUBSPACE = Detector(score=score, graph=graph, fit=fit)
