"""How a classifier of stress is scored after every round: each figure over all rows of the subjects left out."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.models.arrays import Array, Floats

LAST_ROUNDS, STEADY_ROUNDS = 10, 30
NAMES = ("accuracy", "f1", "balanced")


def rates(stressed: NDArray[np.bool_], labels: Array) -> dict[str, Floats]:
    """Return accuracy, F1 of stress and balanced accuracy of answers (n, rounds) on labels (n,) of 0 and 1.

    Micro-F1 over both classes is the accuracy: a wrong row is a false alarm of one class and a miss of the other.
    """
    from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

    scores = (accuracy_score, partial(f1_score, zero_division=0.0), balanced_accuracy_score)
    truth = labels.astype(np.bool_)
    return {
        name: np.array([score(truth, answers) for answers in stressed.T])
        for name, score in zip(NAMES, scores, strict=True)
    }


def curve_figures(scores: Floats, labels: Array) -> Figures:
    """Return the figures of scores (n, rounds), stress above zero: of the last round, of the last ten and how much they
    move over the last thirty; and the balanced accuracy of every round as `curve.<round>`.
    """
    found = rates(scores > 0.0, labels)
    figures: Figures = {}
    for name, values in found.items():
        figures |= {name: float(values[-1]), f"{name}.late": float(values[-LAST_ROUNDS:].mean())}
    figures["unsteady"] = float(found["balanced"][-STEADY_ROUNDS:].std())
    return figures | {f"curve.{index}": float(value) for index, value in enumerate(found["balanced"])}
