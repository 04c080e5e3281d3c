"""The principal subspace of healthy features: what the subspace detector scores with, and whitening for kernel methods.

Healthy spectra move along few directions (temperature, traffic); damage leaves them. With v = (z - mean) / deviation,
in a random sketch of it where F is large, and P the k strongest directions,

    coordinates  vP / sqrt(eigenvalues)   (n, k)   of unit variance on healthy data
    residual     |v - vPPᵀ|² / trace      (n,)     one on average on healthy data, trace = Σ of the eigenvalues left out

All of it follows from count, sum and second moments (Pearson 1901), which add up over gateways.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats, under
from fedgate.models.detectors.base.graph_builder import Node, node

WHITENING = "whitening."  # before the names of a whitening step
# Of the mean variance: what moves less is rounding in float32, and must not be blown up to unit size.
SMALLEST_SHARE = 1e-6
# Of the mean residual: below it, a logarithm would only measure rounding.
RESIDUAL_FLOOR = 1e-6


def principal(covariance: Array, count: int) -> Arrays:
    """Return the `count` strongest directions of a covariance (m, m), count < m, and what is left beside them.

    `freedom` is the effective number of directions in the residual, θ₁² / θ₂ with θᵢ = Σλⁱ over the eigenvalues left
    out (Box 1954): |rest|² is about θ₁ χ²(freedom) / freedom.
    """
    values, vectors = np.linalg.eigh(covariance)  # ascending
    values = np.maximum(values, 0.0)
    least = SMALLEST_SHARE * (float(values.mean()) or 1.0)
    strongest, rest = vectors[:, ::-1][:, :count], np.maximum(values[: len(values) - count], least)
    largest = strongest[np.abs(strongest).argmax(axis=0), np.arange(count)]
    return {
        "components": np.asarray(strongest * np.sign(largest)),  # (m, k); without a rule either sign would do
        "eigenvalues": np.maximum(values[::-1][:count], least),
        "trace": np.asarray(rest.sum()),
        "freedom": np.asarray(rest.sum() ** 2 / np.square(rest).sum()),
    }


def sketched(params: Mapping[str, Array], z: Array) -> Floats:
    """Return features (n, F) as (n, m): in units of the pooled deviation, projected where there is a sketch."""
    v = (np.asarray(z, dtype=np.float64) - params["mean"]) / params["deviation"]
    return np.asarray(v @ params["sketch"] - params["sketch_mean"] if "sketch" in params else v)


def measured(params: Mapping[str, Array], z: Array) -> tuple[Floats, Floats]:
    """Return the whitened coordinates (n, k) and the residual (n,) of features (n, F)."""
    v = sketched(params, z)
    inside = v @ params["components"]
    rest = v - inside @ params["components"].T  # not |v|² - |inside|²: a small rest would lose its digits
    return inside / np.sqrt(params["eigenvalues"]), np.square(rest).sum(axis=1) / params["trace"]


def whitened(params: Mapping[str, Array], z: Array) -> Floats:
    """Return the whitened coordinates (n, k) of features z (n, F), beside them the weighted logarithm of the residual
    where there is a weight, (n, k + 1).
    """
    coordinates, residual = measured(params, z)
    if "weight" not in params:
        return coordinates
    return np.column_stack([coordinates, params["weight"] * np.log(residual + RESIDUAL_FLOOR)])


def graph_tensors(params: Mapping[str, Array], prefix: str) -> Arrays:
    """Return the constants of `graph_nodes`."""
    components = params["components"]  # (m, k)
    tensors = {
        "mean": params["mean"],
        "deviation": params["deviation"],
        "components": components,
        "back": components.T,
        "roots": np.sqrt(params["eigenvalues"]),
        "share": np.full((len(components), 1), 1.0 / float(params["trace"])),
    }
    if "sketch" in params:
        tensors |= {"sketch": params["sketch"], "sketch_bias": -params["sketch_mean"]}
    if "weight" in params:
        tensors |= {"weight": params["weight"], "least": np.array(RESIDUAL_FLOOR)}
    return {prefix + name: array for name, array in tensors.items()}


def graph_nodes(params: Mapping[str, Array], prefix: str, source: str) -> list[Node]:
    """Nodes that map the tensor `source` (n, F) to `<prefix>coordinates` (n, k) and `<prefix>residual` (n, 1)."""
    nodes = [
        node("Sub", f"{source} {prefix}mean", f"{prefix}offset_from_mean"),
        node("Div", "offset_from_mean deviation", "v", within=prefix),
    ]
    v = "v"
    if "sketch" in params:
        nodes.append(node("Gemm", "v sketch sketch_bias", "sketched", within=prefix))
        v = "sketched"
    return [
        *nodes,
        node("Gemm", f"{v} components", "inside", within=prefix),
        node("Div", "inside roots", "coordinates", within=prefix),
        node("Gemm", "inside back", "kept", within=prefix),
        node("Sub", f"{v} kept", "rest", within=prefix),
        node("Mul", "rest rest", "rest_squares", within=prefix),
        node("Gemm", "rest_squares share", "residual", within=prefix),
    ]


def whitening_nodes(params: Mapping[str, Array], source: str, result: str) -> list[Node]:
    """Nodes that map the tensor `source` (n, F) to `result` (n, k or k + 1), as `whitened` does."""
    step = under(WHITENING, params)
    nodes, columns = graph_nodes(step, WHITENING, source), f"{WHITENING}coordinates"
    if "weight" in step:
        nodes += [
            node("Add", "residual least", "at_least", within=WHITENING),
            node("Log", "at_least", "log", within=WHITENING),
            node("Mul", "log weight", "weighted", within=WHITENING),
        ]
        columns += f" {WHITENING}weighted"
    return [*nodes, node("Concat", columns, result, axis=1)]
