"""What sees one row at a time answers with the most frequent class, or with what a regression makes of that row."""

from __future__ import annotations

import numpy as np

from fedgate.firmware_sim.studies.probes.networks.memoryless import fit_memoryless
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats


def gateway(y: list[int]) -> Arrays:
    classes = np.array(y)
    return {FEATURES: np.eye(3)[classes] + 0.01 * np.arange(len(y))[:, None], LABELS: classes}


PARTS = [gateway([0, 2, 2]), gateway([1, 2, 0, 2])]
ROWS: Floats = np.eye(3)


def test_the_majority_of_all_gateways_answers_everything() -> None:
    np.testing.assert_array_equal(fit_memoryless("majority", PARTS)(ROWS), np.tile([0.0, 0.0, 1.0], (3, 1)))


def test_a_regression_tells_rows_apart_and_hears_a_wild_one_clipped() -> None:
    predict = fit_memoryless("logistic", PARTS, class_weight="balanced")
    assert predict(ROWS).argmax(axis=1).tolist() == [0, 1, 2]
    np.testing.assert_array_equal(predict(1e9 * ROWS), predict(8.0 * ROWS))
