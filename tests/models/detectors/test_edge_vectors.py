"""Edges of a cloud of rows: figures with a known edge, and a double loop over all neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models.arrays import Floats
from fedgate.models.detectors.svm.edge_vectors import edges, principal_coordinates


def brute_force(x: Floats, row: int, k: int, tolerance: float) -> bool:
    """Eq. 10 to 13, one neighbour at a time."""
    distances = sorted((float(np.linalg.norm(x[j] - x[row])), j) for j in range(len(x)) if (x[j] != x[row]).any())
    units = [(x[j] - x[row]) / distance for distance, j in distances[:k]]
    normal = sum(units, np.zeros(x.shape[1]))
    on_this_side = sum(1 for unit in units if float(unit @ normal) >= 0.0)
    return not units or on_this_side / len(units) >= 1.0 - tolerance


@pytest.mark.soak
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 40),
    features=st.integers(1, 4),
    tolerance=st.sampled_from([0.0, 0.05, 0.2]),
)
def test_it_is_the_double_loop(seed: int, k: int, features: int, tolerance: float) -> None:
    x = np.random.default_rng(seed).normal(size=(30, features))
    x = x - x.mean(axis=0)
    found = edges(x, np.arange(30), neighbours=k, tolerance=tolerance, dimensions=features)
    assert found.tolist() == [brute_force(x, row, k, tolerance) for row in range(30)]


def test_of_a_grid_the_rim_is_the_edge() -> None:
    side = np.arange(7.0)
    x = np.array([[a, b] for a in side for b in side])
    rim = np.array([{a, b} & {0.0, 6.0} != set() for a, b in x.tolist()])
    found = edges(x, np.arange(49), neighbours=5, tolerance=0.0, dimensions=2)
    assert found.tolist() == rim.tolist()


def test_a_hollow_rim_needs_some_tolerance() -> None:
    """Seen from the rim of a hole a few neighbours lie behind the tangent plane, around the hole's sides."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-3.0, 3.0, (3_000, 2))
    x = x[np.linalg.norm(x, axis=1) > 1.0]
    at_the_hole = np.flatnonzero(np.linalg.norm(x, axis=1) < 1.03)
    shares = [
        edges(x, at_the_hole, neighbours=30, tolerance=tolerance, dimensions=2).mean() for tolerance in (0.0, 0.2)
    ]
    assert shares[0] < 0.3 < 0.8 < shares[1]


def test_in_many_dimensions_nearly_every_row_is_an_edge_and_in_few_it_is_not() -> None:
    x = np.random.default_rng(2).normal(size=(400, 60))
    kept = [edges(x, np.arange(400), neighbours=20, tolerance=0.05, dimensions=d).mean() for d in (60, 3)]
    assert kept[0] > 0.95 and kept[1] < 0.3


@pytest.mark.parametrize("x", [np.ones((5, 3)), np.ones((1, 3))], ids=["equal rows", "one row"])
def test_a_row_that_no_other_differs_from_is_an_edge(x: Floats) -> None:
    assert edges(x, np.arange(len(x)), neighbours=4, tolerance=0.05, dimensions=2).all()


def test_repeated_rows_are_looked_through() -> None:
    x = np.random.default_rng(3).normal(size=(40, 2))
    once = edges(x, np.arange(40), neighbours=10, tolerance=0.05, dimensions=2)
    twice = edges(np.concatenate([x, x[:1], x[:1]]), np.arange(1), neighbours=10, tolerance=0.05, dimensions=2)
    assert twice[0] == once[0]


def test_principal_coordinates_keep_distances_in_the_directions_kept() -> None:
    rng = np.random.default_rng(4)
    flat = rng.normal(size=(50, 2)) @ rng.normal(size=(2, 9)) + 100.0
    z = principal_coordinates(flat, 2)
    for i, j in ((0, 1), (3, 40), (7, 8)):
        assert np.linalg.norm(z[i] - z[j]) == pytest.approx(np.linalg.norm(flat[i] - flat[j]), rel=1e-9)
    assert principal_coordinates(flat, 9).shape == (50, 9)
