"""Building blocks for ONNX graphs, written node by node with `onnx.helper`.

Converters are slower at run time and pull in packages; the graphs here have ten nodes. Opset and IR version are pinned
because the newest ones that `onnx` writes by default are refused by the onnxruntime on the gateways.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

from models.arrays import Array

OPSET = 17
IR_VERSION = 10
OPERATORS = frozenset({"Sub", "Div", "Gemm", "ReduceMax", "Exp", "Log", "Max", "Mul", "Add", "Cos", "Reshape"})


def standardise_nodes() -> list[NodeProto]:
    """Nodes that map `x` to `z = (x - center) / scale`."""
    return [helper.make_node("Sub", ["x", "center"], ["centred"]), helper.make_node("Div", ["centred", "scale"], ["z"])]


def model_bytes(
    name: str, nodes: list[NodeProto], tensors: Mapping[str, Array], personal: Collection[str], feature_count: int
) -> bytes:
    """Return a checked model `x (n, F) -> score (n,)` in float32.

    `tensors` are the constants by name; those also named in `personal` become inputs whose default is the constant.
    """
    constants = {"center": np.zeros(feature_count), "scale": np.ones(feature_count), **tensors}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", feature_count])]
    inputs += [
        helper.make_tensor_value_info(key, TensorProto.FLOAT, list(constants[key].shape))
        for key in sorted(constants)
        if key in personal
    ]
    initialisers = [
        numpy_helper.from_array(np.asarray(array, dtype=np.int64 if key == "flat" else np.float32), key)
        for key, array in constants.items()
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, name, inputs, [output], initialisers)
    model: ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="fedgate"
    )
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))
