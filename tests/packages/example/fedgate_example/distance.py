"""How far a row is from the mean, in deviations, as a detector (ours)."""

from collections.abc import Collection

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors import Detector
from fedgate.models.detectors.base.detector import standardised
from fedgate.models.detectors.base.graph_builder import model_of, node

BORDER = np.array(4.0)  # of the mean square: two deviations in each feature
LEAST = 1e-3  # of a deviation: a feature that never changes is divided by no zero, nor by what float32 rounds


def score(params: Arrays, x: Array) -> Floats:
    """Return the mean square (n,) of the distances of rows (n, F) from the mean, less that of the border."""
    away = (standardised(params, x) - params["mean"]) / params["deviation"]  # (n, F)
    return np.asarray(np.square(away).mean(axis=1) - BORDER)


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return the same as an ONNX model."""
    nodes = [
        node("Sub", "z mean", "apart"),
        node("Div", "apart deviation", "away"),
        node("Mul", "away away", "squares"),
        node("ReduceMean", "squares", "square", axes=[1], keepdims=0),
        node("Sub", "square border", "score"),
    ]
    return model_of("distance", params, personal, nodes, {"border": BORDER}, len(params["mean"]))


def fit(x: Floats) -> Arrays:
    """Return the mean (F,) and the deviation (F,) of rows (n, F)."""
    return {"mean": x.mean(axis=0), "deviation": np.maximum(x.std(axis=0), LEAST)}


DISTANCE = Detector(score, graph, fit)
