"""Environmental compensation: what a covariate explains is gone, what it does not is found, and the sums are those of
one regression on the rows of all gateways.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator, under
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base.compensation import COMPENSATION, DEVIATION, SLOPES
from fedgate.models.detectors.base.compensation import compensated as apart
from fedgate.models.federated import ALGORITHMS
from fedgate.models.federated.protocol.algorithm import NORMALISATION
from fedgate.models.federated.protocol.run import Outcome, run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.fleet import auc, onnx_scores
from tests.support.given_width import build
from tests.support.soak import crossed

FEATURE_COUNT, WEATHER = 5, (1, 4)
WINDOWED = {"recurrent-fedavg"}
OTHERS = [0, 2, 3]
TRUE_SLOPES = np.array([[0.9, -0.4, 0.0], [0.1, 0.5, -0.8]])
Data = dict[str, Arrays]


def rows(seed: int, count: int = 80, spread: float = 1.0, slopes: Floats = TRUE_SLOPES) -> Floats:
    """Rows whose features follow two covariates, with a tenth of noise, in units of their own."""
    rng = np.random.default_rng(seed)
    c = spread * rng.normal(size=(count, 2))
    x = np.empty((count, FEATURE_COUNT))
    x[:, WEATHER] = 15.0 + 8.0 * c
    x[:, OTHERS] = 4.0 + c @ slopes + 0.1 * rng.normal(size=(count, 3))
    return x


def unusual(seed: int, count: int = 80) -> Floats:
    """Rows that lie where healthy ones do, but not where healthy ones do in that weather."""
    x = rows(seed, count)
    x[:, OTHERS] += 0.8 * np.random.default_rng(seed + 1_000).choice([-1.0, 1.0], size=(count, 3))
    return x


FIVE = 5  # of which a fifth is one, so that every robust mean stands a lie


def fleet(count: int = 3) -> Data:
    return {f"gateway-{k}": {FEATURES: rows(k)} for k in range(count)}


def trained(name: str, data: Data | None = None, **chosen: Any) -> Outcome:
    return run(build(name, FEATURE_COUNT, {"compensate": WEATHER, **chosen}), data or fleet(), seed=2)


def least_squares(x: Floats) -> Floats:
    """Return the slopes of all features on both covariates and a constant."""
    regressors = np.column_stack([np.ones(len(x)), x[:, WEATHER]])
    return np.asarray(np.linalg.lstsq(regressors, x[:, OTHERS], rcond=None)[0][1:])


def test_the_fleets_slopes_are_least_squares_on_all_rows() -> None:
    outcome = trained("support-vector-election", normalisation="none")
    pooled = np.concatenate([each[FEATURES] for each in fleet().values()])
    step = under(COMPENSATION, outcome.server.global_state)
    np.testing.assert_allclose(step[SLOPES], least_squares(pooled), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(step["mean"], pooled[:, WEATHER].mean(axis=0))
    assert np.abs(np.corrcoef(apart(step, pooled).T, pooled[:, WEATHER].T)[:3, 3:]).max() < 1e-4


@pytest.mark.parametrize("mode", ["own", "none"])
def test_slopes_of_a_gateway_lie_between_its_own_and_the_fleets(mode: str) -> None:
    data = fleet() | {"other": {FEATURES: rows(9, slopes=-TRUE_SLOPES)}}
    found = {}
    for prior in (0.0, 80.0, 1e9):
        outcome = trained("support-vector-election", data, normalisation=mode, compensate_prior=prior)
        own, shared = outcome.local_states["other"], outcome.server.global_state
        z = (data["other"][FEATURES] - own.get("center", 0.0)) / own.get("scale", 1.0)
        found[prior] = own[COMPENSATION + SLOPES]
        if prior == 0.0:
            np.testing.assert_allclose(found[prior], least_squares(z), rtol=1e-4, atol=1e-5)
        elif prior == 1e9:
            np.testing.assert_allclose(found[prior], shared[COMPENSATION + SLOPES], atol=1e-5)
    low, high = np.minimum(found[0.0], found[1e9]), np.maximum(found[0.0], found[1e9])
    apart_by = float((high - low).max())
    assert ((found[80.0] > low - 0.05 * apart_by) & (found[80.0] < high + 0.05 * apart_by)).all()
    for end in (0.0, 1e9):
        assert np.abs(found[80.0] - found[end]).max() > 0.2 * apart_by


def test_a_gateway_that_saw_one_season_borrows_the_others() -> None:
    """With hardly any weather of its own, noise would give it slopes that fail in the next season."""
    narrow, year = rows(20, count=30, spread=0.02), rows(21, count=500)
    data = fleet() | {"narrow": {FEATURES: narrow}}
    left = {}
    for prior in (0.0, 100.0):
        outcome = trained("support-vector-election", data, normalisation="none", compensate_prior=prior)
        step = under(COMPENSATION, {**outcome.server.global_state, **outcome.local_states["narrow"]})
        left[prior] = apart(step, year).std(axis=0).max()
    assert left[100.0] < 0.11
    assert left[0.0] > 3.0 * left[100.0]


def test_what_is_left_has_unit_deviation_in_own_units() -> None:
    outcome = trained("support-vector-election", compensate_prior=0.0)
    for name, each in fleet().items():
        own = outcome.local_states[name]
        z = (each[FEATURES] - own["center"]) / own["scale"]
        np.testing.assert_allclose(
            apart(under(COMPENSATION, {**outcome.server.global_state, **own}), z).std(axis=0), 1.0
        )


def frequency(seed: int, count: int, lost: float = 0.0) -> Floats:
    """Rows of an air temperature, a natural frequency, which falls by a twentieth from winter to summer and when
    stiffness is lost, and three features that have nothing to do with either.
    """
    rng = np.random.default_rng(seed)
    celsius = rng.uniform(-5.0, 35.0, count)
    hertz = 4.0 * (1.0 - 0.05 * (celsius - 15.0) / 40.0 - lost) + 0.005 * rng.normal(size=count)
    return np.column_stack([celsius, hertz, rng.normal(size=(count, 3))])


@pytest.mark.soak
@pytest.mark.parametrize("name", ["support-vector-election", "fedavg"])
def test_it_finds_what_the_weather_hides(name: str) -> None:
    data = {f"bridge-{k}": {FEATURES: frequency(k, 150)} for k in range(3)}
    x, y = np.concatenate([frequency(7, 200), frequency(8, 200, lost=0.01)]), np.arange(400) >= 200
    areas = []
    for chosen in ({}, {"compensate": (0,)}):
        algorithm = build(name, FEATURE_COUNT, chosen)
        outcome = run(algorithm, data, seed=2)
        params = {**outcome.server.global_state, **outcome.local_states["bridge-0"]}
        areas.append(auc(DETECTORS[algorithm.detector].score(params, x), y))
    assert areas[0] < 0.75
    assert areas[1] > 0.95


def labelled(count: int = 3) -> Data:
    y = (np.arange(160) >= 80).astype(np.int64)
    return {f"gateway-{k}": {FEATURES: np.concatenate([rows(k), unusual(k)]), LABELS: y} for k in range(count)}


@pytest.mark.soak
@pytest.mark.parametrize(("name", "whiten"), crossed(sorted(ALGORITHMS.keys() - WINDOWED), [None, 1]))
def test_every_algorithm_takes_it_and_exports_it(name: str, whiten: int | None) -> None:
    chosen = {"compensate": WEATHER, "whiten": whiten}
    algorithm = build(name, FEATURE_COUNT, chosen)
    outcome = run(algorithm, labelled(FIVE) if algorithm.labels else fleet(FIVE), seed=2, rounds=2)
    x = np.concatenate([rows(7), unusual(8)])
    own = {
        key: outcome.local_states["gateway-0"][key]
        for key in algorithm.personal
        if key in outcome.local_states["gateway-0"]
    }
    assert {COMPENSATION + SLOPES, COMPENSATION + DEVIATION, *NORMALISATION} <= own.keys()
    detector, shared = DETECTORS[algorithm.detector], outcome.server.global_state
    model = detector.graph(shared, algorithm.personal)
    for held in (own, {key: own[key] for key in NORMALISATION}):  # without its own the fleet's hold
        scores = detector.score({**shared, **held}, x)
        found = onnx_scores(model, x, held)
        np.testing.assert_allclose(found, scores, atol=2e-3 * max(1.0, float(np.abs(scores).max())))


@pytest.mark.parametrize("step", [{"compensate": WEATHER}, {"whiten": 1}])
@pytest.mark.parametrize("name", ["recurrent-fedavg", "incfed"])
def test_rows_that_are_windows_are_not_mixed(name: str, step: dict[str, Any]) -> None:
    windows = {"network": {"steps": 2}} if name == "incfed" else {}
    with pytest.raises(ValueError, match=f"{next(iter(step))} given for rows that are windows, expected rows without"):
        build(name, 6, {**windows, **step})


def test_it_is_the_algorithm_on_features_compensated_by_hand() -> None:
    chosen: dict[str, Any] = {"anonymise": False, "gamma": 0.25}
    outcome = trained("support-vector-election", **chosen)
    data = {}
    for name, each in fleet().items():
        own = outcome.local_states[name]
        z = (each[FEATURES] - own["center"]) / own["scale"]
        data[name] = {FEATURES: apart(under(COMPENSATION, {**outcome.server.global_state, **own}), z)}
    inner = build("support-vector-election", len(OTHERS), {**chosen, "normalisation": "none"})
    by_hand = run(inner, data, seed=2).server.global_state
    found = {name: array for name, array in outcome.server.global_state.items() if not name.startswith(COMPENSATION)}
    assert found.keys() == by_hand.keys()
    assert all(np.allclose(found[name], by_hand[name], atol=1e-12) for name in found)


@pytest.mark.parametrize("mode", ["own", "none"])
@pytest.mark.parametrize("prior", [0.0, 100.0])
def test_a_covariate_that_never_moves_explains_nothing(mode: str, prior: float) -> None:
    data = fleet()
    for each in data.values():
        each[FEATURES][:, WEATHER[0]] = np.float64(np.float32(20.1))
    outcome = trained("support-vector-election", data, normalisation=mode, compensate_prior=prior)
    for params in (outcome.server.global_state, outcome.local_states["gateway-1"]):
        assert (params[COMPENSATION + SLOPES][0] == 0.0).all()
        assert np.abs(params[COMPENSATION + SLOPES][1]).max() > 0.05
        assert np.isfinite(params[COMPENSATION + DEVIATION]).all()


def test_a_covariate_that_never_moved_here_is_the_fleets_where_its_unit_is_known() -> None:
    data = fleet() | {"indoors": {FEATURES: rows(5)}}
    data["indoors"][FEATURES][:, WEATHER[0]] = 20.1
    fleets, own = [], []
    for mode in ("own", "none"):
        outcome = trained("support-vector-election", data, normalisation=mode, compensate_prior=1e6)
        fleets.append(outcome.server.global_state[COMPENSATION + SLOPES][0])
        own.append(outcome.local_states["indoors"][COMPENSATION + SLOPES][0])
    assert (own[0] == 0.0).all()
    np.testing.assert_allclose(own[1], fleets[1], rtol=1e-3)


def test_a_feature_that_never_moves_stays_as_it_is() -> None:
    data = fleet()
    for each in data.values():
        each[FEATURES][:, 0] = np.float64(np.float32(0.1))
    for whiten in (None, 1):
        outcome = trained("support-vector-election", data, whiten=whiten)
        own = outcome.local_states["gateway-0"]
        assert (own[COMPENSATION + SLOPES][:, 0] == 0.0).all()
        assert own[COMPENSATION + DEVIATION][0] == 1.0
        scores = DETECTORS["svdd"].score({**outcome.server.global_state, **own}, rows(3))
        assert np.isfinite(scores).all()


def test_a_feature_that_a_covariate_explains_wholly_is_not_blown_up() -> None:
    data = fleet()
    for each in data.values():
        each[FEATURES][:, 0] = 3.0 * each[FEATURES][:, WEATHER[0]]
    own = trained("support-vector-election", data).local_states["gateway-0"]
    assert own[COMPENSATION + DEVIATION][0] == pytest.approx(1e-3, rel=0.2)


def test_sums_are_gathered_once_and_who_comes_late_uses_them() -> None:
    algorithm = build("fedavg", FEATURE_COUNT, {"compensate": WEATHER, "rounds": 4})
    assert algorithm.setup == 1
    sent: list[frozenset[str]] = []
    outcome = run(algorithm, fleet(), on_update=lambda _, update: sent.append(frozenset(update)))
    assert [("products" in names) for names in sent] == [True] * 3 + [False] * 12
    own, update = algorithm.phases[1].train(
        outcome.server.global_state, {}, {FEATURES: rows(5)}, generator(0, 0, "late")
    )
    assert {COMPENSATION + SLOPES, COMPENSATION + DEVIATION} < own.keys()
    algorithm.phases[1].admit(outcome.server, update)


def test_faults_teach_no_slopes() -> None:
    x = np.concatenate([rows(1), unusual(2) * 3.0])
    data = {"a": {FEATURES: x, LABELS: (np.arange(160) >= 80).astype(np.int64)}}
    with_faults = trained("fedavg", data, loss="logistic", components=0)
    alone = trained("support-vector-election", {"a": {FEATURES: rows(1)}})
    name = COMPENSATION + SLOPES
    np.testing.assert_allclose(with_faults.server.global_state[name], alone.server.global_state[name], atol=1e-12)
    np.testing.assert_allclose(with_faults.local_states["a"][name], alone.local_states["a"][name], atol=1e-12)


def test_sums_that_no_rows_could_have_are_refused() -> None:
    algorithm = build("fedavg", FEATURE_COUNT, {"compensate": WEATHER})
    server = algorithm.start(generator(0, 0, "cloud"))
    phase = algorithm.phases[0]
    _, update = phase.train(server.global_state, {}, {FEATURES: rows(1)}, generator(0, 0, "a"))
    phase.admit(server, update)
    across, among = update["products"].copy(), update["products"].copy()
    across[0, 0], among[0, WEATHER[1]] = 2.0 * 80.0, 40.0
    for change, reason in (
        ({"samples": np.array(0.0)}, "samples: expected 1 to"),
        ({"squares": -update["squares"]}, "squares: expected 0 to"),
        ({"squares": update["squares"] * 9.0, "products": update["products"] * 9.0}, "mean square up to 4"),
        ({"products": across}, "products: expected to explain at most 1"),
        ({"products": among}, "products: expected symmetric"),
    ):
        with pytest.raises(UpdateError, match=reason):
            phase.admit(server, {**update, **change})


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"compensate": (5,)}, "compensate: expected columns from 0 to 4, got 5"),
        ({"compensate": (-1,)}, r"(?s)compensate.*greater than or equal to 0"),
        ({"compensate": (1, 1)}, "compensate: expected every column once"),
        ({"compensate": (0, 1, 2, 3, 4)}, "compensate: expected one column or more, and fewer than the 5 features"),
        ({"compensate": ("outdoor",)}, r"(?s)compensate.*valid integer"),
        ({"compensate": (1,), "compensate_prior": -1.0}, r"(?s)compensate_prior.*greater than or equal to 0"),
        ({"compensate": (1,), "whiten": 4}, "whiten: expected fewer directions than the 4 features, got 4"),
        ({"compensate": (1,), "normalisation": "all"}, r"(?s)'own' or 'none'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(chosen: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build("fedavg", FEATURE_COUNT, chosen)


def test_levels_far_from_zero_are_refused_with_what_to_do() -> None:
    data = {"a": {FEATURES: 3e5 + rows(1)}}
    with pytest.raises(ValueError, match="set normalisation to 'own'"):
        trained("support-vector-election", data, normalisation="none")
