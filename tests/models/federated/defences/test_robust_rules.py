"""Robust means against their definitions, written out number by number, and what a minority of liars can do to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models.arrays import Array, Floats
from fedgate.models.federated.defences.robust_rules import (
    TooFewRowsError,
    clipped_mean,
    coordinate_median,
    krum_chosen,
    krum_scores,
    trimmed_mean,
)

seeds = st.integers(0, 2**32 - 1)


def rows_of(seed: int, count: int, width: int = 4) -> Floats:
    return np.random.default_rng(seed).normal(size=(count, width))


def slow_median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2.0


def slow_scores(rows: Floats, liars: int) -> list[float]:
    scores = []
    for i in range(len(rows)):
        others = [row for j, row in enumerate(rows) if j != i]
        distances = sorted(sum((a - b) ** 2 for a, b in zip(rows[i], other, strict=True)) for other in others)
        scores.append(float(sum(distances[: len(rows) - liars - 2])))
    return scores


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 12))
def test_the_median_is_that_of_each_coordinate(seed: int, count: int) -> None:
    rows = rows_of(seed, count)
    expected = [slow_median([float(row[column]) for row in rows]) for column in range(4)]
    np.testing.assert_allclose(coordinate_median(rows), expected, rtol=1e-15)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 4), st.integers(1, 6))
def test_the_trimmed_mean_leaves_out_as_many_at_either_end(seed: int, liars: int, more: int) -> None:
    rows = rows_of(seed, 2 * liars + more)
    expected = []
    for column in range(4):
        left = sorted(float(row[column]) for row in rows)
        for _ in range(liars):
            left.remove(max(left))
            left.remove(min(left))
        expected.append(sum(left) / len(left))
    np.testing.assert_allclose(trimmed_mean(rows, liars), expected, rtol=1e-12, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(0, 3), st.integers(0, 5))
def test_krum_takes_the_row_nearest_to_its_neighbours(seed: int, liars: int, more: int) -> None:
    rows = rows_of(seed, 2 * liars + 3 + more)
    scores = slow_scores(rows, liars)
    np.testing.assert_allclose(krum_scores(rows, liars), scores, rtol=1e-9)
    best = sorted(range(len(rows)), key=lambda index: scores[index])
    assert krum_chosen(rows, liars, many=False).tolist() == best[:1]
    assert krum_chosen(rows, liars, many=True).tolist() == best[: len(rows) - liars - 2]


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 10))
def test_clipped_rows_are_no_longer_than_the_median_length(seed: int, count: int) -> None:
    rows = rows_of(seed, count) * np.random.default_rng(seed).uniform(0.0, 5.0, (count, 1))
    lengths = [sum(value**2 for value in row) ** 0.5 for row in rows.tolist()]
    bound = slow_median(lengths)
    kept = [row * min(1.0, bound / length) if length else row for row, length in zip(rows, lengths, strict=True)]
    np.testing.assert_allclose(clipped_mean(rows), sum(kept) / count, rtol=1e-12, atol=1e-14)


def test_rows_that_share_a_large_part_are_told_apart() -> None:
    rows = rows_of(3, 9)
    assert krum_chosen(rows + 1e7, 2, many=True).tolist() == krum_chosen(rows, 2, many=True).tolist()


def test_rows_of_nothing_are_no_trouble() -> None:
    for rule in (coordinate_median, clipped_mean):
        assert rule(np.zeros((5, 3))).tolist() == [0.0, 0.0, 0.0]
    assert krum_chosen(np.zeros((5, 3)), 1, many=True).tolist() == [0, 1]


@pytest.mark.parametrize(("liars", "fewest"), [(0, 1), (1, 3), (2, 5)])
def test_too_few_rows_to_trim_are_refused(liars: int, fewest: int) -> None:
    trimmed_mean(rows_of(0, fewest), liars)
    with pytest.raises(TooFewRowsError, match=rf"expected {fewest} updates .* got {fewest - 1}"):
        trimmed_mean(rows_of(0, fewest - 1), liars)


@pytest.mark.parametrize(("liars", "fewest"), [(0, 3), (1, 5), (2, 7)])
def test_too_few_rows_for_krum_are_refused(liars: int, fewest: int) -> None:
    krum_scores(rows_of(0, fewest), liars)
    with pytest.raises(TooFewRowsError, match=rf"expected {fewest} updates .* got {fewest - 1}"):
        krum_scores(rows_of(0, fewest - 1), liars)


HONEST, LIARS = 7, 3
Lied = Callable[[Floats], Array]
FAR: dict[str, Lied] = {
    "far": lambda honest: np.full((LIARS, honest.shape[1]), 1e6),
    "backwards": lambda honest: -1e6 * honest[:LIARS],
    "everywhere": lambda honest: 1e6 * np.random.default_rng(0).normal(size=(LIARS, honest.shape[1])),
    "all the same": lambda honest: np.repeat(honest.mean(axis=0, keepdims=True) + 30.0, LIARS, axis=0),
}


def colluding(deviations: float) -> Lied:
    """Return liars who all ask for the honest mean, moved in the first coordinate."""
    return lambda honest: np.tile(honest.mean(axis=0) + deviations * np.eye(honest.shape[1])[0], (LIARS, 1))


NEAR = {f"{deviations:g} deviations": colluding(deviations) for deviations in (2.0, 5.0, 10.0, 15.0, 20.0)}
BY_COORDINATE: dict[str, Callable[[Floats], Floats]] = {
    "median": coordinate_median,
    "trimmed mean": lambda rows: trimmed_mean(rows, LIARS),
}
BY_DISTANCE: dict[str, Callable[[Floats], Floats]] = {
    "krum": lambda rows: rows[krum_chosen(rows, LIARS, many=False)].mean(axis=0),
    "multi-krum": lambda rows: rows[krum_chosen(rows, LIARS, many=True)].mean(axis=0),
}


@pytest.mark.parametrize(
    ("rule", "lie"),
    [*itertools.product(BY_COORDINATE, FAR | NEAR), *itertools.product(BY_DISTANCE, FAR)],
)
def test_three_liars_of_ten_leave_the_result_among_the_honest_rows(rule: str, lie: str) -> None:
    for seed, width in itertools.product(range(5), (20, 256)):
        honest = rows_of(seed, HONEST, width) + 3.0
        found = (BY_COORDINATE | BY_DISTANCE)[rule](np.concatenate([honest, (FAR | NEAR)[lie](honest)]))
        assert (found >= honest.min(axis=0)).all() and (found <= honest.max(axis=0)).all()


@pytest.mark.parametrize("lie", [name for name in NEAR if name != "2 deviations"])
def test_krum_takes_three_colluding_liars_near_by(lie: str) -> None:
    """It is what Krum does not promise: the liars have each other for neighbours, and are no farther off than others.

    Among the five that Multi-Krum takes are all three, and its mean too is beyond every honest row.
    """
    for seed in range(20):
        honest = rows_of(seed, HONEST, 256)
        rows = np.concatenate([honest, NEAR[lie](honest)])
        assert int(krum_chosen(rows, LIARS, many=False)[0]) >= HONEST
        for rule in BY_DISTANCE.values():
            assert rule(rows)[0] > honest[:, 0].max()


@pytest.mark.soak
@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 3), st.integers(0, 4), st.floats(0.0, 12.0), st.booleans())
def test_krum_takes_no_row_that_is_far_from_all_honest_ones(
    seed: int, liars: int, more: int, way: float, alike: bool
) -> None:
    count, rng = 2 * liars + 3 + more, np.random.default_rng(seed)
    honest = rng.normal(size=(count - liars, 3))
    directions = np.tile(rng.normal(size=3), (liars, 1)) if alike else rng.normal(size=(liars, 3))
    rows = np.concatenate([honest, honest.mean(axis=0) + way * directions])
    widest = max(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(honest, 2))
    allowed = widest * ((count - liars - 2) / (count - 2 * liars - 1)) ** 0.5
    for index in krum_chosen(rows, liars, many=True):
        assert min(float(np.linalg.norm(rows[index] - row)) for row in honest) <= allowed * (1.0 + 1e-9)


@pytest.mark.parametrize("lie", FAR | NEAR)
def test_a_clipped_liar_pulls_no_farther_than_an_honest_row(lie: str) -> None:
    honest = rows_of(1, HONEST, 20) + 3.0
    rows = np.concatenate([honest, (FAR | NEAR)[lie](honest)])
    farthest = 2.0 * LIARS / len(rows) * np.linalg.norm(honest, axis=1).max()
    without = clipped_mean(honest)
    assert np.linalg.norm(clipped_mean(rows) - without) <= farthest
    if lie in FAR:
        assert np.linalg.norm(rows.mean(axis=0) - without) > farthest


def test_a_majority_of_liars_has_its_way() -> None:
    honest, lies = rows_of(1, 3), np.full((4, 4), 1e6)
    rows = np.concatenate([honest, lies])
    for found in (coordinate_median(rows), trimmed_mean(rows, 3), rows[krum_chosen(rows, 2, many=False)[0]]):
        assert (found == 1e6).all()
