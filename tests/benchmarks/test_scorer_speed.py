"""The exported model in onnxruntime against scikit-learn's own scoring of the same support vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors import PERSONAL
from fedgate.models.detectors.svm import kernel
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import in_turns

NU = 0.9999  # all rows become support vectors, and the border stays finite
TURNS, CALLS = 10, 20
SIZES = ((139, 600), (1030, 300))  # support vectors, features
TIMES_AS_FAST = {1: 3, 64: 10}  # batch -> at least
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


@pytest.mark.parametrize("batch", TIMES_AS_FAST)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_onnx_against_scikit_learn(size: tuple[int, int], batch: int, benchmark: BenchmarkFixture, note: Note) -> None:
    pair = trained(*size)
    x = np.random.default_rng(1).normal(size=(batch, size[1])).astype(np.float32)
    scores: Floats = benchmark(pair.ours, x)
    log_f = np.log(pair.theirs(x.astype(np.float64)))
    assert np.ptp(scores + log_f) < TOLERANCE  # ours is -log of theirs, up to a constant
    if benchmark.enabled:
        what = f"{size[0]} vectors x {size[1]} features, batch {batch}"
        ours_s, theirs_s = in_turns(partial(pair.ours, x), partial(pair.theirs, x), TURNS, CALLS)
        at_most = 1.0 / TIMES_AS_FAST[batch]
        note(f"ONNX score, peer scikit-learn: {what}", 1e6 * ours_s, "us", at_most_of_peer=at_most, peer=1e6 * theirs_s)
