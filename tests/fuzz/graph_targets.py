"""The graph of a model, read twice: what a gateway's reader takes onnx reads alike, and writes as the same bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from fedgate.gateway_agent.deployment.onnx_policy import FIELDS, MANY, check
from fedgate.gateway_agent.deployment.session import ModelRefusedError
from fedgate.models.detectors import DETECTORS, PERSONAL, linear
from fedgate.models.operators import OPERATORS
from tests.fuzz.target import Target
from tests.graph_tricks import sound, tricks, varint
from tests.test_graph import nodes_of

PLACE_BYTES = 2


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
        "graph-grafted": Target(grafted, (ModelRefusedError,), grafts),
    }
