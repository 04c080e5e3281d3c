"""The ring and the shares, number by number."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays as array_strategy

from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.schema import Field, layout_of
from fedgate.models.federated.secure_aggregation.keys import (
    KeyAgreementError,
    Keys,
    add_mask,
    agreed,
    chained,
    coefficients,
    derived,
    loaded,
    public_key,
    sealed,
    unsealed,
)
from fedgate.models.federated.secure_aggregation.options import _holders
from fedgate.models.federated.secure_aggregation.ring import (
    RingError,
    check_units,
    decoded,
    encoded,
    most_of,
)
from fedgate.models.federated.secure_aggregation.shamir import PRIME, interpolated, shares_of

QUANTUM = 2.0**-20
MOST = most_of(1_000, QUANTUM, None)
SMALL = 7  # a field in which everything can be counted

values = st.floats(-MOST, MOST, allow_nan=False)
vectors = st.lists(array_strategy(np.float64, 3, elements=values), min_size=1, max_size=6)


@given(vectors)
def test_a_sum_in_the_ring_is_the_plain_sum_within_the_quantum(parts: list[np.ndarray]) -> None:
    layout = {"x": (3,)}
    total = np.zeros(3, dtype=np.uint64)
    for part in parts:
        total = total + encoded({"x": part}, QUANTUM, MOST)
    exact = [sum(int(np.rint(part[at] / QUANTUM)) for part in parts) for at in range(3)]  # in integers without an end
    np.testing.assert_array_equal(decoded(total, layout, QUANTUM)["x"], np.array(exact) * QUANTUM)
    largest = max(float(np.abs(part).max()) for part in parts)
    error = np.abs(decoded(total, layout, QUANTUM)["x"] - np.sum(parts, axis=0))
    assert (error <= len(parts) * (QUANTUM / 2.0 + 1e-15 * len(parts) * largest)).all()


@given(st.integers(1, 2_000_000), st.sampled_from([2.0**-40, 2.0**-20, 0.1, 1.0]))
def test_so_many_of_the_largest_values_do_not_wrap(count: int, quantum: float) -> None:
    """Judged in integers that have no end."""
    for stated in (None, 0.999 * 2.0**63 * quantum / count):
        most = most_of(count, quantum, stated)
        assert count * int(np.rint(most / quantum)) < 2**63


def test_a_range_that_could_wrap_is_refused_with_what_to_set() -> None:
    with pytest.raises(RingError, match=r"masking.range: 1e\+12 given for 10 gateways.*larger masking.quantum"):
        most_of(10, QUANTUM, 1e12)
    assert most_of(5, QUANTUM, 1e12) == 1e12


@pytest.mark.parametrize("value", [1.0001 * MOST, -1.0001 * MOST, np.nan, np.inf, -np.inf])
def test_a_value_beyond_the_range_is_named(value: float) -> None:
    with pytest.raises(RingError, match=r"weights: a value of size .* given, expected up to 8.7873e\+09"):
        encoded({"weights": np.array([[0.0, value]]), "count": np.array(1.0)}, QUANTUM, MOST)


def test_arrays_come_back_with_their_names_and_shapes() -> None:
    update: Arrays = {"b.c": np.arange(6.0).reshape(2, 3), "a": np.array(-1.5), "empty": np.zeros((0, 4))}
    schema = {name: Field(array.shape, "sum") for name, array in update.items()} | {"who": Field((3,), "identity")}
    found = decoded(encoded(update, QUANTUM, MOST), layout_of(schema, {}), QUANTUM)
    assert found.keys() == update.keys()
    for name, array in update.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


SMALL_LAYOUT: dict[str, tuple[int, ...]] = {"count": (), "cross": (1,), "gram": (2,)}
SMALL_UNITS = {"gram": np.array([5.0, 1e-5]), "cross": np.array([2e-5]), "count": np.array(40.0)}


def test_what_rounding_would_eat_is_refused_with_the_quantum_to_set() -> None:
    with pytest.raises(
        RingError, match=r"cross: values of size 2e-05 given, expected at least 100 times.*= 1.8626"
    ) as e:
        check_units(SMALL_UNITS, {}, QUANTUM, each=True)
    quantum = float(re.findall(r"masking.quantum = (\S+),", str(e.value))[0])
    check_units(SMALL_UNITS, {}, quantum, each=True)
    found = decoded(encoded(SMALL_UNITS, quantum, MOST), SMALL_LAYOUT, quantum)["cross"]
    np.testing.assert_allclose(found, SMALL_UNITS["cross"], rtol=1e-3)


def test_what_is_small_for_a_reason_is_let_through() -> None:
    check_units(SMALL_UNITS, {}, QUANTUM, each=False)  # a part of a step that is large elsewhere
    check_units(SMALL_UNITS, {"cross": np.array([1.0])}, QUANTUM, each=True)  # a change that has come to its end
    cancelled = SMALL_UNITS | {"cross": np.array([4e-15]), "zero": np.zeros(3)}
    check_units(cancelled, {}, QUANTUM, each=True)
    check_units({"count": np.array(1e-7)}, {}, QUANTUM, each=True)
    step = {"weights": np.array([1e-6, -1e-5]), "count": np.array(40.0)}
    with pytest.raises(RingError, match="weights: values of size 1e-05 given"):
        check_units(step, {}, QUANTUM, each=False)


@given(st.integers(0, PRIME - 1), st.lists(st.integers(0, PRIME - 1), max_size=4), st.randoms(use_true_random=False))
def test_every_subset_of_enough_shares_gives_the_secret(secret: int, drawn: list[int], random: object) -> None:
    threshold = len(drawn) + 1
    points = range(1, threshold + 3)
    shares = dict(zip(points, shares_of(secret, drawn, points), strict=True))
    for subset in itertools.combinations(points, threshold):
        assert interpolated({point: shares[point] for point in subset}) == secret
        for other in points:
            assert interpolated({point: shares[point] for point in subset}, at=other) == shares[other]


@pytest.mark.parametrize("threshold", [2, 3])
def test_fewer_shares_leave_every_secret_equally_possible(threshold: int) -> None:
    """All polynomials of a small field are counted: whatever is seen, each secret stands behind it as often."""
    points = range(1, SMALL)
    for seen_by in itertools.combinations(points, threshold - 1):
        behind = {
            secret: Counter(
                tuple(shares_of(secret, drawn, seen_by, SMALL))
                for drawn in itertools.product(range(SMALL), repeat=threshold - 1)
            )
            for secret in range(SMALL)
        }
        assert all(counts == behind[0] for counts in behind.values())
        assert len(behind[0]) == SMALL ** (threshold - 1)


@given(st.integers(1, 5), st.integers(0, 400))
def test_a_mask_is_taken_off_as_it_was_put_on(key: int, size: int) -> None:
    vector = np.arange(size, dtype=np.uint64)
    add_mask(vector, bytes([key]) * 32)
    assert size < 3 or not np.array_equal(vector, np.arange(size))
    add_mask(vector, bytes([key]) * 32, taken_off=True)
    np.testing.assert_array_equal(vector, np.arange(size, dtype=np.uint64))


def test_a_long_mask_does_not_repeat_and_goes_on_where_a_short_one_ends() -> None:
    long, short = np.zeros(100_000, dtype=np.uint64), np.zeros(20_000, dtype=np.uint64)
    for vector in (long, short):
        add_mask(vector, bytes(32))
    np.testing.assert_array_equal(long[:20_000], short)
    assert len(np.unique(long)) == len(long)
    # RFC 8439, A.1, test vector 1: the keystream of a key, counter and nonce of zeros.
    assert long[:2].astype("<u8").tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_both_sides_agree_on_a_key_that_depends_on_purpose_and_context() -> None:
    first, second = Keys.of(b"1" * 32), Keys.of(b"2" * 32)
    publics = public_key(first.channel), public_key(second.channel)
    key = agreed(loaded(first.channel), publics[1], "share", b"a")
    assert key == agreed(loaded(second.channel), publics[0], "share", b"a")
    others = (
        agreed(loaded(first.channel), publics[1], "mask", b"a"),
        agreed(loaded(first.channel), publics[1], "share", b"b"),
    )
    assert len({key, *others}) == 3
    assert unsealed(key, sealed(key, b"text")) == b"text"
    assert unsealed(others[0], sealed(key, b"text")) is None
    assert unsealed(key, sealed(key, b"text")[::-1]) is None


@pytest.mark.parametrize("number", [0, 1, 2**255 - 20])
def test_a_key_of_small_order_is_refused(number: int) -> None:
    with pytest.raises(KeyAgreementError, match="small order"):
        agreed(loaded(bytes(32)), number.to_bytes(32, "little"), "trial", b"")


def test_all_secrets_of_a_round_are_different_and_a_chain_goes_one_way() -> None:
    keys = Keys.of(b"s" * 32)
    assert len({*keys, b"s" * 32}) == len(keys) + 1
    assert chained(chained(keys.token, 1), 2) == chained(keys.token, 3) != keys.token
    drawn = coefficients(keys.dealer, b"", 40)
    assert len(set(drawn)) == 40
    assert all(0 <= number < PRIME for number in drawn)
    assert drawn != coefficients(keys.dealer, b"other", 40)
    assert derived(keys.seed, "a") != derived(keys.seed, "b")


@pytest.mark.parametrize(("count", "most"), [(3, 60), (61, 60), (62, 60), (100, 60), (7, 4), (500, 10)])
def test_neighbours_are_mutual_connected_and_as_many_as_asked_for(count: int, most: int) -> None:
    holders = _holders(b"digest" * 5, count, most)
    assert holders.shape == (count, min(count, most + 1))
    sets = [set(map(int, row)) for row in holders]
    assert all(place in sets[place] for place in range(count))
    assert all(place in sets[other] for place in range(count) for other in sets[place])
    reached: set[int] = set()
    front = {0}
    while front:
        reached |= front
        front = set().union(*(sets[place] for place in front)) - reached
    assert len(reached) == count
    assert count <= most + 1 or not np.array_equal(holders, _holders(b"another" * 5, count, most))
