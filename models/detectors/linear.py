"""Linear scores, on the features themselves or on a random Fourier map of them.

    score(x) = φ(z)·w + b,   φ(z) = z  or  sqrt(2/M) cos(zΩ + p) with Ω ~ N(0, 2γ): φ(z)·φ(z') ≈ exp(-γ|z - z'|²)

The map (Rahimi and Recht 2007) is drawn from the seed of the training and is the same for all gateways: with it a
kernel model is a vector of M numbers that can be added, averaged and exported, which support vectors can not. Two
losses train the same score: `logistic` where labels exist, `one-class` (the primal of the one-class SVM, Schölkopf
2001) where there are none.

Without labels -φ(z)·w is a kernel sum f(z), all but zero for everything far away, and b is its border. As for support
vectors (docs/decisions/0005) the score is then log b - log f(z), down to a `floor` of f / b: the same order and border,
and far from the border where the kernel sum itself hardly moves any more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np

from models.arrays import FEATURES, LABELS, Array, Arrays, Floats
from models.detectors.detector import Detector, standardised

Loss = Literal["one-class", "logistic"]
TRAINED = ("weights", "intercept")
FLOOR = 1e-3  # of the border: a random map of hundreds of components tells no smaller kernel sums from zero
SMALLEST_BORDER = 1e-12  # an untrained model has none, and must still give a number


def initial(
    rng: np.random.Generator, feature_count: int, components: int, gamma: float | None, loss: Loss = "logistic"
) -> Arrays:
    """Return untrained parameters for F features; `components` = 0 leaves the features as they are, M > 0 draws a
    map.
    """
    floor = {"floor": np.array(FLOOR)} if loss == "one-class" and components > 0 else {}
    if components == 0:
        return {"weights": np.zeros(feature_count), "intercept": np.zeros(())}
    width = gamma if gamma is not None else 1.0 / feature_count
    return {
        "weights": np.zeros(components),
        "intercept": np.zeros(()),
        "frequencies": rng.normal(0.0, np.sqrt(2.0 * width), (feature_count, components)),
        "phases": rng.uniform(0.0, 2.0 * np.pi, components),
        **floor,
    }


def mapped(params: Arrays, z: Array) -> Floats:
    """Return φ(z) as (n, M), or z itself where the parameters hold no map."""
    if "frequencies" not in params:
        return np.asarray(z, dtype=np.float64)
    frequencies = params["frequencies"]
    return np.asarray(np.sqrt(2.0 / frequencies.shape[1]) * np.cos(z @ frequencies + params["phases"]))


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F); zero on the border, positive on the anomalous side."""
    products = mapped(params, standardised(params, x)) @ params["weights"]
    if "floor" not in params:
        return np.asarray(products + params["intercept"])
    border = _border(params)
    return np.asarray(np.log(border) - np.log(np.maximum(-products, params["floor"] * border)))


def _border(params: Arrays) -> float:
    return max(float(params["intercept"]), SMALLEST_BORDER)


def gradient(params: Arrays, phi: Array, y: Array | None, loss: Loss, nu: float, decay: float) -> Arrays:
    """Return the gradient of the mean loss over φ (n, M) plus decay/2 |w|², for the names in `TRAINED`.

    one-class:  1/2 |w|² + mean(max(0, s)) / ν - b, where b is the margin ρ
    logistic:   mean(log(1 + exp(-t s))) + decay/2 |w|², where t = ±1
    """
    s = phi @ params["weights"] + params["intercept"]  # (n,)
    if loss == "one-class":
        pull = (s > 0.0) / (nu * len(s))  # (n,)
        return {"weights": phi.T @ pull + params["weights"], "intercept": np.asarray(pull.sum() - 1.0)}
    if y is None:
        raise ValueError("loss 'logistic' needs labels in the data and found none; without labels use 'one-class'")
    t = np.where(np.asarray(y) > 0, 1.0, -1.0)
    pull = -t * np.exp(-np.logaddexp(0.0, t * s)) / len(s)  # 1 / (1 + exp(ts)) that cannot overflow
    return {"weights": phi.T @ pull + decay * params["weights"], "intercept": np.asarray(pull.sum())}


def descend(
    params: Arrays,
    data: Arrays,
    rng: np.random.Generator,
    *,
    loss: Loss,
    nu: float,
    decay: float,
    epochs: int,
    batch: int,
    learning_rate: float,
) -> Arrays:
    """Return the parameters after `epochs` passes of mini-batch gradient descent over data already in normalised
    units.
    """
    phi, y = mapped(params, data[FEATURES]), data.get(LABELS)
    current = dict(params)
    for _ in range(epochs):
        order = rng.permutation(len(phi))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            slope = gradient(current, phi[rows], None if y is None else y[rows], loss, nu, decay)
            for name in TRAINED:
                current[name] = current[name] - learning_rate * slope[name]
    return current


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX: standardise, one Gemm and Cos where there is a map, one Gemm."""
    from onnx import helper

    from models.detectors.graph import model_bytes, standardise_nodes

    tensors = {"column": params["weights"][:, None], "intercept": params["intercept"], "flat": np.array([-1])}
    nodes, phi = standardise_nodes(), "z"
    if "frequencies" in params:
        components = params["frequencies"].shape[1]
        tensors |= {"frequencies": params["frequencies"], "phases": params["phases"]}
        tensors["amplitude"] = np.array(np.sqrt(2.0 / components))
        nodes += [
            helper.make_node("Gemm", ["z", "frequencies", "phases"], ["angles"]),
            helper.make_node("Cos", ["angles"], ["waves"]),
            helper.make_node("Mul", ["waves", "amplitude"], ["phi"]),
        ]
        phi = "phi"
    if "floor" in params:
        tensors |= {"column": -tensors["column"], "floor": params["floor"], "smallest": np.array(SMALLEST_BORDER)}
        nodes += [
            helper.make_node("Max", ["intercept", "smallest"], ["border"]),
            helper.make_node("Log", ["border"], ["log_border"]),
            helper.make_node("Mul", ["border", "floor"], ["least"]),
            helper.make_node("Gemm", [phi, "column"], ["sums"]),
            helper.make_node("Max", ["sums", "least"], ["kernel_sums"]),
            helper.make_node("Log", ["kernel_sums"], ["logs"]),
            helper.make_node("Sub", ["log_border", "logs"], ["scores"]),
        ]
    else:
        nodes += [
            helper.make_node("Gemm", [phi, "column"], ["products"]),
            helper.make_node("Add", ["products", "intercept"], ["scores"]),
        ]
    nodes.append(helper.make_node("Reshape", ["scores", "flat"], ["score"]))
    feature_count = len(params["frequencies"] if "frequencies" in params else params["weights"])
    return model_bytes("linear", nodes, tensors, personal, feature_count)


def fit(
    x: Array,
    y: Array | None,
    rng: np.random.Generator,
    *,
    loss: Loss = "logistic",
    components: int = 0,
    gamma: float | None = None,
    nu: float = 0.1,
    decay: float = 1e-3,
    epochs: int = 200,
    batch: int = 32,
    learning_rate: float = 0.1,
) -> Arrays:
    """Train on features (n, F) and, for the logistic loss, labels (n,) of 0 and 1."""
    data = {FEATURES: np.asarray(x, dtype=np.float64)} | ({} if y is None else {LABELS: y})
    params = initial(rng, data[FEATURES].shape[1], components, gamma, loss)
    return descend(
        params, data, rng, loss=loss, nu=nu, decay=decay, epochs=epochs, batch=batch, learning_rate=learning_rate
    )


LINEAR = Detector(score=score, graph=graph, fit=fit)
