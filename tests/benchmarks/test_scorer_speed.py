"""The exported model in onnxruntime against scikit-learn's own scoring of the same support vectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors import PERSONAL
from fedgate.models.detectors.svm import kernel
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import median_s

NU = 0.9999  # all rows become support vectors, and the border stays finite
TURNS, CALLS = 10, 20
SIZES = ((139, 600), (1030, 300))  # support vectors, features
AT_LEAST = {1: 3.0, 64: 10.0}  # batch -> times as fast
TOLERANCE = 1e-3


class Pair(NamedTuple):
    """One model twice: as the gateway runs it and as scikit-learn does."""

    ours: Scorer
    theirs: Callable[[Array], Array]
    own: Arrays


def trained(vectors: int, feature_count: int) -> Pair:
    """Fit scikit-learn's one-class SVM with exactly so many support vectors and export it as a gateway would get it."""
    from sklearn.svm import OneClassSVM

    rng, gamma = np.random.default_rng(0), 1.0 / feature_count
    fitted: Any = OneClassSVM(kernel="rbf", gamma=gamma, nu=NU)
    fitted.fit(rng.normal(size=(vectors, feature_count)))
    assert len(fitted.support_vectors_) == vectors
    shares = fitted.dual_coef_.ravel() / fitted.dual_coef_.sum()
    params = {"vectors": fitted.support_vectors_, "coefficients": shares, "gamma": np.array(gamma)}
    own = {"center": np.zeros(feature_count), "scale": np.ones(feature_count)}
    model = kernel.graph(params | {"offset": np.array(0.0)}, PERSONAL)
    return Pair(Scorer(model, own), fitted.score_samples, own)


def seconds(function: Callable[[Array], object], x: Array) -> list[float]:
    """Return how long each of a few calls in a row took, so that each finds its model in the cache."""
    taken_s = []
    for _ in range(CALLS):
        began_s = time.perf_counter()
        function(x)
        taken_s.append(time.perf_counter() - began_s)
    return taken_s


def times_as_fast(pair: Pair, x: Array) -> float:
    """Return how many times as fast ours is; in turns, so that a busy machine slows both alike."""
    turns = [(seconds(pair.ours, x), seconds(pair.theirs, x)) for _ in range(TURNS)]  # (turns, 2, calls)
    ours_s, theirs_s = np.median(turns, axis=(0, 2))
    return float(theirs_s / ours_s)


@pytest.mark.parametrize("batch", AT_LEAST)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_onnx_against_scikit_learn(size: tuple[int, int], batch: int, benchmark: BenchmarkFixture, note: Note) -> None:
    pair = trained(*size)
    x = np.random.default_rng(1).normal(size=(batch, size[1])).astype(np.float32)
    scores: Floats = benchmark(pair.ours, x)
    log_f = np.log(pair.theirs(x.astype(np.float64)))
    assert np.ptp(scores + log_f) < TOLERANCE  # ours is -log of theirs, up to a constant
    if benchmark.enabled:
        what = f"{size[0]} vectors x {size[1]} features, batch {batch}"
        note(f"ONNX score: {what}", 1e6 * median_s(benchmark), "us")
        note(f"ONNX against scikit-learn: {what}", times_as_fast(pair, x), "times as fast", at_least=AT_LEAST[batch])
