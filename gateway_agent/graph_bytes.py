"""What is in a model's bytes, read before anything else touches them: which operators, which opset, no other files.

A gateway has no package onnx, and onnxruntime would load much more than our graphs are made of: operators that read
files or run code of other libraries, tensors in files beside the model. So the protobuf is read here by a list of all
that a model of ours may hold; field numbers and types are those of onnx.proto. Nothing is skipped: another field, one
of another wire type, one that stands twice, a number that is written longer than it need be are refused. So there is
nothing that this reader takes for one thing and another parser for something else: protobuf in C++, for one, cuts keys
to 32 bits, and what was written as an unknown field is a known one there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway_agent.scorer import ModelRefusedError
from models.operators import OPERATORS

OPSET_MAX, IR_MAX = 17, 10
FIELDS_MAX = 200_000  # our largest graph has thousands
DEPTH_MAX = 2  # the graph, and that of a Scan in it: one within another multiplies its steps
TEXT_MAX, SIDES_MAX = 256, 8
NUMBERS_MAX = 2**24  # in a tensor that ConstantOfShape makes: far above any of ours, far below what fills a memory
ORT_FORMAT, ORT_PLACE = b"ORTM", slice(4, 8)  # onnxruntime's own format, which it would take for a model as well
VARINT_BYTES, KEY_MAX = 10, 2**32
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # wire types
WIRE_TYPES = {VARINT: "a number", FIXED_64: "8 bytes", BYTES: "bytes", FIXED_32: "4 bytes"}
OURS = ("", "ai.onnx")  # two names of the standard operators
ITEM_BYTES = {1: 4, 6: 4, 7: 8}  # of tensors' types: float, int32, int64
INT, TENSOR, GRAPH, INTS = 2, 4, 5, 7  # of attributes' types

Values = dict[str, list[Any]]
Message = Mapping[int, "Field"]


class Field(NamedTuple):
    """A field that a message may have: its name here, what it holds, and whether it may stand more than once."""

    name: str
    kind: str | Message  # number, text, raw, or a message of its own
    is_repeated: bool = False


def _one(name: str, kind: str | Message) -> Field:
    return Field(name, kind)


def _many(name: str, kind: str | Message) -> Field:
    return Field(name, kind, is_repeated=True)


DIMENSION: Message = {1: _one("value", "number"), 2: _one("name", "text")}
SHAPE: Message = {1: _many("dimensions", DIMENSION)}
TENSOR_TYPE: Message = {1: _one("type", "number"), 2: _one("shape", SHAPE)}
TYPE: Message = {1: _one("tensor", TENSOR_TYPE)}
VALUE: Message = {1: _one("name", "text"), 2: _one("type", TYPE)}
TENSOR_MESSAGE: Message = {
    1: _many("sides", "number"),
    2: _one("type", "number"),
    4: _one("floats", "raw"),
    8: _one("name", "text"),
    9: _one("raw", "raw"),
}
ATTRIBUTE: dict[int, Field] = {
    1: _one("name", "text"),
    3: _one("i", "number"),
    5: _one("t", TENSOR_MESSAGE),
    8: _many("ints", "number"),
    20: _one("type", "number"),
}
NODE: Message = {
    1: _many("inputs", "text"),
    2: _many("outputs", "text"),
    4: _one("operator", "text"),
    5: _many("attributes", ATTRIBUTE),
}
GRAPH_MESSAGE: Message = {
    1: _many("nodes", NODE),
    2: _one("name", "text"),
    5: _many("tensors", TENSOR_MESSAGE),
    11: _many("inputs", VALUE),
    12: _many("outputs", VALUE),
}
ATTRIBUTE[6] = _one("g", GRAPH_MESSAGE)
HELD = {INT: "i", TENSOR: "t", GRAPH: "g", INTS: "ints"}  # by an attribute of a type
OPSET: Message = {1: _one("domain", "text"), 2: _one("version", "number")}
PROPERTY: Message = {1: _one("key", "text"), 2: _one("value", "text")}
MODEL: Message = {
    1: _one("ir", "number"),
    2: _one("producer", "text"),
    7: _one("graph", GRAPH_MESSAGE),
    8: _many("opsets", OPSET),
    14: _many("properties", PROPERTY),
}
NAMES = {
    id(message): name
    for message, name in (
        (DIMENSION, "a dimension"),
        (SHAPE, "a shape"),
        (TENSOR_TYPE, "a tensor's type"),
        (TYPE, "a type"),
        (VALUE, "an input or output"),
        (TENSOR_MESSAGE, "a tensor"),
        (ATTRIBUTE, "an attribute"),
        (NODE, "an operator"),
        (GRAPH_MESSAGE, "a graph"),
        (OPSET, "an opset"),
        (PROPERTY, "a property"),
        (MODEL, "an ONNX model"),
    )
}


class _Reader:
    """Reads one model, and counts the fields it has seen."""

    def __init__(self) -> None:
        self.fields = 0

    def message(self, view: memoryview, expected: Message, depth: int = 0) -> Values:
        """Return what a message holds, by name; all of it is on the list, and what may stand once does."""
        found: Values = {field.name: [] for field in expected.values()}
        if depth > 4 * DEPTH_MAX + 8:  # far beyond any that is on the list, before the interpreter's own end
            raise ModelRefusedError("its messages lie too deep in each other")
        for number, kind, body, value in self._fields(view):
            field = expected.get(number)
            if field is None:
                raise ModelRefusedError(f"it has part {number} of {NAMES[id(expected)]}, which none of ours has")
            if kind != (VARINT if field.kind == "number" else BYTES):
                where = f"part {number} of {NAMES[id(expected)]}"
                raise ModelRefusedError(f"it is no ONNX model: {where} is {WIRE_TYPES[kind]}")
            if found[field.name] and not field.is_repeated:
                raise ModelRefusedError(f"it is no ONNX model: part {number} of {NAMES[id(expected)]} stands twice")
            found[field.name].append(self._value(field.kind, body, value, depth))
        return found

    def _value(self, kind: str | Message, body: memoryview, value: int, depth: int) -> Any:
        if kind == "number":
            return value
        if kind == "text":
            return _text(body)
        if kind == "raw":
            return body
        if not isinstance(kind, Mapping):
            raise AssertionError(f"a field of kind {kind}")
        return self.message(body, kind, depth + 1)

    def _fields(self, view: memoryview) -> Iterator[tuple[int, int, memoryview, int]]:
        """Yield number, wire type, bytes and, of a varint, value of each field."""
        place = 0
        while place < len(view):
            self.fields += 1
            if self.fields > FIELDS_MAX:
                raise ModelRefusedError(f"its graph has more than {FIELDS_MAX} fields")
            key, place = _varint(view, place)
            if key >= KEY_MAX:
                raise ModelRefusedError("it is no ONNX model: a field has a number beyond 32 bits")
            number, kind, value, size = key >> 3, key & 7, 0, 0
            if kind not in WIRE_TYPES:
                raise ModelRefusedError("it is no ONNX model: a field of a kind that none has")
            if kind == VARINT:
                value, place = _varint(view, place)
            elif kind == BYTES:
                size, place = _varint(view, place)
            else:
                size = 8 if kind == FIXED_64 else 4
            if size > len(view) - place:
                raise ModelRefusedError("it is no ONNX model: it ends in the middle of a field")
            yield number, kind, view[place : place + size], value
            place += size


def check(model: bytes) -> None:
    """Raise `ModelRefusedError` for bytes that are no ONNX model, or one with anything that ours do not have."""
    if model[ORT_PLACE] == ORT_FORMAT:
        raise ModelRefusedError("it is in onnxruntime's own format, which is not allowed")
    found = _Reader().message(memoryview(model), MODEL)
    if not found["graph"] or not found["graph"][0]["nodes"]:
        raise ModelRefusedError("it is no ONNX model: it has no operators")
    if _only(found, "ir", IR_MAX + 1) > IR_MAX or len(found["opsets"]) != 1:
        raise ModelRefusedError(
            f"it needs format {_only(found, 'ir', 0)} and {len(found['opsets'])} opsets, not up to {IR_MAX} and 1"
        )
    (opset,) = found["opsets"]
    domain, version = _only(opset, "domain", ""), _only(opset, "version", 0)
    if domain not in OURS:
        raise ModelRefusedError(f"it needs operators of {domain!r}, which are not allowed")
    if not 1 <= version <= OPSET_MAX:
        raise ModelRefusedError(f"it needs opset {version}, this agent runs up to {OPSET_MAX}")
    _check_graph(found["graph"][0], 1)


def _check_graph(graph: Values, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ModelRefusedError(f"its graphs lie more than {DEPTH_MAX} deep in each other")
    for tensor in graph["tensors"]:
        _check_tensor(tensor)
    fed = {_only(one, "name", "") for one in graph["inputs"]}  # may stand among the tensors, too, with a default
    named = {_only(tensor, "name", ""): tensor for tensor in graph["tensors"]}
    constant = {name: tensor for name, tensor in named.items() if name not in fed}
    made = Counter(_only(tensor, "name", "") for tensor in graph["tensors"])
    made.update(name for node in graph["nodes"] for name in node["outputs"] if name)
    if twice := [name for name, count in made.items() if count > 1]:
        raise ModelRefusedError(f"{twice[0][:40]!r} is made twice in it")
    for node in graph["nodes"]:
        _check_node(node, constant, depth)


def _check_node(node: Values, tensors: Mapping[str, Values], depth: int) -> None:
    operator = _only(node, "operator", "")
    if operator not in OPERATORS:
        raise ModelRefusedError(f"its operator {operator!r} is not allowed")
    for attribute in node["attributes"]:
        kind = _only(attribute, "type", 0)
        held = [name for name in HELD.values() if attribute[name]]
        if kind not in HELD or not set(held) <= {HELD[kind]} or (kind != INTS and not held):
            raise ModelRefusedError(f"an attribute of {operator!r} is of type {kind} and holds {held}")
        for tensor in attribute["t"]:
            _check_tensor(tensor)
        for graph in attribute["g"]:
            _check_graph(graph, depth + 1)
    if operator == "ConstantOfShape":
        _check_size(node, tensors)


def _check_size(node: Values, tensors: Mapping[str, Values]) -> None:
    """Refuse a tensor that is made as large as somebody else says than the model's own bytes."""
    shape = tensors.get(node["inputs"][0]) if len(node["inputs"]) == 1 else None
    if shape is None or _only(shape, "type", 0) != 7:
        raise ModelRefusedError("'ConstantOfShape' makes a tensor of a size that does not stand in the model")
    raw = _only(shape, "raw", memoryview(b""))
    sides = [int.from_bytes(raw[at : at + 8], "little") for at in range(0, min(len(raw), 8 * SIDES_MAX), 8)]
    if len(raw) > 8 * SIDES_MAX or math.prod(sides) > NUMBERS_MAX:
        raise ModelRefusedError(f"'ConstantOfShape' makes a tensor of shape {sides}, at most {NUMBERS_MAX} numbers")


def _check_tensor(tensor: Values) -> None:
    """Refuse a tensor that is not of a type of ours, or does not hold as many numbers as it says."""
    kind, sides = _only(tensor, "type", 0), tensor["sides"]
    if len(sides) > SIDES_MAX:
        raise ModelRefusedError(f"a tensor of it has {len(sides)} sides, at most {SIDES_MAX}")
    if kind not in ITEM_BYTES:
        raise ModelRefusedError(f"a tensor of it is of type {kind}, expected one of {sorted(ITEM_BYTES)}")
    held = [(name, len(tensor[name][0])) for name in ("raw", "floats") if tensor[name]]
    expected = math.prod(sides) * ITEM_BYTES[kind]
    if sum(size for _, size in held) != expected or len(held) > 1 or (tensor["floats"] and kind != 1):
        raise ModelRefusedError(f"a tensor of shape {sides} and type {kind} holds {held} bytes")


def _only(values: Values, name: str, otherwise: Any) -> Any:
    return values[name][0] if values[name] else otherwise


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    """Return a number and the place behind it."""
    value = 0
    for index in range(VARINT_BYTES):
        if place + index >= len(view):
            raise ModelRefusedError("it is no ONNX model: it ends in the middle of a number")
        byte = view[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if (index and byte == 0) or value >= 2**64:
                raise ModelRefusedError("it is no ONNX model: a number of it is longer than it need be")
            return value, place + index + 1
    raise ModelRefusedError("it is no ONNX model: a number of it does not end")


def _text(body: memoryview) -> str:
    """Return a text; raises `ModelRefusedError` for one that is too long, or not UTF-8, or no plain text."""
    if len(body) > TEXT_MAX:
        raise ModelRefusedError(f"a text of it has {len(body)} bytes, at most {TEXT_MAX}")
    try:
        text = bytes(body).decode("utf-8")
    except UnicodeDecodeError:
        raise ModelRefusedError("it is no ONNX model: a text of it is not UTF-8") from None
    if not text.isprintable():
        raise ModelRefusedError(f"a text of it holds what cannot be printed: {text[:40]!r}")
    return text
