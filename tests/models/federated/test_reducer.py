"""The reducers apart from any algorithm: their laws must not lean on what today's algorithms happen to send."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from functools import reduce
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import Array, Arrays
from fedgate.models.federated.protocol.reducer import STACK, SUM, Reducer

# Few different values, so that rows often tie; 0.0 and -0.0 are equal numbers of different bytes.
VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, 1e300])


def merged(reducer: Reducer, updates: Iterable[Arrays]) -> Arrays:
    return reduce(reducer.merge, updates, Arrays())


@st.composite
def rows(draw: st.DrawFn) -> Arrays:
    count = draw(st.integers(0, 4))
    matrix: Array = draw(any_array(np.float64, (count, 2), elements=VALUES))
    weights: Array = draw(any_array(np.int64, (count,), elements=st.integers(-2, 2)))
    return {"vectors": matrix, "weights": weights}


sums = st.fixed_dictionaries(
    {
        "total": any_array(np.int64, (2, 3), elements=st.integers(-(2**40), 2**40)),
        "count": any_array(np.uint64, (), elements=st.integers(0, 2**64 - 1)),
    }
)


@pytest.mark.soak
@given(st.lists(rows(), min_size=3, max_size=3))
def test_stacking_does_not_show_the_order_of_arrival(updates: list[Arrays]) -> None:
    totals = {encode(STACK.closed(merged(STACK, order))) for order in itertools.permutations(updates)}
    a, b, c = updates
    assert totals == {encode(STACK.closed(STACK.merge(a, STACK.merge(b, c))))}


@given(rows(), st.randoms(use_true_random=False))
def test_stacking_does_not_show_the_order_in_which_a_gateway_sent(update: Arrays, random: Random) -> None:
    order = random.sample(range(len(update["weights"])), len(update["weights"]))
    shuffled = {name: update[name][order] for name in reversed(update)}
    more: Arrays = {"vectors": np.ones((1, 2)), "weights": np.zeros(1, dtype=np.int64)}
    for other in ({}, more):
        stacked = [STACK.closed(STACK.merge(rows, other)) for rows in (shuffled, update)]
        assert encode(stacked[0]) == encode(stacked[1])


@given(st.lists(rows(), min_size=1, max_size=4))
def test_stacking_keeps_every_row_and_keeps_it_together(updates: list[Arrays]) -> None:
    total = STACK.closed(merged(STACK, updates))

    def listed(arrays: Arrays) -> list[bytes]:
        return [v.tobytes() + w.tobytes() for v, w in zip(arrays["vectors"], arrays["weights"], strict=True)]

    assert sorted(listed(total)) == sorted(row for update in updates for row in listed(update))


@given(st.lists(sums, min_size=3, max_size=3))
def test_integers_add_up_exactly_and_round_the_ring(updates: list[Arrays]) -> None:
    """Secure aggregation sums modulo 2⁶⁴, so an overflow of uint64 is arithmetic, not an error."""
    total = merged(SUM, updates)
    assert int(total["count"]) == sum(int(update["count"]) for update in updates) % 2**64
    expected = [sum(int(update["total"][i, j]) for update in updates) for i in range(2) for j in range(3)]
    assert total["total"].ravel().tolist() == expected
    totals = {encode(merged(SUM, order)) for order in itertools.permutations(updates)}
    assert totals == {encode(total)}


@pytest.mark.parametrize("reducer", [SUM, STACK], ids=lambda reducer: reducer.name)
def test_a_total_never_changes_behind_the_back_of_who_holds_it(reducer: Reducer) -> None:
    first = {"w": np.array([[1.0, 2.0]])}
    total = reducer.merge({}, first)
    reducer.merge(total, {"w": np.array([[0.0, 0.0]])})
    reducer.merge(total, {})["more"] = np.zeros(1)
    closed = reducer.closed(total)
    assert list(closed) == ["w"]
    assert closed["w"].tolist() == first["w"].tolist() == [[1.0, 2.0]]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
@settings(max_examples=30)
def test_no_row_is_copied_more_often_than_there_are_doublings(lengths: list[int]) -> None:
    """Joined anew with each of n updates, rows would be copied n times each: 800 members took 5.5 s."""
    total, copied, count = Arrays(), 0, 0
    for length in lengths:
        before = {id(array) for array in total.values()}
        update = {"w": np.zeros((length, 1))}
        total, count = STACK.merge(total, update), count + length
        copied += sum(len(array) for array in total.values() if id(array) not in before | {id(update["w"])})
    assert copied <= count * (math.log2(count + 1) + 1)
    assert len(total) <= math.log2(count + 1) + 2


def test_scalars_stay_arrays() -> None:
    total = SUM.merge({"n": np.array(2.0)}, {"n": np.array(3.0)})
    assert type(total["n"]) is np.ndarray
    assert (total["n"].shape, float(total["n"])) == ((), 5.0)
