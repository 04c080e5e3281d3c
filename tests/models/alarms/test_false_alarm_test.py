"""Whether the promise is kept, told from few windows: how often a good model is blamed, which bad ones are found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedgate.models.alarms.false_alarm_test import (
    LEAST_BLOCKS,
    LEVEL,
    TOLERANCE,
    block_share,
    block_windows,
    is_broken,
    level_at,
    tail,
)
from fedgate.models.alarms.threshold import AlarmSpec, calibrate, rate_of

TRIALS = 300
RECENT = 1_024


@pytest.mark.parametrize(("alarmed", "blocks", "share"), [(0, 8, 0.1), (3, 8, 0.07), (8, 8, 0.5), (5, 96, 0.1)])
def test_the_tail_is_that_of_the_binomial_distribution(alarmed: int, blocks: int, share: float) -> None:
    twin = sum(math.comb(blocks, k) * share**k * (1 - share) ** (blocks - k) for k in range(alarmed, blocks + 1))
    assert tail(alarmed, blocks, share) == pytest.approx(twin, rel=1e-9)


def test_blocks_are_a_quarter_of_an_hour_or_128_windows() -> None:
    assert [block_windows(hop_s) for hop_s in (0.5, 5.0, 60.0, 900.0, 86_400.0)] == [128, 128, 15, 1, 1]


def test_all_tests_of_a_series_together_keep_the_level() -> None:
    assert sum(level_at(look) for look in range(1, 10_000)) == pytest.approx(LEVEL, rel=1e-3)


def alarmed_blocks(scores: np.ndarray, level: float, windows: int) -> tuple[int, int]:
    blocks = len(scores) // windows
    return int((scores[: blocks * windows].reshape(blocks, windows) >= level).any(axis=1).sum()), blocks


@pytest.mark.parametrize("hop_s", [1.0, 5.0, 60.0, 600.0])
@pytest.mark.parametrize("calibration", [20, 100, 667])
@pytest.mark.parametrize("tail_of", ["exponential", "normal"])
def test_a_good_model_is_blamed_no_more_often_than_stated(hop_s: float, calibration: int, tail_of: str) -> None:
    """With levels as gateways take them, from few windows, whose errors are part of it."""
    rng = np.random.default_rng(0)
    draw = getattr(rng, tail_of if tail_of == "normal" else "standard_exponential")
    spec, windows = AlarmSpec(), block_windows(hop_s)
    share = block_share(rate_of(spec, 86_400 / hop_s), windows)
    blamed = 0
    for _ in range(TRIALS):
        level = calibrate(spec, draw(size=calibration), 86_400 / hop_s).raise_level
        blamed += is_broken(*alarmed_blocks(draw(size=RECENT), level, windows), share)
    assert blamed <= LEVEL * TRIALS + 4 * math.sqrt(LEVEL * TRIALS), f"{blamed} of {TRIALS}"


@pytest.mark.parametrize(("hop_s", "times"), [(1.0, 3_000.0), (5.0, 200.0), (60.0, 30.0), (600.0, 30.0)])
def test_a_model_that_alarms_so_many_times_too_often_is_found(hop_s: float, times: float) -> None:
    """What 1,024 windows show: a rate of `times` the promise in most cases; of TOLERANCE times, hardly ever."""
    rng = np.random.default_rng(0)
    rate, windows = rate_of(AlarmSpec(), 86_400 / hop_s), block_windows(hop_s)
    share = block_share(rate, windows)

    def found(factor: float) -> float:
        alarms = rng.random((400, RECENT // windows, windows)) < rate * factor
        return float(np.mean([is_broken(int(one.any(axis=1).sum()), len(one), share) for one in alarms]))

    assert found(times) > 0.8 and found(TOLERANCE) <= 1.5 * LEVEL


def test_one_storm_is_no_evidence() -> None:
    assert not is_broken(LEAST_BLOCKS - 1, LEAST_BLOCKS - 1, 1e-9)
    assert is_broken(LEAST_BLOCKS, LEAST_BLOCKS, 1e-3)
