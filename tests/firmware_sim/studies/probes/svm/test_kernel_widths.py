"""Widths of kernels: what is called the default is what a fleet finds, and losses are those of the areas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.metrics import roc_auc
from fedgate.firmware_sim.studies.probes.svm import kernel_widths
from fedgate.firmware_sim.studies.probes.svm.kernel_widths import (
    IN_FORCE,
    RULES,
    Case,
    measure,
    measure_areas,
    quantiles,
    summarise,
)
from fedgate.models.arrays import FEATURES, Arrays, Floats
from fedgate.models.detectors.base.checks import kernel_width
from fedgate.models.detectors.base.random_features import WIDTH
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.federated.protocol.run import run
from tests.support.outlier_files import write_outliers


def case_of(method: str, **given: Any) -> Case:
    rules = {"median": [4.0, 32.0], "quartiles": [2.0]}
    few = {"fixed": [0.25, 1.0, 4.0], "before": 1.0, "rules": rules, "draws": 2, "clients": 3, "most_rows": 60}
    return Case.model_validate({"table": "a", "method": {"algorithm": method}, **few, **given})


@pytest.mark.parametrize("method", IN_FORCE)
def test_what_is_in_force_is_the_width_that_is_found(method: str) -> None:
    rng = np.random.default_rng(0)
    gateways = {f"gateway-{place}": {FEATURES: rng.normal(size=(60, 4))} for place in range(3)}
    rule, factor = IN_FORCE[method]
    expected = RULES[rule](quantiles(method, gateways), factor)
    if method == "svdd":
        z = np.concatenate([rows[FEATURES] for rows in gateways.values()])
        assert kernel_width(None, (z - z.mean(axis=0)) / z.std(axis=0)) == pytest.approx(expected)
        return
    shared = run(build(method, 4, {}), gateways, seed=0, rounds=0).server.global_state
    assert float(shared[WIDTH if WIDTH in shared else "gamma"]) == expected


def test_the_default_is_that_of_a_detector_that_nobody_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[dict[str, Arrays], Floats, Any]] = []
    area = kernel_widths._area

    def watched(case: Case, gateways: dict[str, Arrays], x: Floats, y: Any, seed: int, width: float) -> float:
        seen.append((gateways, x, y))
        return area(case, gateways, x, y, seed, width)

    monkeypatch.setattr(kernel_widths, "_area", watched)
    found = measure_areas(case_of("svdd"), write_outliers(tmp_path, ("a.csv",)), seed=1)
    gateways, x, y = seen[0]
    own, z = normalise({}, {FEATURES: np.concatenate([rows[FEATURES] for rows in gateways.values()])}, "own")
    assert found["median 32"] == roc_auc(y, svdd.SVDD.score({**svdd.fit(z), **own}, x))
    assert set(found) == {"fixed 0.25", "fixed 1", "fixed 4", "median 4", "median 32", "quartiles 2"}
    trained = {row.tobytes() for rows in gateways.values() for row in rows[FEATURES]}
    assert len(trained) == 40 and not trained & {row.tobytes() for row in x}


def test_losses_and_verdict_by_hand() -> None:
    areas = {"fixed 0.25": 0.7, "fixed 4": 0.8, "median 4": 0.5, "quartiles 2": 0.5}
    draws = [{**areas, "fixed 1": 0.8, "median 32": 0.76}, {**areas, "fixed 1": 0.6, "median 32": 0.80}]
    found = summarise(case_of("svdd"), draws)
    assert (found["best"], found["before"], found["now"]) == pytest.approx((0.8, 0.7, 0.78))
    assert (found["change"], found["error"]) == pytest.approx((0.08, 0.12))
    assert found["below"] == found["below median 32"] == pytest.approx(0.02)
    assert found["lost median 32"] == pytest.approx(-0.2) and found["lost median 4"] == pytest.approx(0.1)
    assert found["as_wanted"] == 1.0
    assert summarise(case_of("svdd", within=0.01), draws)["as_wanted"] == 0.0
    assert summarise(case_of("svdd", loses=-0.3), draws)["as_wanted"] == 0.0


@pytest.mark.soak
@pytest.mark.parametrize("method", IN_FORCE)
def test_every_method_is_measured_with_every_width(method: str, tmp_path: Path) -> None:
    found = measure(case_of(method, most_rows=30), write_outliers(tmp_path, ("a.csv",)))
    assert all(0.0 <= found[name] <= 1.0 for name in found if name.startswith("fixed"))
    assert found["now"] > 0.9
