"""What the robust classifiers read from a gateway's data: signs per fault class, its radius and its weight
(FDR-SVM paper; the bias and the classes against all others are ours).

Labels are 0 for normal and 1 to K for fault classes; class k is learned against all others. The bias is the weight of a
constant feature, so that it is hedged and regularised like any other.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedgate.models.arrays import LABELS, RADIUS, WEIGHT, Array, Arrays, Floats
from fedgate.models.detectors.svm.checks import spread
from fedgate.models.federated.robust_svm.ball import Ball

Weighting = Literal["equal", "samples"]


def with_bias(x: Array) -> Floats:
    """Return features (n, F) with a constant one behind them, (n, F + 1)."""
    return np.column_stack([x, np.ones(len(x))])


def signs_of(data: Arrays, classes: int) -> Floats:
    """Return (K, n): for each fault class 1 for its rows and -1 for all others. A class without rows is allowed.

    Raises:
        ValueError: no labels, labels that do not fit the rows, or a class other than 0 to K.
    """
    if LABELS not in data:
        raise ValueError(
            "a robust SVM needs labels in the data and found none; give each row 0 (normal) or its fault class, or "
            "choose an algorithm that learns without labels"
        )
    labels = np.asarray(data[LABELS])
    wrong = labels[~np.isin(labels, np.arange(classes + 1))]
    if len(wrong):
        raise ValueError(
            f"label {wrong[0]}: expected 0 (normal) to {classes} (setting 'classes'); renumber the fault classes or "
            "raise the setting"
        )
    return np.where(labels == np.arange(1, classes + 1)[:, None], 1.0, -1.0)


def ball_of(data: Arrays, ball: Ball) -> Ball:
    """Return the gateway's ball: the common one, with its own radius where its data holds one."""
    return ball._replace(radius=_number(data, RADIUS, ball.radius)).checked()


def thinned(z: Array, signs: Array, max_rows: int) -> tuple[Floats, Floats]:
    """Return normalised features z (n, F) with bias and their signs (K, n), of at most so many rows, spread evenly from
    the first to the last.
    """
    return with_bias(spread(z, max_rows)), spread(signs.T, max_rows).T


def weight_of(data: Arrays, weighting: Weighting, count: int, most: float) -> float:
    """Return how much a gateway of `count` rows counts: as its data says, else 1 or its rows, `most` at most.

    Raises:
        ValueError: its data says what is not between 0 and `most`.
    """
    if WEIGHT not in data:
        return min(float(count), most) if weighting == "samples" else 1.0
    weight = _number(data, WEIGHT, 1.0)
    if not 0.0 <= weight <= most:
        raise ValueError(
            f"{WEIGHT}: expected a number from 0 up to {most:g}, got {weight:g}; the cloud counts no gateway for "
            "more, so lower the weight, or let the operator raise the algorithm's setting 'max_weight'"
        )
    return weight


def _number(data: Arrays, name: str, default: float) -> float:
    if name not in data:
        return default
    array = np.asarray(data[name])
    if array.shape != () or array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected one number, got {array.dtype} of shape {array.shape}")
    return float(array)


def exported(W: Array) -> Arrays:
    """Return weights with bias (K, F + 1) as the parameters of detector `linear-svm`."""
    return {"weights": np.array(W[:, :-1], dtype=np.float64), "intercept": np.array(W[:, -1], dtype=np.float64)}


def imported(params: Arrays) -> Floats:
    """Return (K, F + 1), the inverse of `exported`."""
    return np.column_stack([params["weights"], params["intercept"]])
