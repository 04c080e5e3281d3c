"""The tiny data: every study reads it, it is the same each time, and it takes nobody's data away."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedgate.firmware_sim.evaluate.datasets import load_table
from fedgate.firmware_sim.studies.bridges import data as bridges
from fedgate.firmware_sim.studies.building_alarms import data as building_alarms
from fedgate.firmware_sim.studies.building_alarms.options import AlarmSet
from fedgate.firmware_sim.studies.building_federation import data as building_federation
from fedgate.firmware_sim.studies.building_tables import data as building_tables
from fedgate.firmware_sim.studies.datasets.convert import TABLES
from fedgate.firmware_sim.studies.datasets.tiny import write_tiny
from fedgate.firmware_sim.studies.engine.study import StudyError, load_options
from fedgate.firmware_sim.studies.esn_memory import tasks as esn_memory
from fedgate.firmware_sim.studies.esn_memory.options import TaskOptions
from fedgate.firmware_sim.studies.esn_streams import data as esn_streams
from fedgate.firmware_sim.studies.esn_wesad.data import subject
from fedgate.firmware_sim.studies.robust_svm.data import fault_codes, table
from fedgate.firmware_sim.studies.stress import data as stress
from fedgate.firmware_sim.studies.stress.study import STUDY as STRESS
from fedgate.models.arrays import generator
from tests.support.syntax import ROOT

SPECTRUM = bridges.Spectrum(window_s=0.04, low_hz=0.0, high_hz=50.0, segment_s=0.04)
ALARMS = {
    "false_alarms_per_day": [1.0],
    "merge_s": 60.0,
    "methods": {"one": {"rules": {"rules": {"a": {"kind": "stuck"}}}}},
}
CUT = building_federation.Windows(heard=12, horizon=6, every=3, trains=0.75)


def read_wrists(streams: Path) -> Any:
    options: Any = load_options(ROOT / "firmware_sim" / "experiments" / "stress-predict.toml", STRESS, "short")
    return stress.load(streams / "stress_predict_e4", options.features)


def read_building_tables(streams: Path) -> Any:
    folders = {"keti": "keti_rooms", "air handlers": "hvac_fdd", "air handlers by day": "hvac_fdd"}
    names = get_args(building_tables.DataSet)
    return [building_tables.load(name, streams / folders.get(name, ""), 6, 2, 1, "A").streams for name in names]


def read_streams(streams: Path) -> Any:
    folders = {"skab": "skab_pump", "keti": "keti_rooms"}
    wrong = esn_streams.Wrong((), 0, 0)
    return [
        esn_streams.load(name, streams / folders.get(name, "z24_bridge"), "reported", wrong, ()).gateways
        for name in get_args(esn_streams.DataSet)
    ]


def read_alarms(streams: Path) -> Any:
    folders = {"keti": "keti_rooms", "skab": "skab_pump", "nab": "nab", "hvac": "hvac_fdd"}
    chosen = [AlarmSet.model_validate({"data": name, "folder": folder, **ALARMS}) for name, folder in folders.items()]
    return [building_alarms.load(one, streams, part, 0) for one in chosen for part in get_args(building_alarms.Part)]


def read_tasks(streams: Path) -> Any:
    kinds = {"air handling": "hvac_fdd", "bearing": "cwru_bearing", "occupancy": "uci_occupancy", "pump": "skab_pump"}
    chosen = [(TaskOptions.model_validate({"kind": kind}), streams / folder) for kind, folder in kinds.items()]
    return [esn_memory.task(options, folder, generator(0, 0, "none")).inputs for options, folder in chosen]


READERS: dict[str, Callable[[Path], Any]] = {
    "bridges, z24": lambda streams: bridges.load("z24", streams / "z24_bridge", SPECTRUM).fine.x,
    "bridges, cwru": lambda streams: bridges.load("cwru", streams / "cwru_bearing", SPECTRUM).fine.x,
    "building-alarms": read_alarms,
    "building-federation": lambda streams: building_federation.load(streams / "keti_rooms", CUT),
    "building-tables": read_building_tables,
    "esn-memory": read_tasks,
    "esn-streams": read_streams,
    "esn-wesad, esn-readout": lambda streams: [subject(path).x for path in (streams / "wesad_features").glob("S*")],
    "stress": read_wrists,
}


@pytest.mark.parametrize("study", READERS)
def test_a_study_reads_it(study: str, tiny: Path) -> None:
    found = READERS[study](tiny / "streams")
    assert len(found) and all(len(each) for each in found)


@pytest.mark.parametrize("name", [*TABLES, "user_knowledge", "pump_triplex"])
def test_the_studies_of_tables_read_it(name: str, tiny: Path) -> None:
    rows = table(tiny, name, grouped=name == "parkinsons")
    assert set(rows.y.tolist()) == {0, 1} and np.isnan(rows.x).any() == (name == "mammographic_mass")
    assert len(set(rows.groups.tolist())) == (len(rows.y) // 8 if name == "parkinsons" else len(rows.y))
    if name == "pump_triplex":
        assert (fault_codes(tiny, name) > 0).tolist() == (rows.y == 1).tolist()
    elif name != "mammographic_mass":  # what evaluates on any table takes no empty cell
        assert np.array_equal(load_table(tiny / "tabular" / f"{name}.csv").rows.x, rows.x)


def test_the_anomalies_of_breast_cancer_are_the_first_ten_malignant_of_all(tiny: Path) -> None:
    few, every = table(tiny, "breast_cancer_ad"), table(tiny, "breast_cancer_wdbc")
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
