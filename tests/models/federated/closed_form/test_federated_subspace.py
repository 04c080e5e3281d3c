"""The federated subspace against pooled numpy, far from zero, over rounds, in a sketch, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator
from fedgate.models.detectors.base.moments import PRODUCTS, SAMPLES, SUM_OF_ROWS, moments, symmetric, triangle
from fedgate.models.detectors.base.pca import measured
from fedgate.models.federated import build
from fedgate.models.federated.closed_form.subspace import capped
from fedgate.models.federated.protocol.algorithm import Server, close_round
from fedgate.models.federated.protocol.run import Outcome, run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.fleet import auc

FEATURE_COUNT = 6
Data = dict[str, Arrays]


def rows(seed: int, count: int = 80, level: float = 0.0) -> Floats:
    """Rows that move along two directions, with a little noise in all."""
    rng = np.random.default_rng(seed)
    directions = np.linspace(-1.0, 1.0, 2 * FEATURE_COUNT).reshape(2, FEATURE_COUNT) ** 3
    return np.asarray(level + rng.normal(size=(count, 2)) @ directions + 0.05 * rng.normal(size=(count, FEATURE_COUNT)))


def fleet(level: float = 0.0) -> Data:
    return {f"gateway-{k}": {FEATURES: rows(k, 30 * (k + 1), level) + 0.1 * k} for k in range(3)}


def pooled(data: Data) -> Floats:
    return np.concatenate([each[FEATURES] for each in data.values()])


def trained(data: Data, rounds: int | None = None, **chosen: Any) -> Outcome:
    return run(build("federated-subspace", FEATURE_COUNT, chosen), data, seed=3, rounds=rounds)


def residual_of(x: Floats, probes: Floats, count: int) -> Floats:
    """The squared residual by the singular vectors of the rows themselves, relative to its mean over the rows."""
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    z = (x - mean) / deviation
    directions = np.linalg.svd(z, full_matrices=False)[2][count:]
    inside = ((probes - mean) / deviation) @ directions.T
    return np.asarray((inside**2).sum(axis=1) / ((z @ directions.T) ** 2).sum(axis=1).mean())


def same_subspace(first: Arrays, second: Arrays, tolerance: float = 1e-10) -> None:
    for name in ("mean", "deviation", "eigenvalues", "trace", "freedom", "border"):
        np.testing.assert_allclose(first[name], second[name], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        first["components"] @ first["components"].T, second["components"] @ second["components"].T, atol=tolerance
    )


@pytest.mark.parametrize("reference", ["zero", "pooled"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_one_round_gives_what_the_pooled_rows_give(reference: str, count: int) -> None:
    data = fleet()
    shared = trained(data, components=count, normalisation="none", reference=reference).server.global_state
    x, probes = pooled(data), rows(9, 50) * 2.0
    np.testing.assert_allclose(shared["mean"], x.mean(axis=0), atol=1e-10)
    np.testing.assert_allclose(shared["deviation"], x.std(axis=0), atol=1e-10)
    correlation = np.corrcoef(x.T)
    np.testing.assert_allclose(shared["eigenvalues"], np.linalg.eigvalsh(correlation)[::-1][:count], rtol=1e-10)
    np.testing.assert_allclose(measured(shared, probes)[1], residual_of(x, probes, count), rtol=1e-9)
    np.testing.assert_allclose(measured(shared, x)[0].std(axis=0), 1.0, rtol=1e-9)


def test_in_own_units_it_is_the_pool_of_what_gateways_normalised() -> None:
    data = fleet(level=1e4)
    outcome = trained(data, components=2)
    z = np.concatenate([(each[FEATURES] - each[FEATURES].mean(0)) / each[FEATURES].std(0) for each in data.values()])
    found = measured(outcome.server.global_state, rows(9, 50) / 0.5)[1]
    np.testing.assert_allclose(found, residual_of(z, rows(9, 50) / 0.5, 2), rtol=1e-9)


def test_far_from_zero_a_reference_keeps_the_digits() -> None:
    near, far = fleet(), fleet(level=1e6)
    found = trained(far, components=2, normalisation="none", reference="pooled").server.global_state
    wanted = trained(near, components=2, normalisation="none").server.global_state
    np.testing.assert_allclose(found["eigenvalues"], wanted["eigenvalues"], rtol=1e-7)
    np.testing.assert_allclose(measured(found, rows(9) + 1e6)[1], measured(wanted, rows(9))[1], rtol=1e-5)


@pytest.mark.parametrize("level", [1e5, 1e6])
def test_far_from_zero_without_a_reference_training_teaches(level: float) -> None:
    x = rows(1)
    x[:, 0] = 7e6  # which never moves, so that nothing is lost
    with pytest.raises(
        ValueError, match=r"of its deviations from zero, expected up to 10000: .*set reference to 'pool"
    ):
        trained({"a": {FEATURES: x + level}}, normalisation="none")
    with pytest.raises(ValueError, match=r"expected up to 10000: .*set normalisation to 'own'"):
        run(build("fedavg", FEATURE_COUNT, {"whiten": 2, "normalisation": "none"}), {"a": {FEATURES: x + level}})
    trained({"a": {FEATURES: x}}, normalisation="none")


def test_rows_in_pascals_are_admitted() -> None:
    x = 101_325.0 + 100.0 * np.random.default_rng(6).normal(size=(100_000, FEATURE_COUNT))
    for reference in ("zero", "pooled"):
        outcome = trained(
            {"a": {FEATURES: x}}, normalisation="none", reference=reference, components=2, max_samples=100_000
        )
        np.testing.assert_allclose(outcome.server.global_state["deviation"], x.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("reference", ["zero", "pooled"])
@pytest.mark.parametrize("mode", ["own", "none"])
def test_only_healthy_rows_are_gathered(reference: str, mode: str) -> None:
    x, faults = rows(1, 60), rows(2, 25) + 8.0
    labels = np.repeat([0, 2], [60, 25])
    mixed = {FEATURES: np.concatenate([x, faults]), LABELS: labels}
    chosen: dict[str, Any] = {"components": 2, "reference": reference, "normalisation": mode}
    found, wanted = (trained({"a": each}, **chosen).server.global_state for each in (mixed, {FEATURES: x}))
    same_subspace(found, wanted, 1e-9)
    phase = build("federated-subspace", FEATURE_COUNT, {**chosen, "normalisation": "none"}).phases[0]
    assert phase.train({}, {}, {FEATURES: faults, LABELS: labels[60:]}, generator(0, 0, "a"))[1] == {}


@pytest.mark.soak
@given(st.lists(st.integers(0, 2), min_size=90, max_size=90))
@settings(max_examples=20, deadline=None)
def test_it_does_not_matter_which_gateway_holds_a_row(owners: list[int]) -> None:
    x, owner = rows(5, 90), np.array(owners)
    data = {str(k): {FEATURES: x[owner == k]} for k in range(3)}
    split = trained(data, components=2, normalisation="none").server.global_state
    same_subspace(split, trained({"all": {FEATURES: x}}, components=2, normalisation="none").server.global_state, 1e-9)


def test_rounds_add_up_and_old_ones_fade() -> None:
    early, late = rows(1, 60), rows(2, 40) @ np.diag([1.0, 2.0, 1.0, 0.5, 1.0, 1.0])

    def after(forget: float) -> Arrays:
        algorithm = build(
            "federated-subspace", FEATURE_COUNT, {"components": 2, "normalisation": "none", "forget": forget}
        )
        server = algorithm.start(generator(0, 0, "cloud"))
        for x in (early, late):
            _, update = algorithm.phases[0].train(server.global_state, {}, {FEATURES: x}, generator(0, 0, "a"))
            server = close_round(algorithm, server, algorithm.phases[0].admit(server, update))
        return server.global_state

    def of(x: Floats) -> Arrays:
        return trained({"all": {FEATURES: x}}, components=2, normalisation="none").server.global_state

    same_subspace(after(1.0), of(np.concatenate([early, late])), 1e-9)
    same_subspace(after(0.0), of(late), 1e-9)
    same_subspace(after(0.5), of(np.concatenate([early, late, late])), 1e-9)


def test_rows_that_are_sent_again_count_again_and_change_nothing_if_all_are() -> None:
    data = fleet()
    once, thrice = (trained(data, rounds=count, components=2, normalisation="none").server for count in (1, 3))
    same_subspace(once.global_state, thrice.global_state, 1e-9)
    assert float(thrice.server_state[SAMPLES]) == 3 * float(once.server_state[SAMPLES]) == 3 * 180


def test_a_sketch_sends_less_and_still_tells_what_leaves_the_subspace() -> None:
    rng, many = np.random.default_rng(4), 60
    directions = rng.normal(size=(3, many))

    def healthy(count: int) -> Floats:
        return np.asarray(rng.normal(size=(count, 3)) @ directions + 0.1 * rng.normal(size=(count, many)))

    data = {str(k): {FEATURES: healthy(60)} for k in range(3)}
    x = np.concatenate([healthy(50), healthy(50) + 0.4 * rng.normal(size=(50, many))])
    y = np.arange(100) >= 50
    sizes = {}
    for sketch in (None, 20):
        sent: list[int] = []
        chosen = {"components": 3, "which": "residual", "normalisation": "none", "sketch": sketch}
        algorithm = build("federated-subspace", many, chosen)

        def weigh(_: str, update: Arrays, sizes: list[int] = sent) -> None:
            sizes.append(len(encode(update)))

        outcome = run(algorithm, data, on_update=weigh)
        score = measured(outcome.server.global_state, x)[1]
        assert auc(score, y) > 0.99
        sizes[sketch] = max(sent)
    full, sketched = (8 * triangle(size) for size in (many, 20))
    assert sizes[None] == pytest.approx(full, rel=0.1)
    assert sizes[20] == pytest.approx(sketched, rel=0.3)
    assert sizes[20] < sizes[None] / 6


def test_a_gateway_with_many_rows_counts_for_no_more_than_the_cap() -> None:
    data = {"big": {FEATURES: rows(1, 500)}, "small": {FEATURES: rows(2, 50)}}
    outcome = trained(data, components=2, max_samples=50, normalisation="none")
    assert float(outcome.server.server_state[SAMPLES]) == pytest.approx(100.0)
    middle = (data["big"][FEATURES].mean(axis=0) + data["small"][FEATURES].mean(axis=0)) / 2.0
    np.testing.assert_allclose(outcome.server.global_state["mean"], middle, atol=1e-12)


def test_constant_and_single_rows_leave_finite_parameters() -> None:
    constant = rows(1)
    constant[:, 2] = 7e4
    for x, mode in ((constant, "own"), (constant, "none"), (rows(1, 1), "none"), (np.ones((20, 6)), "own")):
        outcome = trained({"a": {FEATURES: x}}, components=2, normalisation=mode)
        assert all(np.isfinite(array).all() for array in outcome.server.global_state.values())
        assert (outcome.server.global_state["eigenvalues"] > 0.0).all()
        assert (outcome.server.global_state["deviation"] > 0.0).all()


def impossible(kind: str) -> Arrays:
    x = rows(1)
    update = moments((x - x.mean(axis=0)) / x.std(axis=0))
    if kind == "off the centre":
        return moments((x - x.mean(axis=0)) / x.std(axis=0) + np.r_[2.1, np.zeros(FEATURE_COUNT - 1)])
    if kind == "no rows have these moments":
        return {**update, SUM_OF_ROWS: update[SUM_OF_ROWS] + 100.0}
    matrix = symmetric(update[PRODUCTS], FEATURE_COUNT)
    if kind == "an eigenvalue below zero":
        matrix[0, 1] = matrix[1, 0] = 2.0 * np.sqrt(matrix[0, 0] * matrix[1, 1])
    elif kind == "a square below zero":
        matrix[3, 3] = -1.0
    else:
        matrix *= 5.0
    return {**update, PRODUCTS: matrix[np.triu_indices(FEATURE_COUNT)]}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("no rows have these moments", "expected moments of rows, so no negative eigenvalue, got -"),
        ("an eigenvalue below zero", "expected moments of rows, so no negative eigenvalue, got -"),
        ("a square below zero", "products: expected sums of squares, got -1"),
        ("far out", "expected a mean square up to 4 in own deviations, got 5"),
        ("off the centre", "expected means up to 2 own deviations, got 2.1"),
    ],
)
def test_moments_that_no_rows_have_are_refused(kind: str, reason: str) -> None:
    phase = build("federated-subspace", FEATURE_COUNT, {}).phases[0]
    with pytest.raises(UpdateError, match=reason):
        phase.admit(Server({}, {}), impossible(kind))


@pytest.mark.parametrize("chosen", [{}, {"sketch": 4}, {"reference": "pooled"}, {"reference": "pooled", "sketch": 4}])
def test_a_gateway_with_a_few_wild_moments_does_not_blind_the_others(chosen: dict[str, Any]) -> None:
    algorithm = build("federated-subspace", FEATURE_COUNT, chosen)
    server = algorithm.start(generator(0, 0, "cloud"))
    own: dict[str, Arrays] = {name: {} for name in fleet()}
    for phase in algorithm.phases:
        total = Arrays()
        for name, data in fleet().items():
            own[name], update = phase.train(server.global_state, own[name], data, generator(0, 0, name))
            total = phase.reducer.merge(total, phase.admit(server, update))
            wild = {key: array * (1.0 if key == SAMPLES else 30.0) for key, array in update.items()}
            with pytest.raises(UpdateError, match="expected a mean square up to 4 in own deviations"):
                phase.admit(server, wild)
        server = close_round(algorithm, server, total)


@pytest.mark.parametrize("sketch", [None, 4])
def test_a_feature_that_moves_on_one_gateway_only_is_admitted(sketch: int | None) -> None:
    data = {str(k): {FEATURES: rows(k) * np.r_[np.ones(5), float(k == 0)]} for k in range(40)}
    outcome = trained(data, components=2, reference="pooled", sketch=sketch)
    assert float(outcome.server.server_state[SAMPLES]) == 40 * 80


@pytest.mark.parametrize("max_samples", [50, 93, 100_000])
def test_the_cap_on_rows_is_met_exactly(max_samples: int) -> None:
    """However the division rounds, what a gateway sends is admitted."""
    for count in range(max_samples + 1, max_samples + 400):
        share = capped({SAMPLES: np.array(float(count)), SUM_OF_ROWS: np.ones(2)}, max_samples)
        assert float(share[SAMPLES]) == max_samples
        assert share[SUM_OF_ROWS][0] == pytest.approx(max_samples / count)


def test_honest_moments_are_admitted_even_where_rows_are_fewer_than_features() -> None:
    phase = build("federated-subspace", FEATURE_COUNT, {"normalisation": "none"}).phases[0]
    for x in (rows(1, 1), rows(1, 3), rows(1) * 1e4, np.zeros((5, FEATURE_COUNT)), rows(1, level=1e5)):
        phase.admit(Server({}, {}), moments(x))


def test_a_reference_that_no_rows_have_is_refused() -> None:
    phase = build("federated-subspace", FEATURE_COUNT, {"reference": "pooled"}).phases[0]
    _, update = phase.train({}, {}, {FEATURES: rows(1)}, generator(0, 0, "a"))
    with pytest.raises(UpdateError, match="squares: expected at least sum² / samples, got"):
        phase.admit(Server({}, {}), {**update, SUM_OF_ROWS: update[SUM_OF_ROWS] + 1e3})


def test_a_sketch_as_wide_as_the_features_is_refused() -> None:
    with pytest.raises(ValueError, match="sketch: expected fewer than the 6 features, got 6; leave it out"):
        build("federated-subspace", FEATURE_COUNT, {"sketch": 6})
