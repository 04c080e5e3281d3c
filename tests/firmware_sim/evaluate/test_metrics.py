"""Goal: every figure in a report is the textbook's, and says so when it is undefined.

Method: slow, obviously right twins as oracles over random windows with many ties; hand-made cases for what those do
not define.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.metrics import MetricError

windows = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3), st.booleans()), max_size=40)


def columns(rows: list[tuple[int, int, bool]]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
    labels, scores, alarmed = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    return np.array(labels, dtype=np.int64), np.array(scores, dtype=np.float64), np.array(alarmed, dtype=np.bool_)


@pytest.mark.soak
@given(windows)
def test_roc_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, int, bool]]) -> None:
    labels, scores, _ = columns(rows)
    pairs = [(d > h) + 0.5 * (d == h) for d in scores[labels == 1] for h in scores[labels == 0]]
    measured = metrics.roc_auc(labels, scores)
    if not pairs:
        assert math.isnan(measured)
        return
    assert measured == pytest.approx(np.mean(pairs), abs=1e-12)
    assert metrics.roc_auc(labels, -scores) == pytest.approx(1 - measured, abs=1e-12)
    assert metrics.roc_auc(labels, np.exp(scores)) == measured


def test_roc_auc_takes_infinite_scores() -> None:
    assert metrics.roc_auc(np.array([0, 1, 0]), np.array([-np.inf, np.inf, 3.0])) == 1.0


def test_auc_error_is_that_of_hanley_and_mcneil() -> None:
    # By hand: Q1 = 2/3, Q2 = 32/45, (0.16 + 4 * 2/75 + 2 * 16/225) / 15 = 92/3375.
    assert metrics.auc_error(0.8, 5, 3) == pytest.approx(math.sqrt(92 / 3375), rel=1e-12)
    assert metrics.auc_error(1.0, 5, 3) == metrics.auc_error(0.0, 5, 3) == 0.0
    assert all(math.isnan(metrics.auc_error(*each)) for each in ((0.8, 0, 3), (0.8, 5, 0), (math.nan, 5, 3)))


@given(st.integers(1, 60), st.integers(1, 60))
def test_auc_error_without_skill_is_that_of_the_rank_sum(damaged: int, healthy: int) -> None:
    expected = math.sqrt((damaged + healthy + 1) / (12 * damaged * healthy))  # Mann and Whitney, 1947, without ties
    assert metrics.auc_error(0.5, damaged, healthy) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("labels", "alarmed", "undefined"),
    [
        ([0, 1], [0, 0], {"precision"}),
        ([0, 0], [0, 1], {"recall", "balanced_accuracy"}),
        ([0, 0], [0, 0], {"precision", "recall", "f1", "balanced_accuracy"}),
        ([], [], {"precision", "recall", "f1", "balanced_accuracy"}),
    ],
)
def test_empty_denominator_is_nan(labels: list[int], alarmed: list[int], undefined: set[str]) -> None:
    arguments = np.array(labels, dtype=np.int64), np.array(alarmed, dtype=np.bool_)
    figures = ("precision", "recall", "f1", "balanced_accuracy")
    measured = {name: getattr(metrics, name)(*arguments) for name in figures}
    assert {name for name, value in measured.items() if math.isnan(value)} == undefined


@given(st.sets(st.integers(1, 60), max_size=20), st.integers(1, 8))
def test_watched_time_is_the_length_of_the_union(ends: set[int], window: int) -> None:
    seconds_covered = {second for end in ends for second in range(end - window, end)}
    assert metrics.watched_s(np.array(sorted(ends), dtype=np.float64), float(window)) == len(seconds_covered)


def test_rates() -> None:
    assert metrics.per_hour(3, 1800.0) == 6.0
    assert metrics.per_hour(0, 60.0) == 0.0
    assert math.isnan(metrics.per_hour(0, 0.0))
    bound = metrics.rate_bound_per_hour(0, 3 * 3600.0)
    assert bound is not None
    assert math.exp(-bound * 3) == pytest.approx(0.05)  # three hours without an event are that unlikely at this rate
    assert metrics.rate_bound_per_hour(1, 3600.0) is None
    assert metrics.rate_bound_per_hour(0, 0.0) is None


@pytest.mark.parametrize(
    ("raised", "delay"),
    [
        ([], None),
        ([99.0], None),  # stood before the damage began
        ([100.0], 0.0),
        ([170.0, 99.0, 130.0], 30.0),
        ([150.0], 50.0),  # at the very end
        ([155.0], None),  # between the spans: nothing is damaged
        ([155.0, 210.0], 110.0),  # the first span was missed, so the delay runs from its start
    ],
)
def test_detection_delay(raised: list[float], delay: float | None) -> None:
    assert metrics.detection_delay_s(np.array(raised), ((100.0, 150.0), (200.0, 250.0))) == delay


def test_nothing_damaged_is_never_detected() -> None:
    assert metrics.detection_delay_s(np.array([5.0]), ()) is None


def test_bad_input_is_refused() -> None:
    labels = np.array([0, 1, 1])
    with pytest.raises(MetricError, match=r"0 \(healthy\) and 1 \(damaged\)"):
        metrics.roc_auc(np.array([0, 1, -1]), np.zeros(3))
    with pytest.raises(ValueError, match="inconsistent"):
        metrics.roc_auc(labels, np.zeros(2))
    with pytest.raises(ValueError, match="NaN"):
        metrics.roc_auc(labels, np.array([0.0, np.nan, 1.0]))
    for area, damaged in ((1.1, 3), (-0.1, 3), (0.5, -1)):
        with pytest.raises(MetricError, match="expected 0 to 1"):
            metrics.auc_error(area, damaged, 3)
    with pytest.raises(ValueError, match="inconsistent"):
        metrics.recall(labels, np.zeros(2, dtype=np.bool_))
