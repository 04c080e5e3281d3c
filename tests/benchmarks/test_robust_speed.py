"""What a gateway takes for one step of the robust SVM, at 30 features and 200 rows."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator
from fedgate.models.federated import build
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import median_s, repeat

ROWS, FEATURE_COUNT, ROUNDS = 200, 29, 30  # and the constant feature makes P = 30
ADMM_MS, SUBGRADIENT_MS = 5.0, 5.0
PLAIN = {"normalisation": "none", "radius": 1e-3}


def gateway() -> Arrays:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(ROWS, FEATURE_COUNT))
    return {FEATURES: x, LABELS: (x[:, 0] + 0.2 * rng.normal(size=ROWS) > 0.5).astype(np.int64)}


@pytest.mark.parametrize("norm", ["1", "2", "inf"])
@pytest.mark.parametrize("kappa", [1.0, None], ids=["robust", "regularised"])
def test_a_step_of_admm(norm: str, kappa: float | None, benchmark: BenchmarkFixture, note: Note) -> None:
    algorithm, data, rng = (
        build("robust-svm-admm", FEATURE_COUNT, {**PLAIN, "norm": norm, "kappa": kappa}),
        gateway(),
        generator(0, 0, "a"),
    )
    phase, server = algorithm.phases[0], algorithm.start(rng)
    own, update = phase.train(server.global_state, {}, data, rng)
    server = phase.advance(server, update)  # a step in the middle of a training, not the first
    repeat(benchmark, phase.train, server.global_state, own, data, rng, rounds=ROUNDS)
    if benchmark.enabled:
        note(f"ADMM step, norm {norm}, kappa {kappa}", 1e3 * median_s(benchmark), "ms", at_most=ADMM_MS)


@pytest.mark.parametrize("norm", ["1", "2", "inf"])
@pytest.mark.parametrize("box", [(0.0, 1.0), None], ids=["box", "open"])
def test_a_subgradient(norm: str, box: tuple[float, float] | None, benchmark: BenchmarkFixture, note: Note) -> None:
    settings = {**PLAIN, "norm": norm, "box": box}
    algorithm, data, rng = build("robust-svm-subgradient", FEATURE_COUNT, settings), gateway(), generator(0, 0, "a")
    phase, server = algorithm.phases[0], algorithm.start(rng)
    _, update = phase.train(server.global_state, {}, data, rng)
    server = phase.advance(server, update)
    repeat(benchmark, phase.train, server.global_state, {}, data, rng, rounds=ROUNDS)
    if benchmark.enabled:
        note(f"subgradient, norm {norm}, box {box}", 1e3 * median_s(benchmark), "ms", at_most=SUBGRADIENT_MS)
