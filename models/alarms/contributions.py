"""Which features make the score of a window high, by occlusion: each feature in turn is set to the gateway's healthy
median, and what the score falls by is its contribution (Zeiler and Fergus 2014, of parts of a picture).

    contribution_j = score(x) - score(x with x_j = median_j)

One method for all detectors, and it asks of a model nothing but scores: a signed graph needs no further output, and a
detector of another package is explained like ours. Of a linear score it is exact: w_j (x_j - median_j), which add up to
score(x) - score(median). Of a subspace, whose score is the logarithm of a squared distance, it says how many times
nearer the window would be without the feature; the squared residuals, which add up, smear what one feature does over
all that move with it (Van den Kerkhof et al. 2013).

A deviation is in healthy spreads, `fedgate.models.units.median_spread` of the baseline: infinite where a feature stood
still all through the baseline and has moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Floats
from fedgate.models.units import median_spread, scales

RANKED_MAX = 5
NAMED_MAX = 3
NAMED_SHARE = 1.0 / 3.0  # of the largest contribution, from which on a feature is named beside the first


class Healthy(NamedTuple):
    """Median and spread (F,) of features while all was well; a spread of 0 is that of a feature that stood still."""

    median: Floats
    spread: Floats


class Contribution(NamedTuple):
    """What one feature of a window adds to its score, and its healthy median and spread."""

    feature: str
    amount: float  # of the score
    value: float
    median: float
    spread: float

    @property
    def deviation(self) -> float:
        """How far the value is from the median, in spreads."""
        distance = self.value - self.median
        if self.spread > 0.0:
            return distance / self.spread
        return math.copysign(math.inf, distance) if distance else 0.0


def measure_healthy(baseline: Array) -> Healthy:
    """Return median and spread of healthy features (n, F), n >= 1.

    One that is mostly at one value, as a switch is, has its standard deviation as its spread.
    """
    x = np.asarray(baseline, dtype=np.float64)
    median = np.median(x, axis=0)
    spread = median_spread(x, median)
    spread = np.where(spread > 0.0, spread, x.std(axis=0))
    flicker = scales(median, np.zeros_like(median))  # that float32 makes of a feature that stands still
    return Healthy(median, np.where(spread > flicker, spread, 0.0))


def contribute(score: Callable[[Array], Floats], row: Array, median: Array) -> Floats:
    """Return what each feature of a window (F,) adds to its score (F,); less than 0 where it speaks for health.

    :param score: maps features (F + 1, F) of windows, each as if it alone came next, to their scores (F + 1,).
    """
    occluded = np.repeat(np.asarray(row)[None], len(row) + 1, axis=0)
    places = np.arange(len(row))
    occluded[places + 1, places] = median
    scores = score(occluded)
    return np.asarray(scores[0] - scores[1:])


def rank_contributions(names: Sequence[str], row: Array, healthy: Healthy, amounts: Array) -> tuple[Contribution, ...]:
    """Return the features of a window (F,) that add to its score, the largest contribution (F,) first: at most
    `RANKED_MAX`.
    """
    known = np.where(np.isfinite(amounts), amounts, 0.0)
    largest = [int(place) for place in np.argsort(-known, kind="stable")[:RANKED_MAX] if known[place] > 0.0]
    return tuple(describe_place(names, row, healthy, place, float(known[place])) for place in largest)


def describe_place(names: Sequence[str], row: Array, healthy: Healthy, place: int, amount: float) -> Contribution:
    """Return what the feature at a place of a window (F,) adds, with its healthy values."""
    value, median, spread = (float(of[place]) for of in (row, healthy.median, healthy.spread))
    return Contribution(names[place], amount, value, median, spread)


def select_named(ranked: Sequence[Contribution]) -> tuple[Contribution, ...]:
    """Return those contributions that are worth a name in a sentence: at most `NAMED_MAX`, none that adds little beside
    the first.
    """
    return tuple(one for one in ranked[:NAMED_MAX] if one.amount >= NAMED_SHARE * ranked[0].amount)
