"""The wire format on an update of 1.3 MB, the size of a small recurrent network's."""

from __future__ import annotations

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.config.protocol import wire
from fedgate.models.arrays import Arrays, equal
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import median_s

PARAMETERS = 325_000  # float32: 1.3 MB


def update() -> Arrays:
    values = np.random.default_rng(0).normal(size=PARAMETERS).astype(np.float32)
    first, second = values[:300_000].reshape(600, 500), values[300_000:]
    return {"weights.0": first, "weights.1": second}


def test_encode(benchmark: BenchmarkFixture, note: Note) -> None:
    body = benchmark(wire.encode, update())
    assert len(body) > 1_300_000
    if benchmark.enabled:
        note("wire: encode an update of 1.3 MB", 1e3 * median_s(benchmark), "ms")


def test_decode(benchmark: BenchmarkFixture, note: Note) -> None:
    arrays, _ = benchmark(wire.decode, wire.encode(update()))
    assert equal(arrays, update())
    if benchmark.enabled:
        note("wire: decode and check an update of 1.3 MB", 1e3 * median_s(benchmark), "ms")
