"""Models that one parser reads otherwise than another: what is written behind a key of more than 32 bits is an unknown
field to a reader of whole numbers, and a known one to protobuf in C++, which cuts keys to 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from models.detectors.graph import IR_VERSION, OPSET

HIDDEN = 1 << 32


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def text(number: int, body: bytes, *, hidden: bool = False) -> bytes:
    """Return a field of bytes, its key hidden or not."""
    return varint((number << 3 | 2) + (HIDDEN if hidden else 0)) + varint(len(body)) + body


def count(number: int, value: int, *, hidden: bool = False) -> bytes:
    """Return a field that is a number."""
    return varint((number << 3) + (HIDDEN if hidden else 0)) + varint(value)


def node(operator: str, inputs: Sequence[str], output: str, *attributes: AttributeProto, hidden: bool = False) -> bytes:
    """Return a node of a graph; hidden is which operator it is, and its attributes."""
    body = b"".join(text(1, name.encode()) for name in inputs) + text(2, output.encode())
    body += text(4, operator.encode(), hidden=hidden)
    body += b"".join(text(5, one.SerializeToString(), hidden=hidden) for one in attributes)
    return text(1, body)


def model(*parts: bytes, more: bytes = b"") -> bytes:
    """Return a model from `x` (n, 3) to `score` (n,) of these nodes and tensors."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    score = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"])
    graph = b"".join(parts) + text(2, b"g")
    graph += text(11, x.SerializeToString()) + text(12, score.SerializeToString())
    opset = helper.make_opsetid("", OPSET)
    return count(1, IR_VERSION) + text(7, graph) + text(8, opset.SerializeToString()) + more


def largest(source: str = "x", *, hidden: bool = False) -> bytes:
    """Return the node that makes the score of each row: the largest of its features."""
    axes, keep = helper.make_attribute("axes", [1]), helper.make_attribute("keepdims", 0)
    return node("ReduceMax", [source], "score", axes, keep, hidden=hidden)


def forbidden_operator() -> bytes:
    """Return a model with an operator that is not allowed, hidden."""
    return model(node("Erf", ["x"], "a", hidden=True), largest("a"))


def tensor_in_a_file(location: bytes, size: int) -> bytes:
    """Return a model that gives the bytes of a file as scores: which one an ordinary window says."""
    tensor = count(1, size) + count(2, TensorProto.UINT8) + text(8, b"w")
    for key, value in ((b"location", location), (b"length", str(size).encode())):
        tensor += text(13, text(1, key) + text(2, value), hidden=True)
    tensor += count(14, TensorProto.EXTERNAL, hidden=True)
    to_float, to_index = (helper.make_attribute("to", kind) for kind in (TensorProto.FLOAT, TensorProto.INT64))
    axes, keep = helper.make_attribute("axes", [1]), helper.make_attribute("keepdims", 0)
    return model(
        node("Cast", ["w"], "floats", to_float, hidden=True),
        node("ReduceMax", ["x"], "place", axes, keep),
        node("Cast", ["place"], "index", to_index, hidden=True),
        node("Gather", ["floats", "index"], "score", helper.make_attribute("axis", 0)),
        text(5, tensor),
    )


def scans(steps: int, depth: int) -> bytes:
    """Return a model of allowed operators that takes `steps` to the power of `depth` steps for a window."""

    def inner(level: int) -> GraphProto:
        carried, element, after = (
            helper.make_tensor_value_info(f"{name}{level}", TensorProto.FLOAT, []) for name in ("c", "e", "d")
        )
        nodes: list[NodeProto] = []
        before = f"c{level}"
        if level:
            nodes.append(
                helper.make_node("Scan", [before, "big"], [f"t{level}"], body=inner(level - 1), num_scan_inputs=1)
            )
            before = f"t{level}"
        nodes.append(helper.make_node("Add", [before, f"e{level}"], [f"d{level}"]))
        return helper.make_graph(nodes, f"b{level}", [carried, element], [after])

    made = [
        helper.make_node("ConstantOfShape", ["size"], ["big"], value=helper.make_tensor("v", 1, [1], [0.0])),
        helper.make_node("Scan", ["zero", "big"], ["r"], body=inner(depth - 1), num_scan_inputs=1),
        helper.make_node("ReduceMax", ["x"], ["a"], axes=[1], keepdims=0),
        helper.make_node("Add", ["a", "r"], ["score"]),
    ]
    tensors = [
        numpy_helper.from_array(np.array([steps], np.int64), "size"),
        numpy_helper.from_array(np.array(0.0, np.float32), "zero"),
    ]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"])],
        tensors,
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return bytes(whole.SerializeToString())


TRICKS = {
    "an operator behind a key beyond 32 bits": forbidden_operator(),
    "a tensor in a file behind a key beyond 32 bits": tensor_in_a_file(b"secret", 4),
    "an allowed operator behind such a key": model(largest(hidden=True)),
    "a graph that stands twice": model(largest(), more=text(7, text(1, text(4, b"Erf")))),
    "a number that is longer than it need be": b"\x88\x00" + model(largest())[1:],
    "a function": model(largest(), more=text(25, text(1, b"f"))),
    "a group": model(largest(), more=b"\x0b\x0c"),
    "numbers in a row": model(largest(), text(5, text(1, b"\x02") + count(2, 1) + text(8, b"w") + text(9, bytes(8)))),
    "an operator twice": model(text(1, text(1, b"x") + text(2, b"score") + text(4, b"Exp") + text(4, b"Erf"))),
    "a tensor beside its own bytes": model(
        largest(), text(5, count(1, 2) + count(2, 1) + text(4, bytes(8)) + text(8, b"w") + text(9, bytes(8)))
    ),
    "steps upon steps": scans(10_000, 3),
}
