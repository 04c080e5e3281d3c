"""Recurrent network: LSTM or GRU layers over a window, or a linear layer on it, that predict its end or name its class
(Hochreiter and Schmidhuber 1997; Cho et al. 2014; the score is ours).

A row of features is one window and is read from zero state, so nothing is remembered from row to row. With outputs o

    predict    e = x(T) - o,  or x(T) - x(T - horizon) - o where the change is predicted
               score = log(mean e² / variance + floor) - log(border + floor)     (docs/decisions/04)
    classify   score = max of the classes from 1 on - class 0

The variance is that of e on healthy data, one for each target; the border is what a share `outside` of normally
distributed residuals exceeds.

Parameters are flat and in the layout of torch, so that what it trains needs no translation: of layer k `cell.k.input`
(G·H, I), `cell.k.state` (G·H, H) and a bias of each, gates in the order input, forget, cell, output of an LSTM
(G = 4) and reset, update, new of a GRU (G = 3); then `dense.weight` (D, H), `output.weight` (c, D) and their biases.
Of a linear cell there is `output` alone, over the steps heard of channel after channel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats, Singles
from fedgate.models.detectors.base.checks import FitError, finite_rows
from fedgate.models.detectors.base.detector import Detector, standardised
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR
from fedgate.models.detectors.base.subspace import OUTSIDE, exceeded_by
from fedgate.models.detectors.recurrent.recurrent_graph import graph
from fedgate.models.detectors.recurrent.recurrent_network import Descent, Recurrent, layers_of

GAPS = "leave such windows out"  # that hold what is no number
BLOCK_ROWS = 256  # of 40 steps and 512 gates: 21 MB at a time
FAR = 1e18  # what is heard of an input is at most this, so that no float32 overflows
SMALLEST_VARIANCE = 1e-12  # of a target that is always right, such as a constant
GATES = {"lstm": 4, "gru": 3}
HEAD = ("dense.", "output.")


class TorchMissingError(FitError):
    """A recurrent network is to be trained where torch is not installed."""


def initial(rng: np.random.Generator, network: Recurrent, feature_count: int) -> Arrays:
    """Return the parameters of an untrained network for F features, drawn as torch draws them: uniform up to
    1 / sqrt(H), and 1 / sqrt(inputs) after the recurrent layers.
    """
    window, outputs = network.window(feature_count), network.outputs(feature_count)
    params: Arrays = {
        "steps": np.array(window.steps, dtype=np.int64),
        "heard": np.array(window.observed, dtype=np.int64),
    }

    def draw(name: str, shape: tuple[int, ...], inputs: int) -> None:
        params[name] = rng.uniform(-1.0, 1.0, shape).astype(np.float32) / np.float32(np.sqrt(inputs))

    below, hidden = window.channels, network.hidden
    for layer in range(network.layers if network.cell != "linear" else 0):
        rows = GATES[network.cell] * hidden
        draw(f"cell.{layer}.input", (rows, below), hidden)
        draw(f"cell.{layer}.state", (rows, hidden), hidden)
        draw(f"cell.{layer}.input_bias", (rows,), hidden)
        draw(f"cell.{layer}.state_bias", (rows,), hidden)
        below = hidden
    if network.cell == "linear":
        below = window.channels * window.observed
    else:
        draw("dense.weight", (network.dense, below), below)
        draw("dense.bias", (network.dense,), below)
        below = network.dense
    draw("output.weight", (outputs, below), below)
    draw("output.bias", (outputs,), below)
    if network.task == "classify":
        return params
    return params | {
        "targets": np.array(network.predicted(feature_count), dtype=np.int64),
        "change": np.array(float(network.change)),
        "variance": np.ones(outputs),
        "border": np.array(exceeded_by(OUTSIDE, outputs)),
    }


def trained_names(params: Iterable[str], prefixes: tuple[str, ...] = ("cell.", *HEAD)) -> tuple[str, ...]:
    """Return the names of what training moves, or of those that begin in one of these ways, in order."""
    return tuple(sorted(name for name in params if name.startswith(prefixes)))


def windows_of(params: Mapping[str, Array], z: Array) -> Singles:
    """Return what the network hears of rows z (n, F), as (steps heard, n, channels); nothing for what is no number."""
    cube = _cube(params, z)[:, :, : int(params["heard"])]
    known = np.clip(np.where(np.isfinite(cube), cube, 0.0), -FAR, FAR)
    return np.ascontiguousarray(known.transpose(2, 0, 1), dtype=np.float32)


def _cube(params: Mapping[str, Array], z: Array) -> Array:
    steps = int(params["steps"])
    return np.reshape(z, (len(z), z.shape[1] // steps, steps))  # (n, channels, T)


def targets_of(params: Mapping[str, Array], z: Array) -> tuple[Floats, Floats]:
    """Return of rows z (n, F) what is to be predicted (n, c), and from where (n, c): the last value heard, or zero."""
    rows = np.asarray(z, dtype=np.float64)
    cube = _cube(params, rows)[:, params["targets"]]
    return cube[:, :, -1], cube[:, :, int(params["heard"]) - 1] * float(params["change"])


def normalised_outputs(params: Mapping[str, Array], z: Array) -> Floats:
    """Return the outputs (n, c) of the network for rows z (n, F) in normalised units, in float32 inside."""
    blocks = [_block_outputs(params, z[first : first + BLOCK_ROWS]) for first in range(0, max(len(z), 1), BLOCK_ROWS)]
    return np.concatenate(blocks).astype(np.float64)


def _block_outputs(params: Mapping[str, Array], z: Array) -> Singles:
    seen = windows_of(params, z)  # (steps, n, channels)
    weights = {name: np.asarray(params[name], dtype=np.float32) for name in trained_names(params)}
    layers = layers_of(params)
    if layers == 0:
        flat = seen.transpose(1, 2, 0).reshape(len(z), seen.shape[2] * seen.shape[0])
        return np.asarray(flat @ weights["output.weight"].T + weights["output.bias"])
    for layer in range(layers):
        seen = _layer({name.removeprefix(f"cell.{layer}."): each for name, each in weights.items()}, seen)
    nodes = np.maximum(seen[-1] @ weights["dense.weight"].T + weights["dense.bias"], np.float32(0.0))
    return np.asarray(nodes @ weights["output.weight"].T + weights["output.bias"])


def _sigmoid(x: Singles) -> Singles:
    half = np.float32(0.5)
    return np.asarray(half + half * np.tanh(half * x))  # which cannot overflow


def _layer(weights: Mapping[str, Array], below: Singles) -> Singles:
    """Return the states (steps, n, H) of one layer over inputs (steps, n, I), from zero state."""
    hidden, count = weights["state"].shape[1], below.shape[1]
    drives = below @ weights["input"].T + weights["input_bias"]  # (steps, n, G·H)
    recurrent, bias = weights["state"].T, weights["state_bias"]
    state = np.zeros((count, hidden), np.float32)
    memory, states = state, np.empty((len(below), count, hidden), np.float32)
    is_lstm = len(bias) == GATES["lstm"] * hidden
    for step, drive in enumerate(drives):
        force = state @ recurrent + bias
        if is_lstm:
            enter, forget, new, leave = np.split(drive + force, 4, axis=1)
            memory = _sigmoid(forget) * memory + _sigmoid(enter) * np.tanh(new)
            state = _sigmoid(leave) * np.tanh(memory)
        else:
            (reset, update, new), (f_reset, f_update, f_new) = np.split(drive, 3, axis=1), np.split(force, 3, axis=1)
            keep = _sigmoid(update + f_update)
            state = (1 - keep) * np.tanh(new + _sigmoid(reset + f_reset) * f_new) + keep * state
        states[step] = state
    return states


def outputs(params: Mapping[str, Array], x: Array) -> Floats:
    """Return for features (n, F) the outputs (n, c) of the classes, or in normalised units what is predicted."""
    z = standardised(dict(params), x)
    found = normalised_outputs(params, z)
    return found + targets_of(params, z)[1] if "targets" in params else found


def squares(params: Mapping[str, Array], z: Array) -> Floats:
    """Return the squared residuals (n, c) of rows z (n, F) in normalised units."""
    wanted, base = targets_of(params, z)
    return np.asarray(np.square(wanted - base - normalised_outputs(params, z)))


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F); zero on the border, positive for an anomaly."""
    z = standardised(params, x)
    if "targets" in params:
        mean = (squares(params, z) / params["variance"]).mean(axis=1)
        scores = np.log(mean + RESIDUAL_FLOOR) - np.log(float(params["border"]) + RESIDUAL_FLOOR)
    else:
        voices = normalised_outputs(params, z)
        scores = voices[:, 1:].max(axis=1) - voices[:, 0]
    return np.where(np.isfinite(z).all(axis=1), scores, np.nan)


def with_variance(params: Arrays, mean_squares: Array) -> Arrays:
    """Return the parameters with the variance (c,) that follows from the mean square of residuals on healthy rows."""
    return {**params, "variance": np.maximum(mean_squares, SMALLEST_VARIANCE)}


def descended(
    params: Arrays,
    z: Array,
    y: Array | None,
    rng: np.random.Generator,
    network: Recurrent,
    descent: Descent,
    *,
    shares: Array | None = None,
    anchored: tuple[str, ...] = (),
) -> Arrays:
    """Return the parameters after a descent on rows z (n, F) in normalised units, with classes y (n,) for `classify`.

    :param shares: of the classes (c,), by which errors are weighed; where not given those of y.
    :param anchored: names that the proximal term of the descent pulls back to where they were, all where none is given.

    Raises `TorchMissingError`, and `ConvergenceError` where the training runs away.
    """
    try:
        from fedgate.models.detectors.recurrent import torch_training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise TorchMissingError(
            "torch is not installed, expected it where a recurrent network is trained: pip install '.[lstm]' in a"
            " checkout of fedgate"
        ) from None
    rows = torch_training.examples(params, network, z, y, shares)
    return torch_training.descended(params, rows, rng, network, descent, anchored or trained_names(params))


def fit(
    x: Array,
    y: Array | None,
    rng: np.random.Generator,
    *,
    network: Recurrent | None = None,
    descent: Descent | None = None,
) -> Arrays:
    """Train on windows (n, F), healthy ones for task `predict`, and for `classify` their classes (n,); with torch.

    Raises `FitError`, of which one is `TorchMissingError`.
    """
    network, z = network or Recurrent(), finite_rows(x, GAPS)
    params = descended(initial(rng, network, z.shape[1]), z, y, rng, network, descent or Descent())
    return with_variance(params, squares(params, z).mean(axis=0)) if network.task == "predict" else params


RECURRENT = Detector(score=score, graph=graph, fit=fit)
