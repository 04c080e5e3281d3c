"""Linear scores, on the features themselves or on a random Fourier map of them.

    score(x) = φ(z)·w + b,   φ(z) = z  or  sqrt(2/M) cos(zΩ + p) with Ω ~ N(0, 2γ): φ(z)·φ(z') ≈ exp(-γ|z - z'|²)

The map (Rahimi and Recht 2007) follows from a seed that all gateways share (`random_map`): with it a kernel model is a
vector of M numbers that can be added, averaged and exported, which support vectors can not. The last of them may be a
tensor of their own, which a gateway keeps at home. Two losses train the same score: `logistic` by gradient descent
where labels exist, `one-class` where there are none, by the dual of the one-class SVM with margin 1 (`dual_ascent`).

Without labels -φ(z)·w is a kernel sum f(z), all but zero for everything far away, and b is its border. As for support
vectors (docs/decisions/04) the score is then log b - log f(z), down to a `floor` of f / b: the same order and border,
and far from the border where the kernel sum itself hardly moves any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Literal

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base import random_features
from fedgate.models.detectors.base.checks import map_width, quantile_of
from fedgate.models.detectors.base.detector import Detector, standardised
from fedgate.models.detectors.base.dual_ascent import ascend_in_map
from fedgate.models.detectors.base.graph_builder import Node, model_of, node

Loss = Literal["one-class", "logistic"]
Gradient = Callable[[Arrays, Array, Array | None], Arrays]  # of (params, φ (n, M), labels (n,)), of what moves
TRAINED = ("weights", "intercept")
HOME = "home"  # the weights of the last components, where a gateway keeps those for itself
FLOOR = 1e-3  # of the border: a random map of hundreds of components tells no smaller kernel sums from zero
SMALLEST_BORDER = 1e-12  # an untrained model has none, and must still give a number


def initial(
    rng: np.random.Generator, feature_count: int, components: int, gamma: float | None, loss: Loss = "logistic"
) -> Arrays:
    """Return untrained parameters for F features; `components` = 0 leaves the features as they are, M > 0 draws a
    map, whose width is missing where `gamma` is None.
    """
    if components == 0:
        return {"weights": np.zeros(feature_count), "intercept": np.zeros(())}
    floor = {"floor": np.array(FLOOR)} if loss == "one-class" else {}
    drawn = random_features.drawn(rng, feature_count, gamma)
    return {"weights": np.zeros(components), "intercept": np.zeros(()), **drawn, **floor}


def mapped(params: Mapping[str, Array], z: Array) -> Floats:
    """Return φ(z) as (n, M), or z itself where the parameters name no map."""
    if not random_features.held(params):
        return np.asarray(z, dtype=np.float64)
    frequencies, phases = random_features.of(params, len(weights_of(params)))
    return np.asarray(np.sqrt(2.0 / len(phases)) * np.cos(z @ frequencies + phases))


def weights_of(params: Mapping[str, Array]) -> Floats:
    """Return w (M,): what is shared and, where there is such a part, what stays at home."""
    return np.concatenate([params["weights"], params[HOME]]) if HOME in params else params["weights"]


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F); zero on the border, positive on the anomalous side."""
    products = mapped(params, standardised(params, x)) @ weights_of(params)
    if "floor" not in params:
        return np.asarray(products + params["intercept"])
    border = max(float(params["intercept"]), SMALLEST_BORDER)
    return np.asarray(np.log(border) - np.log(np.maximum(-products, params["floor"] * border)))


def received(shared: Arrays, own: Mapping[str, Array]) -> Arrays:
    """Return the model as a gateway holds it, its weights in one: the shared ones, and behind them those at home."""
    if HOME not in shared:
        return shared
    both = {**shared, HOME: own.get(HOME, shared[HOME])}
    weights = weights_of(both)
    del both[HOME]
    return {**both, "weights": weights}


def logistic_gradient(params: Arrays, phi: Array, y: Array | None, decay: float) -> Arrays:
    """Return the gradient of mean(log(1 + exp(-t s))) + decay/2 |w|² over φ (n, M), t = ±1, for the names in
    `TRAINED`. Raises `ValueError` where there are no labels.
    """
    if y is None:
        raise ValueError("loss 'logistic' needs labels in the data and found none; without labels use 'one-class'")
    s = phi @ params["weights"] + params["intercept"]  # (n,)
    t = np.where(np.asarray(y) > 0, 1.0, -1.0)
    pull = -t * np.exp(-np.logaddexp(0.0, t * s)) / len(s)  # 1 / (1 + exp(ts)) that cannot overflow
    return {"weights": phi.T @ pull + decay * params["weights"], "intercept": np.asarray(pull.sum())}


def one_class_gradient(params: Arrays, phi: Array, _y: Array | None, nu: float) -> Arrays:
    """Return a subgradient of 1/2 |w|² + mean(max(0, 1 - w·φ)) / ν over φ (n, M), where w is minus the weights, which
    alone move: the border is a quantile (`border`). `dual_ascent` solves the dual of the same problem.
    """
    missed = phi @ params["weights"] > -1.0  # (n,) rows that lack of the margin
    return {"weights": params["weights"] + phi.T @ (missed / (nu * len(phi)))}


def descend(
    params: Arrays,
    phi: Array,
    y: Array | None,
    rng: np.random.Generator,
    gradient: Gradient,
    *,
    epochs: int,
    batch: int,
    learning_rate: float,
    proximity: float = 0.0,
) -> Arrays:
    """Return the parameters after `epochs` passes of mini-batch gradient descent over rows φ (n, M) and labels (n,).

    `proximity` is µ of FedProx, µ/2 |w - w_t|² on top with w_t what came in.
    """
    current = dict(params)
    for _ in range(epochs):
        order = rng.permutation(len(phi))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            slope = gradient(current, phi[rows], None if y is None else y[rows])
            for name in slope:
                pull = proximity * (current[name] - params[name])
                current[name] = current[name] - learning_rate * (slope[name] + pull)
    return current


def border(products: Array, nu: float) -> float:
    """Return the value of w·φ, of those of all rows (n,), that the share ν of rows stays below: ν of the one-class SVM
    in `dual_ascent` is no longer that share, so the border is taken from the rows themselves.
    """
    return float(np.quantile(products, nu))


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX: standardise, one Gemm and Cos where there is a map, one product with the weights."""
    count = len(weights_of(params))
    tensors: Arrays = {}
    nodes, phi, weights, feature_count = list[Node](), "z", "weights", count
    if random_features.held(params):
        frequencies, phases = random_features.of(params, count)
        feature_count, phi = len(frequencies), "phi"
        tensors |= {"frequencies": frequencies, "phases": phases, "amplitude": np.array(np.sqrt(2.0 / count))}
        nodes += [
            node("Gemm", "z frequencies phases", "angles"),
            node("Cos", "angles", "waves"),
            node("Mul", "waves amplitude", "phi"),
        ]
    if HOME in params:
        weights = "all_weights"
        nodes.append(node("Concat", f"weights {HOME}", weights, axis=0))
    nodes.append(node("MatMul", f"{phi} {weights}", "products"))
    if "floor" in params:
        tensors |= {"smallest": np.array(SMALLEST_BORDER), "minus": np.array(-1.0)}
        nodes += [
            node("Max", "intercept smallest", "border"),
            node("Log", "border", "log_border"),
            node("Mul", "border floor", "least"),
            node("Mul", "products minus", "sums"),
            node("Max", "sums least", "kernel_sums"),
            node("Log", "kernel_sums", "logs"),
            node("Sub", "log_border logs", "score"),
        ]
    else:
        nodes.append(node("Add", "products intercept", "score"))
    return model_of("linear", params, personal, nodes, tensors, feature_count)


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
    """Train on features (n, F) and, for the logistic loss, labels (n,) of 0 and 1.

    `nu` belongs to the one-class loss, `decay`, `batch` and `learning_rate` to the logistic one.
    """
    x = np.asarray(x, dtype=np.float64)
    if components and gamma is None:
        gamma = map_width(quantile_of(x))
    params = initial(rng, x.shape[1], components, gamma, loss)
    phi = mapped(params, x)
    if loss == "logistic":
        gradient = partial(logistic_gradient, decay=decay)
        return descend(params, phi, y, rng, gradient, epochs=epochs, batch=batch, learning_rate=learning_rate)
    cap, nothing = 1.0 / (nu * len(phi)), np.zeros(len(phi))
    _, weights = ascend_in_map(phi, params["weights"], nothing, cap=cap, sweeps=epochs)
    return {**params, "weights": -weights, "intercept": np.array(border(phi @ weights, nu))}


LINEAR = Detector(score=score, graph=graph, fit=fit)
