"""The level of a statistic from how often it makes an alarm, where high values come in runs.

`fedgate.models.alarms.levels` promises so many windows above a level. A mean over hours stays high for hours, and all
of that is one alarm; a promise of alarms is therefore read from the peaks of runs. Runs above a threshold that lie less
than some windows apart are one (runs declustering: Coles, An introduction to statistical modeling of extreme values,
2001, 5.3), the peaks' excesses are taken as exponential, and the level is where the promised number of runs a day would
reach. The threshold is the highest quantile above which there are enough runs: ten, and more than are promised.

For k runs in d days and the mean excess m of their peaks, the promise r is kept on average by threshold + c m with
(1 + c / k)**-k = r d / k, since m comes from k peaks only; c tends to ln(k / (r d)).
"""

from __future__ import annotations

import math

import numpy as np

from fedgate.models.alarms.levels import CalibrationError
from fedgate.models.arrays import Floats
from fedgate.models.whole import settled

QUANTILES = (0.99, 0.98, 0.97, 0.96, 0.95, 0.93, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5)
ENOUGH_RUNS, FEWEST_RUNS = 10, 3


def peaks(statistic: Floats, threshold: float, merge_rows: float) -> Floats:
    """Return the highest value of every run of a statistic (n,) above a threshold; runs with fewer than `merge_rows`
    rows from the end of one to the start of the next are one. NaN is below it.
    """
    high = np.flatnonzero(statistic > threshold)
    if not len(high):
        return np.zeros(0)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(high) > max(merge_rows, 1.0)) + 1])
    return np.asarray(np.maximum.reduceat(statistic[high], starts))


def level_of_alarms(
    statistic: Floats, alarms_per_day: float, rows_per_day: float, merge_rows: float
) -> tuple[float, bool]:
    """Return the level that a statistic (n,), NaN where it says nothing, exceeds so many times a day, runs near each
    other counted once; and whether it lies beyond what so few days show.

    Raises:
        CalibrationError: fewer than `FEWEST_RUNS` runs above the lowest threshold, or fewer than are promised.
    """
    judged = statistic[np.isfinite(statistic)]
    if not len(judged):
        raise CalibrationError("the statistic needs more history than the baseline has: let it run longer")
    days = len(judged) / rows_per_day
    promised = settled(alarms_per_day * days)
    found, threshold = np.zeros(0), 0.0
    most, fullest = found, threshold  # runs, above whichever quantile there are most
    for quantile in QUANTILES:
        threshold = float(np.quantile(judged, quantile))
        found = peaks(statistic, threshold, merge_rows)
        if len(found) > len(most):
            most, fullest = found, threshold
        if len(found) > max(ENOUGH_RUNS - 1, math.ceil(promised)):
            break
    if len(found) <= promised:  # lower thresholds only merged them
        found, threshold = most, fullest
    count = len(found)
    if FEWEST_RUNS <= count <= promised:
        raise CalibrationError(
            f"{promised:.3g} alarms are promised in {days:.2g} days, and above no quantile were there more than {count}"
            f" runs, {merge_rows:g} windows or more apart: set false_alarms_per_day or the rule's share lower, so that"
            f" it promises less than {count / days:.3g} a day, or merge_s lower"
        )
    if count < FEWEST_RUNS:
        raise CalibrationError(
            f"{count} runs above the {QUANTILES[-1]:g} quantile in {days:.2g} days, at least {FEWEST_RUNS} needed:"
            " let the baseline run longer, or give the rule a shorter time"
        )
    if promised >= ENOUGH_RUNS:
        return math.nextafter(float(np.sort(found)[count - math.floor(promised) - 1]), math.inf), False
    multiple = count * math.expm1(math.log(count / promised) / count)
    return threshold + multiple * float((found - threshold).mean()), True
