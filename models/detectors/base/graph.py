"""Building blocks for ONNX graphs, written node by node with `onnx.helper` (ours).

Converters are slower at run time and pull in packages; the graphs here have ten nodes. Opset and IR version are pinned
because the newest ones that `onnx` writes by default are refused by the onnxruntime on the gateways.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

from fedgate.models import units
from fedgate.models.arrays import Array, Arrays, alike, under
from fedgate.models.detectors.base import compensation, pca
from fedgate.models.operators import OPERATORS as OPERATORS  # what these graphs are made of

OPSET = 17
IR_VERSION = 10
WHITENING_MEAN = f"{pca.WHITENING}mean"
BOUNDS = {"units.nearest": np.array(-units.FARTHEST), "units.farthest": np.array(units.FARTHEST)}  # of own units
COVARIATES = compensation.COMPENSATION + compensation.COLUMNS
COMPENSATION_SLOPES = compensation.COMPENSATION + compensation.SLOPES
COMPENSATION_UNIT = compensation.COMPENSATION + compensation.DEVIATION


def standardise_nodes(params: Arrays, personal: Collection[str]) -> list[NodeProto]:
    """Nodes that map `x` to `z` as `standardised` does: in own units where the gateway feeds those, compensated and
    whitened where the parameters say so.

    Their constants are `standardise_tensors(params)`, which belong among the tensors of `model_bytes`.
    """
    weather, step = under(compensation.COMPENSATION, params), under(pca.WHITENING, params)
    scaled = "own_units" if weather or step else "z"
    is_own = "center" in personal or "center" in params
    apart = ("compensated" if step else "z") if weather else scaled
    nodes = [
        helper.make_node("Sub", ["x", "center"], ["centred"]),
        helper.make_node("Div", ["centred", "scale"], ["units.unbounded" if is_own else scaled]),
    ]
    if is_own:
        nodes += [  # the bound would hide that x is no number
            helper.make_node("Clip", ["units.unbounded", *BOUNDS], ["units.bounded"]),
            helper.make_node("Sub", ["x", "x"], ["units.nothing"]),
            helper.make_node("Add", ["units.bounded", "units.nothing"], [scaled]),
        ]
    nodes += compensation.compensation_nodes(scaled, apart) if weather else []
    return nodes + (pca.whitening_nodes(params, apart, "z") if step else [])


def standardise_tensors(params: Arrays) -> Arrays:
    """Return the constants of `standardise_nodes`, but for the centre and the scale that a gateway feeds."""
    step = under(pca.WHITENING, params)
    scale = {"scale": params[units.COMMON]} if units.COMMON in params else {}
    steps = compensation.graph_tensors(params) | (pca.graph_tensors(step, pca.WHITENING) if step else {})
    return scale | steps


def is_alike(first: bytes, second: bytes) -> bool:
    """Tell whether two models of `model_bytes` differ by no more than the rounding of their constants."""
    (nodes, tensors), (other_nodes, other_tensors) = _taken_apart(first), _taken_apart(second)
    return nodes == other_nodes and alike(tensors, other_tensors, _sizes(tensors))


def _sizes(tensors: Arrays) -> Arrays:
    """Return what is large beside each constant that is in the unit of its feature: means may differ by a share of the
    deviation, deviations and scales of themselves, slopes by what moves a feature as far as the largest does.
    """
    sizes: Arrays = {}
    for name in tensors:
        part, dot, last = name.rpartition(".")
        place = {"deviation": "mean", "scale": "center"}.get(last)
        if place is None:
            continue
        unit, level = np.abs(tensors[name]), f"{part}{dot}{place}"
        sizes[name] = np.zeros_like(unit)
        if name == COMPENSATION_UNIT:
            slopes = tensors[COMPENSATION_SLOPES]  # (q, F - q)
            steepest = np.abs(slopes / unit).max(axis=1, keepdims=True)  # (q, 1) deviations for one of the covariate
            sizes[COMPENSATION_SLOPES] = steepest * unit
            unit = 1.0 / np.maximum(steepest[:, 0], units.LEAST)
        if level in tensors:
            sizes[level] = unit
    return sizes


def _taken_apart(body: bytes) -> tuple[bytes, Arrays]:
    model = ModelProto.FromString(body)
    tensors = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    model.graph.ClearField("initializer")
    return bytes(model.SerializeToString(deterministic=True)), tensors


def model_bytes(
    name: str,
    nodes: list[NodeProto],
    tensors: Mapping[str, Array],
    personal: Collection[str],
    feature_count: int,
    *,
    more_outputs: Mapping[str, Sequence[int | str]] = MappingProxyType({}),
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return a checked model `x (n, F) -> score (n,)` in float32.

    `tensors` are the constants by name; those also named in `personal` become inputs whose default is the constant.
    `feature_count` is what the detector takes; where a step comes first, F is what that takes. What is put out beside
    the score is in `more_outputs` with its shape.
    """
    if WHITENING_MEAN in tensors:
        feature_count = len(tensors[WHITENING_MEAN])
    feature_count += len(tensors.get(COVARIATES, ()))
    constants = {"center": np.zeros(feature_count), "scale": np.ones(feature_count), **tensors}
    used = {name for node in nodes for name in node.input}
    constants |= {name: array for name, array in BOUNDS.items() if name in used}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", feature_count])]
    inputs += [
        helper.make_tensor_value_info(key, TensorProto.FLOAT, list(constants[key].shape))
        for key in sorted(constants)
        if key in personal
    ]
    initialisers = [
        numpy_helper.from_array(np.asarray(array, dtype=array.dtype if array.dtype.kind == "i" else np.float32), key)
        for key, array in constants.items()
    ]
    outputs = [
        helper.make_tensor_value_info(key, TensorProto.FLOAT, list(shape))
        for key, shape in {"score": ["n"], **more_outputs}.items()
    ]
    graph = helper.make_graph(nodes, name, inputs, outputs, initialisers)
    model: ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="fedgate"
    )
    helper.set_model_props(model, dict(metadata))
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString(deterministic=True))


def with_defaults(body: bytes, tensors: Mapping[str, Array]) -> bytes:
    """Return a model of `model_bytes` whose inputs of these names have these values as their defaults."""
    model = ModelProto.FromString(body)
    for one in model.graph.initializer:
        if one.name in tensors:
            one.CopyFrom(numpy_helper.from_array(np.asarray(tensors[one.name], dtype=np.float32), one.name))
    return bytes(model.SerializeToString(deterministic=True))
