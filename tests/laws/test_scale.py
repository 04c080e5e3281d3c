"""The law of scale: no result depends on the unit of a feature.

All features times a power of two, which loses no digit: the same ranks and the same alarms. With normalisation `own`
each feature may have a power of its own; with `none` features share one unit, so the factor is common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedgate.models.alarms import drift, threshold
from fedgate.models.alarms.drift import DriftSpec
from fedgate.models.alarms.expectation import expectation, standardise
from fedgate.models.alarms.rule_calibration import Baseline, calibrate
from fedgate.models.alarms.rules import RulesState, step
from fedgate.models.alarms.threshold import AlarmSpec, AlarmState
from fedgate.models.arrays import FEATURES, Array, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.svm import ensemble, ocsvm, svdd
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.kernel_width import counted, quantile
from fedgate.models.federated.protocol.run import run
from fedgate.models.testing.exchanges import SEED
from fedgate.models.testing.fleet import FEATURE_COUNT, Gateway, fleet, onnx_scores
from fedgate.models.time_units import NS
from fedgate.models.units import COMMON
from fedgate.models.windows import sensor_health
from tests.support.law_settings import SETTINGS, names_of
from tests.support.rule_twin import ALARM, HEAD, HOP_S, KINDS, LAGS, MISSING, NAMES, SCORES, VALUES, spec_of

FACTORS = (2.0**-30, 2.0**30)
ROWS = 80  # more than a reservoir washes out


def first_settings(name: str) -> dict[str, Any]:
    return dict(SETTINGS.get(name, [{}])[0])


def trained_scores(name: str, settings: dict[str, Any], gateways: dict[str, Gateway], factor: Array) -> list[Floats]:
    """Return what a training says of its gateways' rows where everything is in another unit."""
    algorithm = build(name, FEATURE_COUNT, settings)
    scaled = {FEATURES, "calibration"}
    data = {
        gateway: {key: array * factor if key in scaled else array for key, array in one.data.items()}
        for gateway, one in gateways.items()
    }
    outcome = run(algorithm, data, seed=SEED, rounds=min(algorithm.rounds, 2))
    detector = DETECTORS[algorithm.detector]
    return [
        detector.score({**outcome.server.global_state, **outcome.local_states[gateway]}, one.x * factor)
        for gateway, one in gateways.items()
    ]


def same_ranks(found: Floats, expected: Floats) -> None:
    """Hold the order of scores against another; those that differ by rounding alone may change places."""
    order = np.argsort(expected)
    steps, slack = np.diff(found[order]), 1e-9 * (np.ptp(found) + float(np.abs(found).max()))
    assert (steps >= -slack).all()
    assert np.ptp(found) > 0.0


IN_OWN_UNITS: dict[str, dict[str, Any]] = {
    "fedavg, sgd": {"local": "sgd"},
    "fedprox, sgd without a map": {"local": "sgd", "components": 0},
    "fedper, sgd": {"local": "sgd"},
    "fedavg, sgd on the dual": {"local": "dual-sgd", "components": 0},
}


@pytest.mark.parametrize("case", [*ALGORITHMS, *IN_OWN_UNITS])
def test_units_of_each_feature_are_no_part_of_a_training(case: str) -> None:
    name = case.partition(",")[0]
    settings = IN_OWN_UNITS.get(case, first_settings(name))
    gateways = fleet(
        SEED, labelled=build(name, FEATURE_COUNT, settings).labels, rows=ROWS, names=names_of(name, settings)
    )
    plain = trained_scores(name, settings, gateways, np.ones(FEATURE_COUNT))
    other = trained_scores(name, settings, gateways, 2.0 ** np.array([20.0, -20.0, 7.0]))
    for found, expected in zip(other, plain, strict=True):
        np.testing.assert_array_equal(found, expected)


# Kernels with the width of the data; of the others' settings several are lengths.
KERNELS = ("conditional-fedavg", "ensemble-svdd", "fedavg", "fedavg-median", "fedper", "support-vector-election")
AS_THEY_ARE: dict[str, dict[str, Any]] = {
    "fedprox": {"loss": "logistic", "components": 0},
    "federated-subspace": {"reference": "pooled", "components": 1},
    "fedavg, no map": {"loss": "logistic", "components": 0},
    **IN_OWN_UNITS,
    "incfed, compensated": {"compensate": (1,), "ridge": 1.0},
    "incfed, whitened": {"whiten": 2, "ridge": 1.0},
    "ensemble-svdd, a width for each": {"gamma": "median"},
    "ensemble-svdd, filtered": {"covered": 0.6},
    "support-vector-election, searched": {"rounds": 4},
    "federated-subspace, masked": {"components": 1, "masking": {"fewest": 3}},
    "fedavg, whitened and masked": {"whiten": 1, "masking": {"fewest": 3}},
    "fedavg, compensated and masked": {"compensate": (1,), "masking": {"fewest": 3}},
    "support-vector-election, compensated": {"compensate": (1,)},
    "robust-svm-subgradient, masked": {"rounds": 40, "masking": {"fewest": 3, "range": 1e9, "threshold": 0.6}},
}


@pytest.mark.soak
@pytest.mark.parametrize("case", [*ALGORITHMS, *(name for name in AS_THEY_ARE if name not in ALGORITHMS)])
def test_a_common_unit_is_no_part_of_a_training(case: str) -> None:
    """With features as they are, in ten-thousandths, kernels of width 1 / F saw nothing at all, and neither did a
    reservoir; in thousands a descent did not settle.
    """
    name = case.partition(",")[0]
    chosen = {} if name in KERNELS else first_settings(name)
    settings = {**AS_THEY_ARE.get(case, chosen), "normalisation": "none"}
    labelled = build(name, FEATURE_COUNT, settings).labels
    gateways = fleet(SEED, labelled=labelled, alike=True, rows=ROWS, names=names_of(name, settings))
    plain = trained_scores(name, settings, gateways, np.ones(FEATURE_COUNT))
    for factor in FACTORS:
        other = trained_scores(name, settings, gateways, np.full(FEATURE_COUNT, factor))
        for found, expected in zip(other, plain, strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"with features times {factor}")
            assert np.ptp(found) > 0.0


@pytest.mark.parametrize("name", ["esn-fedavg", "fedavg", "incfed", "robust-svm-admm"])
def test_the_exported_graph_scores_in_the_common_unit(name: str) -> None:
    chosen = {"loss": "logistic", "components": 0} if name == "fedavg" else first_settings(name)
    algorithm = build(name, FEATURE_COUNT, {**chosen, "normalisation": "none"})
    gateways = fleet(SEED, labelled=algorithm.labels, alike=True, rows=ROWS)
    data = {key: {**one.data, FEATURES: one.data[FEATURES] * 2.0**-20} for key, one in gateways.items()}
    shared, x = run(algorithm, data, seed=SEED, rounds=1).server.global_state, gateways["west"].x * 2.0**-20
    detector = DETECTORS[algorithm.detector]
    assert 2.0**-21 <= float(shared[COMMON]) <= 2.0**-19
    np.testing.assert_allclose(
        onnx_scores(detector.graph(shared, algorithm.personal), x), detector.score(shared, x), atol=1e-4
    )


FITS: dict[str, tuple[str, Callable[[Floats], Arrays]]] = {
    "svdd": ("svdd", svdd.fit),
    "svdd, paper's cap": ("svdd", lambda x: svdd.fit(x, c=0.2)),
    "svdd, median": ("svdd", lambda x: svdd.fit(x, gamma="median")),
    "svdd, linear": ("svdd", lambda x: svdd.fit(x, kernel="linear")),
    "ocsvm": ("ocsvm", ocsvm.fit),
    "ocsvm, linear": ("ocsvm", lambda x: ocsvm.fit(x + 8.0 * np.abs(x).max(), kernel="linear")),
    "ocsvm, ascent": ("ocsvm", lambda x: ocsvm.fit(x, solver="sgd", gamma="median")),
    "ensemble": ("ensemble", ensemble.ENSEMBLE.fit),
    "linear on a map": (
        "linear",
        lambda x: linear.fit(x, None, np.random.default_rng(0), loss="one-class", components=64),
    ),
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", FITS)
def test_a_common_unit_is_no_part_of_a_detector(name: str, factor: float) -> None:
    detector, fit = FITS[name]
    rng = np.random.default_rng(3)
    x, fresh = rng.normal(size=(80, 4)), rng.normal(size=(60, 4)) * 2.0
    away = 8.0 * np.abs(x).max() if name == "ocsvm, linear" else 0.0
    probes = np.concatenate([x, fresh]) + away
    plain = DETECTORS[detector].score(fit(x), probes)
    found = DETECTORS[detector].score(fit(x * factor), probes * factor)
    same_ranks(found, plain)
    off = np.abs(plain) > 1e-6 * np.ptp(plain)  # a vector on the border itself may lie on either side
    assert ((found > 0.0) == (plain > 0.0))[off].all() and 0.0 < (plain > 0.0).mean() < 1.0


@pytest.mark.parametrize("factor", FACTORS)
def test_levels_and_alarms_follow_the_scale_of_scores(factor: float) -> None:
    spec = AlarmSpec(false_alarms_per_day=2.0)
    rng = np.random.default_rng(5)
    scores, later = rng.gumbel(size=400), rng.gumbel(size=300) + np.linspace(0.0, 6.0, 300)
    said = []
    for times in (1.0, factor):
        levels, state, changes = threshold.calibrate(spec, scores * times, 24.0), AlarmState(), []
        for place, score in enumerate((later * times).tolist()):
            state, change = threshold.update(levels, spec, state, place * 3_600 * NS, score)
            changes.append(change is not None)
        assert any(changes)
        said.append(changes)
    assert said[0] == said[1]


@pytest.mark.parametrize("factor", FACTORS)
def test_a_drift_is_a_drift_in_any_unit(factor: float) -> None:
    rng = np.random.default_rng(6)
    scores, later = rng.exponential(size=24 * 21), rng.exponential(size=24 * 30) * 1.6
    said = []
    for times in (1.0, factor):
        reference, state = drift.begin(DriftSpec(), scores * times, 24.0)
        found = []
        for score in (later * times).tolist():
            state, is_new = drift.update(reference, state, score)
            found.append(is_new)
        said.append(found)
    assert said[0] == said[1] and any(said[0])


@pytest.mark.soak
@pytest.mark.parametrize("exponents", [(-20, -20, -20), (20, -20, 7), (-33, 20, 0)])
def test_rules_raise_alike_whatever_the_units_of_features(exponents: tuple[int, int, int]) -> None:
    """With a floor of 1e-9 a strain of 1e-12 had no deviation that counted."""
    factor, said = 2.0 ** np.array(exponents), []
    spec = spec_of(*(name for name in KINDS if name != "context"))
    for times in (np.ones(3), factor):
        known = calibrate(spec, ALARM, Baseline(SCORES[:HEAD], VALUES[:HEAD] * times, MISSING[:HEAD]), NAMES, HOP_S)
        state, heights = RulesState(), []
        for row in range(HEAD, HEAD + 80):
            state, height, still = step(known, state, row * 60 * NS, float(SCORES[row]), VALUES[row] * times)
            heights.append((height, still))
        said.append(heights)
    assert said[0] == said[1]


def test_what_is_expected_is_the_same_in_any_unit() -> None:
    factor = 2.0 ** np.array([-30.0, 20.0, 5.0])
    deviations = []
    for times in (np.ones(3), factor):
        around, _ = standardise(VALUES[:HEAD] * times)
        z = around.deviations(VALUES[:HEAD] * times)
        deviations.append(expectation(z, MISSING[:HEAD], (0, 1, 2), LAGS, others=True)[1])
    np.testing.assert_array_equal(deviations[0], deviations[1])


@pytest.mark.parametrize("factor", FACTORS)
def test_a_sensor_is_stuck_or_clipped_in_any_unit(factor: float) -> None:
    t = np.arange(400.0)
    values = np.stack([np.sin(t / 9.0), np.full(400, 3.0), np.clip(np.sin(t / 9.0), -1.0, 0.7)], axis=1)
    for times in (1.0, factor):
        assert sensor_health.stuck_channels(NAMES, values * times) == ("b",)
        assert sensor_health.clipped_channels(NAMES, values * times)[-1:] == ("c",)


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**-20, 2.0**20, 2.0**40])
def test_quantiles_of_distances_follow_them_to_the_bit(factor: float) -> None:
    squares = np.random.default_rng(7).chisquare(5, size=999)
    for share in (0.25, 0.5, 0.75):
        found = quantile(counted(squares), share)
        assert quantile(counted(squares * factor), share) == factor * found
        assert found == pytest.approx(float(np.quantile(squares, share)), rel=0.03)
