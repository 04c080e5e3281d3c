"""How much a model can be asked to do at most, told from the shapes in its graph before anything runs it.

For each value a bound of every side of its shape is found, from the widest block of windows that the agent scores at
once and the tensors in the graph. What decides a shape has to be a constant, so a Scan takes as many steps as a bound
says, and a graph of a few hundred bytes cannot ask for years.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedgate.gateway_agent.deployment.session import BLOCK_ROWS, NEXT
from fedgate.models.operators import OPERATORS

Shape = tuple[int, ...]  # no side of the value is longer
Message = dict[str, Any]  # of the protobuf, as `onnx_policy` reads it
# For one block. Of ours an echo state network of 2,000 units over rows of 100 steps takes the most: 3e10 and 5e7.
WORK_MAX = 10**12  # multiplications and the like
ELEMENTS_MAX = 1 << 27  # of all values together
NODE_WORK = 10_000  # that any node takes, however small its tensors are
SIDES_MAX = 8  # of a shape, each below SIDE_MAX: so a product of them costs nothing
SIDE_MAX = 1 << 40
WINDOWS = "x"
INT32, INT64 = 6, 7
FLAGS = ("keepdims", "transB", "linear_before_reset")  # 0 or 1: onnxruntime takes some other numbers for 0


class UnboundedError(ValueError):
    """A graph that may ask for more than any of ours does, or whose shapes nobody can tell before it runs."""


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
        """Return the values of an input that has to be a constant."""
        if (found := self.values[index]) is None:
            raise UnboundedError("a shape in it is not constant, which is so in none of ours")
        return found


Known = tuple[list[Shape], int]  # shapes of the outputs, and the work


def bound_graph(graph: Message) -> Bounds:
    """Return what one block of windows takes at most; raises `UnboundedError`."""
    tensors = {one["name"]: one for one in graph["initializer"]}
    if len(tensors) < len(graph["initializer"]):
        raise UnboundedError("two tensors of it have one name")
    shapes = {name: tuple(one["dims"]) for name, one in tensors.items()}
    values = {name: _whole_numbers(one) for name, one in tensors.items()}
    names = [value["name"] for value in graph["input"]]
    if len(set(names)) < len(names) or WINDOWS not in names or WINDOWS in shapes:
        raise UnboundedError("its inputs are not those of ours")
    for value in graph["input"]:
        name, sides = value["name"], value["type"]["tensor_type"]["shape"]["dim"]
        declared = tuple(side.get("dim_value") for side in sides)
        check_shape([side or 0 for side in declared])
        if name == WINDOWS:
            if len(declared) != 2 or declared[0] is not None or declared[1] is None:
                raise UnboundedError("its input x is not of any number of windows with a fixed number of features")
            shapes[name] = (BLOCK_ROWS, declared[1])
        elif shapes.get(name) != declared:
            raise UnboundedError(f"its input {name[:64]!r} has no default of its shape")
        values[name] = None  # a gateway may put in its own
    held = Work(0, sum(math.prod(shape) for shape in shapes.values()))
    total = held + _nodes(graph["node"], shapes, values)
    for value in graph["output"]:
        _check_output(value["name"], shapes, names)
    return Bounds(shapes, _bounded(total))


def _check_output(name: str, shapes: Mapping[str, Shape], inputs: Sequence[str]) -> None:
    """Raise `UnboundedError` for an output that nothing gives, and for a memory that is more than the input it is fed
    back to: it would grow with every window.
    """
    if name not in shapes:
        raise UnboundedError(f"its output {name[:64]!r} comes from nowhere")
    if not name.startswith(NEXT):
        return
    fed = name.removeprefix(NEXT)
    if fed == WINDOWS or fed not in inputs:
        raise UnboundedError(f"its memory {fed[:64]!r} is no input that it may keep")
    if not _fits(shapes[name], shapes[fed]):
        raise UnboundedError(f"its memory {fed[:64]!r} may grow with every window")


def _fits(shape: Shape, room: Shape) -> bool:
    return len(shape) == len(room) and all(side <= most for side, most in zip(shape, room, strict=True))


def check_shape(shape: Sequence[int]) -> None:
    """Raise `UnboundedError` for a shape whose size would take long to compute."""
    if len(shape) > SIDES_MAX or max(shape, default=0) > SIDE_MAX:
        raise UnboundedError(f"a shape in it has {len(shape)} sides of up to {max(shape)}, which none of ours has")


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


def _bounded(found: Work) -> Work:
    if found.work > WORK_MAX:
        raise UnboundedError(
            f"{BLOCK_ROWS} windows would take {found.work:.2g} operations, at most {WORK_MAX:.2g} are run"
        )
    if found.elements > ELEMENTS_MAX:
        raise UnboundedError(f"its tensors have {found.elements:.2g} elements, at most {ELEMENTS_MAX:.2g} are held")
    return found


def _nodes(nodes: Sequence[Message], shapes: dict[str, Shape], values: dict[str, Shape | None]) -> Work:
    """Return what nodes take, and put the shapes of what they give into `shapes`."""
    total = Work()
    for node in nodes:
        kind, names = node["op_type"], node["input"]
        if missing := [name for name in names if name not in shapes]:
            raise UnboundedError(f"its operator {kind} takes {missing[0][:64]!r}, which nothing before it gives")
        used = Node(
            [shapes[name] for name in names],
            [values.get(name) for name in names],
            {one["name"]: one[_field(kind, one["name"])] for one in node["attribute"]},
            len(node["output"]),
        )
        if any(used.attributes.get(name, 0) not in (0, 1) for name in FLAGS):
            raise UnboundedError(f"its operator {kind} is used as in none of ours")
        try:
            if kind == "Scan":
                found, taken = _scan(used, shapes, values)
            else:
                found, work = SHAPES[kind](used)
                taken = Work(work)
        except (LookupError, ValueError) as error:
            if isinstance(error, UnboundedError):
                raise
            raise UnboundedError(f"its operator {kind} is used as in none of ours") from None
        for name, shape in zip(node["output"], found, strict=True):
            if name in shapes:
                raise UnboundedError(f"two values of it have the name {name[:64]!r}")
            check_shape(shape)
            if name:
                shapes[name] = shape
        given = sum(math.prod(max(side, 1) for side in shape) for shape in found)
        total = _bounded(total + taken + Work(NODE_WORK, given))
    return total


def _field(kind: str, attribute: str) -> str:
    return OPERATORS[kind].attributes[attribute]


def _scan(node: Node, shapes: Mapping[str, Shape], values: Mapping[str, Shape | None]) -> tuple[list[Shape], Work]:
    """Return the shapes that a Scan gives, and its steps times what its body takes."""
    body, streams = node.attributes["body"], node.attributes["num_scan_inputs"]
    if streams != 1 or len(body["input"]) != 2 or len(body["output"]) != node.outputs:
        raise UnboundedError("a Scan of it has other inputs or outputs than ours")
    (state, series), inside = node.shapes, dict(shapes)
    steps, names = max(series[0], 1), [value["name"] for value in body["input"]]
    if len(set(names)) < 2 or inside.keys() & set(names):
        raise UnboundedError("two values of it have one name")
    inside |= {names[0]: state, names[1]: series[1:]}
    once = _nodes(body["node"], inside, dict(values))
    then, *seen = (inside[value["name"]] for value in body["output"])
    if not _fits(then, state):
        raise UnboundedError("a Scan of it has a state that grows")
    return [state, *((steps, *shape) for shape in seen)], Work(steps * once.work, once.elements)


def _size(shape: Shape) -> int:
    return math.prod(max(side, 1) for side in shape)


def _broadcast(*shapes: Shape) -> Shape:
    sides = max(len(shape) for shape in shapes)
    padded = [(1,) * (sides - len(shape)) + shape for shape in shapes]
    return tuple(max(along) for along in zip(*padded, strict=True))


def _axis(axis: int, sides: int) -> int:
    if not -sides <= axis < sides:
        raise UnboundedError("an axis in it is of no side of its tensor")
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
        raise UnboundedError("an axis in it is of no side of its tensor")
    kept = tuple(1 if index in removed else side for index, side in enumerate(shape))
    if not node.attributes["keepdims"]:
        kept = tuple(side for index, side in enumerate(shape) if index not in removed)
    return [kept], _size(shape)


def _reshape(node: Node) -> Known:
    wanted, size = node.constant(1), _size(node.shapes[0])
    if wanted.count(-1) > 1 or min((side for side in wanted if side != -1), default=1) < 1:
        raise UnboundedError("a shape in it is none of ours")
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
        raise UnboundedError("a shape in it is none of ours")
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
        raise UnboundedError("an axis in it stands twice")
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
        raise UnboundedError("an axis in it is of no side of its tensor")
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
