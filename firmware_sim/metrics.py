"""What a watch over a stream was worth, in figures a reader can check by hand.

Of scores and alarm states they are scikit-learn's, but for undefined cases, on which libraries disagree. The rule of
this file: a ratio whose denominator is empty is nan, never a flattering 1 or a damning 0. A row of a table then shows
that nothing was measured, instead of a number that nobody measured.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

SECONDS_PER_HOUR = 3600.0
LARGEST = np.finfo(np.float64).max
AREA_DIGITS = 12  # an area is a share of pairs; those that are equal are the same number on every processor


class MetricError(ValueError):
    """Labels or an area that no figure of merit is defined for."""


def roc_auc(labels: NDArray[np.int64], scores: NDArray[np.float64]) -> float:
    """Probability that a damaged window scores above a healthy one; a tie counts one half.

    Args:
        labels: (n,) 1 damaged, 0 healthy.
        scores: (n,) higher is more anomalous; infinite is allowed, nan is not.

    Returns:
        0 to 1, or nan when one of the two classes is absent.

    Raises:
        ValueError: unequal lengths, a label other than 0 and 1, or a nan score.
    """
    from sklearn.metrics import roc_auc_score

    if not _has_both_classes(labels):
        return math.nan
    finite = np.clip(scores, -LARGEST, LARGEST)  # infinite ones are refused there
    return round(float(roc_auc_score(labels, finite)), AREA_DIGITS)


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
    from sklearn.metrics import precision_score

    return _of_states(precision_score, labels, alarmed)


def recall(labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> float:
    """Share of the damaged windows that are in alarm; nan when no window is damaged.

    Args and Raises as for `f1`.
    """
    from sklearn.metrics import recall_score

    return _of_states(recall_score, labels, alarmed)


def f1(labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> float:
    """Harmonic mean of precision and recall; nan when no window is damaged or in alarm, 0 when none is both.

    Args:
        labels: (n,) 1 damaged, 0 healthy.
        alarmed: (n,) alarm state in force at the window.

    Raises:
        ValueError: unequal lengths or a label other than 0 and 1.
    """
    from sklearn.metrics import f1_score

    return _of_states(f1_score, labels, alarmed)


def balanced_accuracy(labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> float:
    """Mean of the shares of damaged windows in alarm and of healthy ones without; nan when one class is absent.

    Args and Raises as for `f1`.
    """
    from sklearn.metrics import balanced_accuracy_score

    return float(balanced_accuracy_score(labels, alarmed)) if _has_both_classes(labels) else math.nan


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


def _has_both_classes(labels: NDArray[np.int64]) -> bool:
    """Raises `MetricError` for other labels: of two that are not 0 and 1, scikit-learn would take the larger for 1."""
    found = set(np.unique(labels).tolist())
    if not found <= {0, 1}:
        raise MetricError(
            f"labels {found}; expected 0 (healthy) and 1 (damaged), so leave out windows that are neither"
        )
    return len(found) == 2


def _of_states(score: Callable[..., float], labels: NDArray[np.int64], alarmed: NDArray[np.bool_]) -> float:
    _has_both_classes(labels)
    return float(score(labels, alarmed, zero_division=math.nan)) if len(labels) else math.nan


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else float("nan")


def as_json(value: object) -> object:
    """Return a figure as JSON can hold it: None where nothing was measured, or where it is infinite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
