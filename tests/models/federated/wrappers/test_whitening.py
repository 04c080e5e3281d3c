"""Whitening as a federated feature step: the same for all gateways, within the graph, and equal to doing it by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats, generator, under
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base.pca import WHITENING, whitened
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated import ALGORITHMS
from fedgate.models.federated.protocol.algorithm import NORMALISATION
from fedgate.models.federated.protocol.run import Outcome, run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.fleet import auc, onnx_scores
from tests.support.given_width import build
from tests.support.soak import crossed

FEATURE_COUNT, DIRECTIONS = 8, 3
Data = dict[str, Arrays]


def rows(seed: int, count: int = 60) -> Floats:
    """Rows of three strong directions in features of very different size; the weak ones hold what is unusual."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(FEATURE_COUNT, FEATURE_COUNT)))[0]
    z = (rng.normal(size=(count, FEATURE_COUNT)) * np.r_[6.0, 5.0, 4.0, np.full(5, 0.3)]) @ turn.T
    return np.asarray(z * np.linspace(1.0, 5.0, FEATURE_COUNT) + 3.0)


def unusual(seed: int, count: int = 60) -> Floats:
    rng = np.random.default_rng(seed + 1_000)
    return rows(seed, count) + 3.0 * rng.normal(size=(count, FEATURE_COUNT)) * np.linspace(1.0, 5.0, FEATURE_COUNT)


FIVE = 5  # of which a fifth is one, so that every robust mean stands a lie


def fleet(count: int = 3) -> Data:
    return {f"gateway-{k}": {FEATURES: rows(k)} for k in range(count)}


def trained(name: str, data: Data | None = None, **chosen: Any) -> Outcome:
    return run(build(name, FEATURE_COUNT, {"whiten": DIRECTIONS, **chosen}), data or fleet(), seed=2)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_whitened_features_have_unit_variance_and_the_weight_asked_for(weight: float) -> None:
    shared = trained("support-vector-election", normalisation="none", whiten_residual=weight).server.global_state
    z = whitened(under(WHITENING, shared), np.concatenate([each[FEATURES] for each in fleet().values()]))
    np.testing.assert_allclose(np.cov(z[:, :DIRECTIONS].T, bias=True), np.eye(DIRECTIONS), atol=1e-9)
    if weight == 0.0:
        assert z.shape[1] == DIRECTIONS
    else:
        assert z[:, DIRECTIONS].std() == pytest.approx(weight * np.sqrt(DIRECTIONS), rel=0.25)


@pytest.mark.parametrize("mode", ["own", "none"])
def test_it_is_the_algorithm_on_features_whitened_by_hand(mode: str) -> None:
    chosen: dict[str, Any] = {"anonymise": False, "normalisation": mode, "gamma": 0.25}
    outcome = trained("support-vector-election", **chosen)
    step = under(WHITENING, outcome.server.global_state)
    data = {}
    for name, each in fleet().items():
        own = outcome.local_states[name]
        z = (each[FEATURES] - own.get("center", 0.0)) / own.get("scale", 1.0)
        data[name] = {FEATURES: whitened(step, z)}
    inner = build("support-vector-election", DIRECTIONS + 1, {**chosen, "normalisation": "none"})
    by_hand = run(inner, data, seed=2).server.global_state
    found = {name: array for name, array in outcome.server.global_state.items() if not name.startswith(WHITENING)}
    assert found.keys() == by_hand.keys()
    assert all(np.allclose(found[name], by_hand[name], atol=1e-12) for name in found)
    assert set(outcome.local_states["gateway-0"]) == (set(NORMALISATION) if mode == "own" else set())


def labelled(count: int = 3) -> Data:
    """Gateways that know what is unusual, for algorithms that need to."""
    y = (np.arange(120) >= 60).astype(np.int64)
    return {f"gateway-{k}": {FEATURES: np.concatenate([rows(k), unusual(k)]), LABELS: y} for k in range(count)}


# Rows of the recurrent networks are windows.
@pytest.mark.parametrize(("name", "mode"), crossed(sorted(ALGORITHMS.keys() - {"recurrent-fedavg"}), ["own", "none"]))
def test_every_algorithm_takes_it_and_exports_it(name: str, mode: str) -> None:
    algorithm = build(name, FEATURE_COUNT, {"whiten": DIRECTIONS, "normalisation": mode})
    outcome = run(algorithm, labelled(FIVE) if algorithm.labels else fleet(FIVE), seed=2, rounds=3)
    x = np.concatenate([rows(7), unusual(8)])
    own = {
        key: outcome.local_states["gateway-0"][key]
        for key in algorithm.personal
        if key in outcome.local_states["gateway-0"]
    }
    scores = DETECTORS[algorithm.detector].score({**outcome.server.global_state, **own}, x)
    assert auc(scores, np.arange(120) >= 60) > 0.9
    model = DETECTORS[algorithm.detector].graph(outcome.server.global_state, algorithm.personal)
    found = onnx_scores(model, x, own)
    np.testing.assert_allclose(found, scores, atol=1e-3 * max(1.0, float(np.abs(scores).max())))


def test_it_finds_what_the_raw_features_hide() -> None:
    x, y = np.concatenate([rows(7, 200), rows(9, 200) + 2.0]), np.arange(400) >= 200
    raw = run(build("support-vector-election", FEATURE_COUNT, {}), fleet(), seed=2)
    areas = {}
    for name, outcome in (("raw", raw), ("whitened", trained("support-vector-election", gamma=0.01))):
        params = {**outcome.server.global_state, **outcome.local_states["gateway-0"]}
        areas[name] = auc(svdd.SVDD.score(params, x), y)
    assert areas["whitened"] > areas["raw"] + 0.05


def test_moments_are_gathered_once() -> None:
    algorithm = build("fedavg", FEATURE_COUNT, {"whiten": DIRECTIONS, "rounds": 4})
    assert algorithm.setup == 1
    assert algorithm.exchanges() == 1 + 4
    sent: list[frozenset[str]] = []
    run(algorithm, fleet(), on_update=lambda _, update: sent.append(frozenset(update)))
    assert [("products" in names) for names in sent] == [True] * 3 + [False] * 12


def test_who_comes_late_uses_the_step_of_the_others() -> None:
    data = fleet()
    algorithm = build("support-vector-election", FEATURE_COUNT, {"whiten": DIRECTIONS})
    server = run(algorithm, data, seed=2).server
    own, update = algorithm.phases[1].train(server.global_state, {}, {FEATURES: rows(5)}, generator(0, 0, "late"))
    assert set(own) == set(NORMALISATION)
    assert update["vectors"].shape[1] == DIRECTIONS + 1
    algorithm.phases[1].admit(server, update)


def test_updates_of_the_first_exchange_are_judged_as_moments() -> None:
    algorithm = build("fedavg", FEATURE_COUNT, {"whiten": DIRECTIONS})
    server = algorithm.start(generator(0, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, {FEATURES: rows(1)}, generator(0, 0, "a"))
    with pytest.raises(UpdateError, match="samples: expected 1 to"):
        algorithm.phases[0].admit(server, {**update, "samples": np.array(0.0)})


def test_labels_reach_the_inner_algorithm() -> None:
    x = np.concatenate([rows(1), unusual(2)])
    data = {"a": {FEATURES: x, LABELS: (np.arange(120) >= 60).astype(np.int64)}}
    outcome = trained("fedavg", data, loss="logistic", components=0)
    assert np.abs(outcome.server.global_state["weights"]).max() > 0.0


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"whiten": 8}, "whiten: expected fewer directions than the 8 features, got 8"),
        ({"whiten": 0}, r"(?s)whiten.*greater than or equal to 1"),
        ({"whiten": 2, "whiten_residual": -1.0}, r"(?s)whiten_residual.*greater than or equal to 0"),
        ({"whiten": 2, "normalisation": "all"}, r"(?s)'own' or 'none'"),
        ({"whiten": 2, "nu": 7.0}, r"(?s)nu.*less than or equal to 1"),
        ({"whitening": 2}, "'whitening' is unknown to fedavg; expected one of .*whiten, whiten_residual"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(chosen: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build("fedavg", FEATURE_COUNT, chosen)


def test_without_the_setting_nothing_changes() -> None:
    plain, same = (build("fedavg", FEATURE_COUNT, chosen) for chosen in ({}, {"whiten": None}))
    assert plain.setup == same.setup == 0
    assert len(plain.phases) == len(same.phases)
