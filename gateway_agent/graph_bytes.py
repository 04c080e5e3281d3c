"""What is in a model's bytes, read before anything else touches them: which operators, which opset, no other files.

A gateway has no package onnx, and onnxruntime would load much more than our graphs are made of: operators that read
files or run code of other libraries, tensors in files beside the model. So the protobuf is walked here, which takes a
page of code; its field numbers are those of onnx.proto. The walk is bounded, and anything that it does not understand
is a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gateway_agent.scorer import ModelRefusedError
from models.operators import OPERATORS

OPSET_MAX = 17
FIELDS_MAX = 200_000  # our largest graph has hundreds; its tensors are one field each
DEPTH_MAX = 8  # of graphs in attributes of nodes
ORT_FORMAT, ORT_PLACE = b"ORTM", slice(4, 8)  # onnxruntime's own format, which it would take for a model as well
VARINT_BYTES = 10
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # wire types
FIXED_BYTES = {FIXED_64: 8, FIXED_32: 4}
OURS = ("", "ai.onnx")  # two names of the standard operators

# onnx.proto: what of each message is looked into, and what a model of ours never has.
MODEL_GRAPH, MODEL_OPSET, MODEL_KNOWN = 7, 8, {1, 2, 3, 4, 5, 6, 7, 8, 14}
GRAPH_NODE, GRAPH_TENSOR, GRAPH_SPARSE = 1, 5, 15
NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN, NODE_OVERLOAD = 4, 5, 7, 8
ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS, ATTRIBUTE_SPARSE, ATTRIBUTE_REFERENCE = (5, 10), (6, 11), (22, 23), 21
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
OPSET_DOMAIN, OPSET_VERSION = 1, 2


class Field(NamedTuple):
    """One field of a message: its number, and its bytes or, of a varint, its value."""

    number: int
    body: memoryview
    value: int


class _Walk:
    """One walk over one model, which counts the fields it has seen."""

    def __init__(self) -> None:
        self.fields = 0
        self.nodes = 0

    def message(self, view: memoryview) -> Iterator[Field]:
        """Yield the fields of a message."""
        place = 0
        while place < len(view):
            self.fields += 1
            if self.fields > FIELDS_MAX:
                raise ModelRefusedError(f"its graph has more than {FIELDS_MAX} fields")
            key, place = _varint(view, place)
            number, kind, value, size = key >> 3, key & 7, 0, 0
            if kind == VARINT:
                value, place = _varint(view, place)
            elif kind == BYTES:
                size, place = _varint(view, place)
            elif kind in FIXED_BYTES:
                size = FIXED_BYTES[kind]
            else:
                raise ModelRefusedError("it is no ONNX model: a field of a kind that none has")
            if place + size > len(view):
                raise ModelRefusedError("it is no ONNX model: it ends in the middle of a field")
            yield Field(number, view[place : place + size], value)
            place += size

    def model(self, view: memoryview) -> None:
        for field in self.message(view):
            if field.number not in MODEL_KNOWN:
                raise ModelRefusedError(f"it has part {field.number} of an ONNX model, which none of ours has")
            if field.number == MODEL_GRAPH:
                self.graph(field.body, DEPTH_MAX)
            elif field.number == MODEL_OPSET:
                self.opset(field.body)
        if self.nodes == 0:
            raise ModelRefusedError("it is no ONNX model: it has no operators")

    def opset(self, view: memoryview) -> None:
        for field in self.message(view):
            if field.number == OPSET_DOMAIN and _text(field) not in OURS:
                raise ModelRefusedError(f"it needs operators of {_text(field)!r}, which are not allowed")
            if field.number == OPSET_VERSION and field.value > OPSET_MAX:
                raise ModelRefusedError(f"it needs opset {field.value}, this agent runs up to {OPSET_MAX}")

    def graph(self, view: memoryview, depth: int) -> None:
        if depth == 0:
            raise ModelRefusedError(f"its graphs lie more than {DEPTH_MAX} deep in each other")
        for field in self.message(view):
            if field.number == GRAPH_NODE:
                self.node(field.body, depth)
            elif field.number == GRAPH_TENSOR:
                self.tensor(field.body)
            elif field.number == GRAPH_SPARSE:
                raise ModelRefusedError("it has sparse tensors, which are not allowed")

    def node(self, view: memoryview, depth: int) -> None:
        self.nodes += 1
        for field in self.message(view):
            if field.number == NODE_OPERATOR and _text(field) not in OPERATORS:
                raise ModelRefusedError(f"its operator {_text(field)!r} is not allowed")
            if field.number == NODE_OVERLOAD or (field.number == NODE_DOMAIN and _text(field) not in OURS):
                raise ModelRefusedError(f"it has an operator of {_text(field)!r}, which is not allowed")
            if field.number == NODE_ATTRIBUTE:
                self.attribute(field.body, depth)

    def attribute(self, view: memoryview, depth: int) -> None:
        for field in self.message(view):
            if field.number in ATTRIBUTE_GRAPHS:
                self.graph(field.body, depth - 1)
            elif field.number in ATTRIBUTE_TENSORS:
                self.tensor(field.body)
            elif field.number in ATTRIBUTE_SPARSE or field.number == ATTRIBUTE_REFERENCE:
                raise ModelRefusedError("an operator has sparse tensors or borrowed attributes, which are not allowed")

    def tensor(self, view: memoryview) -> None:
        for field in self.message(view):
            if field.number == TENSOR_EXTERNAL or (field.number == TENSOR_LOCATION and field.value != 0):
                raise ModelRefusedError("a tensor of it lies in another file, which is not allowed")


def check(model: bytes) -> None:
    """Raise `ModelRefusedError` for bytes that are no ONNX model, or one with anything that ours do not have."""
    if model[ORT_PLACE] == ORT_FORMAT:
        raise ModelRefusedError("it is in onnxruntime's own format, which is not allowed")
    _Walk().model(memoryview(model))


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    """Return a number and the place behind it."""
    value = 0
    for index in range(VARINT_BYTES):
        if place + index >= len(view):
            raise ModelRefusedError("it is no ONNX model: it ends in the middle of a number")
        byte = view[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, place + index + 1
    raise ModelRefusedError("it is no ONNX model: a number of it does not end")


def _text(field: Field) -> str:
    return bytes(field.body[:64]).decode("utf-8", errors="replace")
