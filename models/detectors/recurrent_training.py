"""The training of a recurrent network, with torch: the one file that imports it, and only in a training.

Loss is the mean squared error, or the cross-entropy with each row times the weight of its class (fslstm paper, Eq. 2,
3, 6); a gateway passes over its rows in mini-batches (Algorithm 1, lines 6 to 10). All chance comes from the numpy
generator, and torch runs on one thread, so equal arguments give equal bytes on one machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from models.arrays import Array, Arrays
from models.detectors.recurrent import GATES, Singles, targets_of, trained_names, whole_classes, windows_of
from models.detectors.recurrent_network import Descent, Recurrent, layers_of
from models.detectors.training import ConvergenceError

CELL_NAMES = {
    "weight_ih_l0": "input",
    "weight_hh_l0": "state",
    "bias_ih_l0": "input_bias",
    "bias_hh_l0": "state_bias",
}


class Examples(NamedTuple):
    """What a network learns from: windows (steps, n, channels), targets (n, c) or classes (n,), and how much each row
    counts (n,), one in the mean.
    """

    windows: Singles
    wanted: NDArray[np.float32] | NDArray[np.int64]
    weights: Singles


def examples(params: Arrays, network: Recurrent, z: Array, y: Array | None, shares: Array | None = None) -> Examples:
    """Return rows z (n, F) in normalised units, and classes y (n,) for task `classify`, as examples.

    `shares` (c,) of the classes decide on the weights where there are to be any; where not given those of y.
    """
    windows = windows_of(params, z)
    if network.task == "predict":
        wanted, base = targets_of(params, z)
        return Examples(windows, (wanted - base).astype(np.float32), np.ones(len(z), np.float32))
    classes = whole_classes(y, network.classes)
    weights = np.ones(len(classes))
    if network.class_weights:
        known = np.bincount(classes, minlength=network.classes) / len(classes) if shares is None else shares
        weights = 1.0 / np.maximum(np.asarray(known)[classes], 1.0 / len(classes))  # no rarer than one of these rows
        weights /= weights.mean()
    return Examples(windows, classes, weights.astype(np.float32))


class Net:
    """The network as torch computes it, on parameters named and laid out as ours."""

    def __init__(self, params: Mapping[str, Array], network: Recurrent) -> None:
        self._network = network
        self.weights = {
            name: torch.nn.Parameter(torch.tensor(params[name], dtype=torch.float32)) for name in trained_names(params)
        }
        self._cells = [self._cell(layer) for layer in range(layers_of(params))]

    def _cell(self, layer: int) -> torch.nn.LSTM | torch.nn.GRU:
        rows, inputs = self.weights[f"cell.{layer}.input"].shape
        hidden = self.weights[f"cell.{layer}.state"].shape[1]
        kind = torch.nn.LSTM if rows == GATES["lstm"] * hidden else torch.nn.GRU
        cell = kind(inputs, hidden)  # one layer each: the stacked module with dropout leaves the fast kernels
        for theirs, ours in CELL_NAMES.items():
            setattr(cell, theirs, self.weights[f"cell.{layer}.{ours}"])
        return cell

    def outputs(self, windows: torch.Tensor, *, training: bool) -> torch.Tensor:
        """Return the outputs (n, c) for windows (steps, n, channels); dropout and random first states in training."""
        seen, chance = windows, self._network.dropout
        linear, dropout = torch.nn.functional.linear, torch.nn.functional.dropout
        if not self._cells:
            seen = windows.permute(1, 2, 0).flatten(1)
            return linear(seen, self.weights["output.weight"], self.weights["output.bias"])
        for cell in self._cells:
            seen = dropout(seen, chance, training and cell is not self._cells[0])
            seen = cell(seen, self._first(cell, seen) if training and self._network.paper else None)[0]
        nodes = dropout(seen[-1], chance, training)
        nodes = torch.relu(linear(nodes, self.weights["dense.weight"], self.weights["dense.bias"]))
        return linear(nodes, self.weights["output.weight"], self.weights["output.bias"])

    def _first(
        self, cell: torch.nn.LSTM | torch.nn.GRU, seen: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Random first states, as the paper has them (below Eq. 7)."""
        state = torch.randn(1, seen.shape[1], cell.hidden_size)
        return (state, torch.randn_like(state)) if isinstance(cell, torch.nn.LSTM) else state

    def loss(self, windows: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of rows, each times its weight."""
        found = self.outputs(windows, training=True).float()
        if self._network.task == "predict":
            return torch.square(found - wanted).mean()
        return (torch.nn.functional.cross_entropy(found, wanted, reduction="none") * weights).mean()

    def arrays(self) -> Arrays:
        """Return the weights as they are now."""
        return {name: weight.detach().numpy().copy() for name, weight in self.weights.items()}


def descended(
    params: Arrays,
    rows: Examples,
    rng: np.random.Generator,
    network: Recurrent,
    descent: Descent,
    anchored: tuple[str, ...],
) -> Arrays:
    """Return the parameters after a descent; the proximal term pulls back what is `anchored`.

    Raises `ConvergenceError` where a weight is no finite number in the end.
    """
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**63)))
        net = Net(params, network)
        _descend(net, rows, rng, descent, anchored)
    moved = net.arrays()
    if not all(np.isfinite(array).all() for array in moved.values()):
        raise ConvergenceError(
            f"the weights ran away at learning_rate {descent.learning_rate:g}, expected finite ones; take a smaller one"
        )
    return {**params, **moved}


def _descend(net: Net, rows: Examples, rng: np.random.Generator, descent: Descent, anchored: tuple[str, ...]) -> None:
    weights, anchors = list(net.weights.values()), net.arrays()
    pulled = [(net.weights[name], torch.from_numpy(anchors[name])) for name in anchored if descent.proximity]
    kind = torch.optim.Adam if descent.optimiser == "adam" else torch.optim.SGD
    optimiser = kind(weights, lr=descent.learning_rate)
    windows, wanted, counts = (torch.from_numpy(part) for part in rows)
    for _ in range(descent.epochs):
        order = torch.from_numpy(rng.permutation(len(counts)))
        for batch in torch.split(order, descent.batch):
            optimiser.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=descent.bfloat16):
                loss = net.loss(windows[:, batch], wanted[batch], counts[batch])
            torch.autograd.backward(loss)
            for weight, anchor in pulled:
                if weight.grad is not None:
                    weight.grad.add_(weight.detach() - anchor, alpha=descent.proximity)
            if math.isfinite(descent.largest_gradient):
                torch.nn.utils.clip_grad_norm_(weights, descent.largest_gradient)
            optimiser.step()
