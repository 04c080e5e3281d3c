"""A round of each support vector algorithm, all gateways and the cloud together, on one core."""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import Outcome, run
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import median_s, repeat
from tests.support.soak import some

GATEWAYS, ROWS = 10, 1_000
AT_MOST_S = 1.0
ROUNDS = 5
CASES = [(name, count) for name in ("ensemble-svdd", "support-vector-election") for count in (20, 100)]


def fleet(feature_count: int) -> dict[str, Arrays]:
    rng = np.random.default_rng(0)
    return {f"gateway-{index}": {FEATURES: rng.normal(size=(ROWS, feature_count))} for index in range(GATEWAYS)}


# In 100 dimensions no synthetic row lies outside the sphere of its member.
@pytest.mark.filterwarnings("ignore::fedgate.models.detectors.base.checks.FitWarning")
@pytest.mark.parametrize(("name", "feature_count"), some(CASES))
def test_a_round_of_ten_gateways(name: str, feature_count: int, benchmark: BenchmarkFixture, note: Note) -> None:
    algorithm, data = build(name, feature_count, {}), fleet(feature_count)
    run(algorithm, {"first": next(iter(data.values()))})  # loads the solver
    outcome: Outcome = repeat(benchmark, run, algorithm, data, rounds=ROUNDS)
    assert len(outcome.server.global_state["vectors"]) > 100
    if benchmark.enabled:
        what = f"{name}: {GATEWAYS} gateways x {ROWS} rows x {feature_count} features"
        note(what, median_s(benchmark), "s a round", at_most=AT_MOST_S)
