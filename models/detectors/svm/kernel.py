"""The support vector expansion that one-class SVM and SVDD share, and its score.

With an RBF kernel k(s, x) = exp(-gamma |s - x|²) both methods decide by f(x) = Σ_j β_j k(s_j, x) with Σβ = 1, β >= 0:
the one-class SVM compares f with ρ, SVDD compares R²(x) = 1 - 2 f(x) + ΣΣββk with the radius (federated-svdd paper, Eq.
1). Both are falling functions of f, and f is all but zero for everything far away, so neither tells far from farther.
We score with

    score(x) = -log f(x) - offset,        offset = -log f on the border

which orders points exactly as R² does, is zero on the border and keeps growing with distance (docs/decisions/04).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base import dual_ascent
from fedgate.models.detectors.base.checks import Border, Solver
from fedgate.models.detectors.base.detector import standardised
from fedgate.models.detectors.base.graph_builder import model_of, node

SOLVER_TOLERANCE = 1e-6
AT_CAP = 1.0 - 1e-6  # of the largest multiplier there can be: above it one is at its cap
BLOCK = 2**20  # numbers: 8 MiB; of 20,000 vectors all distances at once would be 3 GiB


def squared_distances(a: Array, b: Array) -> Floats:
    """Return |a_i - b_j|² as (n, m) for rows a (n, F) and b (m, F)."""
    middle = b.mean(axis=0)  # distances do not move with the origin, but far from it their digits cancel
    a, b = a - middle, b - middle
    products = a @ b.T
    return np.asarray(np.maximum((a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * products, 0.0))


def log_expansion(vectors: Array, coefficients: Array, gamma: float, z: Array) -> Floats:
    """Return log Σ_j β_j k(s_j, z_i) as (n,), stable for points where every kernel value underflows."""
    return _log_sum(np.log(coefficients)[None, :] - gamma * squared_distances(z, vectors))  # (n, S)


def _log_sum(exponents: Array) -> Floats:
    peak = exponents.max(axis=1)
    return np.asarray(peak + np.log(np.exp(exponents - peak[:, None]).sum(axis=1)))


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F); zero on the border, positive outside."""
    z = standardised(params, x)
    log_f = log_expansion(params["vectors"], params["coefficients"], float(params["gamma"]), z)
    return np.asarray(-log_f - params["offset"])


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX: γ|z|² - p - log Σ_j exp(e_j - p) with e_j = log β_j + 2γ z·s_j - γ|s_j|², p the largest.

    z and s are taken from the middle of the vectors, since float32 holds small distances only near the origin; the
    middle is a float32 itself, so that the subtraction loses nothing. Sums are written as Gemm: onnxruntime's own
    ReduceLogSumExp took as long as all the rest together (docs/results/benchmarks.md).
    """
    gamma, middle = float(params["gamma"]), np.float32(params["vectors"].mean(axis=0))
    vectors = params["vectors"] - middle
    tensors = {
        "middle": middle,
        "weights": 2.0 * gamma * vectors.T,
        "bias": np.log(params["coefficients"]) - gamma * (vectors * vectors).sum(1),
        "ones": np.ones((len(vectors), 1)),
        "gammas": np.full((vectors.shape[1], 1), gamma),
        "flat": np.array([-1]),
    }
    nodes = [
        node("Sub", "z middle", "from_middle"),
        node("Gemm", "from_middle weights bias", "exponents"),
        node("ReduceMax", "exponents", "peak", axes=[1], keepdims=1),
        node("Sub", "exponents peak", "below_peak"),
        node("Exp", "below_peak", "kernels"),
        node("Gemm", "kernels ones", "sum"),
        node("Log", "sum", "log_sum"),
        node("Mul", "from_middle from_middle", "squares"),
        node("Gemm", "squares gammas", "norm"),
        node("Sub", "norm peak", "nearest"),
        node("Sub", "nearest log_sum", "minus_log_f"),
        node("Sub", "minus_log_f offset", "column"),
        node("Reshape", "column flat", "score"),
    ]
    return model_of("support_vectors", params, personal, nodes, tensors, vectors.shape[1])


def border_of_others(z: Array, nu: float, params: Arrays) -> float:
    """Return log f on the border that leaves a share ν of rows z (n, F) outside, each judged by the vectors that are
    others: not itself and none that equals it. A row that equals all of them is judged by them.

    A kernel so narrow that most rows are vectors makes each the middle of a sphere of its own, and the border that runs
    through them leaves every new row outside. Rows that come twice are no better judges of each other.
    """
    vectors, gamma = params["vectors"], float(params["gamma"])
    logs = np.log(params["coefficients"])[None, :]
    # Products of equal rows may differ in the last bit, so that their distance is not always zero: rows are compared.
    kinds = np.unique(np.concatenate([z, vectors]), axis=0, return_inverse=True)[1].ravel()
    of_rows, of_vectors = kinds[: len(z), None], kinds[len(z) :]
    rows_at_once = max(1, BLOCK // len(vectors))
    log_f = []
    for first in range(0, len(z), rows_at_once):
        block = slice(first, first + rows_at_once)
        exponents = logs - gamma * squared_distances(z[block], vectors)
        is_same = of_rows[block] == of_vectors
        exponents[is_same & ~is_same.all(axis=1, keepdims=True)] = -np.inf
        log_f.append(_log_sum(exponents))
    return float(np.quantile(np.concatenate(log_f), nu))


def one_class(rows: Array, nu: float, **kernel: Any) -> Any:
    """Return scikit-learn's `OneClassSVM` with libsvm's solution for rows (n, F), or for a kernel matrix (n, n)."""
    from sklearn.svm import OneClassSVM

    # libsvm's multipliers add up to ν n, and what it may leave unsolved must stay small beside them.
    return OneClassSVM(nu=nu, tol=SOLVER_TOLERANCE * min(nu * len(rows), 1.0), **kernel).fit(rows)


def multipliers_of(solved: Any, count: int) -> Floats:
    """Return the multipliers (n,) of a solution for so many rows."""
    beta = np.zeros(count)
    beta[solved.support_] = solved.dual_coef_.ravel()
    return beta


def solve(
    z: Array,
    nu: float,
    gamma: float,
    solver: Solver = "libsvm",
    step: float | None = None,
    border: Border = "vectors",
) -> tuple[float, Arrays]:
    """Solve the ν one-class problem on z (n, F) with scikit-learn's libsvm; return log f on the border and vectors with
    Σβ = 1. The border is the solver's, through its free vectors, or that of the `others` (`border_of_others`).

    `nu` in (0, 1] bounds the share of rows outside from above and the share of support vectors from below (Schölkopf
    2001). Solver `sgd` is Algorithm 1 of PC-FedAvg with step η, whose own share outside is among the parameters.
    """
    if solver == "sgd":
        ascent = dual_ascent.ascend(np.exp(-gamma * squared_distances(z, z)), nu, step=step)
        kept, total = ascent.multipliers > 0.0, float(ascent.multipliers.sum())
        reported = {dual_ascent.EFFECTIVE_NU: np.array(ascent.effective_nu)}
        return -float(np.log(total)), _parameters(z[kept], ascent.multipliers[kept] / total, gamma) | reported
    if nu == 1.0:  # then β_i = 1 / n, no row is inside and the innermost is the border, where libsvm has infinity
        equal_shares = np.full(len(z), 1.0 / len(z))
        params, log_f = _parameters(z, equal_shares, gamma), float(log_expansion(z, equal_shares, gamma, z).max())
    else:
        solved = one_class(z, nu, kernel="rbf", gamma=gamma)
        weights = solved.dual_coef_.ravel()
        params = _parameters(solved.support_vectors_, weights / weights.sum(), gamma)
        log_f = float(np.log(solved.offset_[0] / weights.sum()))
    return border_of_others(z, nu, params) if border == "others" else log_f, params


def _parameters(vectors: Array, coefficients: Array, gamma: float) -> Arrays:
    return {
        "vectors": np.array(vectors, dtype=np.float64),
        "coefficients": np.array(coefficients, dtype=np.float64),
        "gamma": np.array(gamma, dtype=np.float64),
    }
