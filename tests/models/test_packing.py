"""Packed arrays: rounding is bounded by the largest entry, the largest entries travel, and a lie costs nothing."""

from __future__ import annotations

import tracemalloc
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from hypothesis.extra.numpy import arrays as any_array

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.packing import Number, PackingError, entries_sent, packed, unpacked

NUMBERS: tuple[Number, ...] = get_args(Number)
SHARES = (0.05, 0.3, 1.0)
# How far a number may be from what it was, in units of the largest of its array.
ERRORS = {"float64": 0.0, "float32": 2.0**-24, "float16": 2.0**-11, "int8": 0.5 / 127.0}

values = any_array(
    np.float64,
    array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9),
    elements=st.floats(-1e12, 1e12, allow_subnormal=False),
)

# Of float32 as it is there is nothing below this; the other numbers go with the largest entry.
LEAST: dict[Number, float] = {"float32": float(np.finfo(np.float32).smallest_subnormal)}


def there_and_back(array: Array, number: Number, share: float) -> Floats:
    return np.asarray(unpacked(packed({"a": array}, ["a"], number, share), ["a"], number, share)["a"])


@given(values, st.sampled_from(NUMBERS))
def test_rounding_is_bounded_by_the_largest_entry(array: Floats, number: Number) -> None:
    found = there_and_back(array, number, 1.0)
    largest = float(np.abs(array).max(initial=0.0))
    assert found.shape == array.shape and found.dtype == np.float64
    assert np.abs(found - array).max(initial=0.0) <= ERRORS[number] * largest * (1 + 1e-9) + LEAST.get(number, 1e-300)


@given(values, st.sampled_from(SHARES[:2]))
def test_the_largest_entries_travel_and_the_others_are_zero(array: Floats, share: float) -> None:
    found = there_and_back(array, "float64", share).ravel()
    flat = array.ravel()
    order = sorted(range(flat.size), key=lambda place: (-abs(flat[place]), place))
    slow = np.zeros(flat.size)
    for place in order[: entries_sent(flat.size, share)]:
        slow[place] = flat[place]
    assert np.array_equal(found, slow)


@pytest.mark.parametrize(
    ("size", "share", "count"), [(0, 0.5, 0), (1, 0.01, 1), (10, 0.3, 3), (100, 0.29, 29), (7, 0.5, 4)]
)
def test_a_share_is_rounded_up(size: int, share: float, count: int) -> None:
    assert entries_sent(size, share) == count


def test_what_is_tiny_or_nothing_survives() -> None:
    for number in NUMBERS:
        for array in (np.zeros(3), np.full(3, 1e-320), np.array([1e-310, -3e-309]), np.array([1e14, -1e-14])):
            found = there_and_back(array, number, 1.0)
            assert np.isfinite(found).all() and np.abs(found - array).max() <= max(np.abs(array).max() / 100, 1e-300)


def hostile(**changed: Array) -> Arrays:
    message = packed({"a": np.arange(40.0).reshape(5, 8)}, ["a"], "int8", 0.25)
    return {**message, **changed}


LIES: dict[str, Arrays] = {
    "more entries than bits": {"shape.a": np.array([5, 9])},
    "an astronomic shape": {"shape.a": np.array([2**31, 2**31])},
    "sides whose product wraps to 40": {"shape.a": np.array([2**32, 2**32, 40])},
    "a negative side": {"shape.a": np.array([-5, -8])},
    "no sides": {"shape.a": np.zeros(0, dtype=np.int64)},
    "sides of another width": {"shape.a": np.array([5, 8], dtype=np.int32)},
    "a bit too many": {"mask.a": np.full(5, 255, dtype=np.uint8)},
    "a longer bitmap": {"mask.a": np.full(6, 255, dtype=np.uint8)},
    "a bitmap of numbers": {"mask.a": np.zeros(5)},
    "a value too few": {"a": np.zeros(9, dtype=np.int8)},
    "two scales": {"scales": np.ones(2)},
    "scales of another width": {"scales": np.ones(1, dtype=np.float32)},
    "values of another width": {"a": np.zeros(10, dtype=np.float16)},
    "a bitmap of nobody": {"mask.b": np.zeros(5, dtype=np.uint8)},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_message_that_contradicts_itself_is_refused(lie: str) -> None:
    with pytest.raises(PackingError, match=r"expected .*got"):
        unpacked(hostile(**LIES[lie]), ["a"], "int8", 0.25)


def test_a_claim_allocates_nothing() -> None:
    size = 2**24
    claimed = {"shape.a": np.array([size]), "mask.a": np.zeros(size // 8, dtype=np.uint8)}
    tracemalloc.start()
    for shape in ([size], [2**40], [2**62, 2**62]):
        with pytest.raises(PackingError):
            unpacked(hostile(**{**claimed, "shape.a": np.array(shape)}), ["a"], "int8", 0.25)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < size, "eight bytes an entry would be 128 MiB"
