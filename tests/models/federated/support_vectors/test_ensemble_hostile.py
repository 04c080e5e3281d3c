"""Ensemble SVDD against gateways that lie: no member may call normal what lies far from its vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import Arrays
from fedgate.models.detectors.svm import ensemble, svdd
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.support_vectors.ensemble_svdd import log_border
from fedgate.models.testing.fleet import onnx_scores
from tests.models.federated.support_vectors.test_ensemble_svdd import NAME, cloud_of, sent_by
from tests.support.given_width import build, fitted


def received(*updates: Arrays, **chosen: Any) -> Arrays:
    """Return the model that the cloud makes of updates in the gateways' own units."""
    algorithm = build(NAME, 3, chosen)
    server, phase = algorithm.start(np.random.default_rng(0)), algorithm.phases[0]
    total = Arrays()
    for update in updates:
        total = phase.reducer.merge(total, phase.admit(server, update))
    return phase.advance(server, phase.reducer.closed(total)).global_state


def rogue(vectors: Any, coefficients: Any, gamma: float = 1.0 / 3.0, member: float = 0.5) -> Arrays:
    arrays = {"vectors": np.array(vectors, dtype=float), "coefficients": np.array(coefficients)}
    one = np.ones(len(arrays["vectors"]))
    return arrays | {"gamma": gamma * one, "member": member * one, "dropped": 0.0 * one}


@pytest.mark.parametrize("tiny", [1e-3, 1e-9, 1e-12, 1e-300])
def test_a_coefficient_that_is_next_to_nothing_makes_no_sphere_wide(tiny: float) -> None:
    """Its vector alone is below the cap, and its kernel sum would be the border of a sphere around everything."""
    far = np.array([[1e6, 0.0, 0.0], [0.0, 8.0, 0.0], [4.0, 4.0, 4.0]])
    hostile = rogue([[0.0, 0.0, 0.0], [900.0, 0.0, 0.0]], [1.0 - tiny, tiny])
    shared = received(sent_by(cloud_of(30)), sent_by(cloud_of(31), seed=1), hostile)
    assert (ensemble.score(shared, far) > 0.0).all()
    assert (onnx_scores(ensemble.graph(shared, ()), far[1:]) > 0.0).all()


def test_the_border_of_an_honest_member_is_that_of_its_free_vectors() -> None:
    for seed, nu in ((32, 0.1), (33, 0.5), (34, 0.9)):
        local = fitted(svdd.fit)(cloud_of(seed), nu=nu)
        assert log_border(local) == pytest.approx(-float(local["offset"]), abs=1e-7)


def test_a_high_border_does_not_widen_that_of_others() -> None:
    """One vector has a border of 1, many far apart a border of one in so many; the tolerance is of each its own."""
    places = 30.0 * np.stack(np.meshgrid(*[np.arange(7.0)] * 3), axis=-1).reshape(-1, 3)
    many, point = (
        rogue(each, np.full(len(each), 1.0 / len(each))) | {"gamma": np.array(1.0 / 3.0)}
        for each in (places, np.full((1, 3), -500.0))
    )
    members = [each | {"offset": np.array(-log_border(each))} for each in [many, *[point] * 20]]
    both = ensemble.joined_members(members)
    beside = places + np.array([np.sqrt(0.06), 0.0, 0.0])  # where the kernel sum is 2 % below the border
    np.testing.assert_allclose(svdd.SVDD.score(members[0], beside), 0.02, atol=1e-6)
    assert (ensemble.score(both, beside) > 0.0).all()
    assert (onnx_scores(ensemble.graph(both, ()), beside) > 0.0).all()
    assert (ensemble.score(both, places) <= 0.0).all()


@pytest.mark.parametrize("gamma", [1e-300, 3e-4, 340.0])
def test_a_width_that_no_rows_have_is_refused(gamma: float) -> None:
    with pytest.raises(UpdateError, match=r"gamma: expected 0.000333333 to 333.333, got"):
        received(rogue([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [0.5, 0.5], gamma), gamma="median")


@pytest.mark.soak
def test_no_tag_is_sure_of_a_place() -> None:
    """Where there is no room for all, neither the smallest tag nor the largest is taken more often than others."""
    taken, rng = {0.0: 0, 1.0 - 2.0**-53: 0}, np.random.default_rng(37)
    for _ in range(200):
        for tag in taken:
            tags = [tag, *rng.random(3)]
            members = [rogue([[float(place), 0.0, 0.0]], [1.0], member=each) for place, each in enumerate(tags)]
            taken[tag] += 0.0 in received(*members, max_model_vectors=2)["vectors"][:, 0]
    assert all(70 < count < 130 for count in taken.values())
