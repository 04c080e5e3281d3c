"""What the features of a window are expected to be, from those before it and beside it: a ridge regression for each.

It is small enough for the agent's main process to fit and it leaves a signed deviation for each feature, which a
model's score has not: whether a value is too high or too low is what tells a drift from unrest. A feature is expected
from its own last `lags` values and, where wanted, from the other features of the same window and of the one before;
a calendar's columns among the features make it know the hour.

A level must be taken from deviations as they will be on windows that nothing was fitted to, but two days held out of
six are few for rare alarms. So the baseline's own deviations are cross-fitted (Stone, Cross-validatory choice and
assessment of statistical predictions, 1974): each of `FOLDS` stretches by the weights fitted to the others, and all of
it counts. From then on the weights of the whole baseline serve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.arrays import Array, Floats
from models.levels import CalibrationError

BRIDGED_ROWS = 2  # missing windows over which the last value holds; after more the past begins anew
FOLDS = 6
RIDGE = 0.01  # per row, of features in units of their deviation
LARGEST = 10.0  # deviations, beyond which a value is no further away: one wild window must not shape the rest
LEAST_SCALE, LEAST_SPREAD = 1e-9, 1e-3
TO_DEVIATION = 1.4826  # of a normal distribution's median absolute deviation
LEAST_ROWS = 10 * FOLDS


@dataclass(frozen=True, slots=True, eq=False)
class Usual:
    """Where each of F features lies over the baseline, and how widely it varies."""

    centre: Floats  # (F,)
    scale: Floats  # (F,)

    def deviations(self, values: Array) -> Floats:
        """Return features (..., F) as deviations from their centre, in scales."""
        z = (np.asarray(values, dtype=np.float64) - self.centre) / self.scale
        return np.clip(z, -LARGEST, LARGEST)


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """How the W watched of F features are expected, all in usual deviations: from the weights of their own past (W,
    lags), newest first, of all features now (W, F) and in the window before (W, F), each 0 for itself, and a constant.
    """

    watched: tuple[int, ...]
    lags: int
    of_past: Floats  # (W, lags)
    of_now: Floats  # (W, F)
    of_before: Floats  # (W, F)
    constant: Floats  # (W,)
    spread: Floats  # (W,) of what is left


def residual(expected: Expectation, past: Floats, now: Floats) -> Floats:
    """Return how far, in spreads (W,), a window `now` (F,) is from what `past` (lags, F), newest first, lets expect."""
    watched = list(expected.watched)
    says = expected.constant + expected.of_now @ now + (expected.of_past * past[:, watched].T).sum(axis=1)
    if expected.lags:
        says = says + expected.of_before @ past[0]
    return np.asarray((now[watched] - says) / expected.spread)


def usual(values: Array) -> tuple[Usual, Floats]:
    """Return where the features of a baseline (n, F) lie, and their cross-fitted deviations from there (n, F)."""
    rows = np.asarray(values, dtype=np.float64)
    found = Usual(rows.mean(axis=0), np.maximum(rows.std(axis=0), LEAST_SCALE))
    z, fold = (rows - found.centre) / found.scale, _folds(len(rows))
    others = [(z.sum(axis=0) - z[fold == k].sum(axis=0)) / (fold != k).sum() for k in range(FOLDS)]  # means of z
    return found, np.clip(z - np.array(others)[fold], -LARGEST, LARGEST)


def expectation(
    z: Floats, missing: NDArray[np.int64], watched: tuple[int, ...], lags: int, others: bool
) -> tuple[Expectation, Floats]:
    """Return what a baseline of usual deviations (n, F) lets expect, and how far its windows are from that (n, W),
    cross-fitted, NaN where the past does not reach far enough. `missing` (n,) are the rows missing before each.

    Raises:
        CalibrationError: fewer than `LEAST_ROWS` rows have a past.
    """
    before = past_rows(missing, lags)
    usable = np.flatnonzero((before >= 0).all(axis=1))
    if len(usable) < LEAST_ROWS:
        raise CalibrationError(
            f"{len(usable)} of {len(z)} windows have {lags} before them, at least {LEAST_ROWS} needed for rules on"
            " values: let the baseline run longer, or take fewer lags"
        )
    weights, left = [], np.full((len(z), len(watched)), np.nan)
    for index, feature in enumerate(watched):
        x = _regressors(z[before[usable]], z[usable], feature, others)  # (u, R)
        fitted, left[usable, index] = _cross_fitted(x, z[usable, feature], _folds(len(usable)))
        weights.append(fitted)
    spread = np.maximum(TO_DEVIATION * np.median(np.abs(left[usable]), axis=0), LEAST_SPREAD)
    return _expectation(np.array(weights), watched, lags, z.shape[1], spread), np.asarray(left / spread)


def _expectation(weights: Floats, watched: tuple[int, ...], lags: int, features: int, spread: Floats) -> Expectation:
    """Return the weights (W, R) by what they weigh, where `_regressors` has put it."""
    of_now, of_before = np.zeros((2, len(watched), features))
    for row, feature in enumerate(watched):
        beside = [j for j in range(features) if j != feature]
        others = weights[row, lags:-1]  # of the same window, then of the one before; or none
        of_now[row, beside[: len(others)]] = others[: len(beside)]
        of_before[row, beside[: len(others[len(beside) :])]] = others[len(beside) :]
    return Expectation(watched, lags, weights[:, :lags], of_now, of_before, weights[:, -1], spread)


def _folds(count: int) -> NDArray[np.int64]:
    """Return the stretch that each row belongs to."""
    return np.arange(count) * FOLDS // max(count, 1)


def past_rows(missing: NDArray[np.int64], lags: int) -> NDArray[np.int64]:
    """Return which rows (n, lags) come before each, newest first, -1 where none does; a row stands for up to
    `BRIDGED_ROWS` missing ones behind it.
    """
    count = len(missing)
    breaks = (missing < 0) | (missing > BRIDGED_ROWS)
    held = np.where(breaks, 0, missing)  # copies of the row before
    held[:1] = 0
    filled = np.repeat(np.maximum(np.arange(count) - 1, -1), held + 1)  # place for each copy, and for the row itself
    place = np.cumsum(held + 1) - 1  # of each row in `filled`
    filled[place] = np.arange(count)
    first = np.maximum.accumulate(np.where(breaks | (np.arange(count) == 0), place, 0))  # of its series
    wanted = place[:, None] - np.arange(1, lags + 1)
    return np.where(wanted >= first[:, None], filled[np.maximum(wanted, 0)], -1)


def _regressors(past: Floats, now: Floats, feature: int, others: bool) -> Floats:
    """Return regressors (n, R) of a feature from past (n, lags, F) and now (n, F)."""
    one = np.ones((len(now), 1))
    if not others:
        return np.concatenate([past[:, :, feature], one], axis=1)
    beside = [j for j in range(now.shape[1]) if j != feature]
    before = past[:, :1, beside].reshape(len(now), -1)  # nothing where nothing before is looked at
    return np.concatenate([past[:, :, feature], now[:, beside], before, one], axis=1)


def _cross_fitted(x: Floats, y: Floats, fold: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Return the weights (R,) of all rows, and for each row what the weights of the other folds leave, (u,)."""
    grams = [x[fold == k].T @ x[fold == k] for k in range(FOLDS)]
    crosses = [x[fold == k].T @ y[fold == k] for k in range(FOLDS)]
    gram, cross = np.sum(grams, axis=0), np.sum(crosses, axis=0)
    left = np.empty_like(y)
    for k in range(FOLDS):
        at = fold == k
        left[at] = y[at] - x[at] @ _solved(gram - grams[k], cross - crosses[k], int((~at).sum()))
    return _solved(gram, cross, len(y)), left


def _solved(gram: Floats, cross: Floats, rows: int) -> Floats:
    return np.asarray(np.linalg.solve(gram + RIDGE * rows * np.eye(len(gram)), cross))
