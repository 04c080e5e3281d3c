"""Goal: a line goes over the numbers that figures are named after, at their distances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedgate.firmware_sim.engine import pictures
from fedgate.firmware_sim.engine.spec import Section


@pytest.mark.parametrize(("kind", "places"), [("lines", [1.0, 2.0, 10.0]), ("points", [0.0, 1.0, 2.0])])
def test_numbers_in_names_of_figures_are_a_scale_of_lines(
    kind: str, places: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[Figure] = []
    monkeypatch.setattr(pictures, "write", lambda figure, path: written.append(figure))
    section = Section.model_validate({"kind": kind, "rows": ["delay"], "figures": {"held": "held.{delay}"}})
    pictures.draw(section, [({}, {"held.1": 0.9, "held.2": 0.8, "held.10": 0.1})], tmp_path / "picture.png")
    (panel,) = written[0].axes
    assert np.asarray(panel.lines[0].get_xdata()).tolist() == places
    assert np.asarray(panel.lines[0].get_ydata()).tolist() == [0.9, 0.8, 0.1]
