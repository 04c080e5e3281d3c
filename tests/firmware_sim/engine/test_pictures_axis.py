"""Places along the axis of a picture, and its panels."""

from __future__ import annotations

from fedgate.firmware_sim.engine.pictures import _panels
from fedgate.firmware_sim.engine.spec import Section


def test_several_coordinates_have_a_panel_for_each_pair_of_values() -> None:
    section = {"kind": "lines", "rows": ["at"], "columns": ["x", "y", "z"], "panels": ["x", "y"], "figures": {"f": "f"}}
    cells = [({"at": 0, "x": x, "y": y, "z": z}, {"f": 1.0}) for x in "ab" for y in "cd" for z in "ef"]
    panels = _panels(Section.model_validate(section), cells)
    assert list(panels) == ["a, c", "a, d", "b, c", "b, d"] and all(
        list(lines) == ["e", "f"] for lines in panels.values()
    )
    assert list(_panels(Section.model_validate({**section, "panels": "x"}), cells)) == ["a", "b"]
