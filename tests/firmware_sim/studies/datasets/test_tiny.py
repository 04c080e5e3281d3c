"""The tiny data: every study reads it, it is the same each time, and it takes nobody's data away."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.engine.cells import cells_of, load_probe
from fedgate.firmware_sim.engine.spec import StudyError, load_spec
from fedgate.firmware_sim.evaluate.datasets import load_table
from fedgate.firmware_sim.studies.datasets.convert import TABLES
from fedgate.firmware_sim.studies.datasets.tabular import read_rows
from fedgate.firmware_sim.studies.datasets.tiny import PEOPLE, write_tiny
from fedgate.firmware_sim.studies.probes.networks import stress
from fedgate.firmware_sim.studies.probes.svm import robust_svm
from fedgate.models.arrays import generator
from tests.support.syntax import ROOT

STUDIES = sorted((ROOT / "firmware_sim" / "studies" / "tables").glob("*.toml"))
SLOW = {  # whose first cell takes more than ten seconds
    "building-alarms",
    "building-federation",
    "esn-streams",
    "fdr-svm-scaling",
    "fdr-svm-sensitivity",
    "fdr-svm-table-1",
    "stress-predict",
    "z24-table-2",
}


@pytest.mark.soak
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_case_of_a_study_is_valid(path: Path, tiny: Path) -> None:
    spec = load_spec(path)
    probe = load_probe(spec.probe)
    assert len(cells_of(spec, probe, tiny, short=True)) <= len(cells_of(spec, probe, tiny))
    assert spec.section and spec.title and spec.about


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.soak if path.stem in SLOW else (), id=path.stem) for path in STUDIES],
)
def test_the_first_cell_of_a_short_run_is_measured(path: Path, tiny: Path) -> None:
    spec = load_spec(path)
    probe = load_probe(spec.probe)
    data = tiny if spec.data is None else spec.data
    figures = probe.measure(cells_of(spec, probe, data, short=True)[0].case, data)
    assert figures or path.stem == "fleet-causes"  # whose few days may bring nothing that is merged


@pytest.mark.soak
@pytest.mark.parametrize(
    "path", [path for path in STUDIES if path.stem.startswith("fdr-svm")], ids=lambda path: path.stem
)
def test_every_condition_of_the_robust_svm_has_rows_enough(path: Path, tiny: Path) -> None:
    spec = load_spec(path)
    for cell in cells_of(spec, load_probe(spec.probe), tiny):
        assert isinstance(cell.case, robust_svm.Case)
        split = robust_svm.draw_split(cell.case, tiny, generator(0, 0, "rows"))
        assert set(split.test_y.tolist()) <= set(split.y.tolist()) and len(set(split.test_y.tolist())) > 1


def test_a_short_run_of_stress_has_people_to_leave_out(tiny: Path) -> None:
    spec = load_spec(next(path for path in STUDIES if path.stem == "stress-predict"))
    case = cells_of(spec, load_probe(spec.probe), tiny, short=True)[0].case
    assert isinstance(case, stress.Case)
    assert len(stress.prepare(case, tiny)) == PEOPLE


@pytest.mark.parametrize("name", [*TABLES, "user_knowledge", "pump_triplex"])
def test_the_studies_of_tables_read_it(name: str, tiny: Path) -> None:
    rows = read_rows(tiny, name, grouped=name == "parkinsons")
    assert set(rows.y.tolist()) == {0, 1} and np.isnan(rows.x).any() == (name == "mammographic_mass")
    assert len(set(rows.groups.tolist())) == (len(rows.y) // 8 if name == "parkinsons" else len(rows.y))
    if name == "pump_triplex":
        assert (read_rows(tiny, name, coded=True).y > 0).tolist() == (rows.y == 1).tolist()
    elif name != "mammographic_mass":  # what evaluates on any table takes no empty cell
        assert np.array_equal(load_table(tiny / "tabular" / f"{name}.csv").rows.x, rows.x)


def test_the_anomalies_of_breast_cancer_are_the_first_ten_malignant_of_all(tiny: Path) -> None:
    few, every = read_rows(tiny, "breast_cancer_ad"), read_rows(tiny, "breast_cancer_wdbc")
    assert (len(few.y), few.y.sum(), len(every.y), every.y.sum()) == (367, 10, 569, 212)
    kept = (every.y == 0) | (np.cumsum(every.y) <= 10)
    assert np.array_equal(few.x, every.x[kept]) and np.array_equal(few.y, every.y[kept])


def content(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name].tobytes() for name in file.files}
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def test_it_is_the_same_each_time(tiny: Path, tmp_path: Path) -> None:
    again = write_tiny(tmp_path, "tabular", "streams/keti_rooms", "streams/uci_occupancy")
    files = sorted(path.relative_to(again) for path in again.rglob("*.*"))
    assert len(files) > 20 and [path for path in files if content(tiny / path) != content(again / path)] == []


def test_data_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    own = tmp_path / "streams" / "nab" / "own.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine", encoding="utf-8")
    with pytest.raises(StudyError, match=r"streams/nab: there is data already; name a new folder"):
        write_tiny(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [own]


def test_the_temperatures_are_whole_and_fail_where_their_publishers_say(tiny: Path) -> None:
    folder = tiny / "streams" / "nab"
    windows = json.loads((folder / "anomaly_windows.json").read_text("utf-8"))
    lengths = {}
    for name, spans in windows.items():
        lines = gzip.decompress((folder / f"{name}.gz").read_bytes()).decode().splitlines()[1:]
        stamps, lengths[name] = {line.partition(",")[0] for line in lines}, len(lines)
        assert all(end.partition(".")[0] in stamps for span in spans for end in span)
    assert sorted(lengths.values()) == [7_267, 22_695]
