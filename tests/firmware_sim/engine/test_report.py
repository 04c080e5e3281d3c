"""Targets of a report, and a picture whose axis is a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgate.firmware_sim.engine.frame import Results
from fedgate.firmware_sim.engine.pictures import _panels as panels
from fedgate.firmware_sim.engine.report import parts_of
from fedgate.firmware_sim.engine.spec import Section, Spec, Target

RESULTS: Results = [
    ({"method": "a", "size": 8, "seed": 0}, {"auc": 0.7, "bytes": 100.0}),
    ({"method": "a", "size": 8, "seed": 1}, {"auc": 0.8, "bytes": 120.0}),
    ({"method": "a", "size": 16, "seed": 0}, {"auc": 0.9, "bytes": 300.0}),
    ({"method": "b", "size": 8, "seed": 0}, {"auc": 0.6, "bytes": 50.0}),
]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (False, [["t", "at least 0.7", "0.900 (a, 16)", "yes"]]),
        (
            True,
            [
                ["t", "at least 0.7", "0.750 (a, 8)", "yes"],
                ["t", "at least 0.7", "0.900 (a, 16)", "yes"],
                ["t", "at least 0.7", "0.600 (b, 8)", "**no**"],
            ],
        ),
    ],
)
def test_a_target_is_for_the_best_row_or_for_every_one(every: bool, expected: list[list[str]], tmp_path: Path) -> None:
    target = Target.model_validate({"text": "t", "least": 0.7, "every": every})
    section = Section.model_validate(
        {"kind": "targets", "rows": ["method", "size"], "figures": {"AUC": "auc"}, "targets": [target]}
    )
    spec = Spec(title="t", about="", probe="p", cells=[{}], section=[section])
    (part,) = parts_of(spec, RESULTS, tmp_path / "x")
    assert part.table is not None and part.table.rows == expected


def test_a_figure_may_be_the_axis_of_a_picture() -> None:
    given = {"kind": "lines", "rows": ["size"], "columns": ["method"], "figures": {"AUC": "auc"}, "along": "bytes"}
    found = panels(Section.model_validate(given), RESULTS)[""]
    assert {line: along for line, (along, _) in found.items()} == {"a": [110.0, 300.0], "b": [50.0]}
    assert [shown.value for shown in found["a"][1]] == [0.75, 0.9]


def test_a_number_in_the_name_of_a_figure_is_one_on_the_axis() -> None:
    results: Results = [({"method": "a"}, {"curve.0": 0.5, "curve.2": 0.7, "state.03": 0.1})]
    given = {"kind": "lines", "rows": ["round"], "columns": ["method"], "figures": {"AUC": "curve.{round}"}}
    assert panels(Section.model_validate(given), results)[""]["a"][0] == [0.0, 2.0]
    given = {"kind": "points", "rows": ["state"], "columns": ["method"], "figures": {"AUC": "state.{state}"}}
    assert panels(Section.model_validate(given), results)[""]["a"][0] == ["03"]
