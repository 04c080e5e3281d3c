"""Converters: the tiny data in the form in which publishers hand such data out becomes the tiny data again."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.convert import CONVERTERS, CWRU_FILES, TABLES, convert


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def unpack(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.decompress(source.read_bytes()))


def write_csv(path: Path, rows: Any, separator: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def write_matlab(path: Path, variables: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, variables)


def publish_z24(tiny: Path, folder: Path) -> None:
    for path in tiny.glob("*.npz"):
        given, state = arrays(path), path.stem[-2:]
        for k, setup in enumerate(given["setups"]):
            acc = given["acc"][k] * given["scale"][k]
            five = {"data_last5": acc[:, [0, 1, 2, 0, 1]]}
            write_matlab(folder / state / "avt" / "Processed" / f"{state}setup{setup:02d}_R.mat", five)


def publish_cwru(tiny: Path, folder: Path) -> None:
    for name, number in CWRU_FILES.items():
        given = arrays(tiny / f"{name}.npz")
        de, fe = (given["acc"] * given["scale"]).T[:, :, None]
        write_matlab(folder / f"{number}.mat", {f"X{number:03d}_DE_time": de, f"X{number:03d}_FE_time": fe})


def publish_wrists(tiny: Path, folder: Path) -> None:
    labels = [["Participant", "HR", "respr", "Time(sec)", "Label"]]
    for path in sorted(tiny.glob("*.npz")):
        given, place = arrays(path), folder / "Raw_data" / path.stem
        given["bvp"] = given["bvp"] * given["bvp_scale"]
        for name in ("eda", "bvp", "temp", "hr", "acc"):
            columns = given[name].reshape(len(given[name]), -1).tolist()
            head = [[float(given[f"{name}_{key}"])] * len(columns[0]) for key in ("t0", "fs")]
            write_csv(place / f"{name.upper()}.csv", [*head, *columns], ", " if name == "acc" else ",")
        for k in np.flatnonzero(given["label_1hz"] >= 0).tolist():
            second = int(given["label_t0"]) + k
            labels.append([str(int(path.stem[1:])), "70.1", "12.3", str(second), str(given["label_1hz"][k])])
    (folder / "Raw_data" / "S01").mkdir()  # nobody labelled this one
    write_csv(folder / "Processed_data" / "Improved_All_Combined_hr_rsp_binary.csv", labels)


def publish_sites(tiny: Path, folder: Path) -> None:
    for site in ("A", "C"):
        given = arrays(tiny / f"location_{site}.npz")
        truth = [given[name] for name in ("occupants", "activity", "door_open", "window_open")]
        for run in np.unique(given["measurement"]).tolist():
            of = given["measurement"] == run
            lines = zip(
                given["t_ms"][of], given["node"][of], given["x"][of].tolist(), *(y[of] for y in truth), strict=True
            )
            rows = [[k + 1, t, 0, node, *x, *others] for k, (t, node, x, *others) in enumerate(lines)]
            name = f"room_climate-location_{site}-measurement{run:02d}.csv"
            write_csv(folder / f"datasets-location_{site}" / name, rows, ", ")


def publish_air(tiny: Path, folder: Path) -> None:
    for name, unit in (("mzvav_2_1", "MZVAV-2-1"), ("szcav", "SZCAV")):
        with gzip.open(tiny / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        rows = [[word.replace("Damper Control", "Damper  Control") + " " for word in header[:-2]]]
        for line in lines:
            at = datetime.fromisoformat(line[0])
            rows.append([f"{at.month}/{at.day}/{at.year} {at.hour}:{at.minute:02d}"])
            rows[-1] += [cell or "#VALUE!" for cell in line[1:-2]]
        write_csv(folder / f"{unit}.csv", rows)


def publish_nab(tiny: Path, folder: Path) -> None:
    windows = json.loads((tiny / "anomaly_windows.json").read_text("utf-8"))
    for name in windows:
        unpack(tiny / f"{name}.gz", folder / "data" / name.replace("_", "/", 1))
    every = {name.replace("_", "/", 1): spans for name, spans in windows.items()} | {"realTraffic/other.csv": []}
    (folder / "labels").mkdir()
    (folder / "labels" / "combined_windows.json").write_text(json.dumps(every), encoding="utf-8")


def publish_skab(tiny: Path, folder: Path) -> None:
    for path in tiny.rglob("*.gz"):
        unpack(path, folder / path.relative_to(tiny).with_suffix(""))


def publish_office(tiny: Path, folder: Path) -> None:
    for name in ("datatraining", "datatest"):
        unpack(tiny / f"{name}.csv.gz", folder / f"{name}.txt")


STREAMS: dict[str, Callable[[Path, Path], None]] = {
    "z24_bridge": publish_z24,
    "cwru_bearing": publish_cwru,
    "stress_predict_e4": publish_wrists,
    "room_climate": publish_sites,
    "hvac_fdd": publish_air,
    "nab": publish_nab,
    "skab_pump": publish_skab,
    "uci_occupancy": publish_office,
}


@pytest.mark.soak
@pytest.mark.parametrize("name", STREAMS)
def test_what_a_publisher_hands_out_becomes_what_studies_read(name: str, tiny: Path, tmp_path: Path) -> None:
    given, source, found = tiny / "streams" / name, tmp_path / "source", tmp_path / "data" / "streams" / name
    source.mkdir()
    STREAMS[name](given, source)
    convert(name, source, tmp_path / "data")
    files = sorted(path.relative_to(given) for path in given.rglob("*.*") if path.name != "NOTICE.md")
    assert files == sorted(path.relative_to(found) for path in found.rglob("*.*"))
    for path in files:
        if path.suffix == ".npz":
            check_arrays(arrays(given / path), arrays(found / path))
        elif path.suffix == ".gz":
            assert gzip.decompress((found / path).read_bytes()) == gzip.decompress((given / path).read_bytes()), path
        else:
            assert json.loads((found / path).read_text("utf-8")) == json.loads((given / path).read_text("utf-8"))


def check_arrays(given: dict[str, Any], found: dict[str, Any]) -> None:
    """Signals are scaled anew, and one of Z24 has all five sensors; all else is as it was."""
    assert found.keys() == given.keys()
    for counts, scale in (("acc", "scale"), ("bvp", "bvp_scale")):
        if scale in given:
            step = float(given[scale].max())
            before, after = (signals(each.pop(counts), each.pop(scale)) for each in (given, found))
            np.testing.assert_allclose(after[..., : before.shape[-1]], before, rtol=0.0, atol=step)
    if "channels" in given:
        count = len(given["channels"])
        assert found.pop("channels")[:count].tolist() == given.pop("channels").tolist()
    for name, values in given.items():
        assert found[name].tolist() == values.tolist(), name


def signals(counts: Any, scale: Any) -> Any:
    return counts * (scale[..., None, :] if scale.ndim else scale)


def features(count: int, start: float) -> str:
    return ",".join(f"{start + k:.2f}" for k in range(count))


# By table, its lines as the publisher writes them: of the positive class, then of the other.
LINES = {
    "banknote": (f"{features(4, -2.0)},1", f"{features(4, 5.0)},0"),
    "breast_cancer_wdbc": (f"842302,M,{features(30, 0.5)}", f"8510426,B,{features(30, 1.5)}"),
    "sonar": (f"{features(60, 0.0)},M", f"{features(60, 0.5)},R"),
    "mammographic_mass": ("5,67,3,5,?,1", "4,28,1,1,3,0"),
    "parkinsons": (
        f"phon_R01_S01_1,{features(16, 1.0)},1,{features(6, 17.0)}",
        f"phon_R01_S50_6,{features(16, 0.0)},0,{features(6, 16.0)}",
    ),
    "rice_cammeo_osmancik": (f"{features(7, 1.0)},Cammeo", f"{features(7, 2.0)},Osmancik"),
    "breast_cancer_ad": (f"{features(30, 1.0)},o", f"{features(30, 2.0)},n"),
    "pen_global": (f"{features(16, 1.0)},o", f"{features(16, 2.0)},n"),
    "letter": (f"{features(32, 1.0)},o", f"{features(32, 2.0)},n"),
    "satellite": (f"{features(36, 1.0)},o", f"{features(36, 2.0)},n"),
}
HEADERS = {
    "parkinsons": f"name,{','.join(TABLES['parkinsons'].columns[:16])},status,RPDE,DFA,spread1,spread2,D2,PPE",
    "rice_cammeo_osmancik": "@relation rice\n@attribute AREA integer\n@data",
}


@pytest.mark.soak
@pytest.mark.parametrize("name", TABLES)
def test_a_table_keeps_its_numbers_and_gets_a_header_and_labels(name: str, tmp_path: Path) -> None:
    source, count = tmp_path / "source", TABLES[name].rows
    every = (LINES[name] * count)[:count]
    source.write_text("\n".join([HEADERS.get(name, ""), *every]) + "\n", encoding="utf-8")
    convert(name, source, tmp_path)
    header, *rows = csv.reader((tmp_path / "tabular" / f"{name}.csv").read_text("utf-8").splitlines())
    assert header == [*TABLES[name].columns, "label"]
    assert [row[-1] for row in rows[:2]] == ["1", "0" if LINES[name][0].endswith(",o") else "-1"]
    for row, line in zip(rows, every, strict=True):
        cells = iter(line.replace("?", "").split(","))
        assert all(cell in cells for cell in row[:-1])  # in their order
    if name == "parkinsons":
        assert (tmp_path / "tabular" / "parkinsons.groups.csv").read_text("utf-8").startswith("subject\nS01\nS50\n")
        assert [row[15:17] for row in rows[:2]] == [["16.00", "17.00"], ["15.00", "16.00"]]  # the class stood between


@pytest.mark.parametrize("name", CONVERTERS)
def test_what_is_no_such_data_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    for source in (tmp_path / "absent", tmp_path):
        with pytest.raises(StudyError, match=f"expected {name} as its publisher hands it out"):
            convert(name, source, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    for name in CWRU_FILES.values():
        (tmp_path / f"{name}.mat").write_bytes(b"no such format" * 20)
    with pytest.raises(StudyError, match=r"97\.mat: expected MATLAB's format up to version 7 with X097_DE_time"):
        convert("cwru_bearing", tmp_path, tmp_path / "data")
    (tmp_path / "letter.csv").write_text("1,2,3,n\n", encoding="utf-8")
    with pytest.raises(StudyError, match=r"letter\.csv: .*\(0 rows of 32 numbers and a class, expected 1600\)"):
        convert("letter", tmp_path / "letter.csv", tmp_path / "data")
    four = tmp_path / "01" / "avt" / "Processed" / "01setup01_R.mat"
    write_matlab(four, {"data_last5": np.ones((10, 4))})
    with pytest.raises(StudyError, match=r"01setup01_R\.mat: data_last5 is \(10, 4\), expected \(T, 5\)"):
        convert("z24_bridge", tmp_path, tmp_path / "data")
