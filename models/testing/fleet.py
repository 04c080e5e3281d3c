"""Small fleets with a known truth, and two ways to look at a result: what the laws are shown by.

The rows are made up (ours): normal noise, and anomalies five deviations away in every feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedgate.models.arrays import CALIBRATION, END_NS, FEATURES, LABELS, Array, Arrays, Floats
from fedgate.models.time_units import NS

FEATURE_COUNT = 3
NAMES = ("harbour", "north", "south", "west")
FIVE = (*NAMES, "yard")  # of which a fifth is one: Krum stands no lie among four
ERRORS_ONLY = 3  # of onnxruntime's levels
T0_NS = 1_800_000_000 * NS
SHIFT = 5.0  # of an anomaly, in every feature, in deviations


class Gateway(NamedTuple):
    """What one gateway trains on, `data` by the names of `fedgate.models.arrays`, and what it is judged by: features
    `x` (n, F) and labels `y` (n,), bool, true for an anomaly.
    """

    data: Arrays
    x: Floats
    y: Array


def fleet(
    seed: int, *, labelled: bool = False, alike: bool = False, rows: int = 60, names: tuple[str, ...] = NAMES
) -> dict[str, Gateway]:
    """Return gateways by name that see normal noise, of `rows` rows (n, 3), each in units of its own unless they are
    `alike`.

    Without labels the training data holds no anomaly, with them every fifth row is one.
    """
    rng = np.random.default_rng(seed)
    gateways: dict[str, Gateway] = {}
    for name in names:
        spread = np.ones(FEATURE_COUNT) if alike else 10.0 ** rng.uniform(-9.0, 3.0, FEATURE_COUNT)
        level = spread * (np.zeros(FEATURE_COUNT) if alike else rng.uniform(-50.0, 50.0, FEATURE_COUNT))
        y = np.arange(rows) % 5 == 0
        noise = rng.normal(size=(2, rows, FEATURE_COUNT))
        x = level + spread * (noise[0] + SHIFT * y[:, None])
        data = {FEATURES: x, LABELS: y.astype(np.int64)} if labelled else {FEATURES: level + spread * noise[1]}
        later = np.random.default_rng([seed, len(gateways)]).normal(size=(rows // 2, FEATURE_COUNT))
        data |= {CALIBRATION: level + spread * later, END_NS: T0_NS + 3_600 * NS * np.arange(rows)}
        gateways[name] = Gateway(data, x, y)
    return gateways


def auc(scores: Floats, y: Array) -> float:
    """Return the share of pairs in which the anomaly has the higher score, of scores (n,) and labels (n,), bool."""
    anomalies, normals = scores[y], scores[~y]
    pairs = np.sign(anomalies[:, None] - normals[None, :])
    return float((pairs.mean() + 1.0) / 2.0)


def session_of(model: bytes) -> Any:
    """Return an `onnxruntime.InferenceSession` of a model, silent but for errors."""
    import onnxruntime  # late: the made-up fleets alone need no runtime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def onnx_scores(model: bytes, x: Array, own: Mapping[str, Array] | None = None) -> Floats:
    """Return the scores (n,) of onnxruntime for features (n, F), fed with those of a gateway's own tensors that the
    model has as inputs.
    """
    session = session_of(model)
    known = {tensor.name for tensor in session.get_overridable_initializers()}
    feed = {name: array for name, array in {FEATURES: x, **(own or {})}.items() if name in {FEATURES, *known}}
    (scores,) = session.run(["score"], {name: np.asarray(array, np.float32) for name, array in feed.items()})
    return np.asarray(scores, dtype=np.float64)
