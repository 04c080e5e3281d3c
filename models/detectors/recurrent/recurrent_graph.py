"""The recurrent network as ONNX: one LSTM or GRU node a layer (ours).

ONNX has other orders of gates than torch (input, output, forget, cell; update, reset, new). What is personal stays an
input in the layout of the parameters and is put in order inside the graph, so that a gateway feeds its own weights
without the `onnx` package; constants are in order already, since onnxruntime would keep both forms of them.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fedgate.models.arrays import Array, Arrays
from fedgate.models.detectors.base.graph_builder import GraphBuilder
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR
from fedgate.models.detectors.recurrent.recurrent_network import layers_of

ORDERS = {4: ("LSTM", [0, 3, 1, 2]), 3: ("GRU", [1, 0, 2])}  # by the number of gates: where ONNX wants those of torch
PARAMETERS = ("dense.", "output.", "variance")


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX, and for classes their `outputs` (n, c) beside it."""
    builder = GraphBuilder(
        params, personal, {name: params[name] for name in sorted(params) if name.startswith(PARAMETERS)}
    )
    steps, observed = int(params["steps"]), int(params["heard"])
    layers = layers_of(params)
    channels = params["cell.0.input"].shape[1] if layers else params["output.weight"].shape[1] // observed
    cube = builder.add("Reshape", ["z", builder.constant("window", [-1, channels, steps])], "cube")
    seen = cube if observed == steps else _until(builder, cube, observed)
    outputs = _recurrent(builder, params, seen, personal) if layers else _linear(builder, channels * observed, seen)
    more: dict[str, list[int | str]] = {}
    if "targets" in params:
        _residual(builder, params, cube)
    else:
        more["outputs"] = ["n", len(params["output.bias"])]
        builder.add("Identity", [outputs], "outputs")
        builder.add("Add", [builder.margin("outputs", len(params["output.bias"])), builder.guard()], "score")
    return builder.model("recurrent", personal, channels * steps, more)


def _until(builder: GraphBuilder, cube: str, observed: int) -> str:
    """The first steps of windows (n, channels, T)."""
    bounds = [builder.constant("first", [0]), builder.constant("heard", [observed]), builder.constant("time", [2])]
    return builder.add("Slice", [cube, *bounds], "seen")


def _linear(builder: GraphBuilder, width: int, seen: str) -> str:
    flat = builder.add("Reshape", [seen, builder.constant("flat_window", [-1, width])], "flat")
    return builder.add("Gemm", [flat, "output.weight", "output.bias"], "said", transB=1)


def _recurrent(builder: GraphBuilder, params: Arrays, seen: str, personal: Collection[str]) -> str:
    layers = layers_of(params)
    below = builder.add("Transpose", [seen], "series", perm=[2, 0, 1])  # (steps, n, channels)
    for layer in range(layers):
        below = _layer(builder, params, layer, below, personal, is_last=layer + 1 == layers)
    last = builder.add("Gemm", [below, "dense.weight", "dense.bias"], "dense", transB=1)
    nodes = builder.add("Relu", [last], "nodes")
    return builder.add("Gemm", [nodes, "output.weight", "output.bias"], "said", transB=1)


def _layer(
    builder: GraphBuilder, params: Arrays, layer: int, below: str, personal: Collection[str], *, is_last: bool
) -> str:
    """States (steps, n, H) of a layer, of the last one the state (n, H) after the last step."""
    prefix, (rows, hidden) = f"cell.{layer}", params[f"cell.{layer}.state"].shape
    operator, order = ORDERS[rows // hidden]
    gates = np.concatenate([np.arange(hidden) + gate * hidden for gate in order])
    weights = [
        _in_order(builder, params, [f"{prefix}.{name}" for name in names], gates, shape, personal)
        for names, shape in (
            (["input"], [1, rows, -1]),
            (["state"], [1, rows, -1]),
            (["input_bias", "state_bias"], [1, 2 * rows]),
        )
    ]
    kind = {"hidden_size": hidden} | ({"linear_before_reset": 1} if operator == "GRU" else {})
    # The name of an output that is not wanted is empty: all states, then the last one.
    wanted = ["", f"{prefix}.last"] if is_last else [f"{prefix}.all", ""]
    builder.add_many(operator, [below, *weights], wanted, **kind)
    if is_last:
        return builder.add("Reshape", [wanted[1], builder.constant("last_state", [-1, hidden])], "last")
    # (steps, 1, n, H) without the direction
    return builder.add("Squeeze", [wanted[0], builder.constant("direction", [1])], f"{prefix}.states")


def _in_order(
    builder: GraphBuilder,
    params: Arrays,
    names: list[str],
    gates: Array,
    shape: list[int],
    personal: Collection[str],
) -> str:
    """Return the name of weights with their gates as ONNX has them, one behind the other in this shape."""
    turned = f"{names[0]}.turned"
    if not set(names) & set(personal):
        return builder.constant(turned, np.concatenate([params[name][gates] for name in names]).reshape(shape))
    turn = builder.constant(f"gates.{len(gates)}", gates)
    parts = [
        builder.add("Gather", [builder.constant(name, params[name]), turn], f"{name}.part", axis=0) for name in names
    ]
    joined = builder.add("Concat", parts, f"{names[0]}.joined", axis=0) if len(parts) > 1 else parts[0]
    return builder.add("Reshape", [joined, builder.constant(f"{names[0]}.shape", shape)], turned)


def _residual(builder: GraphBuilder, params: Arrays, cube: str) -> None:
    """The logarithm of the mean square error, zero on the border."""
    targets, steps, observed = params["targets"], int(params["steps"]), int(params["heard"])
    chosen = builder.add("Gather", [cube, builder.constant("targets", targets)], "chosen", axis=1)  # (n, c, T)
    at_end = builder.add("Gather", [chosen, builder.constant("end", steps - 1)], "wanted", axis=2)
    if float(params["change"]):
        base = builder.add("Gather", [chosen, builder.constant("base_at", observed - 1)], "base", axis=2)
        at_end = builder.add("Sub", [at_end, base], "wanted_change")
    errors = builder.add("Sub", [at_end, "said"], "errors")
    squares = builder.add("Mul", [errors, errors], "squares")
    ratios = builder.add("Div", [squares, "variance"], "ratios")
    mean = builder.add("ReduceMean", [ratios], "mean", axes=[1], keepdims=0)
    ratio = builder.add("Add", [mean, builder.constant("floor", RESIDUAL_FLOOR)], "ratio")
    border = builder.constant("log_border", np.log(float(params["border"]) + RESIDUAL_FLOOR))
    height = builder.add("Sub", [builder.add("Log", [ratio], "log_ratio"), border], "height")
    builder.add("Add", [height, builder.guard()], "score")
