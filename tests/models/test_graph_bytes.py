"""What a gateway lets onnxruntime load: the operators that our graphs are made of, and nothing out of other files.

Goal: whatever the bytes are, they are refused with a reason or are a model like ours; nothing else ever happens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from fedgate.models import onnx_policy
from fedgate.models.arrays import generator
from fedgate.models.detectors import DETECTORS, PERSONAL
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.network import MOST_UNITS, Network
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.onnx_policy import BLOCK_ROWS, ELEMENTS_MAX, FIELDS_MAX, WORK_MAX, ModelRefusedError, check
from fedgate.models.testing.fleet import FEATURE_COUNT
from tests.fuzz.graph_targets import compare
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.models.detectors.test_graph import FITS, noise
from tests.support.graph_tricks import field, hours, sound, tricks, varint
from tests.support.law_settings import SETTINGS

GOOD = FIRST[1]


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = onnx.load_from_string(GOOD)
    change(model)
    return bytes(model.SerializeToString())


def node(kind: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, ["x"], ["y"], **attributes)


def external(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secrets.bin")


SPOILED: dict[str, tuple[bytes, str]] = {
    "operator": (changed(lambda model: model.graph.node.append(node("RandomNormal"))), "'RandomNormal' is not allowed"),
    "operator in a graph in an operator": (
        changed(
            lambda model: model.graph.node.append(
                helper.make_node(
                    "Scan", ["x", "x"], ["y", "z"], body=helper.make_graph([node("Sign")], "inner", [], [])
                )
            )
        ),
        "operator 'Sign' is not allowed",
    ),
    "another domain": (
        changed(lambda model: model.graph.node.append(node("Add", domain="com.microsoft"))),
        "field 7 of a node",
    ),
    "operators of another domain": (
        changed(lambda model: model.opset_import[0].MergeFrom(helper.make_opsetid("evil", 1))),
        "it needs operators of 'evil'",
    ),
    "operators of two kinds": (
        changed(lambda model: model.opset_import.append(helper.make_opsetid("evil", 1))),
        "operators of more than one kind",
    ),
    "newer opset": (
        changed(lambda model: model.opset_import[0].MergeFrom(helper.make_opsetid("", 18))),
        "it needs opset 18, this agent runs 17",
    ),
    "a tensor in a file": (changed(external), "field 13 of a tensor"),
    "a tensor in a file, in an operator": (
        changed(
            lambda model: model.graph.node.append(
                node("ConstantOfShape", value=TensorProto(data_location=TensorProto.EXTERNAL))
            )
        ),
        "field 14 of a constant",
    ),
    "functions": (changed(lambda model: model.functions.add(name="f")), "field 25 of a model"),
    "sparse": (changed(lambda model: model.graph.sparse_initializer.add()), "field 15 of a graph"),
    "onnxruntime's own format": (GOOD[:4] + b"ORTM" + GOOD[8:], "onnxruntime's own format"),
    "no nodes": (changed(lambda model: model.graph.ClearField("node")), "it has no operators"),
    "no score": (changed(lambda model: model.graph.output[0].MergeFrom(onnx.ValueInfoProto(name="?"))), "from nowhere"),
    "another default": (
        changed(lambda model: model.graph.input.append(helper.make_tensor_value_info("w", 1, [99]))),
        "its input 'w' has no default of its shape",
    ),
    "windows of any shape": (
        changed(lambda model: model.graph.input[0].type.tensor_type.shape.dim.add(dim_value=2)),
        "its input x is not of any number of windows",
    ),
}


@pytest.mark.parametrize("fault", [*SPOILED, *tricks()])
def test_what_none_of_ours_has_is_refused(fault: str) -> None:
    body, words = (SPOILED | tricks())[fault]
    with pytest.raises(ModelRefusedError, match=re.escape(words)):
        check(body)


@pytest.mark.soak
def test_a_graph_of_endless_fields_is_refused_before_it_costs_time() -> None:
    tensor = b"\x08\x01" * FIELDS_MAX  # packed nowhere: a field each
    with pytest.raises(ModelRefusedError, match="more than 200000 fields"):
        check(field(1, 8) + field(7, field(5, tensor)))


@pytest.mark.parametrize("personal", [PERSONAL, ()])
@pytest.mark.parametrize("kind", FITS)
def test_every_model_of_ours_passes(kind: str, personal: tuple[str, ...]) -> None:
    name, fit = FITS[kind]
    params = fit(noise(1))
    check(DETECTORS[name].graph(params, personal))
    check(DETECTORS[name].graph(params, (*personal, *(name for name in params if name.startswith("cell.")))))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_models_of_every_algorithm_pass(name: str) -> None:
    for settings_of in SETTINGS.get(name, [{}])[:2]:
        algorithm = build(name, FEATURE_COUNT, settings_of)
        server = algorithm.start(generator(3, 0, "cloud"))
        with suppress(LookupError):  # of an algorithm whose first model takes a round
            check(DETECTORS[algorithm.detector].graph(server.global_state, algorithm.personal))


@pytest.mark.soak
def test_the_largest_of_ours_stays_far_below_what_is_refused() -> None:
    rng, steps = np.random.default_rng(0), 100
    network = Network(units=MOST_UNITS, steps=steps, washout=10)
    params = esn.fit(rng.normal(size=(40, 5 * steps)), None, rng, network=network)
    taken = check(DETECTORS["esn"].graph(params, PERSONAL)).total
    assert 2e10 < taken.work < WORK_MAX / 30 and 4e7 < taken.elements < ELEMENTS_MAX / 2
    params = svdd.fit(noise(1)) | {"vectors": rng.normal(size=(20_000, 5)), "coefficients": np.ones(20_000) / 20_000}
    taken = check(DETECTORS["svdd"].graph(params, PERSONAL)).total
    assert taken.work < WORK_MAX / 10_000 and taken.elements < ELEMENTS_MAX / 20


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32 - 1, 2**63, 2**64 - 1])
def test_a_number_is_read_as_it_is_written_and_in_no_other_way(number: int) -> None:
    assert onnx_policy._varint(memoryview(varint(number)), 0, 64) == (number, len(varint(number)))
    with pytest.raises(ModelRefusedError):
        onnx_policy._varint(memoryview(varint(number, longer=1)), 0, 64)
    with pytest.raises(ModelRefusedError):
        onnx_policy._varint(memoryview(varint(number | 1 << 64)), 0, 64)


@pytest.mark.parametrize("kind", FITS)
def test_no_value_is_larger_than_its_bound(kind: str) -> None:
    """onnx's own inference is held against it, which knows the shapes of all our graphs."""
    name, fit = FITS[kind]
    body = DETECTORS[name].graph(fit(noise(1)), PERSONAL)
    bounds = check(body).shapes
    model = onnx.load_from_string(body)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = BLOCK_ROWS
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    compared = 0
    for value in (*inferred.value_info, *inferred.output):
        sides = [side.dim_value for side in value.type.tensor_type.shape.dim]
        assert len(sides) == len(bounds[value.name]), value.name
        for side, bound in zip(sides, bounds[value.name], strict=True):
            assert side <= bound, value.name
            compared += side == bound
    assert compared > len(model.graph.node) / 2


def test_steps_of_a_scan_count_each() -> None:
    few, many = (check(hours(1, steps)).total for steps in (10, 1_000))
    assert 30 * few.work < many.work < 100 * few.work


def test_sound_models_pass() -> None:
    check(GOOD)
    tensor = numpy_helper.from_array(np.zeros(3, np.float32), "more")
    check(changed(lambda model: model.graph.initializer.append(tensor)))
    for body in sound():
        check(body)


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ModelRefusedError):
        check(body)


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8), st.integers(0, 8))
def test_a_model_with_bytes_changed_is_refused_or_still_like_ours(place: int, new: bytes, cut: int) -> None:
    with suppress(ModelRefusedError):
        compare(GOOD[:place] + new + GOOD[place + cut :])
