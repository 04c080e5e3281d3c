"""The ridge that the paper prints, as it is: what it solves, and what it makes of masked sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.literal.printed_ridge import PRINTED_RIDGE, with_printed_ridge
from fedgate.models.federated.closed_form.incfed import CONDITION, incfed
from fedgate.models.federated.closed_form.partial_incfed import partial_incfed
from fedgate.models.federated.protocol.contributions import STEP
from fedgate.models.federated.protocol.run import run
from tests.models.federated.closed_form.test_incfed import CLASSES, FEATURE_COUNT, close, lesson_of, series

PARTS = {name: series(rows, 80, 3) for rows, name in enumerate("abc")}
PLAIN: dict[str, Any] = {"network": CLASSES, "normalisation": "none"}


def test_the_ridge_is_that_of_the_pooled_rows() -> None:
    whole, several = incfed(FEATURE_COUNT, **PLAIN), incfed(FEATURE_COUNT, **PLAIN, rounds=2)
    elected = partial_incfed(FEATURE_COUNT, **PLAIN, neurons=CLASSES.units)
    for algorithm in (whole, several, elected):
        shared = run(with_printed_ridge(algorithm), PARTS).server.global_state
        rows = [lesson_of(shared, data, CLASSES) for data in PARTS.values()]
        s, y = (np.concatenate(each) for each in zip(*rows, strict=True))
        expected = np.linalg.solve(s.T @ s + PRINTED_RIDGE * np.eye(s.shape[1]), s.T @ y).T
        assert close(shared["readout"], expected, 1e-6)
        assert int(shared[STEP]) == algorithm.rounds


def test_it_leaves_the_masked_sum_nearly_singular() -> None:
    ours = partial_incfed(FEATURE_COUNT, **PLAIN, select="importance", cohort=3)
    forms = (ours, with_printed_ridge(ours))
    found, printed = (float(run(each, PARTS).server.global_state[CONDITION]) for each in forms)
    assert found < 100.0 and printed > 1e4
