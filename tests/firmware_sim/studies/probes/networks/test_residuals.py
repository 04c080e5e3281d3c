"""Goal: no expectation reaches over the start of a series, and federation of one gateway is that gateway's own fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.firmware_sim.studies.probes.networks.residuals import Method, fit, lagged
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, Arrays, Floats, generator


def rows(seed: int, count: int = 120) -> Arrays:
    """Waves of three columns, the third a mix of the others, with noise."""
    angle, rng = np.arange(count)[:, None] / 5.0 + np.array([0.0, 1.0]), generator(seed, 0, "rows")
    x = np.sin(angle) + 0.05 * rng.normal(size=(count, 2))
    missing = np.zeros(count, dtype=np.int64)
    missing[0] = NEW_SERIES
    return {FEATURES: np.column_stack([x, x[:, 0] - x[:, 1]]), MISSING: missing}


def slow_lagged(z: Floats, begins: list[int], lags: int, targets: list[int]) -> Floats:
    found = []
    for t in range(len(z)):
        start = max(each for each in begins if each <= t)
        row: list[float] = []
        for lag in range(0 if targets else 1, lags + 1):
            heard = [j for j in range(z.shape[1]) if j not in targets]
            row += [float(z[t - lag, j]) if t - lag >= start else 0.0 for j in heard]
        found.append([*row, 1.0])
    return np.array(found)


@pytest.mark.parametrize("targets", [(), (1,)])
@pytest.mark.parametrize("lags", [1, 3])
def test_lags_do_not_reach_over_the_start_of_a_series(targets: tuple[int, ...], lags: int) -> None:
    z, missing = generator(0, 0, "z").normal(size=(20, 3)), np.zeros(20, dtype=np.int64)
    missing[[0, 7, 12, 15]] = NEW_SERIES, 9, 1, NEW_SERIES  # one missing row is bridged
    found, usable = lagged(z, missing, lags, targets)
    assert np.array_equal(found, slow_lagged(z, [0, 7, 15], lags, list(targets)))
    assert np.flatnonzero(~usable).tolist() == [start + k for start in (0, 7, 15) for k in range(lags)]


@pytest.mark.parametrize("task", ["predict", "reconstruct"])
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("lags", {"lags": 2, "ridge": 0.01}),
        ("esn", {"units": 20, "leak": 1.0, "ridge": 0.01}),
        ("last value", {}),
        ("level", {}),
    ],
)
def test_one_gateway_alone_gains_nothing_by_federation(model: str, settings: dict[str, Any], task: str) -> None:
    data = {"a": rows(0)}
    probe = rows(1)
    scores = []
    for way in ("federated", "local"):
        method = Method.model_validate({"model": model, "data": way, "task": task, "settings": settings})
        scores.append(fit(method, data, (2,), 0).scorers["a"](probe[FEATURES], probe[MISSING]))
    assert np.array_equal(scores[0], scores[1]) and scores[0].shape == (120,)


def test_a_federated_ridge_is_that_of_all_rows_in_one_place() -> None:
    one, two = rows(0), rows(1)
    settings = {"lags": 2, "ridge": 0.01}
    method = Method.model_validate({"model": "lags", "data": "federated", "settings": settings})
    twice = fit(method, {"a": one, "b": one}, (), 0)
    once = fit(method, {"a": one}, (), 0)
    scores = [each.scorers["a"](two[FEATURES], two[MISSING]) for each in (twice, once)]
    assert np.allclose(scores[0], scores[1], atol=0.05)
    assert twice.bytes_up == once.bytes_up > 0
    assert fit(method.model_copy(update={"data": "local"}), {"a": one, "b": two}, (), 0).bytes_up == 0.0


@pytest.mark.parametrize("model", ["lags", "level"])
def test_a_target_that_goes_astray_is_told_from_the_others(model: str) -> None:
    settings = {"lags": 1, "ridge": 1e-4} if model == "lags" else {}
    method = Method.model_validate({"model": model, "task": "reconstruct", "settings": settings})
    score = fit(method, {"a": rows(0)}, (2,), 0).scorers["a"]
    healthy, wrong = rows(1), rows(1)
    wrong[FEATURES][60:, 2] += 5.0
    quiet, found = (score(each[FEATURES], each[MISSING]) for each in (healthy, wrong))
    assert np.array_equal(quiet[:60], found[:60]) and found[60:].min() > quiet[60:].mean()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "level", "settings": {"lags": 1}}, "'level'.*unexpected keyword argument 'lags'"),
        ({"model": "lags", "settings": {"ridge": 0.1}}, "'lags'.*missing a required.*'lags'"),
        ({"model": "esn"}, "'esn'.*missing a required.*'ridge'"),
    ],
)
def test_settings_that_a_model_does_not_take_are_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Method.model_validate(given)
