"""The linear SVM detector: scikit-learn's own, one against the rest, and which class it names."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.multiclass import OneVsOneClassifier
from sklearn.svm import SVC

from fedgate.models.arrays import Floats
from fedgate.models.detectors.base.fault_classes import PAIRS, classify, fit, graph, margins, score, votes
from fedgate.models.testing.fleet import onnx_scores

MIDDLES = np.array([(0.0, 0.0, 0.0), (5.0, 0.0, 0.0), (0.0, 5.0, 0.0)])
LABELS = np.arange(120) % 3


def rows(seed: int) -> Floats:
    return np.asarray(MIDDLES[LABELS] + np.random.default_rng(seed).normal(size=(120, 3)))


def test_one_class_is_the_linear_svm_of_scikit_learn() -> None:
    x, y = rows(1), (LABELS > 0).astype(int)
    theirs = SVC(kernel="linear", C=0.5).fit(x, y)
    params = fit(x, y, c=0.5)
    np.testing.assert_allclose(score(params, rows(2)), theirs.decision_function(rows(2)), atol=1e-9)
    np.testing.assert_array_equal(classify(params, rows(2)), theirs.predict(rows(2)))


def test_each_class_is_told_from_all_else() -> None:
    x = rows(3)
    params = fit(x, LABELS)
    for k in (1, 2):
        alone = fit(x, np.where(k == LABELS, 1, 0))
        np.testing.assert_allclose(margins(params, x)[:, k - 1], score(alone, x), atol=1e-9)
    assert (classify(params, rows(4)) == LABELS).mean() > 0.9


def test_a_score_above_zero_is_a_class_above_zero() -> None:
    params, x = fit(rows(5), LABELS), rows(6)
    np.testing.assert_array_equal(score(params, x) > 0.0, classify(params, x) > 0)
    highest = margins(params, x).argmax(axis=1) + 1
    np.testing.assert_array_equal(classify(params, x)[score(params, x) > 0.0], highest[score(params, x) > 0.0])


def test_the_gateways_own_units_come_first() -> None:
    params, x = fit(rows(7), LABELS), rows(8)
    own = {"center": np.array([1.0, -2.0, 3.0]), "scale": np.array([2.0, 0.5, 10.0])}
    raw = x * own["scale"] + own["center"]
    np.testing.assert_array_equal(classify({**params, **own}, raw), classify(params, x))


@pytest.mark.parametrize(
    ("labels", "classes", "reason"),
    [
        (np.zeros(120, int), None, "class 1 has 0 of 120 rows"),
        (np.ones(120, int), None, "class 1 has 120 of 120 rows"),
        (LABELS, 3, "class 3 has 0 of 120 rows"),
    ],
)
def test_a_class_without_rows_teaches(labels: Floats, classes: int | None, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fit(rows(9), labels, classes=classes)


def test_one_class_against_normal_is_one_machine_either_way() -> None:
    x, y = rows(1), (LABELS > 0).astype(int)
    all_else, pairs = (fit(x, y, multiclass=each) for each in ("one-vs-all", "one-vs-one"))
    assert pairs.pop(PAIRS).tolist() == [[1, 0]]
    assert all_else.keys() == pairs.keys()
    assert all(np.array_equal(all_else[name], pairs[name]) for name in pairs)


def test_each_two_classes_are_told_apart_as_by_scikit_learn() -> None:
    """Votes are those of `OneVsOneClassifier`; its class is ours wherever it names a fault that is one for us too."""
    middles = np.concatenate([MIDDLES, [(1.5, 1.5, 1.0)]])
    labels = np.arange(160) % 4
    x, fresh = (middles[labels] + np.random.default_rng(seed).normal(0.0, 1.5, (160, 3)) for seed in (1, 2))
    params = fit(x, labels, c=0.5, multiclass="one-vs-one")
    theirs = OneVsOneClassifier(SVC(kernel="linear", C=0.5)).fit(x, labels)
    np.testing.assert_allclose(votes(margins(params, fresh), params[PAIRS]), theirs.decision_function(fresh), atol=1e-6)
    ours, expected, is_fault = classify(params, fresh), theirs.predict(fresh), score(params, fresh) > 0.0
    np.testing.assert_array_equal(ours > 0, is_fault)
    named = is_fault & (expected > 0)
    np.testing.assert_array_equal(ours[named], expected[named])
    assert named.sum() > 80 and (expected[~is_fault] == 0).all()


def test_the_score_of_pairs_is_the_best_margin_over_normal() -> None:
    x, fresh = rows(3), rows(4)
    params = fit(x, LABELS, multiclass="one-vs-one")
    assert params[PAIRS].tolist() == [[1, 0], [2, 0], [2, 1]]
    alone = [fit(x[other != LABELS], np.where(LABELS[other != LABELS] > 0, 1, 0)) for other in (2, 1)]
    expected = np.max([score(each, fresh) for each in alone], axis=0)
    np.testing.assert_allclose(score(params, fresh), expected, atol=1e-9)
    np.testing.assert_allclose(onnx_scores(graph(params, ()), fresh), expected, atol=1e-4)
    assert (classify(params, rows(5)) == LABELS).mean() > 0.9
