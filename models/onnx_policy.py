"""The checks of a model's bytes before anything else touches them: what our graphs are made of, and nothing else.

A gateway has no package onnx, and onnxruntime would load much more than our graphs are made of: operators that read
files or run code of other libraries, tensors in files beside the model. So the protobuf is read here, by its wire
format and the field numbers of onnx.proto, and more strictly than any parser of protobuf does: one that is lenient
reads a field that another skips. A model that passes is written by onnx as the very same bytes.

How much a model can be asked to do at most follows from the shapes in its graph. For each value a bound of every side
of its shape is found, from the widest block of windows that the agent scores at once and the tensors in the graph. What
decides a shape has to be a constant, so a Scan takes as many steps as a bound says, and a graph of a few hundred bytes
cannot ask for years.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedgate.models.operators import OPERATORS

BLOCK_ROWS = 64  # that a gateway scores at once: onnxruntime keeps the memory of its largest run for good
NEXT = "next."  # what a graph gives under this it takes with the windows that follow, as "next.state" and "state"
OPSET_MAX = 17
FIELDS_MAX = 200_000  # our largest graph has hundreds; its tensors are one field each
ORT_FORMAT, ORT_PLACE = b"ORTM", slice(4, 8)  # onnxruntime's own format, which it would take for a model as well
VARINT_BYTES, VARINT_BITS, KEY_BITS = 10, 64, 32
NUMBER, BYTES = 0, 2  # wire types; groups and fields of fixed length are nothing of ours
OURS = ("", "ai.onnx")  # two names of the standard operators
ITEM_BYTES = {1: 4, 6: 4, 7: 8}  # of the types of tensors that we write: float, int32, int64
ATTRIBUTE_TYPES = {2: "i", 4: "t", 5: "g", 7: "ints"}
MANY = "*"

Shape = tuple[int, ...]  # no side of the value is longer
Message = dict[str, Any]  # of the protobuf, by names of fields
# For one block. Of ours an echo state network of 2,000 units over rows of 100 steps takes the most: 3e10 and 5e7.
WORK_MAX = 10**12  # multiplications and the like
ELEMENTS_MAX = 1 << 27  # of all values together
NODE_WORK = 10_000  # that any node takes, however small its tensors are
SIDES_MAX = 8  # of a shape, each below SIDE_MAX: so a product of them costs nothing
SIDE_MAX = 1 << 40
WINDOWS = "x"
INT32, INT64 = 6, 7
FLAGS = ("keepdims", "transB", "linear_before_reset")  # 0 or 1: onnxruntime takes some other numbers for 0

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


class ModelRefusedError(ValueError):
    """A model that must not run on a gateway; the message says why."""


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
    for tensor in graph["initializer"]:
        _check_tensor(tensor, tensor["raw_data"])
    for value in (*graph["input"], *graph["output"]):
        _check_value(value)
    _check_nodes(graph["node"])
    return _bound_graph(graph)


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
    _check_shape(tensor["dims"])
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


class Work(NamedTuple):
    """What a graph asks for: so much work, and so many elements of tensors."""

    work: int = 0
    elements: int = 0

    def __add__(self, other: tuple[Any, ...]) -> Work:
        """Return the sum."""
        return Work(self.work + other[0], self.elements + other[1])


class Bounds(NamedTuple):
    """What one block of windows takes at most: each value's shape, and all of it together."""

    shapes: Mapping[str, Shape]
    total: Work


class Node(NamedTuple):
    """One use of an operator: shapes of its inputs, what is known of their values, and its attributes."""

    shapes: list[Shape]
    values: list[Shape | None]  # of inputs that are constants of whole numbers
    attributes: Mapping[str, Any]
    outputs: int

    def constant(self, index: int) -> Shape:
        """Return the values of an input that has to be a constant; raises `ModelRefusedError` where it is none."""
        if (found := self.values[index]) is None:
            raise ModelRefusedError("a shape in it is not constant, which is so in none of ours")
        return found


Known = tuple[list[Shape], int]  # shapes of the outputs, and the work


def _bound_graph(graph: Message) -> Bounds:
    """Return what one block of windows takes at most; raises `ModelRefusedError`."""
    tensors = {one["name"]: one for one in graph["initializer"]}
    if len(tensors) < len(graph["initializer"]):
        raise ModelRefusedError("two tensors of it have one name")
    shapes = {name: tuple(one["dims"]) for name, one in tensors.items()}
    values = {name: _whole_numbers(one) for name, one in tensors.items()}
    names = [value["name"] for value in graph["input"]]
    if len(set(names)) < len(names) or WINDOWS not in names or WINDOWS in shapes:
        raise ModelRefusedError("its inputs are not those of ours")
    for value in graph["input"]:
        name, sides = value["name"], value["type"]["tensor_type"]["shape"]["dim"]
        declared = tuple(side.get("dim_value") for side in sides)
        _check_shape([side or 0 for side in declared])
        if name == WINDOWS:
            if len(declared) != 2 or declared[0] is not None or declared[1] is None:
                raise ModelRefusedError("its input x is not of any number of windows with a fixed number of features")
            shapes[name] = (BLOCK_ROWS, declared[1])
        elif shapes.get(name) != declared:
            raise ModelRefusedError(f"its input {name[:64]!r} has no default of its shape")
        values[name] = None  # a gateway may put in its own
    held = Work(0, sum(math.prod(shape) for shape in shapes.values()))
    total = held + _nodes(graph["node"], shapes, values)
    for value in graph["output"]:
        _check_output(value["name"], shapes, names)
    return Bounds(shapes, _check_bounds(total))


def _check_output(name: str, shapes: Mapping[str, Shape], inputs: Sequence[str]) -> None:
    """Raise `ModelRefusedError` for an output that nothing gives, and for a memory that is more than the input it is
    fed back to: it would grow with every window.
    """
    if name not in shapes:
        raise ModelRefusedError(f"its output {name[:64]!r} comes from nowhere")
    if not name.startswith(NEXT):
        return
    fed = name.removeprefix(NEXT)
    if fed == WINDOWS or fed not in inputs:
        raise ModelRefusedError(f"its memory {fed[:64]!r} is no input that it may keep")
    if not _fits(shapes[name], shapes[fed]):
        raise ModelRefusedError(f"its memory {fed[:64]!r} may grow with every window")


def _fits(shape: Shape, room: Shape) -> bool:
    return len(shape) == len(room) and all(side <= most for side, most in zip(shape, room, strict=True))


def _check_shape(shape: Sequence[int]) -> None:
    """Raise `ModelRefusedError` for a shape whose size would take long to compute."""
    if len(shape) > SIDES_MAX or max(shape, default=0) > SIDE_MAX:
        raise ModelRefusedError(f"a shape in it has {len(shape)} sides of up to {max(shape)}, which none of ours has")


def _whole_numbers(tensor: Message) -> Shape | None:
    """Return the values of a constant of few whole numbers, such as a shape."""
    if (
        tensor["data_type"] not in (INT32, INT64)
        or len(tensor["dims"]) > 1
        or max(tensor["dims"], default=0) > SIDES_MAX
    ):
        return None
    kind = np.dtype("<i8" if tensor["data_type"] == INT64 else "<i4")
    found: Shape = tuple(np.frombuffer(tensor["raw_data"], kind).tolist())
    return found


def _check_bounds(found: Work) -> Work:
    if found.work > WORK_MAX:
        raise ModelRefusedError(
            f"{BLOCK_ROWS} windows would take {found.work:.2g} operations, at most {WORK_MAX:.2g} are run"
        )
    if found.elements > ELEMENTS_MAX:
        raise ModelRefusedError(f"its tensors have {found.elements:.2g} elements, at most {ELEMENTS_MAX:.2g} are held")
    return found


def _nodes(nodes: Sequence[Message], shapes: dict[str, Shape], values: dict[str, Shape | None]) -> Work:
    """Return what nodes take, and put the shapes of what they give into `shapes`."""
    total = Work()
    for node in nodes:
        kind, names = node["op_type"], node["input"]
        if missing := [name for name in names if name not in shapes]:
            raise ModelRefusedError(f"its operator {kind} takes {missing[0][:64]!r}, which nothing before it gives")
        used = Node(
            [shapes[name] for name in names],
            [values.get(name) for name in names],
            {one["name"]: one[OPERATORS[kind].attributes[one["name"]]] for one in node["attribute"]},
            len(node["output"]),
        )
        if any(used.attributes.get(name, 0) not in (0, 1) for name in FLAGS):
            raise ModelRefusedError(f"its operator {kind} is used as in none of ours")
        try:
            if kind == "Scan":
                found, taken = _scan(used, shapes, values)
            else:
                found, work = SHAPES[kind](used)
                taken = Work(work)
        except ModelRefusedError:
            raise
        except (LookupError, ValueError):
            raise ModelRefusedError(f"its operator {kind} is used as in none of ours") from None
        for name, shape in zip(node["output"], found, strict=True):
            if name in shapes:
                raise ModelRefusedError(f"two values of it have the name {name[:64]!r}")
            _check_shape(shape)
            if name:
                shapes[name] = shape
        total = _check_bounds(total + taken + Work(NODE_WORK, sum(map(_size, found))))
    return total


def _scan(node: Node, shapes: Mapping[str, Shape], values: Mapping[str, Shape | None]) -> tuple[list[Shape], Work]:
    """Return the shapes that a Scan gives, and its steps times what its body takes."""
    body, streams = node.attributes["body"], node.attributes["num_scan_inputs"]
    if streams != 1 or len(body["input"]) != 2 or len(body["output"]) != node.outputs:
        raise ModelRefusedError("a Scan of it has other inputs or outputs than ours")
    (state, series), inside = node.shapes, dict(shapes)
    steps, names = max(series[0], 1), [value["name"] for value in body["input"]]
    if len(set(names)) < 2 or inside.keys() & set(names):
        raise ModelRefusedError("two values of it have one name")
    inside |= {names[0]: state, names[1]: series[1:]}
    once = _nodes(body["node"], inside, dict(values))
    then, *seen = (inside[value["name"]] for value in body["output"])
    if not _fits(then, state):
        raise ModelRefusedError("a Scan of it has a state that grows")
    return [state, *((steps, *shape) for shape in seen)], Work(steps * once.work, once.elements)


def _size(shape: Shape) -> int:
    return math.prod(max(side, 1) for side in shape)


def _broadcast(*shapes: Shape) -> Shape:
    sides = max(len(shape) for shape in shapes)
    padded = [(1,) * (sides - len(shape)) + shape for shape in shapes]
    return tuple(max(along) for along in zip(*padded, strict=True))


def _axis(axis: int, sides: int) -> int:
    if not -sides <= axis < sides:
        raise ModelRefusedError("an axis in it is of no side of its tensor")
    return axis % sides


def _each(node: Node) -> Known:
    shape = _broadcast(*node.shapes)
    return [shape], _size(shape)


def _gemm(node: Node) -> Known:
    (rows, inner), second = node.shapes[0], node.shapes[1]
    other, columns = second[::-1] if node.attributes.get("transB", 0) else second
    shape = _broadcast((rows, columns), *node.shapes[2:])
    return [shape], _size((*shape, max(inner, other)))


def _matmul(node: Node) -> Known:
    (*stack, rows, inner), second = node.shapes
    if len(second) == 1:
        return [(*stack, rows)], _size((*stack, rows, max(inner, *second)))
    *other_stack, other, columns = second
    shape = (*_broadcast(tuple(stack), tuple(other_stack)), rows, columns)
    return [shape], _size((*shape, max(inner, other)))


def _reduce(node: Node) -> Known:
    (shape, *_), axes = node.shapes, node.attributes.get("axes")
    axes = node.constant(1) if axes is None else axes
    removed = {_axis(axis, len(shape)) for axis in axes}
    if not removed:
        raise ModelRefusedError("an axis in it is of no side of its tensor")
    kept = tuple(1 if index in removed else side for index, side in enumerate(shape))
    if not node.attributes["keepdims"]:
        kept = tuple(side for index, side in enumerate(shape) if index not in removed)
    return [kept], _size(shape)


def _reshape(node: Node) -> Known:
    wanted, size = node.constant(1), _size(node.shapes[0])
    if wanted.count(-1) > 1 or min((side for side in wanted if side != -1), default=1) < 1:
        raise ModelRefusedError("a shape in it is none of ours")
    known = math.prod(side for side in wanted if side != -1)
    return [tuple(-(-size // known) if side == -1 else side for side in wanted)], size


def _concat(node: Node) -> Known:
    axis = _axis(node.attributes["axis"], len(node.shapes[0]))
    along = list(zip(*node.shapes, strict=True))
    shape = tuple(sum(sides) if index == axis else max(sides) for index, sides in enumerate(along))
    return [shape], _size(shape)


def _constant_of_shape(node: Node) -> Known:
    shape = node.constant(0)
    if min(shape, default=0) < 0:
        raise ModelRefusedError("a shape in it is none of ours")
    return [shape], _size(shape)


def _scatter(node: Node) -> Known:
    shape, places, _ = node.shapes
    return [shape], _size(shape) + _size(places)


def _gather(node: Node) -> Known:
    (shape, places), axis = node.shapes, _axis(node.attributes["axis"], len(node.shapes[0]))
    found = (*shape[:axis], *places, *shape[axis + 1 :])
    return [found], _size(found)


def _slice(node: Node) -> Known:
    sides, starts, ends = list(node.shapes[0]), node.constant(1), node.constant(2)
    axes = node.constant(3) if len(node.shapes) > 3 else tuple(range(len(starts)))
    if len({_axis(axis, len(sides)) for axis in axes}) < len(axes):
        raise ModelRefusedError("an axis in it stands twice")
    for axis, start, end in zip(axes, starts, ends, strict=True):
        sides[axis] = _length(sides[axis], start, end)
    return [tuple(sides)], _size(node.shapes[0])


def _length(side: int, start: int, end: int) -> int:
    """Return how long a part of a side is at most that is at most so long; what is negative counts from the end."""
    if start >= 0:
        return max((min(end, side) if end >= 0 else side + end) - start, 0)
    return min(side, -start if end >= 0 else max(end - start, 0))


def _split(node: Node) -> Known:
    (shape,) = node.shapes
    axis = _axis(node.attributes["axis"], len(shape))
    part = tuple(-(-side // node.outputs) if index == axis else side for index, side in enumerate(shape))
    return [part] * node.outputs, _size(shape)


def _transpose(node: Node) -> Known:
    (shape,), order = node.shapes, node.attributes["perm"]
    if sorted(order) != list(range(len(shape))):
        raise ModelRefusedError("an axis in it is of no side of its tensor")
    return [tuple(shape[index] for index in order)], _size(shape)


def _squeeze(node: Node) -> Known:
    shape = node.shapes[0]
    removed = {_axis(axis, len(shape)) for axis in node.constant(1)}
    return [tuple(side for index, side in enumerate(shape) if index not in removed)], _size(shape)


def _recurrent(node: Node) -> Known:
    (steps, rows, inputs), (_, gates, weighted), (_, _, hidden), _ = node.shapes
    hidden = max(hidden, node.attributes["hidden_size"])
    work = _size((steps, rows, gates, max(inputs, weighted) + hidden))
    return [(steps, 1, rows, hidden), (1, rows, hidden)], work


SHAPES: dict[str, Callable[[Node], Known]] = {
    **dict.fromkeys(["Sub", "Div", "Max", "Mul", "Add", "Exp", "Log", "Cos", "LessOrEqual", "Where"], _each),
    **dict.fromkeys(["Tanh", "Identity", "Clip", "IsNaN", "Relu"], _each),
    **dict.fromkeys(["ReduceMax", "ReduceMean", "ReduceSum", "ReduceSumSquare"], _reduce),
    **dict.fromkeys(["LSTM", "GRU"], _recurrent),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "ScatterElements": _scatter,
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
}
