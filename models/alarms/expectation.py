"""What the features of a window are expected to be, from those before it and beside it: a ridge regression for each,
all of them from one matrix of products.

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
from typing import NamedTuple

import numpy as np

from fedgate.models.alarms.levels import CalibrationError
from fedgate.models.arrays import Array, Floats, Integers
from fedgate.models.units import median_spread, scales

BRIDGED_ROWS = 2  # missing windows over which the last value holds; after more the past begins anew
FOLDS = 6
RIDGE = 0.01  # per row, of features in units of their deviation
LARGEST = 10.0  # deviations, beyond which a value is no further away: one wild window must not shape the rest
LEAST_SPREAD = 1e-3  # deviations
LEAST_ROWS = 10 * FOLDS


@dataclass(frozen=True, slots=True, eq=False)
class Standardisation:
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
    prediction = expected.constant + expected.of_now @ now + (expected.of_past * past[:, watched].T).sum(axis=1)
    if expected.lags:
        prediction = prediction + expected.of_before @ past[0]
    return np.asarray((now[watched] - prediction) / expected.spread)


def standardise(values: Array) -> tuple[Standardisation, Floats]:
    """Return where the features of a baseline (n, F) lie, and their cross-fitted deviations from there (n, F)."""
    rows = np.asarray(values, dtype=np.float64)
    centre = rows.mean(axis=0)
    found = Standardisation(centre, scales(centre, rows.std(axis=0)))
    z, fold = (rows - found.centre) / found.scale, _folds(len(rows))
    others = [(z.sum(axis=0) - z[fold == k].sum(axis=0)) / (fold != k).sum() for k in range(FOLDS)]  # means of z
    return found, np.clip(z - np.array(others)[fold], -LARGEST, LARGEST)


def expectation(
    z: Floats, missing: Integers, watched: tuple[int, ...], lags: int, others: bool
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
    past, now, fold = z[before[usable]], z[usable], _folds(len(usable))  # (u, lags, F), (u, F), (u,)
    fit = _fit_beside if others else _fit_alone
    parts = [_Sums.of(past[fold == k], now[fold == k], watched) for k in range(FOLDS)]
    whole = _Sums(*(np.sum(each, axis=0) for each in zip(*parts, strict=True)))
    weights = fit(whole, watched)
    left = np.full((len(z), len(watched)), np.nan)
    for k, part in enumerate(parts):
        others_fitted = fit(_Sums(*(all_ - own for all_, own in zip(whole, part, strict=True))), watched)
        at = usable[fold == k]
        left[at] = now[fold == k][:, list(watched)] - _predict(others_fitted, past[fold == k], now[fold == k], watched)
    spread = np.maximum(median_spread(left[usable], 0.0), LEAST_SPREAD)
    return Expectation(watched, lags, *weights, spread), np.asarray(left / spread)


class _Weights(NamedTuple):
    """As `Expectation` has them."""

    of_past: Floats  # (W, lags)
    of_now: Floats  # (W, F)
    of_before: Floats  # (W, F)
    constant: Floats  # (W,)


class _Sums(NamedTuple):
    """Sums over rows, which add up: products of what all regressions share, b = (now, before, 1) (R,), and of what
    each has for itself, the watched feature's own past p (lags,).
    """

    shared: Floats  # Σ b bᵀ (R, R)
    across: Floats  # Σ b pᵀ (W, R, lags)
    own: Floats  # Σ p pᵀ (W, lags, lags)

    @classmethod
    def of(cls, past: Floats, now: Floats, watched: tuple[int, ...]) -> _Sums:
        before = past[:, 0] if past.shape[1] else now[:, :0]
        shared = np.concatenate([now, before, np.ones((len(now), 1))], axis=1)
        own = past[:, :, list(watched)].transpose(2, 0, 1)  # (W, u, lags)
        return cls(shared.T @ shared, shared.T @ own, own.transpose(0, 2, 1) @ own)


def _fit_beside(sums: _Sums, watched: tuple[int, ...]) -> _Weights:
    """Return the ridge regressions of the watched features on all else in b and on the rest of their own past.

    With A = Σ b bᵀ + ridge and a feature f of b, that of f on the others is -(A⁻¹)_jf / (A⁻¹)_ff: one inverse serves
    all. Each feature's past beyond the window before is not in b and comes in by the Schur complement of A.
    """
    rows, places = float(sums.shared[-1, -1]), list(watched)
    count, lags = len(sums.shared), sums.own.shape[1]
    features = (count - 1) // (2 if lags else 1)
    inverse = np.linalg.inv(sums.shared + RIDGE * rows * np.eye(count))
    across, own = sums.across[:, :, 1:], sums.own[:, 1:, 1:]  # without the window before, which b holds
    column = inverse[:, places].T[:, :, None]  # (W, R, 1)
    through = inverse @ across  # (W, R, lags - 1)
    turned = across.transpose(0, 2, 1)
    complement = own + RIDGE * rows * np.eye(own.shape[1]) - turned @ through
    of_own = -np.linalg.solve(complement, turned @ column)  # (W, lags - 1, 1)
    of_shared = (column - through @ of_own)[:, :, 0]  # (W, R)
    pivot = of_shared[np.arange(len(places)), places][:, None].copy()
    of_shared, of_own = np.asarray(-of_shared / pivot), np.asarray(-of_own[:, :, 0] / pivot)
    of_shared[np.arange(len(places)), places] = 0.0
    of_past, of_before = np.zeros((len(places), lags)), np.zeros((len(places), features))
    if lags:
        of_past[:, 0], of_past[:, 1:] = of_shared[np.arange(len(places)), features + np.array(places)], of_own
        of_before[:] = of_shared[:, features:-1]
        of_before[np.arange(len(places)), places] = 0.0
    return _Weights(of_past, np.asarray(of_shared[:, :features]), of_before, np.asarray(of_shared[:, -1]))


def _fit_alone(sums: _Sums, watched: tuple[int, ...]) -> _Weights:
    """Return the ridge regressions of the watched features on their own past and a constant."""
    rows, places = float(sums.shared[-1, -1]), list(watched)
    count, lags = len(places), sums.own.shape[1]
    features = (len(sums.shared) - 1) // (2 if lags else 1)
    gram = np.zeros((count, lags + 1, lags + 1))
    gram[:, :lags, :lags], gram[:, -1, -1] = sums.own, rows
    gram[:, :lags, -1] = gram[:, -1, :lags] = sums.across[:, -1]
    with_own = sums.across[np.arange(count), places]  # (W, lags) Σ now pᵀ
    cross = np.concatenate([with_own, sums.shared[places, -1][:, None]], axis=1)
    weights = np.linalg.solve(gram + RIDGE * rows * np.eye(lags + 1), cross[:, :, None])[:, :, 0]
    nothing = np.zeros((count, features))
    return _Weights(np.asarray(weights[:, :-1]), nothing, nothing, np.asarray(weights[:, -1]))


def _predict(weights: _Weights, past: Floats, now: Floats, watched: tuple[int, ...]) -> Floats:
    """Return what weights let expect (u, W) of past (u, lags, F) and now (u, F)."""
    own = np.einsum("ulw,wl->uw", past[:, :, list(watched)], weights.of_past)
    prediction = weights.constant + now @ weights.of_now.T + own
    return np.asarray(prediction + past[:, 0] @ weights.of_before.T if past.shape[1] else prediction)


def _folds(count: int) -> Integers:
    """Return the stretch that each row belongs to."""
    return np.arange(count) * FOLDS // max(count, 1)


def past_rows(missing: Integers, lags: int) -> Integers:
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
