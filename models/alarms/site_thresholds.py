"""The distribution of a site's scores as one sum, so that a gateway has a level before it has a baseline of its own.

Each gateway counts its scores in bins that are the same for all: the logarithmic ones of DDSketch (Masson, Rim and Lee,
DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees, VLDB 2019), for either sign, with a
fixed number of them. So a sketch is one array of counts, merging is `+`, and it may travel masked like any other sum.

Only scores on a common scale have a common level: sketch deviations in a gateway's own units or heights
(`fedgate.models.alarms.rules`), not raw scores of models that differ.
"""

from __future__ import annotations

import math

import numpy as np

from fedgate.models.alarms.levels import CalibrationError
from fedgate.models.alarms.threshold import MINIMUM_SCORES, AlarmSpec, Levels, cleared_at, rate_of
from fedgate.models.arrays import Array, Floats
from fedgate.models.whole import round_down, round_up

ACCURACY = 0.01  # of a quantile, relative to it
SMALLEST, LARGEST = 1e-4, 1e4  # magnitudes told apart; smaller ones count as zero, larger ones as the largest

_STEP = math.log((1 + ACCURACY) / (1 - ACCURACY))  # ln γ
_FIRST = math.floor(math.log(SMALLEST) / _STEP)
SIDE = math.ceil(math.log(LARGEST) / _STEP) - _FIRST  # bins of one sign
BINS = 2 * SIDE + 1  # negative ones from the largest magnitude on, zero, positive ones


class SketchError(ValueError):
    """Values or counts that make no sketch."""


def sketch(values: Array) -> Floats:
    """Count values (n,) in the bins: (B,), whole numbers.

    Raises:
        SketchError: the values are not (n,), or one is not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        wrong = np.count_nonzero(~np.isfinite(values))
        raise SketchError(f"values of shape {values.shape}, {wrong} of them not finite; expected (n,), all finite")
    size = np.abs(values)
    exponent = np.ceil(np.log(np.clip(size, SMALLEST, LARGEST)) / _STEP).astype(np.int64) - _FIRST
    place = np.where(size < SMALLEST, 0, np.clip(exponent, 1, SIDE))
    return np.bincount(SIDE + np.where(values < 0, -place, place), minlength=BINS).astype(np.float64)


def quantile(counts: Array, share: float) -> float:
    """Return the quantile of which `share` of the values that `counts` (BINS,) sketch lie at or below, by the nearest
    rank.

    It is within ACCURACY of that value, relative to it, where its magnitude is in SMALLEST .. LARGEST, and within
    SMALLEST where it is less.

    Raises:
        SketchError: counts that are none, an empty sketch, or a share outside 0 .. 1.
    """
    counts, total = _checked(counts)
    if not 0 <= share <= 1:
        raise SketchError(f"share {share} given; expected 0 to 1")
    rank = max(round_up(share * total), 1)
    return _value(int(np.searchsorted(np.cumsum(counts), rank - 0.5)))


def level_of(counts: Array, rate: float) -> float:
    """Return the level, from the sketch of all scores, (BINS,), that a further one reaches with a probability of at
    most `rate`.

    It is the upper end of the bin of the rank that conformal prediction takes of all n scores
    (`fedgate.models.alarms.levels`), so it is at most 2 ACCURACY too high. Nothing rarer than 1 / (n + 1) can be
    promised.

    Raises:
        SketchError: counts that are none.
        CalibrationError: fewer scores than the rate needs, or the level lies where magnitudes are no longer told apart.
    """
    counts, total = _checked(counts)
    allowed = round_down((total + 1) * rate)  # scores in the level's bin or above
    if allowed < 1 or total < MINIMUM_SCORES:
        needed = max(round_up(1 / rate) - 1, MINIMUM_SCORES)
        raise CalibrationError(
            f"the site's sketch holds {total:.0f} scores, {rate:.3g} alarms per window need at least {needed}: wait for"
            " more gateways or windows, or promise more false alarms per day"
        )
    place = int(np.searchsorted(np.cumsum(counts), total - allowed + 0.5))  # of the highest score but allowed - 1
    if place in (0, BINS - 1):
        raise CalibrationError(
            f"the level lies among scores of magnitude {LARGEST:g} or more, which the sketch does not tell apart:"
            " sketch scores in units of their own spread"
        )
    return math.nextafter(_upper_end(place), math.inf)


def levels_of(spec: AlarmSpec, counts: Array, windows_per_day: float) -> Levels:
    """Return the levels of a site, from a sketch (BINS,), for a gateway that has none of its own, as
    `fedgate.models.alarms.threshold.calibrate` does.

    Raises:
        SketchError, CalibrationError: as `level_of`, or windows_per_day not positive.
    """
    level = level_of(counts, rate_of(spec, windows_per_day))
    median = quantile(counts, 0.5)
    clear_level = cleared_at(median, quantile(counts, spec.clear_quantile), level)
    return Levels(level, clear_level, median, int(counts.sum()), extrapolated=False)


def _checked(counts: Array) -> tuple[Floats, float]:
    counts = np.asarray(counts, dtype=np.float64)
    if counts.shape != (BINS,) or not np.isfinite(counts).all() or (counts <= -0.5).any():
        raise SketchError(f"counts of shape {counts.shape} given; expected ({BINS},) of counts, none below zero")
    counts = np.rint(counts)  # a sum that travelled masked comes back within its quantum
    total = float(counts.sum())
    if total < 1:
        raise SketchError("the sketch is empty; expected the scores of one gateway at least")
    return counts, total


def _value(place: int) -> float:
    """Return the middle of a bin in the sense that its ends are equally far away, relative to themselves."""
    exponent = abs(place - SIDE)
    if exponent == 0:
        return 0.0
    return math.copysign(2 * math.exp((exponent + _FIRST) * _STEP) / (1 + math.exp(_STEP)), place - SIDE)


def _upper_end(place: int) -> float:
    exponent = abs(place - SIDE)
    if exponent == 0:
        return SMALLEST
    # A bin of negative values is turned round: its upper end is the magnitude where it begins.
    return math.exp((exponent + _FIRST) * _STEP) if place > SIDE else -math.exp((exponent - 1 + _FIRST) * _STEP)
