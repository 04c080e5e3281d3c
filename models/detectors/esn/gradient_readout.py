"""Readouts that are trained by gradient: a sigmoid tells two classes apart, a softmax more.

    p = sigmoid(W s)  for one output,  p = softmax(W s)  for more          s (M,) is what the readout sees at one step

Both have the cross-entropy -log p of the true class as loss, the slope (p - target) sᵀ, and the diagonal of the Fisher
information in closed form, since the label is averaged over the model's own p and not over the data:

    D_ij = mean of p_i (1 - p_i) s_j²                                  (Shoham et al. 2019, Section 3)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from fedgate.models.adam import Adam
from fedgate.models.arrays import Array, Floats

Optimiser = Literal["adam", "sgd"]

Pull = Callable[[Floats, Array], Floats]  # (readout, states of the batch) -> what a penalty adds to the slope (c, M)


class Descent(NamedTuple):
    """How a gateway trains: passes over its rows, rows in a step, and the kind and size of the steps."""

    epochs: int
    batch: int
    optimiser: Optimiser
    learning_rate: float


class Examples(NamedTuple):
    """What a readout learns from: states (n, M), targets (n, c) and how much each row counts (n,), one in the mean."""

    states: Array
    targets: Array
    weights: Array


def output_count(classes: int) -> int:
    """Return c, the outputs that tell so many classes apart."""
    return 1 if classes == 2 else classes


def examples(states: Array, classes: Array, count: int, class_weights: tuple[float, ...] | None) -> Examples:
    """Return states (n, M) and classes (n,) of 0 to count - 1 as examples.

    Class weights are divided by their mean over the rows: only their ratio is meant, and a larger step is a matter of
    the learning rate.
    """
    targets = (classes[:, None] == np.arange(count)).astype(np.float64)
    weights = np.ones(len(classes)) if class_weights is None else np.asarray(class_weights, dtype=np.float64)[classes]
    mean = weights.mean() if len(weights) else 1.0
    return Examples(states, targets[:, 1:] if count == 2 else targets, weights / mean)


def probabilities(readout: Array, states: Array) -> Floats:
    """Return p (n, c) of states (n, M): of class 1 for one output, of each class for more."""
    logits: Floats = states @ readout.T
    if logits.shape[1] == 1:
        return 0.5 + 0.5 * np.tanh(0.5 * logits)  # the sigmoid, which so cannot overflow
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def slope(readout: Array, rows: Examples) -> Floats:
    """Return the gradient (c, M) of the mean cross-entropy of the rows, each times its weight."""
    errors = probabilities(readout, rows.states)  # (n, c)
    errors -= rows.targets
    errors *= rows.weights[:, None] / len(errors)
    return np.asarray(errors.T @ rows.states)


def fisher(readout: Array, states: Array) -> Floats:
    """Return the diagonal D (c, M) of the Fisher information of the readout on states (n, M)."""
    p = probabilities(readout, states)
    return np.asarray((p * (1.0 - p)).T @ np.square(states) / len(states))


def descended(
    readout: Array, rows: Examples, rng: np.random.Generator, descent: Descent, pull: Pull | None = None
) -> Floats:
    """Return the readout (c, M) after `descent` along the cross-entropy of the rows, and along a penalty's `pull`."""
    current, adam = np.array(readout, dtype=np.float64), Adam(readout.shape)
    for _ in range(descent.epochs):
        order = rng.permutation(len(rows.states))
        shuffled = Examples(*(part[order] for part in rows))
        for start in range(0, len(order), descent.batch):
            batch = Examples(*(part[start : start + descent.batch] for part in shuffled))
            downhill = slope(current, batch)
            if pull is not None:
                downhill = downhill + pull(current, batch.states)
            step = adam.direction(downhill) if descent.optimiser == "adam" else downhill
            current = current - descent.learning_rate * step
    return current
