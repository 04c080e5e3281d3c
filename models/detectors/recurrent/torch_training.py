"""The training of a recurrent network, with torch: the one file that imports it, and only in a training.

Loss is the mean squared error, or the cross-entropy with each row times the weight of its class (fslstm paper, Eq. 2,
3, 6); a gateway passes over its rows in mini-batches (Algorithm 1, lines 6 to 10). All chance comes from the numpy
generator, none from torch's own, and torch runs on one thread, so equal arguments give equal bytes on one machine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch

from fedgate.models.adam import Adam
from fedgate.models.arrays import Array, Arrays, Integers, Singles
from fedgate.models.detectors.base.checks import ConvergenceError, whole_classes
from fedgate.models.detectors.recurrent.recurrent import (
    GATES,
    targets_of,
    trained_names,
    windows_of,
)
from fedgate.models.detectors.recurrent.recurrent_network import Descent, PrecisionWarning, Recurrent, layers_of

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
    wanted: Singles | Integers
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

    def __init__(self, params: Mapping[str, Array], network: Recurrent, rng: np.random.Generator | None = None) -> None:
        self._network, self._rng = network, rng
        self.weights = {
            name: torch.nn.Parameter(torch.tensor(params[name], dtype=torch.float32)) for name in trained_names(params)
        }
        self._cells = [self._cell(layer) for layer in range(layers_of(params))]

    def _cell(self, layer: int) -> torch.nn.LSTM | torch.nn.GRU:
        rows, inputs = self.weights[f"cell.{layer}.input"].shape
        hidden = self.weights[f"cell.{layer}.state"].shape[1]
        kind = torch.nn.LSTM if rows == GATES["lstm"] * hidden else torch.nn.GRU
        # One layer each: the stacked module with dropout leaves the fast kernels. Without a device it draws no weights.
        cell = kind(inputs, hidden, device="meta")
        for theirs, ours in CELL_NAMES.items():
            setattr(cell, theirs, self.weights[f"cell.{layer}.{ours}"])
        return cell

    def outputs(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the outputs (n, c) for windows (steps, n, channels), with dropout and the paper's random first states
        where there is a generator to draw them from.
        """
        linear = torch.nn.functional.linear
        if not self._cells:
            flat = windows.permute(1, 2, 0).flatten(1)
            return linear(flat, self.weights["output.weight"], self.weights["output.bias"])
        seen = windows
        for layer, cell in enumerate(self._cells):
            seen = cell(self._thinned(seen) if layer else seen, self._first(cell, seen))[0]
        nodes = linear(self._thinned(seen[-1]), self.weights["dense.weight"], self.weights["dense.bias"])
        return linear(torch.relu(nodes), self.weights["output.weight"], self.weights["output.bias"])

    def _thinned(self, seen: torch.Tensor) -> torch.Tensor:
        """Dropout: each value is left out by itself, and the others are raised to keep the mean."""
        if self._rng is None or self._network.dropout == 0.0:
            return seen
        draws = np.frombuffer(self._rng.bytes(2 * seen.numel()), dtype=np.uint16).reshape(seen.shape)
        kept = (draws >= round(self._network.dropout * 2**16)).astype(np.float32)
        return seen * torch.from_numpy(kept / np.float32(1.0 - self._network.dropout))

    def _first(
        self, cell: torch.nn.LSTM | torch.nn.GRU, seen: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor] | None:
        """Random first states, as the paper has them (below Eq. 7)."""
        if self._rng is None or not self._network.paper:
            return None
        drawn = self._rng.standard_normal((2, 1, seen.shape[1], cell.hidden_size), dtype=np.float32)
        state, memory = torch.from_numpy(drawn)
        return (state, memory) if isinstance(cell, torch.nn.LSTM) else state

    def loss(self, windows: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of rows, each times its weight."""
        found = self.outputs(windows).float()
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
    if descent.bfloat16 and (reason := _lacks_bfloat16(Net(params, network), rows)):
        text = f"precision 'bfloat16' asked for, and this processor does not train in it: float32 is used ({reason})"
        warnings.warn(text, PrecisionWarning, stacklevel=2)
        descent = descent._replace(bfloat16=False)
    net = Net(params, network, rng)
    with np.errstate(over="ignore", invalid="ignore"):  # where that leads is seen in the end
        _descend(net, rows, rng, descent, anchored)
    moved = net.arrays()
    if not all(np.isfinite(array).all() for array in moved.values()):
        raise ConvergenceError(
            f"the weights ran away at learning_rate {descent.learning_rate:g}, expected finite ones; take a smaller one"
        )
    return {**params, **moved}


def _lacks_bfloat16(net: Net, rows: Examples) -> str:
    """Return why the slopes of one row cannot be computed in bfloat16, or an empty string where they can.

    Which processors can is known to the kernels alone, and differs from one cell to the next, so it is tried. What is
    wrong for another reason fails in float32 too, and is told there.
    """
    windows, wanted, counts = (torch.from_numpy(part) for part in rows)
    try:
        _slopes(net, windows[:, :1], wanted[:1], counts[:1], bfloat16=True)
    except RuntimeError as error:
        return str(error).partition(". ")[0]
    return ""


def _slopes(
    net: Net, windows: torch.Tensor, wanted: torch.Tensor, counts: torch.Tensor, *, bfloat16: bool
) -> tuple[torch.Tensor, ...]:
    """Return the slopes of the mean loss of rows, in the order of the net's weights."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        loss = net.loss(windows, wanted, counts)
    slopes: tuple[torch.Tensor, ...] = torch.autograd.grad(loss, list(net.weights.values()))
    return slopes


def _descend(net: Net, rows: Examples, rng: np.random.Generator, descent: Descent, anchored: tuple[str, ...]) -> None:
    anchors = net.arrays() if descent.proximity else {}
    adams = {name: Adam(tuple(weight.shape), np.float32) for name, weight in net.weights.items()}
    windows, wanted, counts = (torch.from_numpy(part) for part in rows)
    for _ in range(descent.epochs):
        order = torch.from_numpy(rng.permutation(len(counts)))
        for batch in torch.split(order, descent.batch):
            slopes = _slopes(net, windows[:, batch], wanted[batch], counts[batch], bfloat16=descent.bfloat16)
            downhill = {name: slope.numpy() for name, slope in zip(net.weights, slopes, strict=True)}
            for name in anchored if anchors else ():
                pull = net.weights[name].detach().numpy() - anchors[name]
                downhill[name] = downhill[name] + np.float32(descent.proximity) * pull
            cut = np.float32(_cut(downhill, descent.largest_gradient))
            for name, slope in downhill.items():
                step = adams[name].direction(cut * slope) if descent.optimiser == "adam" else cut * slope
                # Into torch's own memory; its optimisers would load a compiler, 100 MiB and a second.
                view = net.weights[name].detach().numpy()
                view -= np.float32(descent.learning_rate) * step


def _cut(slopes: Arrays, longest: float) -> float:
    """Return by what slopes are multiplied, so that all together are no longer than that."""
    length = math.sqrt(sum(float(np.vdot(slope, slope)) for slope in slopes.values()))
    return min(1.0, longest / length) if length > 0.0 else 1.0
