"""The graph of a model, read twice: what a gateway's reader takes onnx reads alike, and writes as the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime

from fedgate.gateway_agent.deployment.session import ERRORS
from fedgate.models.arrays import Array
from fedgate.models.detectors import DETECTORS, PERSONAL
from fedgate.models.detectors.base import linear
from fedgate.models.onnx_policy import BLOCK_ROWS, FIELDS, MANY, OPSET_MAX, ModelRefusedError, check
from fedgate.models.operators import OPERATORS
from fedgate.models.testing.detectors import nodes_of
from tests.fuzz.target import Target
from tests.support.graph_tricks import FLOAT, WIDTH, sound, tricks, varint

PLACE_BYTES = 2
# Of random graphs: lengths of sides, numbers in shapes and attributes, and the elements up to which one is run.
SIDES, NUMBERS, SMALL = (1, 1, 2, WIDTH, 64), (0, 1, 1, 2, WIDTH, -1, 4, 64), 1_000_000
RECENT = 0.6  # of inputs are values made last, so that graphs are deep
SILENT = 4


def compare(data: bytes) -> None:
    """Take a model as a gateway does, and hold onnx against it."""
    check(data)
    model = onnx.load_from_string(data)
    assert model.SerializeToString(deterministic=True) == data, "onnx writes other bytes"
    nodes = list(nodes_of(model.graph))
    assert {node.op_type for node in nodes} <= OPERATORS.keys() and {node.domain for node in nodes} == {""}
    assert not model.functions and not model.training_info
    constants = [attribute.t for node in nodes for attribute in node.attribute]
    for tensor in (*model.graph.initializer, *constants):
        assert not onnx.external_data_helper.uses_external_data(tensor), "a tensor in another file"


def grafted(data: bytes) -> None:
    """Put bytes in between two fields of a sound model, or in the place of one, and take that: all lengths fit."""
    place, is_instead, more = int.from_bytes(data[:PLACE_BYTES]), data[2:3] > b"\x7f", data[PLACE_BYTES + 1 :]
    body = _sound()[place % len(_sound())]
    cuts = sum(1 for _ in _cuts(body, "model"))
    compare(_graft(body, "model", place // len(_sound()) % cuts, more, is_instead=is_instead))


def _sound() -> tuple[bytes, ...]:
    return tuple(sound())


def _fields(body: bytes, kind: str) -> Iterator[tuple[bytes, bytes, str]]:
    """Yield the fields of a sound message: what stands before its content, its content, and the message that it is."""
    place = 0
    while place < len(body):
        begin = place
        key, place = _number(body, place)
        value, place = _number(body, place)
        size = 0 if key & 7 == 0 else value
        form = FIELDS[kind][key >> 3][1].removesuffix(MANY)
        yield body[begin:place], body[place : place + size], form if form in FIELDS else ""
        place += size


def _number(body: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while body[place] > 0x7F:
        value, shift, place = value | (body[place] & 0x7F) << shift, shift + 7, place + 1
    return value | body[place] << shift, place + 1


def _cuts(body: bytes, kind: str) -> Iterator[None]:
    """Yield once for each field of a message and of those in it, and once for its end."""
    for _, content, form in _fields(body, kind):
        yield None
        if form:
            yield from _cuts(content, form)
    yield None


def _graft(body: bytes, kind: str, cut: int, more: bytes, *, is_instead: bool) -> bytes:
    """Return a message with bytes at one of its cuts, and all lengths as they must be then."""
    out = b""
    for head, content, form in _fields(body, kind):
        if cut == 0:
            out += more
        inside = content
        if form:
            within = sum(1 for _ in _cuts(content, form))
            if 0 < cut <= within:
                inside = _graft(content, form, cut - 1, more, is_instead=is_instead)
            cut -= within
        is_gone = cut == 0 and not form and is_instead
        cut -= 1
        if not is_gone:
            key = head[:1]
            out += key + varint(len(inside)) + inside if content or form else head
    return out + (more if cut == 0 else b"")


def outgrow(data: bytes) -> None:
    """Take a graph of allowed operators that follows from the bytes: nothing that onnxruntime makes of it is larger
    than its bound.
    """
    model = _drawn(random.Random(data))  # of no use to an attacker, and the same for the same bytes
    bounds = check(model.SerializeToString(deterministic=True))
    if bounds.total.elements > SMALL or bounds.total.work > 1_000 * SMALL:
        return
    given = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in given)
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = SILENT, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run(given, {"x": np.ones((BLOCK_ROWS, WIDTH), np.float32)})
    except ERRORS:
        return
    for name, value in zip(given, found, strict=True):
        most = np.prod([max(side, 1) for side in bounds.shapes[name]])
        assert np.size(value) <= most, f"{name}: {np.shape(value)}, bound {bounds.shapes[name]}: {model}"


def _drawn(rng: random.Random) -> onnx.ModelProto:
    sizes = [[rng.choice(SIDES) for _ in range(rng.randint(0, 3))] for _ in range(3)]
    whole = [np.array([rng.choice(NUMBERS) for _ in range(rng.randint(0, 3))], np.int64) for _ in range(3)]
    arrays: list[Array] = [*whole, *(np.ones(size, np.float32) for size in sizes)]
    constants = {f"c{at}": array for at, array in enumerate(arrays)}
    names, nodes = ["x", *constants], list[onnx.NodeProto]()
    for at in range(rng.randint(1, 5)):
        nodes.append(_node(rng, names, at))
        names += nodes[-1].output
    x = onnx.helper.make_tensor_value_info("x", FLOAT, ["n", WIDTH])
    score = onnx.helper.make_tensor_value_info(names[-1], FLOAT, ["n"])
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", [x], [score], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET_MAX)], ir_version=8)


def _node(rng: random.Random, names: list[str], at: int) -> onnx.NodeProto:
    kind = rng.choice([kind for kind in OPERATORS if kind != "Scan"])  # whose steps and state `hours` and `growing` try
    operator = OPERATORS[kind]
    inputs = [
        rng.choice(names[-3:] if rng.random() < RECENT else names) for _ in range(rng.choice(operator.inputs[:3]))
    ]
    outputs = [f"v{at}.{index}" for index in range(rng.choice(operator.outputs[:3]))]
    made = onnx.helper.make_node(kind, inputs, outputs)
    for name, form in operator.attributes.items():
        if form == "i":
            made.attribute.append(onnx.helper.make_attribute(name, rng.choice(NUMBERS)))
        elif form == "ints":
            listed = [rng.choice(NUMBERS) for _ in range(rng.randint(0, 3))]
            made.attribute.append(onnx.helper.make_attribute(name, listed, attr_type=onnx.AttributeProto.INTS))
        else:
            made.attribute.append(onnx.helper.make_attribute(name, onnx.helper.make_tensor("v", FLOAT, [1], [0.0])))
    return made


def targets() -> dict[str, Target]:
    """Return the targets of this file by name."""
    params = linear.fit(np.eye(3), np.array([0.0, 1.0, 1.0]), np.random.default_rng(0))
    ours = (*sound(), DETECTORS["linear"].graph(params, PERSONAL))
    known = tuple(body for body, _ in tricks().values())
    places = tuple(number.to_bytes(2) + bytes([kind]) for number in range(0, 240, 7) for kind in (0, 255))
    pieces = (b"", b"\xa2\x80\x80\x80\x80\x02\x03Exp", b"\x12\x00", b"\x6a\x00", b"\x72\x02\x0a\x00", b"\x70\x01")
    grafts = tuple(place + piece for place in places for piece in pieces)
    return {
        "graph": Target(compare, (ModelRefusedError,), ours + known),
        "graph-sizes": Target(outgrow, (ModelRefusedError,), tuple(number.to_bytes(2) for number in range(400))),
        "graph-grafted": Target(grafted, (ModelRefusedError,), grafts),
    }
