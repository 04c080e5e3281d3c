"""The wire format: what goes in comes out, and whatever else comes in is refused with one kind of error.

The golden file pins the format. Where it must change, so must `FORMAT`, and the file is written anew with

    python -c "from tests.config.protocol.test_wire import *; GOLDEN.write_bytes(encode(GOLDEN_ARRAYS, GOLDEN_META))"
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from hypothesis.extra.numpy import arrays as any_array

from fedgate.config.protocol.wire import (
    ARRAYS_MAX,
    DIMENSIONS_MAX,
    FORMAT,
    HEADER_BYTES_MAX,
    Arrays,
    WireError,
    decode,
    encode,
)
from fedgate.models.arrays import DTYPES
from tests.support.syntax import ROOT

GOLDEN = ROOT / "tests" / "golden" / "wire_1.bin"
GOLDEN_META = {"rate_hz": 600.0, "site": "Brücke", "nested": {"list": [1, None, True]}}
GOLDEN_ARRAYS: Arrays = {
    "head.weights": np.array([[1.5, -2.25], [1e-300, math.inf]]),
    "half": np.array([0.1, math.nan], dtype=np.float32),
    "count": np.array(7, dtype=np.int64),
    "small": np.array([-1, 2**31 - 1], dtype=np.int32),
    "ring": np.array([2**64 - 1], dtype=np.uint64),
    "bytes": np.arange(4, dtype=np.uint8),
    "mask": np.array([[True], [False]]),
    "empty": np.zeros((0, 3)),
}
VALID = encode(GOLDEN_ARRAYS, GOLDEN_META)
NARROW = ROOT / "tests" / "golden" / "wire_1_narrow.bin"  # of types that came later
NARROW_ARRAYS: Arrays = {
    "half": np.array([0.1, -6e-8, math.inf], np.float16),
    "byte": np.array([[-128], [127]], np.int8),
}

some_arrays = st.dictionaries(
    st.text(max_size=12),
    st.sampled_from(sorted(DTYPES)).flatmap(lambda dtype: any_array(dtype, array_shapes(min_dims=0, min_side=0))),
    max_size=4,
)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
some_meta = st.dictionaries(
    st.text(max_size=8),
    st.recursive(st.none() | st.booleans() | numbers | st.text(max_size=8), lambda part: st.lists(part, max_size=3)),
    max_size=4,
)


def identical(first: Arrays, second: Arrays) -> bool:
    def described(arrays: Arrays) -> dict[str, Any]:
        return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}

    return described(first) == described(second)


def sealed(head: dict[str, Any] | str, body: bytes = b"") -> bytes:
    """Return a message whose digest is right, whatever its header claims."""
    text = head if isinstance(head, str) else json.dumps({"format": FORMAT, "meta": {}, **head})
    start = text.removesuffix("}").encode()
    return start + b',"sha256":"' + hashlib.sha256(start + body).hexdigest().encode() + b'"}\n' + body


def refused(payload: bytes) -> str:
    with pytest.raises(WireError) as caught:
        decode(payload)
    assert type(caught.value) is WireError
    return str(caught.value)


def test_a_sealed_header_is_what_encode_writes() -> None:
    """If not, the refusals below would all be for a wrong digest."""
    arrays, meta = decode(sealed({"arrays": [["x", "<f8", [2]]], "meta": {"a": 1}}, np.array([1.0, 2.0]).tobytes()))
    assert (arrays["x"].tolist(), meta) == ([1.0, 2.0], {"a": 1})


@pytest.mark.soak
@given(some_arrays, some_meta)
def test_what_goes_in_comes_out(arrays: Arrays, meta: dict[str, Any]) -> None:
    payload = encode(arrays, meta)
    received, told = decode(payload)
    assert identical(received, arrays)
    assert told == meta
    assert encode(received, told) == payload
    for array in received.values():
        assert array.flags.writeable
        assert array.flags.owndata


def test_order_layout_and_byte_order_do_not_show() -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    plain = encode({"a": matrix, "b": np.array([1, 2])}, {"x": 1, "y": 2})
    others = [np.asfortranarray(matrix), np.arange(12.0).reshape(2, 6)[:, ::2] / 2.0, matrix.astype(">f8")]
    for other in others:
        assert encode({"b": np.array([1, 2]), "a": other}, {"y": 2, "x": 1}) == plain


def test_the_format_is_pinned() -> None:
    assert GOLDEN.read_bytes() == VALID
    arrays, meta = decode(GOLDEN.read_bytes())
    assert identical(arrays, GOLDEN_ARRAYS)
    assert meta == GOLDEN_META


def test_narrow_numbers_are_pinned() -> None:
    assert NARROW.read_bytes() == encode(NARROW_ARRAYS)
    assert identical(decode(NARROW.read_bytes())[0], NARROW_ARRAYS)


def test_every_damaged_byte_is_seen() -> None:
    for index in range(len(VALID)):
        for change in (0x01, 0x20, 0x80):
            refused(VALID[:index] + bytes([VALID[index] ^ change]) + VALID[index + 1 :])
    decode(VALID[:-1] + bytes([VALID[-1] ^ 1]), is_verified=True)  # but by who has seen that already


def test_every_truncation_and_every_extension_is_seen() -> None:
    for length in range(len(VALID)):
        refused(VALID[:length])
    for more in (b"\0", b"\n", VALID):
        refused(VALID + more)
        refused(more + VALID)


@given(st.data())
def test_any_mutation_is_refused(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(VALID)))
    stop = data.draw(st.integers(start, min(len(VALID), start + 40)))
    mutated = VALID[:start] + data.draw(st.binary(max_size=40)) + VALID[stop:]
    if mutated != VALID:
        refused(mutated)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\n")
@example(b"{}\n")
@example(b"null\n")
@example(b"\xff\xfe{\x00}\x00\n")
def test_random_bytes_are_refused(payload: bytes) -> None:
    refused(payload)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=5), part, max_size=3),
)


@pytest.mark.soak
@settings(max_examples=300)
@given(st.fixed_dictionaries({}, optional={"arrays": json_values, "meta": json_values, "format": json_values}))
def test_random_headers_are_refused_or_read(head: dict[str, Any]) -> None:
    try:
        arrays, meta = decode(sealed(head))
    except WireError:
        return
    assert isinstance(meta, dict)
    assert all(array.size == 0 for array in arrays.values())


ENTRIES = {
    "terabytes": ["x", "<f8", [2**40]],
    "more than memory addresses": ["x", "<f8", [2**32, 2**32, 2**32]],
    "nothing of something huge": ["x", "<f8", [0, 2**62, 2**62]],
    "a side beyond 64 bits": ["x", "<f8", [0, 2**80]],
    "negative": ["x", "<f8", [-1]],
    "negative times negative": ["x", "<f8", [-1, -1]],
    "fractional": ["x", "<f8", [1.0]],
    "true": ["x", "<f8", [True]],
    "text": ["x", "<f8", ["1"]],
    "no list": ["x", "<f8", 1],
    "a text for a list": ["x", "<f8", "12"],
    "nested": ["x", "<f8", [[1]]],
    "many dimensions": ["x", "<f8", [1] * (DIMENSIONS_MAX + 1)],
    "objects": ["x", "|O", [1]],
    "big-endian": ["x", ">f8", [1]],
    "texts": ["x", "<U4", [1]],
    "no type": ["x", None, [1]],
    "a type in a list": ["x", ["<f8"], [1]],
    "no name": [None, "<f8", [1]],
    "too short": ["x", "<f8"],
    "too long": ["x", "<f8", [1], 0],
    "a mapping": {"x": ["<f8", [1]]},
    "nothing": None,
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_a_wrong_array_entry_is_refused_before_anything_is_allocated(entry: object) -> None:
    for body in (b"", b"\0" * 8):
        reason = refused(sealed({"arrays": [entry]}, body))
        assert reason.startswith(("header: expected [name, type", "body: "))


def test_sizes_of_thousands_of_digits_are_refused() -> None:
    digits = "9" * 4_200  # which Python still reads, but would no longer print the square of
    refused(sealed(f'{{"format":"{FORMAT}","meta":{{}},"arrays":[["x","<f8",[{digits},{digits}]]]}}'))
    refused(sealed(f'{{"format":"{FORMAT}","meta":{{}},"arrays":[["x","<f8",[{digits * 2}]]]}}'))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_constants_that_json_does_not_have_are_refused(constant: str) -> None:
    reason = refused(sealed(f'{{"format":"{FORMAT}","arrays":[],"meta":{{"a":[{constant}]}}}}'))
    assert f"{constant} is no JSON number" in reason


@pytest.mark.parametrize("value", ['"\\ud800"', '{"\\udfff":1}', "9" * 41, "-" + "9" * 4_000])
def test_what_no_text_holds_and_endless_numbers_are_refused(value: str) -> None:
    """Half of a surrogate pair can be parsed, and neither printed nor sent on."""
    assert "header: not JSON" in refused(sealed(f'{{"format":"{FORMAT}","arrays":[],"meta":{{"a":[{value}]}}}}'))


@pytest.mark.parametrize("depth", [100, 900, 950, 980, 990, 1_000, 1_010, 1_100, 5_000, 20_000])
@pytest.mark.parametrize("bracket", ["[]", '{"a":', "meta"])
def test_deep_nesting_is_refused_or_read_but_never_exhausts_the_stack(depth: int, bracket: str) -> None:
    if bracket == "meta":
        nested = f'{{"format":"{FORMAT}","arrays":[],"meta":{{"a":{"[" * depth}{"]" * depth}}}}}'
        try:
            decode(sealed(nested))
        except WireError as error:
            assert "header: not JSON" in str(error)
    elif bracket == "[]":
        refused(sealed(f'{{"format":"{FORMAT}","meta":{{}},"arrays":{"[" * depth}{"]" * depth}}}'))
    else:
        refused(b'{"a":' * depth + b"1" + b"}" * depth + b"\n")


def test_other_refusals_say_what_was_expected() -> None:
    twice = sealed({"arrays": [["x", "<f8", [1]], ["x", "<f8", [1]]]}, bytes(16))
    assert refused(twice) == "header: an array is named twice"
    longer = sealed({"arrays": [["x", "<f8", [1]]]}, bytes(16))
    assert refused(longer) == "body: 16 bytes given, 8 expected from the header"
    assert refused(sealed({"format": "fedgate/2", "arrays": []})).startswith("header: expected format 'fedgate/1'")
    assert refused(sealed({"arrays": {}})) == "header: arrays should be a list, got dict"
    assert refused(sealed({"arrays": [], "meta": []})) == "header: meta should be a dict, got list"
    assert refused(sealed({"arrays": [["x", "|u1", [0]]] * (ARRAYS_MAX + 1)})).startswith("header: 1001 arrays given")
    assert refused(b"x" * (HEADER_BYTES_MAX + 5)).startswith("header: no line end")
    with pytest.raises(WireError, match="message: 500 bytes given, at most 499 expected"):
        decode(bytes(500), size_max=499)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.array([None])},
        {"x": np.array(["text"])},
        {"x": np.array([1j])},
        {"x": np.array([1], dtype="datetime64[s]")},
        {"x": np.zeros(1, dtype=[("field", "<f8")])},
        {"x": np.zeros((1,) * (DIMENSIONS_MAX + 1))},
        {"x": np.broadcast_to(np.zeros((0,)), (2**45, 0))},
        {f"name{index}": np.zeros(1) for index in range(ARRAYS_MAX + 1)},
        {"n" * HEADER_BYTES_MAX: np.zeros(1)},
    ],
    ids=["objects", "texts", "complex", "dates", "records", "dimensions", "huge nothing", "many", "long name"],
)
def test_what_decode_would_refuse_is_never_sent(arrays: Arrays) -> None:
    with pytest.raises(WireError, match=r"expected"):
        encode(arrays)
