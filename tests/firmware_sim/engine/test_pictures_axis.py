"""Places along the axis of a picture, and its panels."""

from __future__ import annotations

from fedgate.firmware_sim.engine.frame import Results
from fedgate.firmware_sim.engine.pictures import _panels
from fedgate.firmware_sim.engine.spec import Section

RESULTS: Results = [
    ({"method": "a", "size": 8, "seed": 0}, {"auc": 0.7, "bytes": 100.0}),
    ({"method": "a", "size": 8, "seed": 1}, {"auc": 0.8, "bytes": 120.0}),
    ({"method": "a", "size": 16, "seed": 0}, {"auc": 0.9, "bytes": 300.0}),
    ({"method": "b", "size": 8, "seed": 0}, {"auc": 0.6, "bytes": 50.0}),
]


def test_several_coordinates_have_a_panel_for_each_pair_of_values() -> None:
    section = {"kind": "lines", "rows": ["at"], "columns": ["x", "y", "z"], "panels": ["x", "y"], "figures": {"f": "f"}}
    cells = [({"at": 0, "x": x, "y": y, "z": z}, {"f": 1.0}) for x in "ab" for y in "cd" for z in "ef"]
    panels = _panels(Section.model_validate(section), cells)
    assert list(panels) == ["a, c", "a, d", "b, c", "b, d"] and all(
        list(lines) == ["e", "f"] for lines in panels.values()
    )
    assert list(_panels(Section.model_validate({**section, "panels": "x"}), cells)) == ["a", "b"]


def test_a_figure_may_be_the_axis_of_a_picture() -> None:
    given = {"kind": "lines", "rows": ["size"], "columns": ["method"], "figures": {"AUC": "auc"}, "along": "bytes"}
    found = _panels(Section.model_validate(given), RESULTS)[""]
    assert {line: along for line, (along, _) in found.items()} == {"a": [110.0, 300.0], "b": [50.0]}
    assert [shown.value for shown in found["a"][1]] == [0.75, 0.9]


def test_a_number_in_the_name_of_a_figure_is_one_on_the_axis() -> None:
    results: Results = [({"method": "a"}, {"curve.0": 0.5, "curve.2": 0.7, "state.03": 0.1})]
    given = {"kind": "lines", "rows": ["round"], "columns": ["method"], "figures": {"AUC": "curve.{round}"}}
    assert _panels(Section.model_validate(given), results)[""]["a"][0] == [0.0, 2.0]
    given = {"kind": "points", "rows": ["state"], "columns": ["method"], "figures": {"AUC": "state.{state}"}}
    assert _panels(Section.model_validate(given), results)[""]["a"][0] == ["03"]
