"""From a sensor node's frame to a score, in one process: how much of a core it takes and how long one waits."""

from __future__ import annotations

import time

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.gateway_agent import machine
from fedgate.gateway_agent.state import State
from fedgate.models.features.spec import FeatureSpec, extract, feature_names
from tests.benchmarks import station
from tests.benchmarks.conftest import Note
from tests.benchmarks.station import WINDOW_S, Arrival
from tests.benchmarks.timing import median_s, repeat

WINDOWS = 20
ROUNDS = 20
SPECTRA = ({"kind": "spectrum"}, {"kind": "welch", "segment_s": 0.5})


def watch(state: State, arrivals: list[Arrival]) -> int:
    """Step through the frames and return how many windows were scored."""
    scored = 0
    for arrival in arrivals:
        state, effects = machine.step(state, arrival.now_ns, arrival.event)
        scored += station.scores(effects)
    return scored


@pytest.mark.benchmark(timer=time.process_time)
def test_24_channels_at_600_hz(benchmark: BenchmarkFixture, note: Note) -> None:
    state = station.commissioned()
    arrivals = station.arrivals(state.context.settings.features, WINDOWS)
    scored = repeat(benchmark, watch, state, arrivals, rounds=ROUNDS)
    assert scored == WINDOWS
    if benchmark.enabled:
        busy_s = median_s(benchmark)
        share = busy_s / (WINDOWS * WINDOW_S)
        note("24 channels at 600 Hz, frame to score", WINDOWS / busy_s, "windows/s of a core")
        note("24 channels at 600 Hz, frame to score: load", 100 * share, "% of a core", at_most=5)


def test_delay_from_frame_to_score(benchmark: BenchmarkFixture, note: Note) -> None:
    state = station.commissioned()
    arrivals = station.arrivals(state.context.settings.features, WINDOWS)
    delays_s = []

    def watch_closely() -> None:
        now = state
        for arrival in arrivals:
            began_s = time.perf_counter()
            now, effects = machine.step(now, arrival.now_ns, arrival.event)
            if station.scores(effects):
                delays_s.append(time.perf_counter() - began_s)

    repeat(benchmark, watch_closely, rounds=ROUNDS)
    assert len(delays_s) >= WINDOWS
    p50_ms, p99_ms = 1e3 * np.quantile(delays_s, (0.5, 0.99))
    note("frame to score within the process, p50", p50_ms, "ms")
    note("frame to score within the process, p99", p99_ms, "ms")


@pytest.mark.parametrize(
    ("what", "spec"),
    [
        ("shipped, 1 channel at 100 Hz", station.shipped_features()),
        ("shipped, 24 channels at 600 Hz", station.features()),
        ("spectrum and welch, 24 channels at 600 Hz", station.features(*SPECTRA)),
    ],
)
def test_features_alone(what: str, spec: FeatureSpec, benchmark: BenchmarkFixture, note: Note) -> None:
    window = station.samples(spec, 1)[0]
    row = benchmark(extract, spec, window)
    assert row.shape == (len(feature_names(spec)),)
    if benchmark.enabled:
        note(f"features: {what}", 1e6 * median_s(benchmark), "us a window")
