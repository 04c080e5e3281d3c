"""The files of the studies: every case is valid, what a section names is there, and the figures are those of before.

What is shipped is measured, the Munich bridge: in short by the program, and ten whole cells beside what the runner
before this engine measured. All others run in short on tiny data with the pages of results (`make soak`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgate.firmware_sim.engine.cells import METHOD, Cell, cells_of, load_probe
from fedgate.firmware_sim.engine.frame import PLACE, RANKS
from fedgate.firmware_sim.engine.spec import HEAD, Section, Spec, View, load_spec
from fedgate.firmware_sim.studies.__main__ import main
from tests.support.syntax import ROOT

TABLES = sorted((ROOT / "firmware_sim" / "studies" / "tables").glob("*.toml"))
CAUSES = next(path for path in TABLES if path.stem == "fleet-causes")
MUNICH = next(path for path in TABLES if path.stem == "munich")
GOLDEN = json.loads((Path(__file__).parent / "golden" / "munich.json").read_text("utf-8"))["cells"]
NOWHERE = Path("nowhere")
AREA = ("auc", "state.")  # counts of pairs, divided


@pytest.fixture(scope="module")
def studies() -> dict[Path, tuple[Spec, list[Cell]]]:
    """All files with their cells; the key of a cell wants the data, its case does not."""
    specs = {path: load_spec(path) for path in TABLES}
    return {path: (spec, cells_of(spec, load_probe(spec.probe), NOWHERE)) for path, spec in specs.items()}


Studies = dict[Path, tuple[Spec, list[Cell]]]
by_file = pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)


@pytest.mark.soak
@by_file
def test_every_case_is_valid_in_full_and_in_short(path: Path, studies: Studies) -> None:
    spec, every = studies[path]
    short = cells_of(spec, load_probe(spec.probe), NOWHERE, short=True)
    assert 0 < len(short) <= len(every)
    assert len({cell.key for cell in every}) <= len(every)
    shown, brief = ({cell.coordinates.get(METHOD) for cell in cells} for cells in (every, short))
    assert brief <= shown


@by_file
def test_a_report_says_what_was_measured_and_shows_something(path: Path, studies: Studies) -> None:
    spec, _ = studies[path]
    assert spec.title and len(spec.about) > 100 and spec.section


def views_of(section: Section) -> Iterator[View]:
    yield section
    yield from section.targets


def named_in(view: View, section: Section) -> Iterator[tuple[str, str]]:
    """Yield the coordinates that a view names, and where."""
    figures = view.figures or section.figures
    for field in ("rows", "columns", "averaged"):
        yield from ((field, name) for name in getattr(view, field))
    yield from (("where", name) for name in view.where)
    for figure in figures.values():
        for field in ("where", "minus", "over"):
            yield from ((f"figures.{field}", name) for name in getattr(figure, field))
    choose = view.choose or section.choose
    if choose is not None:
        yield from (("choose", name) for name in (*choose.among, *choose.each))
    yield from (("against", name) for name in section.against)
    yield from (("panels", name) for name in section.panels if name != HEAD)
    yield from (("each", name) for name in [section.each] if name)


def places_in(view: View, section: Section) -> set[str]:
    """Return the coordinates that stand in names of figures, and that of a choice of the best and the worst."""
    choose = view.choose or section.choose
    shown = [*(view.figures or section.figures).values(), *([section.along] if section.along else [])]
    patterns = [*(figure.of for figure in shown), choose.by if choose else "", section.shaded]
    ranks = {"rank"} if choose and len(choose.take) > 1 else set()
    return {name for pattern in patterns for name in PLACE.findall(pattern)} | ranks


@by_file
def test_what_a_section_names_is_a_coordinate(path: Path, studies: Studies) -> None:
    spec, cells = studies[path]
    known = {name for cell in cells for name in cell.coordinates}
    wrong = [
        f"section {section.title!r}: {field}: {name!r}"
        for section in spec.section
        for view in views_of(section)
        for field, name in named_in(view, section)
        if name not in known | places_in(view, section)
    ]
    assert not wrong


@by_file
def test_what_a_section_picks_are_values_that_cells_have(path: Path, studies: Studies) -> None:
    spec, cells = studies[path]
    wrong = []
    for section in spec.section:
        for view in views_of(section):
            figures = (view.figures or section.figures).values()
            picked = [
                view.where,
                section.against,
                *(axes for each in figures for axes in (each.where, each.minus, each.over)),
            ]
            for name, value in ((name, value) for axes in picked for name, value in axes.items()):
                values = {cell.coordinates[name] for cell in cells if name in cell.coordinates}
                asked = value if isinstance(value, list) else [value]
                is_of_cells = values and name not in places_in(view, section)
                wrong += [f"{section.title!r}: {name} = {one!r}" for one in asked if is_of_cells and one not in values]
    assert not wrong


@by_file
def test_figures_of_a_paper_stand_beside_rows_that_cells_have(path: Path, studies: Studies) -> None:
    spec, cells = studies[path]
    for section in spec.section:
        if section.paper and not {*section.rows} & {*places_in(section, section), *RANKS.values()}:
            rows = {
                ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in place)
                for cell in cells
                if None not in (place := [cell.coordinates.get(name) for name in section.rows])
            }
            assert section.paper.keys() <= rows, section.title


def test_the_first_cell_of_a_simulation_shows_something_in_short(tmp_path: Path) -> None:
    given = ["measure", str(CAUSES), "--short", "--jobs", "1", "--results", str(tmp_path)]
    assert main(given) == 0
    assert "| weather | front | " in (tmp_path / "fleet-causes-short.md").read_text("utf-8")


@pytest.mark.soak
def test_what_is_shipped_is_measured_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "munich.json"
    given = ["measure", str(MUNICH), "--short", "--jobs", "1", "--results", str(tmp_path), "--json", str(out)]
    assert main(given) == 0
    text = capsys.readouterr().out
    found = json.loads(out.read_text("utf-8"))
    methods = load_spec(MUNICH).define["method"]
    assert [each["cell"]["method"] for each in found["cells"]] == list(methods)
    for words in ("# The methods of PC-FedAvg's Table 2", *(f"| {method} |" for method in methods), "A short run"):
        assert words in text
    best = {each["cell"]["method"]: each["figures"]["fleet.auc"] for each in found["cells"]}
    assert best["federated subspace"] > 0.95 and best["PCA residual, local"] > 0.95


@pytest.mark.soak
@pytest.mark.parametrize("method", GOLDEN)
def test_a_cell_has_the_figures_of_before(method: str, studies: Studies) -> None:
    """Areas are counts of pairs, the same to the digit on any processor; what is sent is compressed, so its length is
    near.
    """
    spec, cells = studies[MUNICH]
    assert len(GOLDEN) == 10 and spec.data is not None
    (cell,) = [cell for cell in cells if cell.coordinates["method"] == method]
    found: dict[str, Any] = load_probe(spec.probe).measure(cell.case, spec.data)
    assert GOLDEN[method].keys() <= found.keys()
    for name, value in GOLDEN[method].items():
        is_area = name.startswith(AREA) or name.endswith(".auc")
        near = 1e-2 if name == "bytes_up" else 1e-9
        assert found[name] == (value if is_area else pytest.approx(value, rel=near)), name
