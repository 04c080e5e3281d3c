"""Whether weather, load or supply, measured beside the structure, account for an anomaly.

That all sensors changed at once says nothing of the cause: a support that gives way reaches all of them too. So a cause
is named for what was measured alone. *Covariates* are features that no change of the structure moves: an outdoor
temperature, a wind speed, the supply voltage of the sensors. A gateway regresses its other features on them over its
healthy baseline, and asks of the windows since the onset of an anomaly:

1. Does the mean of a covariate of the cause lie outside all that the baseline saw? If not, it is as `usual`.
2. Is what the regression leaves of them as near to the middle of the baseline as in it, by the mean of the windows and
   one by one? And is the regression sure enough of what it takes for the work of the covariates? Then they account for
   the anomaly, which is `explained`; else they are `unusual`, and something else may be the cause.

Distances are those of Mahalanobis. A change of the structure on a cold day is left over, and so is an effect of the
cold that is no straight line, or that the baseline was too short or too mild to show.

An anomaly that begins with the first window after a boot is explained by it where what the regression leaves of it goes
straight back to the middle of the baseline: a sensor that warms up does, and a structure that changed while nobody
watched stays changed. Where no weather is measured, too much of the baseline's own moves would hide such a change, and
no boot explains anything.

Where the baseline has fewer than `BLOCKS` windows, or there is no feature but covariates, nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Floats
from fedgate.models.units import LEAST, ROUNDING, STILL, in_own_units, scales

Evidence = Literal["", "usual", "unusual", "explained"]  # "": nothing was measured that says so

# Chosen on simulated causes, and reported on others: docs/results/fleet-causes.md.
LEFT_OVER = 1.05  # times the largest distance within the baseline that may be left over
BESIDE = 1.3  # times that distance that may lie beside the way back, where an anomaly fades
FADED = 0.8  # of the distance of the first half of the windows since the onset, that of the second half
FADING_WINDOWS = 4  # that such a comparison takes at least
LATEST = 6  # windows since the onset that count: the mean of more is surer than slopes are
BLOCKS = 5  # of the baseline, as long as what is compared with them
RIDGE = 1e-6  # of each covariate's variance: two that move together share what they explain
SHRINKAGE = 0.1  # of correlations towards none: a short baseline shows some that are not there


class Limits(NamedTuple):
    """From where on what was measured is evidence."""

    left_over: float = LEFT_OVER
    beside: float = BESIDE


SHIPPED = Limits()


class Distances(NamedTuple):
    """How far windows lie from the middle of a baseline, by their mean and one by one (root mean square)."""

    mean: float
    each: float


class Columns(NamedTuple):
    """Which of the features are covariates, by what they measure, and which only say what the hour or the day is."""

    weather: tuple[int, ...] = ()
    power: tuple[int, ...] = ()
    calendar: tuple[int, ...] = ()

    def features(self, count: int) -> list[int]:
        """Return the columns, of so many, that are none of these."""
        return [column for column in range(count) if column not in {*self.weather, *self.power, *self.calendar}]


def evidence_of(
    columns: Columns, baseline: Array, rows: Array, *, is_from_boot: bool | None, limits: Limits = SHIPPED
) -> tuple[Evidence, Evidence]:
    """Return what weather (with load) and power say of the windows (k, F) since an onset, given a baseline (n, F).

    `is_from_boot` tells whether the anomaly began with the first window after a boot, None where that is not known.
    """
    known, features = np.asarray(baseline), columns.features(np.shape(baseline)[1])
    if not features or len(rows) == 0 or len(known) < BLOCKS:
        return "", ""
    latest = np.asarray(rows)[-min(LATEST, len(known) // BLOCKS) :]
    parts = {"weather": list(columns.weather), "power": list(columns.power)}
    outside = {cause: _is_outside(known[:, part], latest[:, part]) for cause, part in parts.items() if part}
    out = {cause: parts[cause] for cause, is_out in outside.items() if is_out}
    by = _explaining(out, columns, known, latest, limits) if out else ""
    weather, power = (_evidence_of(outside[cause], cause == by) if cause in outside else "" for cause in parts)
    if is_from_boot and power != "explained":
        power = _evidence_of(True, bool(columns.weather) and _is_fading(columns, known, np.asarray(rows), limits))
    return weather, power


def _evidence_of(is_outside: bool, is_explained: bool) -> Evidence:
    return ("explained" if is_explained else "unusual") if is_outside else "usual"


def _is_outside(known: Array, latest: Array) -> bool:
    """Tell whether covariates lie where the baseline (n, q) never was."""
    mean = latest.mean(axis=0, dtype=np.float64)
    return bool(((mean < known.min(axis=0)) | (mean > known.max(axis=0))).any())


def _explaining(out: Mapping[str, list[int]], columns: Columns, baseline: Array, rows: Array, limits: Limits) -> str:
    """Return which of the causes whose covariates are `out` does most to the features of windows (k, F); empty where
    the windows are not like the baseline (n, F) but for what all covariates do.
    """
    covariates = [*columns.weather, *columns.power]
    c, now = _in_units(baseline, rows, covariates)
    z, healthy, left, slopes = _regressed(columns, baseline, rows)
    found, within, at = _distances(healthy, left), _largest_within(healthy, len(rows)), now.mean(axis=0)
    unsure = _unsure(c, z, at, healthy)
    is_near = found.mean <= limits.left_over * np.hypot(within.mean, unsure)
    if unsure > within.mean or not is_near or found.each > limits.left_over * np.hypot(within.each, unsure):
        return ""
    root, places = _whitening(healthy), {cause: [covariates.index(column) for column in out[cause]] for cause in out}
    return max(out, key=lambda cause: float(np.linalg.norm(at[places[cause]] @ slopes[places[cause]] @ root)))


def _regressed(columns: Columns, baseline: Array, rows: Array) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the features of a baseline (n, F), what covariates leave of them and of those of rows (k, F), all in
    deviations of the baseline, and the slopes (q, F).
    """
    c, now = _in_units(baseline, rows, [*columns.weather, *columns.power])
    z, x = _in_units(baseline, rows, columns.features(baseline.shape[1]))
    slopes = _slopes(c, z)
    return z, z - c @ slopes, x - now @ slopes, slopes


def _slopes(c: Floats, z: Floats) -> Floats:
    """Return the slopes (q, F) of features (n, F) on covariates (n, q)."""
    return np.asarray(np.linalg.solve(c.T @ c / len(c) + RIDGE * np.eye(c.shape[1]), c.T @ z / len(c)))


def _unsure(c: Floats, z: Floats, at: Floats, healthy: Floats) -> float:
    """Return how far the effect of covariates `at` (q,) may be from what the slopes say: a jackknife over stretches of
    the baseline, which also shows what is no straight line in it, and noise that lasts.
    """
    remaining = [np.arange(len(c)) * BLOCKS // len(c) != block for block in range(BLOCKS)]
    effects = np.array([at @ _slopes(c[rows], z[rows]) for rows in remaining]) @ _whitening(healthy)
    return float(np.sqrt((BLOCKS - 1) * np.square(effects - effects.mean(axis=0)).sum(axis=1).mean()))


def _is_fading(columns: Columns, baseline: Array, rows: Array, limits: Limits) -> bool:
    """Tell whether windows (k, F) since an onset go straight back to the middle of a baseline (n, F), but for what
    covariates do.

    What is left in the second half of them must lie in the direction in which they have moved since the first: a change
    of the structure beside it would stay where it is.
    """
    half = len(rows) // 2
    if len(baseline) < BLOCKS * half or len(rows) < FADING_WINDOWS:
        return False
    _, healthy, x, _ = _regressed(columns, baseline, rows)
    root = _whitening(healthy)
    first, last = x[:half].mean(axis=0) @ root, x[-half:].mean(axis=0) @ root
    way = (first - last) / max(float(np.linalg.norm(first - last)), LEAST)
    beside = float(np.linalg.norm(last - (last @ way) * way))
    has_faded = np.linalg.norm(last) <= FADED * np.linalg.norm(first)
    return bool(has_faded) and beside <= limits.beside * _largest_within(healthy, half).mean


def _in_units(baseline: Array, rows: Array, columns: list[int]) -> tuple[Floats, Floats]:
    """Return columns of a baseline (n, F) and of rows (k, F) in deviations of the baseline, as `fedgate.models.units`
    bounds them.
    """
    healthy = np.asarray(baseline[:, columns], dtype=np.float64)
    center = healthy.mean(axis=0)
    units = {"center": center, "scale": scales(center, healthy.std(axis=0))}
    return in_own_units(units, healthy), in_own_units(units, rows[:, columns])


def _distances(z: Floats, x: Floats) -> Distances:
    """Return how far rows (k, F) lie from healthy ones (n, F) around zero, by their mean and one by one."""
    root = _whitening(z)
    return Distances(float(np.linalg.norm(x.mean(axis=0) @ root)), float(np.linalg.norm(x @ root) / np.sqrt(len(x))))


def _largest_within(z: Floats, count: int) -> Distances:
    """Return the largest such distances of `count` healthy rows in a row."""
    y = z @ _whitening(z)
    sums = np.cumsum(np.concatenate([np.zeros((1, y.shape[1])), y]), axis=0)
    squares = np.cumsum(np.concatenate([[0.0], np.square(y).sum(axis=1)]))
    means = (sums[count:] - sums[:-count]) / count
    each = np.maximum(squares[count:] - squares[:-count], 0.0) / count
    return Distances(float(np.linalg.norm(means, axis=1).max()), float(np.sqrt(each.max())))


def _whitening(z: Floats) -> Floats:
    """Return the (F, F) by which healthy rows (n, F) become about uncorrelated and of deviation one."""
    deviation = np.sqrt(np.square(z).mean(axis=0))
    unit = np.where(deviation > STILL * ROUNDING, deviation, 1.0)  # what never moved, or is explained to the last digit
    correlation = (z / unit).T @ (z / unit) / len(z)
    np.fill_diagonal(correlation, 1.0)
    shrunk = (1.0 - SHRINKAGE) * correlation + SHRINKAGE * np.eye(len(unit))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(shrunk)).T / unit[:, None])
