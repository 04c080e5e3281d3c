"""What a short run takes less of, wherever it stands, and names with dots as tables in tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.cells import Probe, cells_of, nested
from fedgate.firmware_sim.engine.spec import Spec


class Case(settings.Table):
    """A case with effort inside and outside a table."""

    folds: int
    inner_folds: int
    seed: int
    method: dict[str, Any]
    kind: Literal["a"] = "a"


@pytest.mark.parametrize(("short", "folds", "rounds"), [(True, 2, 2), (False, 4, 20)])
def test_a_short_run_takes_few_folds_and_rounds_and_leaves_the_rest(short: bool, folds: int, rounds: int) -> None:
    given = {"folds": 4, "inner_folds": 3, "seed": 7, "method": {"rounds": 20, "units": 200}}
    spec = Spec(title="t", about="a", probe="p", settings=given, cells=[{"kind": ["a"]}])
    (cell,) = cells_of(spec, Probe("p", Case, lambda case, data: {}, lambda spec: []), Path(), short=short)
    assert isinstance(cell.case, Case)
    assert (cell.case.folds, cell.case.inner_folds) == (folds, min(folds, 3))
    assert (cell.case.seed, cell.case.method) == (7, {"rounds": rounds, "units": 200})


def test_a_short_run_takes_less_in_lists_of_tables_and_of_numbers() -> None:
    grids = [{"SM": {"rounds": [50, 100, 1], "step": [10, 30]}}, {"other": {"rounds": ["all", 5]}}]
    given = {"folds": 1, "inner_folds": 1, "seed": 0, "method": {"grids": grids}}
    spec = Spec(title="t", about="a", probe="p", settings=given, cells=[{"kind": ["a"]}])
    (cell,) = cells_of(spec, Probe("p", Case, lambda case, data: {}, lambda spec: []), Path(), short=True)
    assert isinstance(cell.case, Case)
    assert cell.case.method["grids"] == [
        {"SM": {"rounds": [2, 1], "step": [10, 30]}},
        {"other": {"rounds": ["all", 5]}},
    ]


def test_names_with_dots_are_tables_in_tables() -> None:
    found = nested({"network.leak": 0.1, "ridge": 1.0, "network.units": 3})
    assert found == {"network": {"leak": 0.1, "units": 3}, "ridge": 1.0}
