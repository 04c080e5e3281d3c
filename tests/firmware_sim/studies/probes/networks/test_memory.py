"""Goal: losses are those of the definition, and a memory pays where a task asks for one and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import Figures, StudyError
from fedgate.firmware_sim.studies.datasets.series.memory_tasks import CHOOSE, REPORT, Task
from fedgate.firmware_sim.studies.probes.networks.memory import Case, judge, measure

RIDGE = 1e-6


@pytest.fixture(scope="module")
def data(tiny: Path) -> Path:
    return tiny


def found(data: Path, task: str, method: dict[str, Any], **given: Any) -> Figures:
    return measure(
        Case.model_validate({"task": task, "method": method, "ridge": (RIDGE,), "units": 60, "rows": 2_000, **given}),
        data,
    )


def network(leak: float = 1.0, radius: float = 0.9) -> dict[str, Any]:
    return {"model": "network", "leak": leak, "spectral_radius": radius}


@pytest.mark.soak
@pytest.mark.parametrize("task", ["NARMA-10", "supply air temperature"])
def test_memory_lowers_the_error_where_the_past_tells(task: str, data: Path) -> None:
    remembers, forgets = (found(data, task, network(leak=0.3, radius=radius)) for radius in (0.9, 0.0))
    present = found(data, task, {"model": "lags", "lags": 0})
    assert remembers["report|1e-06"] < 0.9 * present["report|1e-06"]
    assert found(data, task, network(radius=0.0))["report|1e-06"] > 0.9 * present["report|1e-06"]
    assert remembers["size"] == forgets["size"] > present["size"]


@pytest.mark.soak
def test_a_network_tells_tones_that_no_line_through_the_past_does(data: Path) -> None:
    assert found(data, "bearing condition", network(leak=0.3))["report|1e-06"] > 0.5
    assert found(data, "bearing condition", {"model": "lags", "lags": 0})["report|1e-06"] < 0.3
    assert found(data, "bearing condition", {"model": "spectrum"})["report|-"] == 1.0


def test_trivial_models_are_trivial(data: Path) -> None:
    assert found(data, "NARMA-10", {"model": "mean"})["report|-"] == pytest.approx(1.0, abs=0.1)
    assert found(data, "pump valve closed", {"model": "mean"})["report|-"] == 0.5
    assert found(data, "room occupied", {"model": "logistic"})["report|-"] > 0.6
    with pytest.raises(StudyError, match="'last value' given for 'room occupied'"):
        found(data, "room occupied", {"model": "last value"})


def test_lags_hold_as_many_parameters_as_the_network(data: Path) -> None:
    for task, inputs in (("NARMA-10", 1), ("room occupied", 3), ("pump valve closed", 8)):
        many = found(data, task, {"model": "lags"})["size"]
        assert abs(many - found(data, task, network())["size"]) <= inputs, task
    assert found(data, "NARMA-10", {"model": "lags"})["report|1e-06"] < 0.6


def test_a_ridge_that_determines_no_readout_is_passed_over(data: Path) -> None:
    twice = {"model": "lags", "lags": 0}  # the temperature of the room never moves, so one column is zero
    assert found(data, "room occupied", twice, ridge=(1e-18, 1e-6)).keys() == {"size", "choose|1e-06", "report|1e-06"}
    with pytest.raises(StudyError, match="none determines a readout"):
        found(data, "room occupied", twice, ridge=(1e-18,))


def test_a_network_without_recurrence_remembers_nothing_and_one_with_it_much(data: Path) -> None:
    none, some = (found(data, "capacity", network(radius=radius), units=30) for radius in (0.0, 0.9))
    assert none["total"] < 1.5 and some["delay.1"] > 0.99
    assert 5.0 < some["total"] <= 31.0
    assert some["total"] == pytest.approx(sum(value for key, value in some.items() if key.startswith("delay.")))


def test_losses_by_hand() -> None:
    zero = np.zeros(8, dtype=np.int64)
    classes, window = [0, 0, 0, 0, 1, 1, 0, 1], np.array([0, 0, 1, 1, 2, 2, 3, 4])
    given = Task(np.zeros((8, 1)), np.eye(2)[classes], zero, np.array([REPORT] * 6 + [CHOOSE] * 2), window)
    said = np.array([[3, 0], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1], [1, 0], [1, 0]], dtype=float)
    assert judge(given, said, REPORT) == pytest.approx((0.5 + 1.0) / 2)
    assert judge(given, said, CHOOSE) == pytest.approx(0.5)
    y = np.array([[0.0], [2.0], [1.0], [3.0]])
    regression = Task(y, y, zero[:4], np.array([CHOOSE, CHOOSE, REPORT, REPORT]))
    assert [judge(regression, y + 0.5, part) for part in (CHOOSE, REPORT)] == pytest.approx([0.5, 0.5])
