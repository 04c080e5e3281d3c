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
from fedgate.models.detectors.base.graph_builder import GraphBuilder, node
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR
from fedgate.models.detectors.esn import reservoir

if TYPE_CHECKING:
    from onnx import GraphProto, ValueInfoProto

CARRIED = ("state", "last")  # what a stream feeds back
FAR = np.iinfo(np.int64).max  # a Slice up to here goes to the end
WASHOUT_ROWS, MAX_GAP_ROWS = "washout_rows", "max_gap_rows"


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX."""
    builder = GraphBuilder(params, personal)
    steps, inputs = int(params["steps"]), len(params["observed"])
    layers, units = (int(params[reservoir.PREFIX + name]) for name in ("layers", "units"))
    ahead = bool(params.get("ahead", 0.0))
    series = _series(builder, steps, inputs)
    clipped = _clip(builder, series, float(params["clip"]))
    states = _reservoir(builder, params, clipped, ahead)
    more: dict[str, list[int | str]] = {"next.state": [layers, units]}
    builder.constant("state", np.zeros((layers, units)))
    if ahead:
        builder.constant("last", np.zeros((1, inputs)))
        more["next.last"] = [1, inputs]
        clipped = _before(builder, clipped)
    predicted = _readout(builder, params, states, clipped)
    if "targets" in params:
        _residual(builder, params, series, predicted)
    else:
        more["outputs"] = ["n", len(params["readout"])]
        _voices(builder, params, predicted)
    metadata = {
        WASHOUT_ROWS: str(math.ceil(int(params["washout"]) / steps)),
        MAX_GAP_ROWS: str(int(params["max_gap"])),
    }
    return builder.model("esn", (*personal, *CARRIED), inputs * steps, more, metadata)


def _series(builder: GraphBuilder, steps: int, inputs: int) -> str:
    """Rows z (n, F), channel after channel, as time steps (n * steps, I)."""
    if steps == 1:
        return "z"
    cube = builder.add("Reshape", ["z", builder.constant("rows_shape", [-1, inputs, steps])], "cube")
    turned = builder.add("Transpose", [cube], "turned", perm=[0, 2, 1])
    return builder.add("Reshape", [turned, builder.constant("steps_shape", [-1, inputs])], "series")


def _clip(builder: GraphBuilder, series: str, clip: float) -> str:
    """What the network hears: clipped, and zero for what is no number, so that one bad row cannot stay in its state."""
    absent = builder.add("IsNaN", [series], "absent")
    numbers = builder.add("Where", [absent, builder.constant("nothing", 0.0), series], "numbers")
    limits = [builder.constant("least", -clip), builder.constant("most", clip)]
    return builder.add("Clip", [numbers, *limits], "heard")


def _reservoir(builder: GraphBuilder, params: Arrays, clipped: str, ahead: bool) -> list[str]:
    """States (r, N) of each layer, those before each step where the readout looks `ahead`."""
    weights = reservoir.drawn(params)
    layers, units = len(weights.layers), len(weights.layers[0].bias)
    entry = np.zeros((len(params["observed"]), units), np.float32)
    entry[params["observed"] > 0.0] = weights.layers[0].input  # nothing for what is not heard
    builder.constant("share", weights.leak)
    builder.constant("kept", 1.0 - weights.leak)
    flat = builder.constant("states_shape", [-1, units])
    starts = [f"state.{index}" for index in range(layers)] if layers > 1 else ["state"]
    ends = [f"end.{index}" for index in range(layers)] if layers > 1 else ["next.state"]
    if layers > 1:
        builder.add_many("Split", ["state"], starts, axis=0)
    below, found = clipped, []
    for index, layer in enumerate(weights.layers):
        into = builder.constant(f"input.{index}", layer.input if index else entry)
        drive = builder.add("Gemm", [below, into, builder.constant(f"bias.{index}", layer.bias)], f"drive.{index}")
        recurrent = _matrix(builder, layer, index)
        seen = [("before", f"before.{index}")] * ahead + [("after", f"after.{index}")] * (
            not ahead or index + 1 < layers
        )
        body = _step(recurrent, units, [name for name, _ in seen])
        names = [f"{name}.each" for _, name in seen]
        builder.add_many("Scan", [starts[index], drive], [ends[index], *names], num_scan_inputs=1, body=body)
        rows = {kind: builder.add("Reshape", [f"{name}.each", flat], name) for kind, name in seen}
        found.append(rows["before" if ahead else "after"])
        below = rows.get("after", "")
    if layers > 1:
        builder.add("Concat", ends, "next.state", axis=0)
    return found


def _matrix(builder: GraphBuilder, layer: reservoir.Layer, index: int) -> str:
    """Wᵀ (N, N), put together from what is not zero."""
    from onnx import helper

    units = len(layer.bias)
    name = f"recurrent.{index}"
    shape = builder.constant(f"{name}.shape", [units, units])
    zeros = builder.add("ConstantOfShape", [shape], f"{name}.zeros", value=helper.make_tensor("zero", 1, [1], [0.0]))
    indices = builder.constant(f"{name}.indices", np.ascontiguousarray(layer.indices.T))
    values = builder.constant(f"{name}.values", np.ascontiguousarray(layer.values.T))
    return builder.add("ScatterElements", [zeros, indices, values], name, axis=0)


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


def _before(builder: GraphBuilder, clipped: str) -> str:
    """What was heard a step before each, from `last` on; what was heard at the end is put out."""
    joined = builder.add("Concat", ["last", clipped], "heard_joined", axis=0)
    end = builder.constant("end", [-1])
    builder.add("Slice", [joined, end, builder.constant("far_end", [FAR])], "next.last")
    return builder.add("Slice", [joined, builder.constant("first", [0]), end], "heard_before")


def _readout(builder: GraphBuilder, params: Arrays, states: list[str], clipped: str) -> str:
    """Outputs (r, c); of residuals each in units of the deviation at which the score is zero."""
    weights = params["readout"] * _units(params)[:, None]  # (c, M)
    observed, found = params["observed"] > 0.0, builder.constant("constant", weights[:, -1])
    if float(params["direct"]):
        direct = np.zeros((len(observed), len(weights)))
        direct[observed] = weights[:, -1 - int(observed.sum()) : -1].T
        found = builder.add("Gemm", [clipped, builder.constant("direct", direct), found], "said.direct")
    size = int(params[f"{reservoir.PREFIX}units"])
    for index, name in enumerate(states):
        columns = builder.constant(f"readout.{index}", weights[:, index * size : (index + 1) * size].T)
        found = builder.add("Gemm", [name, columns, found], f"said.{index}")
    return found


def _units(params: Arrays) -> Array:
    """What outputs (c,) are multiplied by: the sum of squares over a row then is the ratio that the score is of."""
    if "targets" not in params:
        return np.ones(len(params["readout"]))
    count = len(params["targets"]) * int(params["steps"])
    return 1.0 / np.sqrt(params["variance"] * (float(params["border"]) + RESIDUAL_FLOOR) * count)


def _residual(builder: GraphBuilder, params: Arrays, series: str, predicted: str) -> None:
    """The logarithm of the mean square error, zero on the border."""
    targets, steps, inputs = params["targets"], int(params["steps"]), len(params["observed"])
    if not np.array_equal(targets, np.arange(inputs)):
        series = builder.add("Gather", [series, builder.constant("targets", targets)], "wanted", axis=1)
    scaled = builder.add("Mul", [series, builder.constant("units", _units(params))], "wanted_scaled")
    errors = builder.add("Sub", [scaled, predicted], "errors")
    if steps > 1:
        width = builder.constant("row_shape", [-1, steps * len(targets)])
        errors = builder.add("Reshape", [errors, width], "errors_by_row")
    squares = builder.add("ReduceSumSquare", [errors], "squares", axes=[1], keepdims=0)
    least = builder.constant("floor", RESIDUAL_FLOOR / (float(params["border"]) + RESIDUAL_FLOOR))
    ratio = builder.add("Add", [squares, least], "ratio")
    if len(targets) == inputs:
        builder.add("Log", [ratio], "score")
    else:
        builder.add("Add", [builder.add("Log", [ratio], "log_ratio"), builder.guard()], "score")


def _voices(builder: GraphBuilder, params: Arrays, predicted: str) -> None:
    """The outputs of a row, the mean over its steps, and the score that they give."""
    steps, count = int(params["steps"]), len(params["readout"])
    if steps > 1:
        predicted = builder.add(
            "Reshape", [predicted, builder.constant("row_shape", [-1, steps, count])], "said_by_row"
        )
        builder.add("ReduceMean", [predicted], "outputs", axes=[1], keepdims=0)
    else:
        builder.add("Identity", [predicted], "outputs")
    if count == 1:
        lead = builder.add("Reshape", ["outputs", builder.constant("flat", [-1])], "lead")
    else:
        lead = builder.margin("outputs", count)
    builder.add("Add", [lead, builder.guard()], "score")
