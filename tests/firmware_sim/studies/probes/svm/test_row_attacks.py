"""The membership test must find what is there to be found, and nothing where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.firmware_sim.studies.probes.svm.row_attacks import attack, nearness, traced
from fedgate.models.arrays import Floats
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated.support_vectors.ensemble_svdd import Mixture, described
from fedgate.models.federated.support_vectors.support_vector_election import Move, elected


def rows_of(seed: int, count: int = 400, features: int = 4) -> Floats:
    return np.random.default_rng(seed).normal(size=(count, features))


def test_who_sends_its_rows_is_found_out() -> None:
    members, fresh = rows_of(1), rows_of(2)
    found = attack(nearness(members, members), nearness(fresh, members))
    assert found == (1.0, 1.0)
    assert traced(members, members, members) == 1.0


def test_who_sends_what_has_nothing_to_do_with_its_rows_is_not() -> None:
    members, fresh, sent = rows_of(3, 2_000), rows_of(4, 2_000), rows_of(5, 50)
    found = attack(nearness(members, sent), nearness(fresh, sent))
    assert found.auc == pytest.approx(0.5, abs=0.03)
    assert found.found < 0.03
    assert traced(sent, np.full_like(sent, np.nan), members) == 0.0


def test_a_tenth_that_is_published_is_found_without_a_false_claim() -> None:
    """The area hardly shows it, which is why the share stands beside it."""
    members, fresh = rows_of(6, 2_000), rows_of(7, 2_000)
    found = attack(nearness(members, members[:200]), nearness(fresh, members[:200]))
    assert found.auc < 0.6
    assert 0.1 <= found.found < 0.13


def test_nearness_by_its_letter() -> None:
    rows, sent = rows_of(8, 7), rows_of(9, 5)
    expected = [-min(float(np.linalg.norm(row - vector)) for vector in sent) for row in rows]
    np.testing.assert_allclose(nearness(rows, sent), expected)


def test_a_vector_is_traced_only_to_the_row_it_came_from() -> None:
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]])
    sent = np.array([[0.1, 0.0], [0.9, 0.0], [0.6, 0.0], [5.0, 4.0]])
    originals = np.array([rows[0], rows[1], rows[0], [np.nan, np.nan]])
    assert traced(sent, originals, rows) == 0.5


def test_nothing_measured_is_nan() -> None:
    none = np.zeros(0)
    assert all(np.isnan(attack(*pair)).all() for pair in ((none, np.ones(3)), (np.ones(3), none)))
    assert np.isnan(traced(np.zeros((0, 2)), np.zeros((0, 2)), np.ones((3, 2))))
    with pytest.raises(ValueError, match="NaN"):
        attack(np.array([np.nan]), np.ones(3))


def test_what_both_algorithms_disclose() -> None:
    """Most stand-ins and most synthetic rows near a vector point back to it; rows of the fitted normal to none."""
    x, rng = rows_of(10), np.random.default_rng(0)
    plain, moved = (
        traced(*elected(x, rng, fit=svdd.fit, move=move, max_vectors=500), x)
        for move in (None, Move(sigma=1.0, tau=1e-3, epsilon=0.1))
    )
    assert plain == 1.0 > moved > 0.5
    near, mixed, far = (
        described(x, rng, fit=svdd.fit, mixture=Mixture(None, share, 0.1), max_vectors=500) for share in (0.0, 0.5, 1.0)
    )
    shares = [traced(member["vectors"], originals, x) for member, originals in (near, mixed, far)]
    assert 1.0 >= shares[0] > shares[1] > shares[2] == 0.0
