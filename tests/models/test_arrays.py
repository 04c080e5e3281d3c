"""Arrays, and the two rules of randomness on which simulation and service must agree."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.arrays import equal, finite, generator, select

NAMES = [f"gateway-{index:02}" for index in range(40)]
seeds = st.integers(0, 2**63)


def test_a_generator_depends_on_its_arguments_alone() -> None:
    first = generator(1, 2, "north").random(4)
    generator(9, 9, "south").random(100)
    np.testing.assert_array_equal(generator(1, 2, "north").random(4), first)


def test_other_arguments_give_other_numbers() -> None:
    drawn = {generator(*arguments).random() for arguments in [(1, 2, "a"), (2, 1, "a"), (1, 2, "b"), (1, 3, "a")]}
    assert len(drawn) == 4


def test_the_numbers_of_a_generator_are_pinned() -> None:
    """A gateway and a cloud of different releases must draw the same cohort."""
    assert generator(0, 0, "cloud").integers(0, 1_000_000, 3).tolist() == [185717, 553679, 409805]
    assert select(3, 1, NAMES[:6], 0.5) == ["gateway-02", "gateway-03", "gateway-04"]


@given(seed=seeds, round_index=st.integers(0, 10_000), fraction=st.floats(0.01, 1.0), newcomer=st.text(max_size=8))
def test_a_newcomer_never_reorders_the_others(seed: int, round_index: int, fraction: float, newcomer: str) -> None:
    before = select(seed, round_index, NAMES, fraction)
    after = select(seed, round_index, [newcomer, *NAMES], fraction)
    others = [name for name in after if name != newcomer]
    assert set(others) <= set(before) or set(before) <= set(others)
    assert len(set(before) ^ set(others)) <= 1


@given(seed=seeds, order=st.permutations(NAMES))
def test_the_order_of_the_names_does_not_matter(seed: int, order: list[str]) -> None:
    assert select(seed, 0, order, 0.3) == select(seed, 0, NAMES, 0.3)


def test_names_of_equal_checksum_are_told_apart_by_name() -> None:
    """These two have the same CRC-32, so the same number; which of them is drawn must not hang on their order."""
    pair = ["plumless", "buckeroo"]
    assert generator(0, 0, pair[0]).random() == generator(0, 0, pair[1]).random()
    assert select(0, 0, pair, 0.5) == select(0, 0, pair[::-1], 0.5) == ["buckeroo"]


@pytest.mark.parametrize("parties", [1, 2, 3, 10, 29, 49, 100])
def test_a_fraction_of_k_in_n_draws_k(parties: int) -> None:
    names = [str(index) for index in range(parties)]
    assert [len(select(0, 0, names, k / parties)) for k in range(1, parties + 1)] == list(range(1, parties + 1))


@pytest.mark.parametrize(("fraction", "count"), [(1e-9, 1), (0.0, 1), (0.05, 2), (0.074, 2), (0.5, 20), (1.0, 40)])
def test_a_fraction_is_rounded_down_but_draws_at_least_one(fraction: float, count: int) -> None:
    chosen = select(0, 0, NAMES, fraction)
    assert len(chosen) == count
    assert chosen == sorted(set(chosen))


def test_nobody_is_drawn_from_nobody() -> None:
    assert select(0, 0, [], 0.5) == []


@pytest.mark.soak
def test_everybody_takes_part_about_equally_often() -> None:
    drawn = [name for round_index in range(400) for name in select(5, round_index, NAMES, 0.25)]
    counts = [drawn.count(name) for name in NAMES]  # binomial: 100 expected, deviation 8.7
    assert min(counts) > 60
    assert max(counts) < 140


def test_equal_compares_names_shapes_and_values() -> None:
    arrays = {"w": np.array([1.0, np.nan]), "b": np.array(2)}
    assert equal(arrays, {"b": np.array(2), "w": np.array([1.0, np.nan])})
    assert not equal(arrays, {"w": arrays["w"]})
    assert not equal(arrays, {"w": arrays["w"], "b": np.array([2])})
    assert not equal(arrays, {"w": np.array([1.0 + 1e-9, np.nan]), "b": np.array(2)})
    assert equal(arrays, {"w": np.array([1.0 + 1e-9, np.nan]), "b": np.array(2)}, 1e-8)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_finite_sees_every_value(value: float) -> None:
    assert finite({"w": np.zeros((2, 2)), "n": np.array(3), "none": np.zeros((0, 2))})
    assert not finite({"w": np.array([[0.0, 0.0], [0.0, value]])})
    assert not finite({"w": np.zeros(2), "b": np.array(value)})
