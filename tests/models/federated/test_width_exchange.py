"""The exchange that finds a width: how much one gateway counts in it, honest or not, of many rows, few, or none."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from fedgate.models.arrays import FEATURES, WEIGHT, Array, Arrays, Floats
from fedgate.models.detectors.base.checks import MOST_ROWS
from fedgate.models.detectors.base.random_features import WIDTH
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm, RoundFailedError, close_round
from fedgate.models.federated.protocol.kernel_width import BINS, DISTANCES, FULL, counted, quantile, scaled
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.units import COMMON

LIES = [0, BINS - 1]
METHODS = ["fedavg", "fedavg-median", "fedavg-krum", "ensemble-svdd", "support-vector-election"]


def rows(seed: int, count: int = 200, size: float = 1.0) -> Floats:
    return size * np.random.default_rng(seed).normal(size=(count, 3))


def honest() -> list[Arrays]:
    """Return nine gateways whose rows differ by size."""
    return [{FEATURES: rows(place, size=2.0 ** (place / 6.0))} for place in range(9)]


def sent(algorithm: Algorithm, data: Arrays) -> Arrays:
    shared = algorithm.start(np.random.default_rng(0)).global_state
    return algorithm.phases[0].train(shared, {}, data, np.random.default_rng(0))[1]


def found(algorithm: Algorithm, updates: Iterable[Arrays]) -> float:
    """Return the width, or the unit, that follows from what gateways send."""
    server, phase = algorithm.start(np.random.default_rng(0)), algorithm.phases[0]
    total: Arrays = {}
    for update in updates:
        total = phase.reducer.merge(total, phase.admit(server, update) if update else {})
    shared = close_round(algorithm, server, total).global_state
    return float(next(shared[name] for name in (WIDTH, "gamma", COMMON) if name in shared))


def all_in(place: int, count: float = FULL) -> Array:
    return np.bincount([place], [count], minlength=BINS)


@pytest.mark.parametrize("place", LIES)
@pytest.mark.parametrize("method", METHODS)
def test_one_liar_of_ten_moves_the_width_no_farther_than_to_that_of_an_honest_one(method: str, place: int) -> None:
    algorithm = build(method, 3, {"normalisation": "none"})
    updates = [sent(algorithm, data) for data in honest()]
    own = [found(algorithm, [update]) for update in updates]
    assert min(own) < found(algorithm, [*updates, {DISTANCES: all_in(place)}]) < max(own)
    with pytest.raises(UpdateError, match="whole counts that add up to 1 to 4096"):
        found(algorithm, [*updates, {DISTANCES: all_in(place) + all_in(5, 1.0)}])


@pytest.mark.parametrize("place", LIES)
def test_one_liar_of_ten_does_not_move_the_unit_of_the_others(place: int) -> None:
    algorithm = build("robust-svm-subgradient", 3, {"normalisation": "none"})
    updates = [sent(algorithm, {FEATURES: rows(seed)}) for seed in range(9)]
    assert found(algorithm, [*updates, {DISTANCES: all_in(place)}]) == found(algorithm, updates) == 1.0


@pytest.mark.parametrize("bad", [0.5, -1.0])
def test_what_is_no_count_is_refused(bad: float) -> None:
    algorithm = build("fedavg", 3, {})
    with pytest.raises(UpdateError, match=r"whole counts that add up to 1 to 4096|expected 0 to 4096"):
        found(algorithm, [{DISTANCES: all_in(3, 7.0) + all_in(4, bad)}])


def test_a_gateway_counts_for_its_weight_and_not_for_its_rows() -> None:
    algorithm = build("fedavg", 3, {})
    for count, weight, expected in [(40, 1.0, FULL), (900, 0.25, FULL / 4), (900, 7.0, FULL)]:
        update = sent(algorithm, {FEATURES: rows(0, count), WEIGHT: np.array(weight)})
        assert update[DISTANCES].sum() == expected


def test_a_gateway_of_almost_no_weight_moves_nothing() -> None:
    algorithm = build("fedavg", 3, {"normalisation": "none"})
    updates = [sent(algorithm, data) for data in honest()]
    assert sent(algorithm, {FEATURES: rows(9, size=1e6), WEIGHT: np.array(1e-6)}) == {}
    little = sent(algorithm, {FEATURES: rows(9, size=1e6), WEIGHT: np.array(1e-3)})
    assert found(algorithm, [*updates, little]) == pytest.approx(found(algorithm, updates), rel=1e-3)


def test_a_gateway_of_more_rows_than_a_baseline_takes_part() -> None:
    algorithm = build("fedavg", 3, {})
    update = sent(algorithm, {FEATURES: rows(0, 25_000)})
    width = found(algorithm, [update])
    assert width == pytest.approx(found(algorithm, [sent(algorithm, {FEATURES: rows(1, MOST_ROWS)})]), rel=0.05)


@pytest.mark.parametrize("total", [1, 5, FULL])
def test_scaled_counts_are_whole_add_up_and_shift_as_counts_do(total: int) -> None:
    counts = counted(np.random.default_rng(3).chisquare(4, size=777))
    shares = scaled(counts, total)
    assert (
        shares.sum() == total and (shares == np.rint(shares)).all() and np.abs(shares - counts * total / 777).max() < 1
    )
    assert np.array_equal(scaled(np.roll(counts, 160), total), np.roll(shares, 160))
    assert not scaled(np.zeros(BINS), total).any()


def test_the_same_width_is_found_from_a_masked_sum() -> None:
    data = {f"gateway-{place}": gateway for place, gateway in enumerate(honest()[:3])}
    plain = build("fedavg", 3, {"normalisation": "none"})
    masked = build("fedavg", 3, {"normalisation": "none", "masking": {"fewest": 3}})
    widths = [float(run(each, data, rounds=1).server.global_state[WIDTH]) for each in (plain, masked)]
    assert widths[0] == widths[1]


@pytest.mark.parametrize("total", [np.zeros(BINS), all_in(3) - all_in(9, 1.0)])
def test_a_sum_that_no_counts_make_fails_the_round(total: Array) -> None:
    """What was masked was judged by nobody before it was added."""
    with pytest.raises(RoundFailedError, match="expected counts above zero in all and none negative"):
        quantile(total, 0.5)
