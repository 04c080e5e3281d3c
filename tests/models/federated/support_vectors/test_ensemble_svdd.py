"""Ensemble SVDD: what it equals where it must equal something, the paper's rule by its letter, and what may travel."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, GAMMA, NU, Arrays, Floats, at_most, generator
from fedgate.models.detectors.base.checks import FitWarning
from fedgate.models.detectors.svm import ensemble, kernel, svdd
from fedgate.models.federated import registry
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.support_vectors.ensemble_svdd import (
    Mixture,
    described,
    largest,
    log_border,
    not_covered,
    shortened,
    synthetic,
)
from fedgate.models.testing.fleet import auc, onnx_scores
from tests.support.given_width import build, fitted
from tests.support.sphere import literal_score

# Small clouds and narrow kernels: borders on which every row lies are no matter here.
pytestmark = pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")
NAME = "ensemble-svdd"
PLAIN: dict[str, Any] = {"normalisation": "none", "anonymise": False}


def cloud_of(seed: int, rows: int = 60, features: int = 3, at: float = 0.0) -> Floats:
    return np.random.default_rng(seed).normal(at, 1.0, (rows, features))


def sent_by(x: Floats, seed: int = 0, **chosen: Any) -> Arrays:
    """Return the update of one gateway with features x (n, F)."""
    algorithm = build(NAME, x.shape[1], {"normalisation": "none", **chosen})
    return algorithm.phases[0].train({}, {}, {FEATURES: x}, generator(seed, 0, "only"))[1]


def trained(data: dict[str, Floats], **chosen: Any) -> Arrays:
    features = next(iter(data.values())).shape[1]
    algorithm = build(NAME, features, {"normalisation": "none", **chosen})
    return run(algorithm, {name: {FEATURES: x} for name, x in data.items()}).server.global_state


@pytest.mark.parametrize("chosen", [{"nu": 0.2}, {"nu": 0.7}, {"c": 0.1}, {"c": 1.0}, {"nu": 1.0}])
def test_one_gateway_in_the_open_is_svdd(chosen: dict[str, Any]) -> None:
    x, probes = cloud_of(1), np.concatenate([cloud_of(2, 200) * 3.0, cloud_of(3, 5) * 1e3])
    local = fitted(svdd.fit)(x, **chosen)
    shared = trained({"only": x}, anonymise=False, **chosen)
    np.testing.assert_allclose(ensemble.score(shared, probes), svdd.SVDD.score(local, probes), atol=1e-5)


@pytest.mark.parametrize("features", [6, 12, 30])
@pytest.mark.parametrize("rows", [150, 400])
def test_plain_rows_have_a_border_that_says_something(features: int, rows: int) -> None:
    """Through the free vectors of a narrow kernel none of the rows lay outside, and nearly all fresh ones did."""
    algorithm, x = registry.build(NAME, features, {}), cloud_of(rows, rows + 1_000, features)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitWarning)
        outcome = run(algorithm, {"only": {FEATURES: x[:rows]}})
    assert (
        ensemble.score({**outcome.server.global_state, **outcome.local_states["only"]}, x[rows:]) > 0.0
    ).mean() < 0.85


def members(seed: int, count: int) -> list[Arrays]:
    """Return SVDD of different places, sizes and widths."""
    rng = np.random.default_rng(seed)
    fits = []
    for _ in range(count):
        rows = rng.normal(rng.normal(0.0, 2.0, 3), 1.0, (int(rng.integers(5, 40)), 3))
        fits.append(fitted(svdd.fit)(rows, nu=float(rng.uniform(0.05, 0.9)), gamma=float(rng.uniform(0.1, 1.0))))
    return fits


@pytest.mark.soak
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 6))
def test_the_score_orders_as_the_literal_one_and_goes_on_where_that_ends(seed: int, count: int) -> None:
    fits, probes = members(seed, count), cloud_of(seed, 80) * 3.0
    literal, ours = literal_score(fits, probes), ensemble.score(ensemble.joined_members(fits), probes)
    order = np.argsort(ours)
    assert np.diff(literal[order]).min() > -1e-12
    assert np.array_equal(literal > 0.0, ours > 0.0)
    far = np.array([[1e2, 0.0, 0.0], [1e3, 0.0, 0.0], [1e6, 0.0, 0.0]])
    assert np.diff(ensemble.score(ensemble.joined_members(fits), far)).min() > 1.0
    assert np.ptp(literal_score(fits, far)) < 1e-12


def test_rows_on_the_border_of_a_member_are_inliers_of_the_graph_too() -> None:
    """There the score jumps from one member's to that of all, and float32 must not decide on which side."""
    x = np.asarray(np.concatenate([cloud_of(4, 80), cloud_of(5, 80, at=8.0)]), np.float32)
    shared = trained({"a": x[:80].astype(np.float64), "b": x[80:].astype(np.float64)}, anonymise=False)
    expected = ensemble.score(shared, x)
    np.testing.assert_allclose(onnx_scores(ensemble.graph(shared, ()), x), expected, atol=1e-4)
    assert (np.abs(expected) < 1e-5).sum() > 10


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), most=st.integers(1, 30), nu=st.floats(0.1, 0.9))
def test_what_is_dropped_moves_the_kernel_sum_by_no_more_than_its_mass(seed: int, most: int, nu: float) -> None:
    params, probes = fitted(svdd.fit)(cloud_of(seed), nu=nu), cloud_of(seed, 100) * 2.0
    short = shortened(params, largest(params["coefficients"], most))
    assert short["coefficients"].sum() == pytest.approx(1.0)
    assert len(short["coefficients"]) == len(short["vectors"]) == min(most, len(params["coefficients"]))
    full, less = (
        np.exp(kernel.log_expansion(each["vectors"], each["coefficients"], float(each["gamma"]), probes))
        for each in (params, short)
    )
    assert np.abs(full - less).max() <= float(short["dropped"]) + 1e-12
    again = shortened(short, largest(short["coefficients"], 1))
    assert 1.0 - float(again["dropped"]) == pytest.approx(params["coefficients"].max())


def test_the_model_stays_within_its_cap_and_tells_what_that_cost() -> None:
    data = {name: cloud_of(seed, 100) for seed, name in enumerate("abcd")}
    every = trained(data, nu=0.5, anonymise=False)
    capped = trained(data, nu=0.5, anonymise=False, max_model_vectors=50)
    assert len(every["coefficients"]) > 200
    assert not every["dropped"].any()
    assert len(capped["coefficients"]) == 48
    assert np.array_equal(np.bincount(capped["member"]), [12] * 4)
    assert (capped["dropped"] > 0.5).all()
    assert float(capped["left_out"]) == 0.0
    tiny = trained(data, nu=0.5, max_model_vectors=3)
    assert len(tiny["gamma"]) == len(tiny["coefficients"]) == 3
    assert float(tiny["left_out"]) == 1.0
    assert len(sent_by(data["a"], nu=0.5, max_vectors=7)["coefficients"]) == 7


@pytest.mark.parametrize("chosen", [{}, {"nu": 0.5}, {"c": 0.2}, {"spread": 0.01}, {"fitted_share": 0.0}])
def test_no_row_of_the_data_travels(chosen: dict[str, Any]) -> None:
    x = np.round(cloud_of(7, 200), 2)
    update = sent_by(x, **chosen)
    assert len(update["vectors"]) >= 3
    assert not {tuple(row) for row in update["vectors"].tolist()} & {tuple(row) for row in x.tolist()}


def test_what_travels_lies_inside_the_sphere_of_the_data() -> None:
    x = cloud_of(8, 200)
    update = sent_by(x)
    assert svdd.SVDD.score(fitted(svdd.fit)(x), update["vectors"]).max() <= 0.0
    opened = {tuple(row) for row in sent_by(x, anonymise=False)["vectors"].tolist()}
    assert opened == {tuple(row) for row in fitted(svdd.fit)(x)["vectors"].tolist()}


def test_synthetic_rows_come_from_the_mixture() -> None:
    x = cloud_of(9, 300, 4) @ np.diag([1.0, 5.0, 0.1, 1.0]) + 7.0
    x[:, 3] = 2.0  # a feature that never moves
    params = fitted(svdd.fit)(x, gamma=0.1)
    rows, origins = synthetic(params, x, np.random.default_rng(1), Mixture(4_000, 0.25, 0.1))
    is_fitted = np.isnan(origins).all(axis=1)
    assert is_fitted.sum() == 1_000
    np.testing.assert_allclose(rows[is_fitted].mean(axis=0), x.mean(axis=0), atol=0.5)
    np.testing.assert_allclose(np.cov(rows[is_fitted].T), np.cov(x.T), atol=2.5)
    moved = (rows - origins)[~is_fitted]
    np.testing.assert_allclose(moved.std(axis=0), 0.1 * x.std(axis=0), rtol=0.1)
    assert {tuple(row) for row in origins[~is_fitted].tolist()} == {tuple(row) for row in params["vectors"].tolist()}
    assert np.allclose(rows[:, 3], 2.0)


def test_every_vector_knows_the_row_it_was_drawn_around() -> None:
    x, near = cloud_of(10, 120), Mixture(None, 0.0, 1e-3)
    member, origins = described(x, np.random.default_rng(2), fit=fitted(svdd.fit), mixture=near, max_vectors=500)
    assert {tuple(row) for row in origins.tolist()} <= {tuple(row) for row in x.tolist()}
    assert 0.0 < np.abs(member["vectors"] - origins).max() < 0.01


@pytest.mark.parametrize("x", [cloud_of(11, 0), cloud_of(11, 1), np.ones((9, 3)), np.full((2, 3), 1e9)])
@pytest.mark.parametrize("anonymise", [True, False])
def test_rows_without_a_sphere_send_nothing_and_harm_nobody(x: Floats, anonymise: bool) -> None:
    assert sent_by(x, anonymise=anonymise) == {}
    alone, both = (trained(data) for data in ({"big": cloud_of(12)}, {"big": cloud_of(12), "tiny": x}))
    assert all(np.array_equal(both[name], array) for name, array in alone.items())


@pytest.mark.parametrize(
    "x",
    [
        cloud_of(13, 2),
        np.repeat(cloud_of(13, 3), 20, axis=0),
        cloud_of(13) * [1.0, 0.0, 1.0],
        cloud_of(13) * 1e-12 + 1.0,
    ],
    ids=["two rows", "duplicates", "a constant feature", "next to no spread"],
)
def test_meagre_rows_give_a_usable_member_or_none(x: Floats) -> None:
    for anonymise in (True, False):
        update = sent_by(x, anonymise=anonymise)
        if update:
            build(NAME, 3, {"normalisation": "none"}).phases[0].admit(
                build(NAME, 3, {}).start(np.random.default_rng(0)), update
            )
            assert np.isfinite(ensemble.score(trained({"only": x}, anonymise=anonymise), x)).all()


def test_a_gateway_with_many_rows_trains_on_a_random_choice() -> None:
    x = cloud_of(14, 300)
    update = sent_by(x, anonymise=False, max_rows=50)
    chosen = at_most(x, 50, generator(0, 0, "only"))
    assert {tuple(row) for row in update["vectors"]} == {tuple(row) for row in fitted(svdd.fit)(chosen)["vectors"]}
    other = sent_by(x, seed=1, anonymise=False, max_rows=50)
    assert not np.array_equal(other["vectors"], update["vectors"])


def test_a_choice_of_rows_is_uniform_and_keeps_their_order() -> None:
    rows = np.arange(20.0)[:, None]
    assert at_most(rows, 20, np.random.default_rng(0)) is rows
    counts = np.zeros(20)
    for seed in range(400):
        chosen = at_most(rows, 5, np.random.default_rng(seed))[:, 0]
        assert len(chosen) == 5
        assert (np.diff(chosen) > 0).all()
        counts[chosen.astype(int)] += 1
    assert 60 < counts.min() <= counts.max() < 140


def test_c_overrides_nu() -> None:
    x = cloud_of(15)
    first, second = (sent_by(x, c=0.2, nu=nu)["coefficients"] for nu in (0.1, 0.9))
    assert np.array_equal(first, second)
    assert first.max() <= 0.2 + 1e-9


def test_each_member_may_have_a_width_of_its_own() -> None:
    shared = trained({"narrow": cloud_of(16), "wide": cloud_of(17) * 10.0}, gamma="median", anonymise=False)
    assert shared["gamma"].max() / shared["gamma"].min() == pytest.approx(100.0, rel=0.5)
    assert np.allclose(trained({"narrow": cloud_of(16)})["gamma"], 1.0 / 3.0)


def changed(update: Arrays, **arrays: Any) -> Arrays:
    return update | {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}


def test_updates_that_are_no_member_are_refused_with_a_reason() -> None:
    algorithm = build(NAME, 3, {"max_vectors": 40})
    update = sent_by(cloud_of(18), nu=0.3)
    server, admit = algorithm.start(np.random.default_rng(0)), algorithm.phases[0].admit
    beta, count = update["coefficients"], len(update["coefficients"])
    negative = beta.copy()
    negative[:2] = -0.1, beta[0] + beta[1] + 0.1
    two = np.where(np.arange(count) == 0, 0.25, update["member"])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"coefficients": beta * 1.01}, "sum 1.01"),
        ({"coefficients": negative}, "expected positive ones of sum 1, got -0.1"),
        ({"coefficients": beta[1:]}, "one length"),
        ({"member": two}, "member: expected one member, so one value, got 2"),
        ({"member": np.full(count, 1.0)}, "member: expected a number from 0 to below 1, got 1"),
        ({"gamma": np.full(count, 0.1)}, "gamma: expected 0.333.*, got 0.1"),
        ({"dropped": np.full(count, -0.5)}, "dropped: expected"),
        ({"vectors": np.full((count, 3), 1e4)}, "within 1000 deviations, got 10000"),
    ]
    assert admit(server, update).keys() == update.keys()
    for arrays, reason in wrong:
        with pytest.raises(UpdateError, match=reason):
            admit(server, changed(update, **arrays))
    with pytest.raises(UpdateError, match=r"expected shape \(1 to 40.*\), got"):
        admit(server, {name: np.repeat(array, 41, axis=0) for name, array in update.items()})
    with pytest.raises(UpdateError, match=r"gamma: expected 0.000333333 to 333.333, got -1"):
        build(NAME, 3, {"gamma": "median"}).phases[0].admit(server, changed(update, gamma=np.full(count, -1.0)))


def test_no_gateway_can_claim_a_sphere_its_vectors_do_not_give() -> None:
    """The radius does not travel: an honest member and its shared border belong together."""
    assert sent_by(cloud_of(19)).keys() == {"vectors", "coefficients", "gamma", "member", "dropped"}
    local = fitted(svdd.fit)(cloud_of(19), nu=0.3)
    shared = trained({"only": cloud_of(19)}, anonymise=False, nu=0.3)
    assert float(shared["offset"][0]) == pytest.approx(float(local["offset"]), abs=1e-9)


def test_biased_gateways_learn_from_each_other() -> None:
    regimes = {"left": cloud_of(20, 80, at=-6.0), "right": cloud_of(21, 80, at=6.0)}
    shared = trained(regimes)
    unseen = np.concatenate([cloud_of(22, 50, at=-6.0), cloud_of(23, 50, at=6.0)])
    both = np.concatenate([unseen, cloud_of(24, 50), cloud_of(25, 50, at=12.0)])
    assert auc(ensemble.score(shared, both), np.repeat([False, True], 100)) > 0.99
    assert (ensemble.score(shared, unseen) <= 0.0).mean() > 0.5


def test_a_second_round_starts_afresh() -> None:
    data = {name: {FEATURES: cloud_of(seed)} for seed, name in enumerate("ab", start=26)}
    one, two = (run(build(NAME, 3, PLAIN), data, rounds=rounds) for rounds in (1, 2))
    assert one.server.global_state.keys() == two.server.global_state.keys()
    probes = cloud_of(28, 50) * 2.0
    before, after = (ensemble.score(each.server.global_state, probes) for each in (one, two))
    np.testing.assert_allclose(after, before, atol=1e-9)


def covered_by_hand(fits: list[Arrays], share: float) -> list[int]:
    """Return the places of the members that stay, by the rule said in words."""
    taken: list[int] = []
    for place, each in enumerate(fits):
        on_border = each["vectors"][each["coefficients"] < (1.0 - 1e-6) * each["coefficients"].max()]
        on_border = on_border if len(on_border) else each["vectors"]
        covered = 0
        for vector in on_border:
            witnesses = 0
            for other in taken:
                border = log_border(fits[other])
                vectors, beta = fits[other]["vectors"], fits[other]["coefficients"]
                witnesses += float(kernel.log_expansion(vectors, beta, 0.5, vector[None])[0]) >= border - 1e-4
            covered += witnesses >= 2
        if covered < share * len(on_border):
            taken.append(place)
    return taken


@pytest.mark.soak
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), share=st.floats(0.05, 1.0))
def test_a_member_that_two_others_cover_is_left_out(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    fits = [fitted(svdd.fit)(rng.normal(rng.uniform(0.0, 2.0), 1.0, (30, 3)), nu=0.3, gamma=0.5) for _ in range(7)]
    found = not_covered(fits, share, len(fits))
    assert [each["vectors"].tobytes() for each in found] == [
        fits[place]["vectors"].tobytes() for place in covered_by_hand(fits, share)
    ]


def test_of_copies_two_stay_and_of_strangers_all() -> None:
    x = cloud_of(1)
    copies = trained(dict.fromkeys("abcde", x), anonymise=False, covered=1.0)
    assert len(copies["gamma"]) == 2 and float(copies["left_out"]) == 3.0
    probes = cloud_of(2, 200) * 3.0
    alone = svdd.SVDD.score(fitted(svdd.fit)(x), probes)
    np.testing.assert_array_equal(ensemble.score(copies, probes) > 1e-3, alone > 1e-3)
    strangers = {name: cloud_of(seed, at=20.0 * seed) for seed, name in enumerate("abcd")}
    assert encode(trained(strangers, covered=0.1)) == encode(trained(strangers))


def test_no_single_member_pushes_out_another() -> None:
    """One that covers everything comes first, and all others stay as if it were not there."""
    wide = fitted(svdd.fit)(cloud_of(0, 300) * 20.0, nu=0.01, gamma=1e-3)
    others = [fitted(svdd.fit)(cloud_of(seed, at=8.0 * seed), nu=0.2) for seed in (1, 2, 3)]
    assert all((svdd.SVDD.score(wide, each["vectors"]) <= 0.0).all() for each in others)
    assert len(not_covered([wide, *others], 0.01, 10)) == 4


def test_a_width_and_a_share_of_its_own_make_the_member_that_they_say() -> None:
    x = cloud_of(5)
    own = {NU: np.array(0.4), GAMMA: np.array(0.6)}
    algorithm = build(NAME, 3, {**PLAIN, "own_width": 2.0})
    phase, server = algorithm.phases[0], algorithm.start(generator(0, 0, "cloud"))
    _, update = phase.train({}, {}, {FEATURES: x, **own}, generator(0, 0, "only"))
    expected = build(NAME, 3, {**PLAIN, "nu": 0.4, "gamma": 0.6}).phases[0]
    assert encode(update) == encode(expected.train({}, {}, {FEATURES: x}, generator(0, 0, "only"))[1])
    assert encode(phase.admit(server, update)) == encode(update)
    for width in (0.1, 0.7):
        with pytest.raises(ValueError, match=r"gamma: expected 0\.166667 to 0\.666667, got .*'own_width'"):
            phase.train({}, {}, {FEATURES: x, GAMMA: np.array(width)}, generator(0, 0, "only"))
        with pytest.raises(UpdateError, match=r"gamma: expected 0\.166667 to 0\.666667, got"):
            phase.admit(server, {**update, "gamma": np.full_like(update["gamma"], width)})


def test_the_common_width_stays_that_of_all_in_later_rounds() -> None:
    algorithm = registry.build(NAME, 3, {"normalisation": "none", "own_width": 8.0})
    data = {who: {FEATURES: cloud_of(seed)} for seed, who in enumerate("abcd")}
    common = float(run(algorithm, data).server.global_state["gamma"][0])
    for factor, who in ((0.5, "a"), (2.0, "b"), (4.0, "c")):
        data[who][GAMMA] = np.array(factor * common)
    for rounds in (1, 2, 3):
        found = run(algorithm, data, rounds=rounds).server.global_state["gamma"]
        assert sorted(found / common) == pytest.approx([0.5, 1.0, 2.0, 4.0])
