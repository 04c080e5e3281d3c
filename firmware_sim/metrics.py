"""What a watch over a stream was worth, in figures a reader can check by hand.

Written out here, in numpy alone, because libraries disagree on the undefined cases. The rule of this file: a ratio
whose denominator is empty is nan, never a flattering 1 or a damning 0. A row of a table then shows that nothing was
measured, instead of a number that nobody measured.
"""

import math

import numpy as np
from numpy.typing import NDArray

SECONDS_PER_HOUR = 3600.0


class MetricError(ValueError):
    """Labels, scores or alarm states that no figure of merit is defined for."""


def roc_auc(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """Probability that a damaged window scores above a healthy one; a tie counts one half.

    Hanley and McNeil, Radiology 143 (1982), section "Meaning of the area": the area under the ROC curve is the
    Wilcoxon statistic, so one ranking gives it without drawing the curve.

    Args:
        labels: (n,) 1 damaged, 0 healthy.
        scores: (n,) higher is more anomalous; infinite is allowed, nan is not.

    Returns:
        0 to 1, or nan when one of the two classes is absent.

    Raises:
        MetricError: unequal lengths, a label other than 0 and 1, or a nan score.
    """
    damaged = _as_classes(labels, "labels")  # (n,)
    if scores.shape != damaged.shape:
        raise MetricError(f"scores have shape {scores.shape}, labels {damaged.shape}; give one score per label")
    if np.isnan(scores).any():
        raise MetricError(f"{np.isnan(scores).sum()} scores are nan and cannot be ranked; leave those windows out")
    n_damaged = int(damaged.sum())
    n_healthy = damaged.size - n_damaged
    if n_damaged == 0 or n_healthy == 0:
        return float("nan")
    wins = _average_ranks(scores)[damaged].sum() - n_damaged * (n_damaged + 1) / 2
    return float(wins / (n_damaged * n_healthy))


def auc_error(auc: float, damaged: int, healthy: int) -> float:
    """Standard error of an area under the ROC curve from so many independent damaged and healthy windows.

    Hanley and McNeil, Radiology 143 (1982), Equation 1, with Q1 = A / (2 - A) and Q2 = 2 A² / (1 + A), which are those
    of scores with exponential distributions. At areas of 0 and 1 it is 0: nothing was misplaced, so nothing is told.

    Args:
        auc: 0 to 1, or nan.
        damaged: number of damaged windows.
        healthy: number of healthy windows.

    Returns:
        At least 0, or nan when one of the two classes is absent or the area is nan.

    Raises:
        MetricError: an area outside 0 to 1, or a negative number of windows.
    """
    if auc < 0.0 or auc > 1.0 or min(damaged, healthy) < 0:
        raise MetricError(
            f"area {auc:g} of {damaged} and {healthy} windows; expected 0 to 1, of no less than 0 windows"
        )
    beside_damaged = auc / (2.0 - auc) - auc**2  # Q1 - A²
    beside_healthy = 2.0 * auc**2 / (1.0 + auc) - auc**2  # Q2 - A²
    spread = auc * (1.0 - auc) + (damaged - 1) * beside_damaged + (healthy - 1) * beside_healthy
    return math.sqrt(_ratio(max(spread, 0.0), damaged * healthy))


def precision(labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> float:
    """Share of the windows in alarm that are damaged; nan when no window is in alarm.

    Args and Raises as for `f1`.
    """
    hits, false_alarms, _ = _counts(labels, alarmed)
    return _ratio(hits, hits + false_alarms)


def recall(labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> float:
    """Share of the damaged windows that are in alarm; nan when no window is damaged.

    Args and Raises as for `f1`.
    """
    hits, _, misses = _counts(labels, alarmed)
    return _ratio(hits, hits + misses)


def f1(labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> float:
    """Harmonic mean of precision and recall; nan when no window is damaged or in alarm, 0 when none is both.

    Args:
        labels: (n,) 1 damaged, 0 healthy.
        alarmed: (n,) alarm state in force at the window.

    Raises:
        MetricError: unequal lengths or a label other than 0 and 1.
    """
    hits, false_alarms, misses = _counts(labels, alarmed)
    return _ratio(2 * hits, 2 * hits + false_alarms + misses)


def watched_s(ends_s: NDArray[np.float64], window_s: float) -> float:
    """Time covered by windows that may overlap or leave gaps: the length of their union.

    Args:
        ends_s: (n,) window end times, ascending.
        window_s: length of every window.
    """
    if ends_s.size == 0:
        return 0.0
    return float(window_s + np.minimum(np.diff(ends_s), window_s).sum())


def per_hour(count: int, duration_s: float) -> float:
    """Events per hour; nan when nothing was watched."""
    return _ratio(count * SECONDS_PER_HOUR, duration_s)


def rate_bound_per_hour(count: int, duration_s: float) -> float | None:
    """Highest rate that `count` events in `duration_s` do not contradict, for no event; None otherwise.

    With no event in a time T, a Poisson rate above -ln(0.05) / T is excluded at 95 % (the "rule of three",
    Hanley and Lippman-Hand, JAMA 249 (1983)). A short healthy period proves little, and this says how little.
    """
    if count > 0 or duration_s <= 0:
        return None
    return float(-np.log(0.05) * SECONDS_PER_HOUR / duration_s)


def detection_delay_s(raised_s: NDArray[np.float64], damage: tuple[tuple[float, float], ...]) -> float | None:
    """From the first moment of damage to the first alarm raised while damage is present; None without one.

    An alarm that already stood when the damage began was a false alarm and stays one: it is no detection.

    Args:
        raised_s: (k,) times at which alarms were raised, in any order.
        damage: spans (start_s, end_s), ascending; an alarm at either end counts.
    """
    inside = [t for t in raised_s.tolist() if any(start <= t <= end for start, end in damage)]
    return min(inside) - damage[0][0] if inside else None


def _as_classes(labels: NDArray[np.int64], name: str) -> NDArray[np.bool_]:
    if labels.ndim != 1 or not np.isin(labels, (0, 1)).all():
        raise MetricError(
            f"{name} have shape {labels.shape} and values {np.unique(labels)[:5].tolist()}; "
            "expected one row of 0 (healthy) and 1 (damaged), so leave windows that are neither out"
        )
    return labels.astype(np.bool_)


def _average_ranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1, equal scores sharing the mean of the ranks they occupy."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    last_rank = np.cumsum(sizes)  # of each group of equal scores
    mean_rank: NDArray[np.float64] = last_rank - (sizes - 1) / 2
    return mean_rank[group]


def _counts(labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> tuple[int, int, int]:
    """Windows (damaged and in alarm, healthy and in alarm, damaged without alarm)."""
    damaged = _as_classes(labels, "labels")
    if alarmed.shape != damaged.shape:
        raise MetricError(f"alarm states have shape {alarmed.shape}, labels {damaged.shape}; give one state per label")
    state = alarmed.astype(np.bool_)
    return int((damaged & state).sum()), int((~damaged & state).sum()), int((damaged & ~state).sum())


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else float("nan")
