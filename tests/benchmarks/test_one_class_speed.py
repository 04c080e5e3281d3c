"""What a fit of the one-class SVM costs beside libsvm alone, and how long the ascents of PC-FedAvg take."""

from __future__ import annotations

from functools import partial

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture
from sklearn.svm import OneClassSVM

from fedgate.models.detectors.base.dual_ascent import ascend_in_map
from fedgate.models.detectors.svm import ocsvm
from fedgate.models.detectors.svm.kernel import SOLVER_TOLERANCE
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import in_turns, median_s, repeat

ROWS, FEATURE_COUNT, COMPONENTS, NU = 1_000, 300, 256, 0.1
TURNS = 15
AT_MOST_OF_LIBSVM = 1.1


def test_a_fit_against_libsvm(benchmark: BenchmarkFixture, note: Note) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURE_COUNT))
    fit = partial(ocsvm.fit, x, nu=NU, gamma=1.0 / FEATURE_COUNT)
    alone = OneClassSVM(kernel="rbf", nu=NU, gamma=1.0 / FEATURE_COUNT, tol=SOLVER_TOLERANCE)
    params = repeat(benchmark, fit, rounds=TURNS)
    assert len(params["vectors"]) == len(alone.fit(x).support_vectors_)
    if benchmark.enabled:
        what = f"{ROWS} rows x {FEATURE_COUNT} features"
        ours_s, theirs_s = in_turns(fit, partial(alone.fit, x), TURNS)
        peer_ms, at_most = 1e3 * theirs_s, AT_MOST_OF_LIBSVM
        note(f"one-class SVM fit, peer libsvm: {what}", 1e3 * ours_s, "ms", at_most_of_peer=at_most, peer=peer_ms)


def test_a_fit_by_ascent(benchmark: BenchmarkFixture, note: Note) -> None:
    x = np.random.default_rng(1).normal(size=(ROWS, FEATURE_COUNT))
    params = repeat(benchmark, partial(ocsvm.fit, x, nu=NU, solver="sgd"), rounds=3)
    assert NU < float(params["effective_nu"]) <= 1.0
    if benchmark.enabled:
        note(f"Algorithm 1 of PC-FedAvg: {ROWS} rows x {FEATURE_COUNT} features", 1e3 * median_s(benchmark), "ms")


def test_a_gateways_part_of_a_round(benchmark: BenchmarkFixture, note: Note) -> None:
    phi = np.random.default_rng(2).normal(size=(ROWS, COMPONENTS)) / np.sqrt(COMPONENTS)
    nothing, cap = np.zeros(ROWS), 1.0 / (NU * ROWS)
    part = partial(ascend_in_map, phi, np.zeros(COMPONENTS), nothing, cap=cap, sweeps=5)
    alpha, _ = repeat(benchmark, part, rounds=3)
    assert alpha.any()
    if benchmark.enabled:
        note(f"one round of FedAvg: {ROWS} rows, {COMPONENTS} components, 5 epochs", 1e3 * median_s(benchmark), "ms")
