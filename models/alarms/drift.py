"""Whether scores are still those of the baseline from which the level was taken; if not, the level is out of date.

Never a sign of damage by itself: a season, a new timetable or a moved sensor shift scores slowly and for good, and then
a level promises what it cannot keep. Damage is for the level; this says that somebody should calibrate anew.

Each score becomes the normal score of its rank in the baseline, so that no unit and no single excursion matters. Over a
block (a day, so that what repeats daily cancels) their mean and their mean square are taken; each is compared with that
of all blocks before, and the differences are summed up to either side: a self-starting CUSUM (Hawkins, Self-starting
CUSUM charts for location and scale, The Statistician 36, 1987), which needs no long history to begin and keeps its rate
of false alarms from the first blocks on. Memory is O(1), whatever the number of windows.

The promise is one false drift in `years_between_false` years where blocks are independent and about normal. Weather
that lasts for weeks is no false drift in this sense, but a real one that may pass.

What is found is learned as usual by and by, so only what is plain is found: after a baseline of 14 blocks and with a
promise of one a year, a sudden shift of two block deviations takes a week, one of a single deviation months if it is
found at all; a shift that grows by 0.1 deviations a block takes 18 blocks, by 0.02 it takes 56 (simulated medians).
Leave out windows in which an alarm is active, so that damage is not learned.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from fedgate.models.alarms.levels import MINIMUM_SCORES, CalibrationError
from fedgate.models.arrays import Array

Change = Literal["higher", "lower", "wider", "narrower"]

ALLOWANCE = 0.5  # block deviations: a lasting shift of twice as many is found soonest
RANKS = 199  # baseline quantiles that are kept at most
DAYS_A_YEAR = 365.25
_OVERSHOOT = 1.166  # Siegmund's, for both ends of a discrete sum
_CHANGES: tuple[tuple[Change, Change], ...] = (("higher", "lower"), ("wider", "narrower"))
_SUMS = 2 * len(_CHANGES)
_FEWEST_BLOCKS = 3  # before one more can be judged: their deviation has two degrees of freedom
_LEAST_SPREAD = 1e-6  # of blocks, in normal scores
_NORMAL = NormalDist()


class DriftSpec(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """When scores are said to have drifted; an operator's settings."""

    years_between_false: float = Field(default=1.0, gt=0)
    block_h: float = Field(default=24.0, gt=0)


@dataclass(frozen=True, slots=True)
class Reference:
    """What scores are compared with; plain numbers."""

    quantiles: tuple[float, ...]  # of the baseline, ascending
    block_windows: int
    limit: float  # of a sum, in block deviations


@dataclass(frozen=True, slots=True)
class DriftState:
    """What is remembered between scores; plain numbers."""

    windows: int = 0  # of the block that is not whole yet
    total: tuple[float, float] = (0.0, 0.0)  # of their normal scores, and of the squares
    blocks: int = 0
    mean: tuple[float, float] = (0.0, 0.0)  # over blocks
    squares: tuple[float, float] = (0.0, 0.0)  # of the deviations from the mean, summed over blocks
    up: tuple[float, float] = (0.0, 0.0)
    down: tuple[float, float] = (0.0, 0.0)
    change: Change | None = None  # stays until the next calibration


def begin(spec: DriftSpec, scores: Array, windows_per_day: float) -> tuple[Reference, DriftState]:
    """Return the reference of baseline scores (n,) in the order of time, and the state behind them.

    Raises:
        CalibrationError: fewer than `MINIMUM_SCORES`, one that is not finite, all of them equal, or windows_per_day not
            positive.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if not 0 < windows_per_day < math.inf:
        raise CalibrationError(f"{windows_per_day} windows per day given; expected a positive number")
    if scores.ndim != 1 or len(scores) < MINIMUM_SCORES or not np.isfinite(scores).all() or np.ptp(scores) == 0:
        raise CalibrationError(
            f"scores of shape {scores.shape} given; expected at least {MINIMUM_SCORES} finite ones that differ"
        )
    count = min(len(scores), RANKS)
    quantiles = np.quantile(scores, (np.arange(count) + 0.5) / count).tolist()
    block_windows = max(round(windows_per_day * spec.block_h / 24), 1)
    blocks_between = spec.years_between_false * DAYS_A_YEAR * windows_per_day / block_windows
    reference = Reference(tuple(quantiles), block_windows, limit_for(max(blocks_between, 1.0)))
    state = DriftState()
    for score in scores.tolist():
        state, _ = update(reference, state, score)
    # The baseline is what is usual, whatever it did in itself.
    return reference, replace(state, windows=0, total=(0.0, 0.0), up=(0.0, 0.0), down=(0.0, 0.0), change=None)


def limit_for(blocks_between_false: float) -> float:
    """Return the limit of the sums for a mean number of blocks between false alarms of any of them.

    Siegmund's approximation for one sum of standard normal steps (Sequential analysis, 1985, section 2.6; Montgomery,
    Introduction to statistical quality control, equation 9.6): (exp(b) - b - 1) / (2 k²), b = 2 k (limit + 1.166),
    solved by halving; the sums share the rate equally.
    """
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        b = 2 * ALLOWANCE * (middle + _OVERSHOOT)
        long_enough = b > math.log(1e300) or (math.exp(b) - b - 1) / (2 * ALLOWANCE**2) >= _SUMS * blocks_between_false
        low, high = (low, middle) if long_enough else (middle, high)
    return high


def update(reference: Reference, state: DriftState, score: float) -> tuple[DriftState, bool]:
    """Take in the next score and tell whether scores have drifted; `state.change` says how.

    Raises:
        CalibrationError: the score is not finite.
    """
    if not math.isfinite(score):
        raise CalibrationError(f"score {score} given; expected a finite number: leave out what cannot be scored")
    value = _normal_score(reference.quantiles, score)
    state = replace(state, windows=state.windows + 1, total=(state.total[0] + value, state.total[1] + value * value))
    if state.windows >= reference.block_windows:
        state = _block(reference, state)
    return state, state.change is not None


def _normal_score(quantiles: tuple[float, ...], score: float) -> float:
    """Return the normal score of the rank that a score has among the baseline's; of the middle one where they tie."""
    rank = (bisect_left(quantiles, score) + bisect_right(quantiles, score) + 1) / 2  # from 1/2 to count + 1/2
    return _NORMAL.inv_cdf(rank / (len(quantiles) + 1))


def _block(reference: Reference, state: DriftState) -> DriftState:
    """Judge a whole block by those before it, then count it among them."""
    # The cube root of a mean of squares is about normal (Wilson and Hilferty 1931), the mean itself is skewed.
    found = (state.total[0] / state.windows, math.cbrt(state.total[1] / state.windows))
    steps = [standard_step(*each, state.blocks) for each in zip(found, state.mean, state.squares, strict=True)]
    up = [max(0.0, old + step - ALLOWANCE) for old, step in zip(state.up, steps, strict=True)]
    down = [max(0.0, old - step - ALLOWANCE) for old, step in zip(state.down, steps, strict=True)]
    change = state.change
    for (rising, falling), above, below in zip(_CHANGES, up, down, strict=True):
        if change is None and max(above, below) > reference.limit:
            change = rising if above > below else falling
    blocks = state.blocks + 1
    mean = [old + (new - old) / blocks for old, new in zip(state.mean, found, strict=True)]
    squares = [
        old + (new - before) * (new - after)
        for old, new, before, after in zip(state.squares, found, state.mean, mean, strict=True)
    ]
    return DriftState(0, (0.0, 0.0), blocks, _pair(mean), _pair(squares), _pair(up), _pair(down), change)


def _pair(values: list[float]) -> tuple[float, float]:
    return values[0], values[1]


def standard_step(value: float, mean: float, squares: float, blocks: int) -> float:
    """Return how far a block is from those before it as a standard normal value: Student's t of the difference, with
    the quantile of the normal distribution that belongs to it (Wallace 1959).
    """
    if blocks < _FEWEST_BLOCKS:
        return 0.0
    freedom = blocks - 1
    spread = max(math.sqrt(squares / freedom), _LEAST_SPREAD)
    t = (value - mean) / (spread * math.sqrt(1 + 1 / blocks))
    size = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.copysign(size, t)
