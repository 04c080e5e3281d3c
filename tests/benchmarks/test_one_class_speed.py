"""What a fit of the one-class SVM costs beside libsvm alone, and how long the ascents of PC-FedAvg take."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture
from sklearn.svm import OneClassSVM

from fedgate.models.detectors.base.dual_ascent import ascend_in_map
from fedgate.models.detectors.svm import ocsvm
from fedgate.models.detectors.svm.kernel import SOLVER_TOLERANCE
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import median_s, repeat

ROWS, FEATURE_COUNT, COMPONENTS, NU = 1_000, 300, 256, 0.1
TURNS = 15
AT_MOST_TIMES_LIBSVM = 1.1


def seconds(function: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    function()
    return time.perf_counter() - began_s


def times_as_long(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """Return how many times as long ours takes; in turns, so that a busy machine slows both alike."""
    turns = [(seconds(ours), seconds(theirs)) for _ in range(TURNS)]  # (turns, 2)
    ours_s, theirs_s = np.median(turns, axis=0)
    return float(ours_s / theirs_s)


def test_a_fit_against_libsvm(benchmark: BenchmarkFixture, note: Note) -> None:
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURE_COUNT))
    fit = partial(ocsvm.fit, x, nu=NU, gamma=1.0 / FEATURE_COUNT)
    alone = OneClassSVM(kernel="rbf", nu=NU, gamma=1.0 / FEATURE_COUNT, tol=SOLVER_TOLERANCE)
    params = repeat(benchmark, fit, rounds=TURNS)
    assert len(params["vectors"]) == len(alone.fit(x).support_vectors_)
    if benchmark.enabled:
        what = f"{ROWS} rows x {FEATURE_COUNT} features"
        note(f"one-class SVM fit: {what}", 1e3 * median_s(benchmark), "ms")
        ratio = times_as_long(fit, partial(alone.fit, x))
        note(f"one-class SVM fit against libsvm: {what}", ratio, "times as long", at_most=AT_MOST_TIMES_LIBSVM)


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
