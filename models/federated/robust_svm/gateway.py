"""What the robust classifiers read from a gateway's data: rows and signs for each machine, its ball and its weight, of
which the cloud says how much it may be (FDR-SVM paper; several machines and the bounds are ours).

Labels are 0 for normal and 1 to K for fault classes; `fedgate.models.detectors.base.fault_classes` says which machines
tell them apart. The bias is the weight of a constant feature, so that it is hedged and regularised like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from fedgate.models.arrays import LABELS, WEIGHT, Array, Arrays, Floats, number_of
from fedgate.models.detectors.base.checks import spread
from fedgate.models.detectors.base.fault_classes import named, signs
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Server
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.robust_svm.ball import Ball, Balls

Weighting = Literal["equal", "samples"]


def with_bias(x: Array) -> Floats:
    """Return features (n, F) with a constant one behind them, (n, F + 1)."""
    return np.column_stack([x, np.ones(len(x))])


def labels_of(data: Arrays, classes: int) -> Array:
    """Return the labels (n,) of a gateway's rows. A class without rows is allowed.

    Raises:
        ValueError: no labels, or a class other than 0 to K.
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
    return labels


class Task(NamedTuple):
    """What one machine learns from: rows x (n, P) with bias, signs (n,) of -1 and 1, and the ball around them."""

    x: Floats
    sign: Floats
    ball: Ball


def tasks(data: Arrays, z: Array, labels: Array, sides: Array, balls: Balls, max_rows: int) -> list[Task | None]:
    """Return for each machine what a gateway's normalised rows z (n, F) with labels (n,) teach it, `None` where none is
    of its classes: then it has nothing to say, and its risk is zero whatever the weights.

    A gateway of more than `max_rows` rows takes so many, spread evenly from the first to the last.
    """
    x, labels = with_bias(spread(z, max_rows)), spread(labels, max_rows)
    taught: list[Task | None] = []
    for sign in signs(labels, sides):
        taken = sign != 0.0
        rows = int(taken.sum())
        taught.append(Task(x[taken], sign[taken], balls.around(data, rows, z.shape[1])) if rows else None)
    return taught


def weight_of(data: Arrays, weighting: Weighting, count: int, most: float) -> float:
    """Return how much a gateway of `count` rows counts: as its data says, else 1 or its rows, `most` at most.

    Raises:
        ValueError: its data says what is not between 0 and `most`.
    """
    if WEIGHT not in data:
        return min(float(count), most) if weighting == "samples" else 1.0
    weight = number_of(data, WEIGHT, 1.0)
    if not 0.0 <= weight <= most:
        raise ValueError(
            f"{WEIGHT}: expected a number from 0 up to {most:g}, got {weight:g}; the cloud counts no gateway for "
            "more, so lower the weight, or let the operator raise the algorithm's setting 'max_weight'"
        )
    return weight


def most_weight(weighting: Weighting, max_weight: float | None) -> float:
    """Return how much a gateway counts at most: as set, else one where all count alike and the longest baseline where
    each counts by its rows.
    """
    if max_weight is not None:
        return max_weight
    return float(MAX_SAMPLES) if weighting == "samples" else 1.0


def check_weighed(values: str, weight: str, *, max_weight: float, largest: float) -> Callable[[Server, Arrays], None]:
    """Return what raises `UpdateError` where a gateway claims too much weight, or its `values` exceed `largest` times
    it: sums of `weight * values` and of `weight` may travel masked, so a single gateway is bounded by settings alone.
    """

    def check(_server: Server, update: Arrays) -> None:
        claimed = float(update[weight])
        if not 0.0 < claimed <= max_weight:
            raise UpdateError(f"{weight}: expected a number above 0 and up to {max_weight:g}, got {claimed:g}")
        found = float(np.abs(update[values]).max())
        if found > largest * claimed:  # no quotient, which a tiny weight would let overflow
            raise UpdateError(
                f"{values}: expected values up to {largest:g} (setting 'largest_weight') times the weight {claimed:g}, "
                f"got {found:g}"
            )

    return check


def exported(W: Array, sides: Array) -> Arrays:
    """Return weights with bias (M, F + 1) of machines with `sides` (M, 2) as parameters of detector `linear-svm`."""
    weights, intercept = np.array(W[:, :-1], dtype=np.float64), np.array(W[:, -1], dtype=np.float64)
    return {"weights": weights, "intercept": intercept, **named(sides)}


def imported(params: Arrays) -> Floats:
    """Return (M, F + 1), the inverse of `exported`."""
    return np.column_stack([params["weights"], params["intercept"]])
