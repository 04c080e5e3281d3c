"""What a gateway lets onnxruntime load: the operators that our graphs are made of, and nothing out of other files.

Goal: whatever the bytes are, they are refused with a reason or are a model like ours; nothing else ever happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from gateway_agent.graph_bytes import DEPTH_MAX, FIELDS_MAX, NUMBERS_MAX, check
from gateway_agent.scorer import ModelRefusedError
from models.arrays import generator
from models.detectors import DETECTORS
from models.federated import ALGORITHMS, build
from tests.fuzz.file_targets import differs
from tests.graph_tricks import TRICKS, forbidden_operator, scans, varint
from tests.law_settings import SETTINGS
from tests.test_gateway_models import FIRST
from tests.toy import FEATURE_COUNT, onnx_scores

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
        changed(lambda model: model.graph.node.append(nested(1, "If"))),
        "operator 'If' is not allowed",
    ),
    "another domain": (
        changed(lambda model: model.graph.node.append(node("Add", domain="com.microsoft"))),
        "part 7 of an operator, which none of ours has",
    ),
    "operators of another domain": (
        changed(lambda model: model.opset_import.append(helper.make_opsetid("evil", 1))),
        "it needs format 10 and 2 opsets",
    ),
    "the only operators are of another domain": (
        changed(lambda model: setattr(model.opset_import[0], "domain", "evil")),
        "it needs operators of 'evil'",
    ),
    "newer opset": (
        changed(lambda model: setattr(model.opset_import[0], "version", 18)),
        "it needs opset 18, this agent runs up to 17",
    ),
    "a tensor in a file": (changed(external), "part 13 of a tensor"),
    "a tensor in a file, in an operator": (
        changed(
            lambda model: model.graph.node.append(
                node("ConstantOfShape", value=TensorProto(data_location=TensorProto.EXTERNAL))
            )
        ),
        "part 14 of a tensor",
    ),
    "functions": (changed(lambda model: model.functions.add(name="f")), "part 25 of an ONNX model"),
    "sparse": (changed(lambda model: model.graph.sparse_initializer.add()), "part 15 of a graph"),
    "too deep": (changed(lambda model: model.graph.node.append(nested(DEPTH_MAX, "Add"))), "deep in each other"),
    "a loop": (changed(lambda model: model.graph.node.append(node("Loop"))), "'Loop' is not allowed"),
    "onnxruntime's own format": (GOOD[:4] + b"ORTM" + GOOD[8:], "onnxruntime's own format"),
    "no nodes": (changed(lambda model: model.graph.ClearField("node")), "it has no operators"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_what_none_of_ours_has_is_refused(fault: str) -> None:
    body, words = SPOILED[fault]
    with pytest.raises(ModelRefusedError, match=words.replace("(", r"\(")):
        check(body)


@pytest.mark.parametrize("trick", TRICKS)
def test_what_another_parser_reads_otherwise_is_refused(trick: str) -> None:
    with pytest.raises(ModelRefusedError):
        check(TRICKS[trick])


def test_the_tricks_are_such_to_the_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads what is hidden: without the check a window chooses which byte of a file is its score."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(b"abcd")
    chosen = np.repeat(np.arange(4, dtype=np.float32)[:, None], 3, axis=1)
    scores = onnx_scores(TRICKS["a tensor in a file behind a key beyond 32 bits"], chosen)
    assert scores.astype(np.uint8).tobytes() == b"abcd"
    assert onnx_scores(forbidden_operator(), chosen)[1] == pytest.approx(math.erf(1.0), abs=1e-6)


def test_one_scan_is_allowed_and_none_within_it_and_no_tensor_that_fills_a_memory() -> None:
    check(scans(100, 1))
    for body, words in ((scans(100, 2), "2 deep"), (scans(NUMBERS_MAX + 1, 1), r"shape \[16777217\], at most")):
        with pytest.raises(ModelRefusedError, match=words):
            check(body)
    swapped = scans(100, 1).replace(b"\x0a\x04size", b"\x0a\x03big", 1)
    with pytest.raises(ModelRefusedError):
        check(swapped)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_models_of_every_algorithm_pass(name: str) -> None:
    for settings_of in SETTINGS.get(name, [{}])[:2]:
        algorithm = build(name, FEATURE_COUNT, settings_of)
        server = algorithm.start(generator(3, 0, "cloud"))
        with suppress(LookupError):  # of an algorithm whose first model takes a round
            check(DETECTORS[algorithm.detector].graph(server.shared, algorithm.personal))


def test_a_graph_of_endless_fields_is_refused_before_it_costs_time() -> None:
    tensor = b"\x08\x01" * FIELDS_MAX  # packed nowhere: a field each
    graph = b"\x2a" + varint(len(tensor)) + tensor
    with pytest.raises(ModelRefusedError, match="more than 200000 fields"):
        check(b"\x3a" + varint(len(graph)) + graph)


def test_our_models_pass() -> None:
    check(GOOD)
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "more")
    check(changed(lambda model: model.graph.initializer.append(tensor)))
    assert differs(GOOD) == ""


@pytest.mark.parametrize("trick", ["a function", "an operator twice", "a number that is longer than it need be"])
def test_a_difference_to_the_parser_of_onnx_would_be_found(trick: str) -> None:
    assert differs(TRICKS[trick])


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ModelRefusedError):
        check(body)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8), st.integers(0, 8))
def test_a_model_with_bytes_changed_is_refused_or_still_like_ours(place: int, new: bytes, cut: int) -> None:
    body = GOOD[:place] + new + GOOD[place + cut :]
    with suppress(ModelRefusedError):
        check(body)
        assert differs(body) == ""
