"""The echo state network as ONNX: one Scan a layer, with everything that is not recurrent hoisted out of it (ours).

    x (n, F), state (layers, N), last (1, I) -> score (n,), next.state, next.last

The rows of x are one stream. Inputs `state` and `last` are where it stands, zeros by default, and each has an output
`next.` of its name to be fed back; `last` is there for task `predict` alone. Recurrent weights are mostly zeros, so the
file holds indices and values, which onnxruntime puts into their matrix once, when it loads the model.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from fedgate.models.arrays import Array, Arrays
from fedgate.models.detectors.base.drawing import Drawing, node
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR
from fedgate.models.detectors.esn import reservoir

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

CARRIED = ("state", "last")  # what a stream feeds back
FAR = np.iinfo(np.int64).max  # a Slice up to here goes to the end
WASHOUT_ROWS, MAX_GAP_ROWS = "washout_rows", "max_gap_rows"


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX."""
    drawing = Drawing(params, personal)
    steps, inputs = int(params["steps"]), len(params["observed"])
    layers, units = (int(params[reservoir.PREFIX + name]) for name in ("layers", "units"))
    ahead = bool(params.get("ahead", 0.0))
    series = _series(drawing, steps, inputs)
    clipped = _clip(drawing, series, float(params["clip"]))
    states = _reservoir(drawing, params, clipped, ahead)
    more: dict[str, list[int | str]] = {"next.state": [layers, units]}
    drawing.constant("state", np.zeros((layers, units)))
    if ahead:
        drawing.constant("last", np.zeros((1, inputs)))
        more["next.last"] = [1, inputs]
        clipped = _before(drawing, clipped)
    predicted = _readout(drawing, params, states, clipped)
    if "targets" in params:
        _residual(drawing, params, series, predicted)
    else:
        more["outputs"] = ["n", len(params["readout"])]
        _voices(drawing, params, predicted)
    metadata = {
        WASHOUT_ROWS: str(math.ceil(int(params["washout"]) / steps)),
        MAX_GAP_ROWS: str(int(params["max_gap"])),
    }
    return drawing.model("esn", (*personal, *CARRIED), inputs * steps, more, metadata)


def _series(drawing: Drawing, steps: int, inputs: int) -> str:
    """Rows z (n, F), channel after channel, as time steps (n * steps, I)."""
    if steps == 1:
        return "z"
    cube = drawing.add("Reshape", ["z", drawing.constant("rows_shape", [-1, inputs, steps])], "cube")
    turned = drawing.add("Transpose", [cube], "turned", perm=[0, 2, 1])
    return drawing.add("Reshape", [turned, drawing.constant("steps_shape", [-1, inputs])], "series")


def _clip(drawing: Drawing, series: str, clip: float) -> str:
    """What the network hears: clipped, and zero for what is no number, so that one bad row cannot stay in its state."""
    absent = drawing.add("IsNaN", [series], "absent")
    numbers = drawing.add("Where", [absent, drawing.constant("nothing", 0.0), series], "numbers")
    limits = [drawing.constant("least", -clip), drawing.constant("most", clip)]
    return drawing.add("Clip", [numbers, *limits], "heard")


def _reservoir(drawing: Drawing, params: Arrays, clipped: str, ahead: bool) -> list[str]:
    """States (r, N) of each layer, those before each step where the readout looks `ahead`."""
    weights = reservoir.drawn(params)
    layers, units = len(weights.layers), len(weights.layers[0].bias)
    entry = np.zeros((len(params["observed"]), units), np.float32)
    entry[params["observed"] > 0.0] = weights.layers[0].input  # nothing for what is not heard
    drawing.constant("share", weights.leak)
    drawing.constant("kept", 1.0 - weights.leak)
    flat = drawing.constant("states_shape", [-1, units])
    starts = [f"state.{index}" for index in range(layers)] if layers > 1 else ["state"]
    ends = [f"end.{index}" for index in range(layers)] if layers > 1 else ["next.state"]
    if layers > 1:
        drawing.add_many("Split", ["state"], starts, axis=0)
    below, found = clipped, []
    for index, layer in enumerate(weights.layers):
        into = drawing.constant(f"input.{index}", layer.input if index else entry)
        drive = drawing.add("Gemm", [below, into, drawing.constant(f"bias.{index}", layer.bias)], f"drive.{index}")
        recurrent = _matrix(drawing, layer, index)
        seen = [("before", f"before.{index}")] * ahead + [("after", f"after.{index}")] * (
            not ahead or index + 1 < layers
        )
        body = _step(recurrent, units, [name for name, _ in seen])
        names = [f"{name}.each" for _, name in seen]
        drawing.add_many("Scan", [starts[index], drive], [ends[index], *names], num_scan_inputs=1, body=body)
        rows = {kind: drawing.add("Reshape", [f"{name}.each", flat], name) for kind, name in seen}
        found.append(rows["before" if ahead else "after"])
        below = rows.get("after", "")
    if layers > 1:
        drawing.add("Concat", ends, "next.state", axis=0)
    return found


def _matrix(drawing: Drawing, layer: reservoir.Layer, index: int) -> str:
    """Wᵀ (N, N), put together from what is not zero."""
    from onnx import helper

    units = len(layer.bias)
    name = f"recurrent.{index}"
    shape = drawing.constant(f"{name}.shape", [units, units])
    zeros = drawing.add("ConstantOfShape", [shape], f"{name}.zeros", value=helper.make_tensor("zero", 1, [1], [0.0]))
    indices = drawing.constant(f"{name}.indices", np.ascontiguousarray(layer.indices.T))
    values = drawing.constant(f"{name}.values", np.ascontiguousarray(layer.values.T))
    return drawing.add("ScatterElements", [zeros, indices, values], name, axis=0)


def _step(recurrent: str, units: int, seen: list[str]) -> GraphProto:
    """One step of a layer: state (1, N) and its drive (N,) -> the next state, and what is `seen` of it."""
    from onnx import TensorProto, helper

    def value(name: str, shape: list[int]) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = [
        node("Gemm", f"now {recurrent} force", "sum"),
        node("Tanh", "sum", "new"),
        node("Mul", "new share", "shared"),
        node("Mul", "now kept", "remembered"),
        node("Add", "shared remembered", "then"),
    ]
    nodes += [node("Identity", "now" if name == "before" else "then", name) for name in seen]
    inputs = [value("now", [1, units]), value("force", [units])]
    return helper.make_graph(nodes, "step", inputs, [value(name, [1, units]) for name in ("then", *seen)])


def _before(drawing: Drawing, clipped: str) -> str:
    """What was heard a step before each, from `last` on; what was heard at the end is put out."""
    joined = drawing.add("Concat", ["last", clipped], "heard_joined", axis=0)
    end = drawing.constant("end", [-1])
    drawing.add("Slice", [joined, end, drawing.constant("far_end", [FAR])], "next.last")
    return drawing.add("Slice", [joined, drawing.constant("first", [0]), end], "heard_before")


def _readout(drawing: Drawing, params: Arrays, states: list[str], clipped: str) -> str:
    """Outputs (r, c); of residuals each in units of the deviation at which the score is zero."""
    weights = params["readout"] * _units(params)[:, None]  # (c, M)
    observed, found = params["observed"] > 0.0, drawing.constant("constant", weights[:, -1])
    if float(params["direct"]):
        direct = np.zeros((len(observed), len(weights)))
        direct[observed] = weights[:, -1 - int(observed.sum()) : -1].T
        found = drawing.add("Gemm", [clipped, drawing.constant("direct", direct), found], "said.direct")
    size = int(params[f"{reservoir.PREFIX}units"])
    for index, name in enumerate(states):
        columns = drawing.constant(f"readout.{index}", weights[:, index * size : (index + 1) * size].T)
        found = drawing.add("Gemm", [name, columns, found], f"said.{index}")
    return found


def _units(params: Arrays) -> Array:
    """What outputs (c,) are multiplied by: the sum of squares over a row then is the ratio that the score is of."""
    if "targets" not in params:
        return np.ones(len(params["readout"]))
    count = len(params["targets"]) * int(params["steps"])
    return 1.0 / np.sqrt(params["variance"] * (float(params["border"]) + RESIDUAL_FLOOR) * count)


def _residual(drawing: Drawing, params: Arrays, series: str, predicted: str) -> None:
    """The logarithm of the mean square error, zero on the border."""
    targets, steps, inputs = params["targets"], int(params["steps"]), len(params["observed"])
    if not np.array_equal(targets, np.arange(inputs)):
        series = drawing.add("Gather", [series, drawing.constant("targets", targets)], "wanted", axis=1)
    scaled = drawing.add("Mul", [series, drawing.constant("units", _units(params))], "wanted_scaled")
    errors = drawing.add("Sub", [scaled, predicted], "errors")
    if steps > 1:
        width = drawing.constant("row_shape", [-1, steps * len(targets)])
        errors = drawing.add("Reshape", [errors, width], "errors_by_row")
    squares = drawing.add("ReduceSumSquare", [errors], "squares", axes=[1], keepdims=0)
    least = drawing.constant("floor", RESIDUAL_FLOOR / (float(params["border"]) + RESIDUAL_FLOOR))
    ratio = drawing.add("Add", [squares, least], "ratio")
    if len(targets) == inputs:
        drawing.add("Log", [ratio], "score")
    else:
        drawing.add("Add", [drawing.add("Log", [ratio], "log_ratio"), drawing.guard()], "score")


def _voices(drawing: Drawing, params: Arrays, predicted: str) -> None:
    """The outputs of a row, the mean over its steps, and the score that they give."""
    steps, count = int(params["steps"]), len(params["readout"])
    if steps > 1:
        predicted = drawing.add(
            "Reshape", [predicted, drawing.constant("row_shape", [-1, steps, count])], "said_by_row"
        )
        drawing.add("ReduceMean", [predicted], "outputs", axes=[1], keepdims=0)
    else:
        drawing.add("Identity", [predicted], "outputs")
    if count == 1:
        lead = drawing.add("Reshape", ["outputs", drawing.constant("flat", [-1])], "lead")
    else:
        lead = drawing.lead("outputs", count)
    drawing.add("Add", [lead, drawing.guard()], "score")
