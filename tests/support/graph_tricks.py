"""Graphs that were made to come past a gateway's reader, byte by byte: what one parser of protobuf skips another reads.

Each is a sound model but for the trick, so that only a reader that sees the trick refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, WIDTH = TensorProto.FLOAT, 3
NUMBER, FIXED_64, BYTES, GROUP, END, FIXED_32 = 0, 1, 2, 3, 4, 5
Key = Callable[[int, int], bytes]  # (number of a field, wire type): how a writer writes it


def varint(value: int, longer: int = 0) -> bytes:
    """Return a number as protobuf has it, with so many bytes more than it needs."""
    out = b""
    while value > 0x7F or longer:
        longer -= value <= 0x7F
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def plain(number: int, kind: int) -> bytes:
    """Return the key of a field."""
    return varint(number << 3 | kind)


def beyond(number: int, kind: int) -> bytes:
    """Return a key that is that of the field in the 32 bits that a parser keeps."""
    return varint(number << 3 | kind | 1 << 32)


def field(number: int, value: bytes | int, key: Key = plain) -> bytes:
    """Return one field."""
    if isinstance(value, int):
        return key(number, NUMBER) + varint(value)
    return key(number, BYTES) + varint(len(value)) + value


def node(kind: str, inputs: Sequence[str], output: str, key: Key = plain, **attributes: Any) -> bytes:
    """Return the bytes of a node, the field of its operator under such a key."""
    names = b"".join(field(1, name.encode()) for name in inputs) + field(2, output.encode())
    given = [helper.make_attribute(name, value).SerializeToString() for name, value in sorted(attributes.items())]
    return names + field(4, kind.encode(), key) + b"".join(field(5, one) for one in given)


def constant(name: str, array: Any) -> bytes:
    """Return the bytes of a tensor."""
    return bytes(numpy_helper.from_array(np.asarray(array), name).SerializeToString())


def outer(
    nodes: Sequence[bytes],
    tensors: Sequence[bytes] = (),
    more: bytes = b"",
    memory: Sequence[tuple[str, Sequence[str | int]]] = (),
) -> bytes:
    """Return a model of these parts, `x (n, 3) -> score (n,)`, with more bytes behind it, that remembers inputs of such
    names and shapes.
    """
    graph = b"".join(field(1, one) for one in nodes) + field(2, b"g") + b"".join(field(5, one) for one in tensors)
    kept = [(name, list(shape)) for name, shape in memory if name != "x"]
    shapes: list[tuple[int, str, list[str | int]]] = [(11, "x", ["n", WIDTH]), *((11, *one) for one in kept)]
    shapes += [(12, "score", ["n"]), *((12, f"next.{name}", list(shape)) for name, shape in memory)]
    for number, name, shape in shapes:
        graph += field(number, helper.make_tensor_value_info(name, FLOAT, shape).SerializeToString())
    opset = field(8, helper.make_opsetid("", 17).SerializeToString())
    return field(1, 8) + field(7, graph) + opset + more


def largest(source: str = "x") -> bytes:
    """Return the node that makes a score of rows."""
    return node("ReduceMax", [source], "score", axes=[1], keepdims=0)


def stored_elsewhere(key: Key, place: str = "key.bin", size: int = 4 * WIDTH) -> bytes:
    """Return the bytes of a tensor of so many bytes in a file, the fields that say so under such keys."""
    tensor = field(1, size) + field(2, TensorProto.UINT8) + field(8, b"w")
    for name, value in (("location", place), ("length", str(size))):
        tensor += field(13, field(1, name.encode()) + field(2, value.encode()), key)
    return tensor + field(14, 1, key)


def hours(depth: int, steps: int) -> bytes:
    """Return a model of Scans in each other, over as many steps each."""
    graph = _scanning(depth - 1)
    nodes = [
        helper.make_node("ConstantOfShape", ["n"], ["big"], value=helper.make_tensor("v", 1, [1], [0.0])),
        helper.make_node("Scan", ["zero", "big"], ["r"], body=graph, num_scan_inputs=1),
        helper.make_node("ReduceMax", ["x"], ["a"], axes=[1], keepdims=0),
        helper.make_node("Add", ["a", "r"], ["score"]),
    ]
    tensors = [constant("n", np.array([steps])), constant("zero", np.float32(0))]
    return outer([one.SerializeToString() for one in nodes], tensors)


def _scanning(depth: int) -> onnx.GraphProto:
    state, step, then = (helper.make_tensor_value_info(f"{name}{depth}", FLOAT, []) for name in ("c", "e", "d"))
    inner = [helper.make_node("Add", [f"c{depth}", f"e{depth}"], [f"d{depth}"])]
    if depth > 0:
        outputs = [f"t{depth}"]
        scan = helper.make_node("Scan", [f"c{depth}", "big"], outputs, body=_scanning(depth - 1), num_scan_inputs=1)
        inner = [scan, helper.make_node("Add", [*outputs, f"e{depth}"], [f"d{depth}"])]
    return helper.make_graph(inner, f"b{depth}", [state, step], [then])


def growing() -> bytes:
    """Return a model with a Scan whose state is twice as long after each step."""
    state, step = (helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in (("c", ["k"]), ("e", [WIDTH])))
    then = helper.make_tensor_value_info("d", FLOAT, ["k"])
    body = helper.make_graph([helper.make_node("Concat", ["c", "c"], ["d"], axis=0)], "b", [state, step], [then])
    scan = helper.make_node("Scan", ["zero", "x"], ["r"], body=body, num_scan_inputs=1)
    return outer([scan.SerializeToString(), largest()], [constant("zero", np.zeros(1, np.float32))])


def remembering(name: str, nodes: Sequence[bytes], *sides: str | int) -> bytes:
    """Return a model that remembers an input of such a shape, made by these nodes from a state of one row."""
    state = constant("state", np.zeros((1, WIDTH), np.float32))
    return outer([*nodes, largest()], [state], memory=[(name, sides)])


def triggered() -> bytes:
    """Return a model whose tensor is large where a feature of the window is."""
    tensors = {
        "limit": np.array([1e6], np.float32),
        "one": np.array([1]),
        "many": np.array([8000]),
        "zero": np.array([0]),
    }
    nodes = [
        node("ReduceMax", ["x"], "top", axes=[0, 1], keepdims=0),
        node("LessOrEqual", ["top", "limit"], "calm"),
        node("Where", ["calm", "one", "many"], "end"),
        node("ConstantOfShape", ["many"], "zeros", value=helper.make_tensor("v", 1, [1], [0.0])),
        node("Slice", ["zeros", "zero", "end"], "part"),
        largest(),
    ]
    return outer(nodes, [constant(name, value) for name, value in tensors.items()])


def wide(*sides: int) -> bytes:
    """Return a model that fills a tensor of such a shape."""
    filled = node("ConstantOfShape", ["n"], "big", value=helper.make_tensor("v", 1, [1], [0.0]))
    return outer([filled, largest()], [constant("n", np.array(sides))])


def _spread(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind, longer=1)


@cache
def tricks() -> dict[str, tuple[bytes, str]]:
    """Return models that must be refused, each with words of the reason."""
    return _of_bytes() | _of_graphs()


def _of_bytes() -> dict[str, tuple[bytes, str]]:
    """Return those that are written as onnx does not write."""
    sound = [largest()]
    return {
        "an operator under a key beyond 32 bits": (
            outer([node("Sign", ["x"], "a", beyond), largest("a")]),
            "longer than it may be",
        ),
        "a key longer than it needs to be": (outer([node("Identity", ["x"], "a", _spread), largest("a")]), "longer"),
        "a length longer than it needs to be": (
            outer(sound)[:2] + plain(2, BYTES) + varint(1, longer=1) + b"p" + outer(sound)[2:],
            "longer than it may be",
        ),
        "a number beyond 64 bits": (plain(1, NUMBER) + b"\xff" * 9 + b"\x02" + outer(sound)[2:], "longer"),
        "a key of field 0": (outer(sound, more=varint(BYTES) + b"\x00"), "field 0 of a model"),
        "an unknown field": (outer(sound, more=field(99, b"?")), "field 99 of a model"),
        "a field as a group": (outer(sound, more=plain(14, GROUP) + plain(14, END)), "of another type"),
        "a field of fixed length": (outer(sound, more=plain(14, FIXED_32) + bytes(4)), "of another type"),
        "a number as bytes": (plain(1, BYTES) + varint(1) + b"\x08" + outer(sound)[2:], "of another type"),
        "numbers in one field": (
            outer([node("Identity", ["x"], "a"), largest("a")], [_packed_dims()]),
            "the dims of a tensor is of another type",
        ),
        "two graphs": (outer(sound)[:2] + (body := outer(sound))[2:] + body[2:], "stands twice or out of order"),
        "an operator twice": (
            outer([field(1, b"x") + field(2, b"score") + field(4, b"Add") + field(4, b"ReduceMax")]),
            "the op_type of a node stands twice",
        ),
        "a name that is no text": (outer(sound, more=field(14, field(1, b"\xff"))), "no text"),
        "a documentation": (outer(sound)[:2] + field(6, b"doc") + outer(sound)[2:], "field 6 of a model"),
        "a function": (outer(sound, more=field(25, field(1, b"f"))), "field 25 of a model"),
        "training": (outer(sound, more=field(20, b"")), "field 20 of a model"),
        "a tensor in a file": (outer(sound, [stored_elsewhere(plain)]), "field 13 of a tensor"),
        "a tensor in a file, hidden": (outer(sound, [stored_elsewhere(beyond)]), "longer than it may be"),
        "a tensor of texts": (outer(sound, [field(1, 1) + field(2, 8) + field(6, b"t")]), "field 6 of a tensor"),
        "a tensor of a type beyond 32 bits": (
            outer(sound, [field(1, 1) + field(2, 1 | 1 << 32) + field(8, b"w") + field(9, bytes(4))]),
            "of type 4294967297",
        ),
        "a tensor that is shorter than its shape": (
            outer(sound, [field(1, 9) + field(2, FLOAT) + field(8, b"w") + field(9, bytes(4))]),
            "another size than its shape",
        ),
    }


def _of_graphs() -> dict[str, tuple[bytes, str]]:
    """Return those that are written as onnx writes, and ask for what no model of ours does."""
    return {
        "Scans in each other": (hours(2, 10), "field 6 of a plain attribute"),
        "Scans in each other, five": (hours(5, 1_000_000), "field 6 of a plain attribute"),
        "a Scan of a hundred million steps": (hours(1, 10**8), "operations, at most"),
        "a Scan whose state grows": (growing(), "a state that grows"),
        "a memory that is the windows": (
            remembering("x", [node("Concat", ["x", "x"], "next.x", axis=0)], "n", WIDTH),
            "its memory 'x' is no input that it may keep",
        ),
        "a memory that grows": (
            remembering("state", [node("Concat", ["state", "x"], "next.state", axis=0)], 1, WIDTH),
            "its memory 'state' may grow with every window",
        ),
        "a length that follows from the data": (triggered(), "a shape in it is not constant"),
        "a tensor without a name": (outer([largest()], [constant("", np.array([0]))]), "a tensor without name"),
        "a Loop": (outer([node("Loop", ["x", "x"], "a", body=_scanning(0)), largest("a")]), "'Loop' is not allowed"),
        "an If": (outer([node("If", ["x"], "a", then_branch=_scanning(0)), largest("a")]), "'If' is not allowed"),
        "a tensor of ten billion": (wide(100_000, 100_000), "elements, at most"),
        "a shape of seventeen huge sides": (wide(*[2**62] * 17), "a shape in it is not constant"),
        "a shape of four huge sides": (wide(*[2**62] * 4), "a shape in it has 4 sides of up to 4611686018427387904"),
        "a tensor of many huge sides": (outer([largest()], [_many_sides()]), "a shape in it has 199000 sides"),
        "a shape that nobody knows": (
            outer([node("Reshape", ["x", "x"], "a"), largest("a")]),
            "a shape in it is not constant",
        ),
        "an attribute of another type": (
            outer([node("ReduceMax", ["x"], "score", axes=1, keepdims=0)]),
            "an attribute 'axes' that none of ours has",
        ),
        "a flag that is neither": (
            outer([node("ReduceMax", ["x"], "score", axes=[1], keepdims=2)]),
            "its operator ReduceMax is used as in none of ours",
        ),
        "an attribute that none has": (
            outer([node("Identity", ["x"], "a", saturate=1), largest("a")]),
            "an attribute 'saturate'",
        ),
        "a value twice": (outer([node("Identity", ["x"], "a"), node("Exp", ["x"], "a"), largest("a")]), "the name 'a'"),
        "a value from nowhere": (outer([largest("a")]), "which nothing before it gives"),
        "an axis that there is not": (
            outer([node("ReduceMax", ["x"], "score", axes=[7], keepdims=0)]),
            "an axis in it is of no side",
        ),
        "three inputs of an operator of two": (
            outer([node("Add", ["x", "x", "x"], "a"), largest("a")]),
            "Add has inputs or outputs that none of ours has",
        ),
    }


def _many_sides() -> bytes:
    dims = field(1, 2**40) * 199_000
    return dims + field(2, FLOAT) + field(8, b"w") + field(9, bytes(4))


def _packed_dims() -> bytes:
    return field(1, varint(1)) + field(2, FLOAT) + field(8, b"w") + field(9, bytes(4))


def sound() -> Iterator[bytes]:
    """Yield small models that pass."""
    yield outer([largest()])
    yield outer([node("Identity", ["x"], "a"), largest("a")], [constant("w", np.zeros(WIDTH, np.float32))])
    yield hours(1, 10)


def described(model: bytes) -> bytes:
    """Return a model whose graph says in words what it is, which onnxruntime skips and no gateway takes."""
    changed = onnx.load_from_string(model)
    changed.graph.doc_string = "what it is"
    return bytes(changed.SerializeToString())
