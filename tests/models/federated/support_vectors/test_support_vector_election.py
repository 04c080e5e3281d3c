"""Support Vector Election: what it equals where it must equal something, and what leaves the gateway.

Only points that stand in for support vectors may travel, so most of this is about those points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models import units
from fedgate.models.arrays import FEATURES, GAMMA, NU, Arrays, Floats, at_most, generator
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.support_vectors.support_vector_election import VECTORS, Move, elected, replaced
from fedgate.models.testing.fleet import auc
from tests.support.given_width import build, fitted
from tests.support.sphere import squared_radius

NAME = "support-vector-election"
PLAIN: dict[str, Any] = {"normalisation": "none", "anonymise": False}
UNIT = np.array(1.0)  # the deviation of every feature
ANONYMOUS = Move(sigma=1.0, tau=1e-3, epsilon=0.1)


def cloud_of(seed: int, rows: int = 60, features: int = 3, at: float = 0.0) -> Floats:
    return np.random.default_rng(seed).normal(at, 1.0, (rows, features))


BIG = {FEATURES: cloud_of(12)}


def sorted_rows(x: Floats) -> list[list[float]]:
    return sorted(x.tolist())


def sent_by(x: Floats, seed: int = 0, **chosen: Any) -> Floats:
    """Return the vectors (S, F) that one gateway with features x (n, F) sends; none is (0, F)."""
    algorithm = build(NAME, x.shape[1], {"normalisation": "none", **chosen})
    shared = algorithm.start(generator(seed, 0, "cloud")).global_state
    _, update = algorithm.phases[0].train(shared, {}, {FEATURES: x}, generator(seed, 0, "only"))
    return np.asarray(update.get(VECTORS, np.zeros((0, x.shape[1]))))


def test_one_gateway_in_the_open_is_svdd_on_its_own_support_vectors() -> None:
    x = cloud_of(1)
    local = fitted(svdd.fit)(x, nu=0.2)
    vectors = np.array(sorted_rows(local["vectors"]))
    assert sorted_rows(sent_by(x, nu=0.2, anonymise=False)) == vectors.tolist()
    outcome = run(build(NAME, 3, {**PLAIN, "nu": 0.2}), {"only": {FEATURES: x}})
    probes = cloud_of(2, 200) * 3.0
    expected = svdd.SVDD.score(fitted(svdd.fit)(vectors, nu=0.2), probes)
    np.testing.assert_allclose(svdd.SVDD.score(outcome.server.global_state, probes), expected, atol=1e-4)


def test_with_nothing_outside_one_gateway_is_svdd_on_all_its_data() -> None:
    """A hard sphere is held by its support vectors alone, so fitting them again changes nothing."""
    x = cloud_of(3, 30)
    outcome = run(build(NAME, 3, {**PLAIN, "c": 1.0, "nu": 0.7}), {"only": {FEATURES: x}})
    probes = cloud_of(4, 200) * 3.0
    expected = svdd.SVDD.score(fitted(svdd.fit)(x, c=1.0), probes)
    np.testing.assert_allclose(svdd.SVDD.score(outcome.server.global_state, probes), expected, atol=1e-4)


@pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")  # any width will do here
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    sigma=st.floats(0.01, 5.0),
    tau=st.floats(1e-6, 0.1),
    epsilon=st.floats(0.02, 0.9),
    features=st.integers(1, 12),
)
def test_a_stand_in_is_as_far_from_the_centre_as_its_original_and_elsewhere(
    seed: int, sigma: float, tau: float, epsilon: float, features: int
) -> None:
    params = fitted(svdd.fit)(cloud_of(seed, 40, features), nu=0.3)
    vectors = params["vectors"].copy()
    points, originals = replaced(params, np.random.default_rng(seed), Move(sigma, tau, epsilon), UNIT)
    assert points.shape == vectors.shape
    np.testing.assert_array_equal(originals, vectors)
    apart = np.abs(squared_radius(params, points) - squared_radius(params, vectors))
    assert apart.max() <= tau * (1.0 + 1e-9)
    assert (points != vectors).any(axis=1).all()
    np.testing.assert_array_equal(params["vectors"], vectors)


@pytest.mark.soak
def test_the_stand_ins_by_the_letter_of_the_algorithm() -> None:
    """Algorithm 2's inner loop, one vector at a time, from the same random draws."""
    params = fitted(svdd.fit)(cloud_of(5), nu=0.3)
    found, _ = replaced(params, np.random.default_rng(6), ANONYMOUS, UNIT)
    draws = np.random.default_rng(6).normal(params["vectors"], 1.0)

    def radius(point: Floats) -> float:
        return float(squared_radius(params, point[None])[0])

    for v, q, stand_in in zip(params["vectors"], draws, found, strict=True):
        point = q
        while abs(radius(v) - radius(point)) > 1e-3:
            point = point - 0.1 * (point - v)
        np.testing.assert_allclose(stand_in, point, rtol=1e-12)


def test_no_row_of_the_data_travels() -> None:
    x = np.round(cloud_of(7, 80), 2)
    points = sent_by(x, nu=0.5)
    assert len(points) >= 40
    assert not {tuple(row) for row in points.tolist()} & {tuple(row) for row in x.tolist()}


@pytest.mark.parametrize("tau", [1e-15, 1e-18])
def test_a_vector_that_rounding_leaves_no_stand_in_does_not_travel(tau: float) -> None:
    """The loop ends, and the answer to "only itself is near enough" is silence, not the original."""
    x = cloud_of(8) + 1e6
    points = sent_by(x, nu=0.3, tau=tau)
    assert len(points) < len(sent_by(x, nu=0.3, anonymise=False))
    assert not {tuple(row) for row in points.tolist()} & {tuple(row) for row in x.tolist()}


def test_features_far_from_zero_are_replaced_as_well() -> None:
    x = cloud_of(8)
    assert len(sent_by(x + 1e6)) == len(sent_by(x)) > 0


def test_c_is_the_cap_of_a_multiplier() -> None:
    x = cloud_of(9, 50)
    capped = fitted(svdd.fit)(x, c=0.2)
    assert capped["coefficients"].max() <= 0.2 + 1e-9
    same = fitted(svdd.fit)(x, nu=1.0 / (0.2 * 50))
    assert all(np.array_equal(capped[name], same[name]) for name in same)
    assert sorted_rows(sent_by(x, c=0.2, anonymise=False)) == sorted_rows(capped["vectors"])
    assert sorted_rows(sent_by(x, c=0.2, nu=0.9, anonymise=False)) == sorted_rows(capped["vectors"])


@pytest.mark.parametrize("rows", [2, 4, 5])
def test_a_cap_that_few_rows_cannot_fill_takes_all_of_them(rows: int) -> None:
    """C < 1 / n has no solution; the nearest problem that has one gives every row the same share."""
    params = fitted(svdd.fit)(cloud_of(10, rows), c=0.2)
    np.testing.assert_allclose(params["coefficients"], 1.0 / rows)
    assert len(sent_by(cloud_of(10, rows), c=0.2)) == rows


def test_of_many_vectors_a_random_choice_goes() -> None:
    x = cloud_of(11, 100)
    every = {tuple(row) for row in sent_by(x, nu=0.5, anonymise=False).tolist()}
    choices = [{tuple(row) for row in sent_by(x, seed, nu=0.5, anonymise=False, max_vectors=10)} for seed in range(20)]
    assert all(len(choice) == 10 and choice <= every for choice in choices)
    assert len(set().union(*choices)) > 40
    assert len({frozenset(choice) for choice in choices}) == 20


@pytest.mark.parametrize("rows", [0, 1])
def test_a_gateway_with_next_to_no_rows_sends_nothing_and_harms_nobody(rows: int) -> None:
    x = cloud_of(12)
    tiny = {FEATURES: cloud_of(13, rows)}
    with_tiny, without = (
        run(build(NAME, 3, {}), data) for data in ({"big": {FEATURES: x}, "tiny": tiny}, {"big": {FEATURES: x}})
    )
    assert with_tiny.local_states["tiny"] == {}
    assert all(
        np.array_equal(with_tiny.server.global_state[name], array)
        for name, array in without.server.global_state.items()
    )


@pytest.mark.parametrize("anonymise", [True, False])
def test_rows_that_are_all_alike_have_no_sphere_and_send_nothing(anonymise: bool) -> None:
    assert len(sent_by(np.ones((9, 3)), anonymise=anonymise)) == 0
    stuck = {FEATURES: np.ones((9, 3))}
    assert run(build(NAME, 3, {"anonymise": anonymise}), {"stuck": stuck}).server.global_state == {}
    both, alone = (run(build(NAME, 3, {}), data) for data in ({"a": BIG, "stuck": stuck}, {"a": BIG}))
    assert all(
        np.array_equal(both.server.global_state[name], array) for name, array in alone.server.global_state.items()
    )


@pytest.mark.parametrize(
    "x",
    [np.repeat(cloud_of(21, 3), 20, axis=0), cloud_of(21) * [1.0, 0.0, 1.0], cloud_of(21, 2)],
    ids=["duplicates", "a constant feature", "two rows"],
)
def test_meagre_rows_give_a_usable_model(x: Floats) -> None:
    for anonymise in (True, False):
        shared = run(build(NAME, 3, {"anonymise": anonymise}), {"only": {FEATURES: x}}).server.global_state
        assert np.isfinite(svdd.SVDD.score(shared, x)).all()


def test_one_vector_is_refused_since_it_is_no_sphere() -> None:
    algorithm = build(NAME, 3, {})
    server = algorithm.start(np.random.default_rng(0))
    with pytest.raises(UpdateError, match=r"vectors: expected shape \(2 to 500, \d+\), got \(1,"):
        algorithm.phases[0].admit(server, {VECTORS: np.zeros((1, 3))})


def test_a_gateway_with_many_rows_trains_on_a_random_choice() -> None:
    x = cloud_of(22, 300)
    chosen = at_most(x, 50, generator(0, 0, "only"))
    expected = sorted_rows(fitted(svdd.fit)(chosen, nu=0.3)["vectors"])
    assert sorted_rows(sent_by(x, nu=0.3, anonymise=False, max_rows=50)) == expected
    assert sorted_rows(sent_by(x, seed=1, nu=0.3, anonymise=False, max_rows=50)) != expected


def test_the_cloud_fits_no_more_vectors_than_it_may() -> None:
    data = {name: {FEATURES: cloud_of(seed, 100)} for seed, name in enumerate("abc")}
    shared = run(build(NAME, 3, {**PLAIN, "nu": 1.0, "max_total": 40}), data).server.global_state
    assert len(shared["vectors"]) == 40


@pytest.mark.parametrize("anonymise", [True, False])
def test_every_vector_knows_the_row_it_stands_for(anonymise: bool) -> None:
    x, move = cloud_of(23, 80), Move(1.0, 1e-3, 0.1) if anonymise else None
    sent, originals = elected(x, np.random.default_rng(1), fit=fitted(svdd.fit), move=move, max_vectors=7)
    assert sent.shape == originals.shape == (7, 3)
    assert {tuple(row) for row in originals.tolist()} <= {tuple(row) for row in fitted(svdd.fit)(x)["vectors"].tolist()}
    assert (sent == originals).all() == (not anonymise)
    assert np.linalg.norm(sent - originals, axis=1).max() < 2.0


def test_biased_gateways_learn_from_each_other() -> None:
    """Each sees one regime only; to the common model both are normal and the gap between them is not."""
    regimes = {"left": cloud_of(14, 80, at=-6.0), "right": cloud_of(15, 80, at=6.0)}
    data: dict[str, Arrays] = {name: {FEATURES: x} for name, x in regimes.items()}
    shared = run(build(NAME, 3, {"normalisation": "none"}), data, seed=1).server.global_state
    unseen = np.concatenate([cloud_of(16, 50, at=-6.0), cloud_of(17, 50, at=6.0)])
    anomalies = np.concatenate([cloud_of(18, 50), cloud_of(19, 50, at=12.0)])
    labels = np.repeat([False, True], 100)
    both = np.concatenate([unseen, anomalies])
    assert auc(svdd.SVDD.score(shared, both), labels) > 0.99
    assert (svdd.SVDD.score(shared, unseen) <= 0.0).mean() > 0.6
    alone = fitted(svdd.fit)(regimes["left"])
    assert (svdd.SVDD.score(alone, unseen[50:]) > 0.0).all()


def test_a_second_round_starts_afresh_with_the_same_normalisation() -> None:
    data = {name: {FEATURES: cloud_of(seed)} for seed, name in enumerate("ab", start=20)}
    one, two = (run(build(NAME, 3, {"anonymise": False}), data, rounds=rounds) for rounds in (1, 2))
    assert all(np.array_equal(two.server.global_state[name], array) for name, array in one.server.global_state.items())
    assert all(np.array_equal(two.local_states[name]["center"], data[name][FEATURES].mean(axis=0)) for name in data)


@pytest.mark.parametrize("name", ["support-vector-election", "ensemble-svdd"])
def test_a_feature_at_the_end_of_its_units_is_no_reason_to_refuse_an_update(name: str) -> None:
    """A stand-in drawn around a vector at the end lay beyond it."""
    rng = np.random.default_rng(8)
    algorithm, x = build(name, 3, {}), rng.normal(size=(120, 3))
    own = {"center": np.zeros(3), "scale": np.array([1.0, 1.0, 1e-9])}
    phase, server = algorithm.phases[-1], algorithm.start(rng)
    _, update = phase.train(server.global_state, own, {FEATURES: x}, generator(0, 0, "east"))
    assert np.abs(update[VECTORS]).max() == units.FARTHEST and phase.admit(server, update)


def test_a_gateway_elects_by_a_share_and_a_width_of_its_own() -> None:
    x, own = cloud_of(5), {NU: np.array(0.4), GAMMA: np.array(0.6)}
    expected = sorted_rows(fitted(svdd.fit)(x, nu=0.4, gamma=0.6)["vectors"])
    for chosen in ({}, {"c": 1.0}):
        algorithm = build(NAME, 3, {**PLAIN, **chosen})
        _, update = algorithm.phases[0].train({}, {}, {FEATURES: x, **own}, generator(0, 0, "only"))
        assert sorted_rows(update[VECTORS]) == expected
        shared = run(algorithm, {"only": {FEATURES: x, **own}}).server.global_state
        assert float(shared["gamma"]) == 1.0 / 3.0
