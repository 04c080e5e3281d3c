"""Goal: a cell is known by the files it was measured from, wherever they lie."""

from __future__ import annotations

from pathlib import Path

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.cells import Probe, cells_of
from fedgate.firmware_sim.engine.spec import Spec


class Case(settings.Table):
    """Nothing to set."""


def test_every_folder_of_a_study_tells_its_cells_from_those_of_another_edition(tmp_path: Path) -> None:
    probe = Probe("none", Case, lambda case, data: {}, lambda spec: [])

    def key(folder: str | list[str]) -> str:
        spec = Spec(title="x", about="x", probe="none", folder=folder, cells=[{}])
        return cells_of(spec, probe, tmp_path)[0].key

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text("1\n", encoding="utf-8")
    before = {"one": key("one"), "both": key(["one", "two"])}
    assert key(["one"]) == before["one"] != before["both"]
    (tmp_path / "two" / "rows.csv").write_text("1\n2\n", encoding="utf-8")
    assert key("one") == before["one"] and key(["one", "two"]) != before["both"]
