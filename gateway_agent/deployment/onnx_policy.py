"""What is in a model's bytes, read before anything else touches them: what our graphs are made of, and nothing else.

A gateway has no package onnx, and onnxruntime would load much more than our graphs are made of: operators that read
files or run code of other libraries, tensors in files beside the model. So the protobuf is read here, by its wire
format and the field numbers of onnx.proto, and more strictly than any parser of protobuf does: one that is lenient
reads a field that another skips. A model that passes is written by onnx as the very same bytes.
"""

from __future__ import annotations

import math
from typing import Any

from fedgate.gateway_agent.deployment.onnx_cost import Bounds, UnboundedError, bound_graph, check_shape
from fedgate.gateway_agent.deployment.session import ModelRefusedError
from fedgate.models.operators import OPERATORS

OPSET_MAX = 17
FIELDS_MAX = 200_000  # our largest graph has hundreds; its tensors are one field each
ORT_FORMAT, ORT_PLACE = b"ORTM", slice(4, 8)  # onnxruntime's own format, which it would take for a model as well
VARINT_BYTES, VARINT_BITS, KEY_BITS = 10, 64, 32
NUMBER, BYTES = 0, 2  # wire types; groups and fields of fixed length are nothing of ours
OURS = ("", "ai.onnx")  # two names of the standard operators
ITEM_BYTES = {1: 4, 6: 4, 7: 8}  # of the types of tensors that we write: float, int32, int64
ATTRIBUTE_TYPES = {2: "i", 4: "t", 5: "g", 7: "ints"}
MANY = "*"

# onnx.proto, as far as our models go: the fields of each message by their numbers, each a number, bytes, a text or a
# message of another name; MANY may be repeated. A body has no tensors, and no body in it: there is no Scan in a Scan.
FIELDS: dict[str, dict[int, tuple[str, str]]] = {
    "model": {
        1: ("ir_version", "number"),
        2: ("producer_name", "text"),
        7: ("graph", "graph"),
        8: ("opset_import", "opset*"),
        14: ("metadata_props", "entry*"),
    },
    "opset": {1: ("domain", "text"), 2: ("version", "number")},
    "entry": {1: ("key", "text"), 2: ("value", "text")},
    "graph": {
        1: ("node", "node*"),
        2: ("name", "text"),
        5: ("initializer", "tensor*"),
        11: ("input", "value*"),
        12: ("output", "value*"),
    },
    "body": {1: ("node", "plain node*"), 2: ("name", "text"), 11: ("input", "value*"), 12: ("output", "value*")},
    "node": {1: ("input", "text*"), 2: ("output", "text*"), 4: ("op_type", "text"), 5: ("attribute", "attribute*")},
    "attribute": {
        1: ("name", "text"),
        3: ("i", "number"),
        5: ("t", "constant"),
        6: ("g", "body"),
        8: ("ints", "number*"),
        20: ("type", "number"),
    },
    "tensor": {1: ("dims", "number*"), 2: ("data_type", "number"), 8: ("name", "text"), 9: ("raw_data", "bytes")},
    "constant": {1: ("dims", "number*"), 2: ("data_type", "number"), 4: ("float_data", "bytes"), 8: ("name", "text")},
    "value": {1: ("name", "text"), 2: ("type", "type")},
    "type": {1: ("tensor_type", "tensor type")},
    "tensor type": {1: ("elem_type", "number"), 2: ("shape", "shape")},
    "shape": {1: ("dim", "side*")},
    "side": {1: ("dim_value", "number"), 2: ("dim_param", "text")},
}
FIELDS["plain node"] = FIELDS["node"] | {5: ("attribute", "plain attribute*")}
FIELDS["plain attribute"] = {number: field for number, field in FIELDS["attribute"].items() if field[0] != "g"}
NEEDED = {
    "model": ("ir_version", "graph", "opset_import"),
    "opset": ("version",),
    "node": ("op_type",),
    "plain node": ("op_type",),
    "attribute": ("name", "type"),
    "plain attribute": ("name", "type"),
    "tensor": ("data_type", "name", "raw_data"),
    "constant": ("data_type", "float_data"),
    "value": ("name", "type"),
    "type": ("tensor_type",),
    "tensor type": ("elem_type", "shape"),
}


class _Reader:
    """One reading of one model, which counts the fields it has seen."""

    def __init__(self) -> None:
        self.fields = 0

    def message(self, view: memoryview, kind: str) -> dict[str, Any]:
        """Return the fields of a message by name, those that may be repeated as lists."""
        known, place, last = FIELDS[kind], 0, 0
        found: dict[str, Any] = {name: [] for name, form in known.values() if form.endswith(MANY)}
        while place < len(view):
            self.fields += 1
            if self.fields > FIELDS_MAX:
                raise ModelRefusedError(f"its graph has more than {FIELDS_MAX} fields")
            key, place = _varint(view, place, KEY_BITS)
            number = key >> 3
            if number not in known:
                raise ModelRefusedError(f"it has field {number} of a {kind} of ONNX, which none of ours has")
            name, form = known[number]
            is_many = form.endswith(MANY)
            if number < last or (number == last and not is_many):
                raise ModelRefusedError(f"the {name} of a {kind} stands twice or out of order")
            last, form = number, form.removesuffix(MANY)
            if key & 7 != (NUMBER if form == "number" else BYTES):
                raise ModelRefusedError(f"it is no ONNX model: the {name} of a {kind} is of another type")
            value, place = self._value(view, place, form)
            if is_many:
                found[name].append(value)
            else:
                found[name] = value
        if missing := [name for name in NEEDED.get(kind, ()) if name not in found]:
            raise ModelRefusedError(f"it is no ONNX model: a {kind} without {missing[0]}")
        return found

    def _value(self, view: memoryview, place: int, form: str) -> tuple[Any, int]:
        """Return the value of a field and the place behind it."""
        value, place = _varint(view, place, VARINT_BITS)
        if form == "number":
            return value if value < 1 << 63 else value - (1 << 64), place
        if place + value > len(view):
            raise ModelRefusedError("it is no ONNX model: it ends in the middle of a field")
        body, place = view[place : place + value], place + value
        if form == "bytes":
            return bytes(body), place
        return (_text(body) if form == "text" else self.message(body, form)), place


def check(model: bytes) -> Bounds:
    """Return what a model takes at most. Raises `ModelRefusedError` for bytes that are no ONNX model, or one with
    anything that ours do not have.
    """
    if model[ORT_PLACE] == ORT_FORMAT:
        raise ModelRefusedError("it is in onnxruntime's own format, which is not allowed")
    found = _Reader().message(memoryview(model), "model")
    if len(found["opset_import"]) != 1:
        raise ModelRefusedError("it needs operators of more than one kind")
    (opset,) = found["opset_import"]
    if opset.get("domain", "") not in OURS:
        raise ModelRefusedError(f"it needs operators of {opset['domain'][:64]!r}, which are not allowed")
    if opset["version"] != OPSET_MAX:
        raise ModelRefusedError(f"it needs opset {opset['version']}, this agent runs {OPSET_MAX}")
    graph = found["graph"]
    try:
        for tensor in graph["initializer"]:
            _check_tensor(tensor, tensor["raw_data"])
        for value in (*graph["input"], *graph["output"]):
            _check_value(value)
        _check_nodes(graph["node"])
        return bound_graph(graph)
    except UnboundedError as error:
        raise ModelRefusedError(str(error)) from None


def _check_nodes(nodes: list[dict[str, Any]]) -> None:
    if not nodes:
        raise ModelRefusedError("it is no ONNX model: it has no operators")
    for node in nodes:
        kind = node["op_type"]
        if kind not in OPERATORS:
            raise ModelRefusedError(f"its operator {kind[:64]!r} is not allowed")
        operator = OPERATORS[kind]
        if len(node["input"]) not in operator.inputs or len(node["output"]) not in operator.outputs:
            raise ModelRefusedError(f"its operator {kind} has inputs or outputs that none of ours has")
        names = [attribute["name"] for attribute in node["attribute"]]
        if len(set(names)) < len(names):
            raise ModelRefusedError(f"its operator {kind} has an attribute twice")
        for attribute in node["attribute"]:
            _check_attribute(kind, attribute)


def _check_attribute(kind: str, attribute: dict[str, Any]) -> None:
    name = attribute["name"]
    form = OPERATORS[kind].attributes.get(name)
    values = {field for field in ATTRIBUTE_TYPES.values() if attribute.get(field, []) != []}
    if form is None or ATTRIBUTE_TYPES.get(attribute["type"]) != form or values - {form} or form not in attribute:
        raise ModelRefusedError(f"its operator {kind} has an attribute {name[:64]!r} that none of ours has")
    if form == "t":
        _check_tensor(attribute["t"], attribute["t"]["float_data"])
    if form == "g":
        for value in (*attribute["g"]["input"], *attribute["g"]["output"]):
            _check_value(value)
        _check_nodes(attribute["g"]["node"])


def _check_tensor(tensor: dict[str, Any], data: bytes) -> None:
    kind = tensor["data_type"]
    if kind not in ITEM_BYTES or ("float_data" in tensor and kind != 1):
        raise ModelRefusedError(f"a tensor of it is of type {kind}, which none of ours is")
    check_shape(tensor["dims"])
    if min(tensor["dims"], default=0) < 0 or math.prod(tensor["dims"]) * ITEM_BYTES[kind] != len(data):
        raise ModelRefusedError("a tensor of it has another size than its shape")


def _check_value(value: dict[str, Any]) -> None:
    tensor = value["type"]["tensor_type"]
    if tensor["elem_type"] not in ITEM_BYTES:
        raise ModelRefusedError(f"an input or output is of type {tensor['elem_type']}, which none of ours is")
    for side in tensor["shape"]["dim"]:
        if len(side) != 1 or side.get("dim_value", 1) < 0:
            raise ModelRefusedError("an input or output has a shape that none of ours has")


def _varint(view: memoryview, place: int, bits: int) -> tuple[int, int]:
    """Return a number of at most so many bits and the place behind it; it has no more bytes than it needs."""
    value = 0
    for index in range(VARINT_BYTES):
        if place + index >= len(view):
            raise ModelRefusedError("it is no ONNX model: it ends in the middle of a number")
        byte = view[place + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if (byte == 0 and index > 0) or value >> bits:
                break
            return value, place + index + 1
    raise ModelRefusedError("it is no ONNX model: a number of it is longer than it may be")


def _text(body: memoryview) -> str:
    try:
        return bytes(body).decode()
    except UnicodeDecodeError:
        raise ModelRefusedError("it is no ONNX model: a name of it is no text") from None
