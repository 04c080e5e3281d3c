"""What a gateway lets onnxruntime load: the operators that our graphs are made of, and nothing out of other files.

Goal: whatever the bytes are, they are refused with a reason or are a model like ours; nothing else ever happens.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from gateway_agent.graph_bytes import DEPTH_MAX, FIELDS_MAX, check
from gateway_agent.scorer import ModelRefusedError
from tests.test_gateway_models import FIRST

GOOD = FIRST[1]


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx.load_from_string(GOOD)
    change(model)
    return bytes(model.SerializeToString())


def node(kind: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, ["x"], ["y"], **attributes)


def nested(depth: int, inner: str) -> onnx.NodeProto:
    found = node(inner)
    for _ in range(depth):
        found = node("Scan", body=helper.make_graph([found], "inner", [], []))
    return found


def external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secrets.bin")


SPOILED: dict[str, tuple[bytes, str]] = {
    "operator": (changed(lambda model: model.graph.node.append(node("RandomNormal"))), "'RandomNormal' is not allowed"),
    "operator in a graph in an operator": (
        changed(lambda model: model.graph.node.append(nested(2, "If"))),
        "operator 'If' is not allowed",
    ),
    "another domain": (
        changed(lambda model: model.graph.node.append(node("Add", domain="com.microsoft"))),
        "'com.microsoft', which is not allowed",
    ),
    "operators of another domain": (
        changed(lambda model: model.opset_import.append(helper.make_opsetid("evil", 1))),
        "it needs operators of 'evil'",
    ),
    "newer opset": (
        changed(lambda model: model.opset_import.append(helper.make_opsetid("", 18))),
        "it needs opset 18, this agent runs up to 17",
    ),
    "a tensor in a file": (changed(external), "a tensor of it lies in another file"),
    "a tensor in a file, in an operator": (
        changed(
            lambda model: model.graph.node.append(
                node("ConstantOfShape", value=TensorProto(data_location=TensorProto.EXTERNAL))
            )
        ),
        "a tensor of it lies in another file",
    ),
    "functions": (changed(lambda model: model.functions.add(name="f")), "part 25 of an ONNX model"),
    "sparse": (changed(lambda model: model.graph.sparse_initializer.add()), "sparse tensors"),
    "too deep": (changed(lambda model: model.graph.node.append(nested(DEPTH_MAX, "Add"))), "deep in each other"),
    "onnxruntime's own format": (GOOD[:4] + b"ORTM" + GOOD[8:], "onnxruntime's own format"),
    "no nodes": (changed(lambda model: model.graph.ClearField("node")), "it has no operators"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_what_none_of_ours_has_is_refused(fault: str) -> None:
    body, words = SPOILED[fault]
    with pytest.raises(ModelRefusedError, match=words.replace("(", r"\(")):
        check(body)


def test_a_graph_of_endless_fields_is_refused_before_it_costs_time() -> None:
    tensor = b"\x08\x01" * FIELDS_MAX  # packed nowhere: a field each
    graph = b"\x2a" + _length(tensor) + tensor
    with pytest.raises(ModelRefusedError, match="more than 200000 fields"):
        check(b"\x3a" + _length(graph) + graph)


def _length(body: bytes) -> bytes:
    value, out = len(body), b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def test_our_models_pass() -> None:
    check(GOOD)
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "more")
    check(changed(lambda model: model.graph.initializer.append(tensor)))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ModelRefusedError):
        check(body)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8), st.integers(0, 8))
def test_a_model_with_bytes_changed_is_refused_or_still_like_ours(place: int, new: bytes, cut: int) -> None:
    with suppress(ModelRefusedError):
        check(GOOD[:place] + new + GOOD[place + cut :])
