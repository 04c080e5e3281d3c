"""Goal: `firmware-sim evaluate` reads what people have, and says in one line what it cannot use and where that is."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from fedgate.firmware_sim.evaluate.datasets import load_table
from fedgate.firmware_sim.evaluate.folders import load_folder
from fedgate.firmware_sim.evaluate.splits import Plan, by_group, split_folder
from fedgate.models.arrays import FEATURES
from fedgate.models.federated import ALGORITHMS
from tests.firmware_sim.evaluate.test_evaluate import (
    FIRST,
    _own_folder,
    cloud,
    csv_file,
    evaluate,
    mean,
    result,
    written,
)

__all__ = ["_own_folder", "csv_file"]  # fixtures are used by name alone

FOLDER = """
healthy = ["healthy.npz"]
damaged = ["damaged.npz"]
train_share = 0.6

[gateways]
north = {{ sensor = "a" }}
south = {{ sensor = "{south}" }}

[features]
rate_hz = {rate_hz}
window_s = 1.0
hop_s = 0.5
channels = ["sensor"]
steps = [{{ kind = "level" }}, {{ kind = "deviation" }}]
"""
PLAN = Plan("heldout", "normal", with_labels=False, clients=1, partition="iid")
# Two sensors in units that differ a thousandfold; damage lowers both by five of their deviations.
LEVEL, DEVIATION = np.array([10.0, 5000.0]), np.array([0.1, 100.0])


def folder(path: Path, *, south: str = "b", rate_hz: float = 100.0, holes: int = 0) -> Path:
    rng = np.random.default_rng(3)
    for name, shift in (("healthy", 0.0), ("damaged", -5.0)):
        values = LEVEL + DEVIATION * (rng.normal(size=(2_000, 2)) + shift)
        values[:holes, 0] = np.nan
        np.savez(path / f"{name}.npz", data=values, channels=np.array(["a", "b"]), fs=100.0)
    (path / "evaluation.toml").write_text(FOLDER.format(south=south, rate_hz=rate_hz))
    return path


def test_a_table_reads_the_same_in_every_packing(tmp_path: Path) -> None:
    rows = cloud()
    plain = Path(written(tmp_path / "t.csv", rows))
    semicolons = tmp_path / "s.csv"
    semicolons.write_text("\ufeff" + plain.read_text().replace(",", ";"), encoding="utf-8")
    packed = tmp_path / "t.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    np.savez(tmp_path / "t.npz", label=rows.y, features=rows.x)
    np.savez_compressed(tmp_path / "columns.npz", a=rows.x[:, 0], b=rows.x[:, 1], c=rows.x[:, 2], label=rows.y == 1)
    for path in (plain, semicolons, packed, tmp_path / "t.npz", tmp_path / "columns.npz"):
        table = load_table(path)
        assert np.array_equal(table.rows.x, rows.x)
        assert np.array_equal(table.rows.y, rows.y)


@pytest.mark.soak
def test_a_table_is_read_as_a_recording_would_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `info` reads, `evaluate` reads: decimal commas, other encodings, a column of time, text, parquet."""
    rows = cloud()
    times = [f"2024-01-01 00:{i // 60:02d}:{i % 60:02d}" for i in range(len(rows.y))]
    lines = [
        ";".join([at, "gut", *(f"{value!r}".replace(".", ",") for value in x), str(y)])
        for at, x, y in zip(times, rows.x.tolist(), rows.y.tolist(), strict=True)
    ]
    written_by_a_spreadsheet = tmp_path / "t.csv"
    written_by_a_spreadsheet.write_text("Zeit;Güte;a [°C];b;c;label\n" + "\n".join(lines) + "\n", encoding="cp1252")
    columns = {"time": pyarrow.array(times), "a": rows.x[:, 0], "b": rows.x[:, 1], "c": rows.x[:, 2], "label": rows.y}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        table = load_table(tmp_path / name)
        assert np.array_equal(table.rows.x, rows.x) and np.array_equal(table.rows.y, rows.y)
        assert "read as time or state and left out: " in table.read_as
    assert "left out, as they hold no numbers: 'Güte'" in load_table(tmp_path / "t.csv").read_as
    lines = ["written today", "when,a,b,bad", *(f"{i},{i % 7},{i % 5},{int(i > 30)}" for i in range(40))]
    (tmp_path / "named.csv").write_text("\n".join(lines) + "\n")
    read_as = ["--read", "header_line=2", "--read", "timestamp=when", "--read", "label=bad"]
    words = ("--data", str(tmp_path / "named.csv"), "--clients", "2", "--repeats", "1")
    assert "40 rows, 2 features" in result(capsys, *words, *read_as)["about"]
    assert "array means nothing for .csv" in one_line(capsys, *words, "--read", "array=x")
    assert "--read array: expected KEY=VALUE" in one_line(capsys, *words, "--read", "array")


def test_a_gateway_trains_on_its_early_healthy_windows_and_is_scored_on_all_others(tmp_path: Path) -> None:
    split = split_folder(load_folder(folder(tmp_path)), PLAN)
    # 20 s: windows start each half second, none crosses the border at 12 s: 23 early ones, 15 late ones.
    assert split.row_counts == [23, 23]
    for rows in split.test.values():
        assert np.bincount(rows.y).tolist() == [15, 23 + 15]
    assert np.allclose(split.train["north"][FEATURES].mean(axis=0), [10.0, 0.1], rtol=0.05)
    assert np.allclose(split.train["south"][FEATURES].mean(axis=0), [5000.0, 100.0], rtol=0.05)


def test_a_split_of_a_folder_with_labels_trains_on_early_damage_too(tmp_path: Path) -> None:
    split = split_folder(load_folder(folder(tmp_path)), PLAN._replace(train_on="all", with_labels=True))
    assert split.row_counts == [46, 46]
    assert [np.bincount(rows.y).tolist() for rows in split.test.values()] == [[15, 15]] * 2
    whole = split_folder(load_folder(tmp_path), PLAN._replace(protocol="whole", train_on="all"))
    assert whole.row_counts == [76, 76] == [len(rows.y) for rows in whole.test.values()]


@pytest.mark.soak
@pytest.mark.parametrize("algorithm", ["support-vector-election", "fedavg"])
def test_each_gateway_is_scored_in_its_own_units_even_when_it_was_never_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str
) -> None:
    options = ("--data", str(folder(tmp_path)), "--algorithm", algorithm, "--repeats", "2", "--fraction", "0.5")
    report = result(capsys, *options)
    assert {mean(report, name) for name in (algorithm, f"{algorithm}, local", "distance")} == {1.0}
    assert f"{algorithm}: normalisation=own." in report["about"]


def test_windows_with_missing_samples_are_left_out_and_counted(tmp_path: Path) -> None:
    read = load_folder(folder(tmp_path, holes=120))  # the first 1.2 s of one channel, in both recordings
    assert read.lost == 6 and read.read_as.endswith("; 6 windows lost to gaps")
    assert [len(gateway.rows.y) for gateway in read.gateways.values()] == [70, 76]


def one_line(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert evaluate(*options) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("firmware-sim: ")
    assert printed.err.endswith("\n")
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--algorithm magic", f"--algorithm: algorithm 'magic' is unknown; expected one of {', '.join(ALGORITHMS)}"),
        ("--set wings=2", "--set wings: none of support-vector-election has such a setting"),
        ("--set nu=many", "nu: expected a valid number"),
        ("--set nu=1.5", "nu"),
        ("--set nu=inf", "nu: expected a valid number, got 'inf'"),
        ("--set nu", "--set: expected KEY=VALUE, got 'nu'"),
        ("--set nu=0,3", "--set nu: expected a number, true, false, null or a word, got '0,3'"),
        ("--set masking=1 --set masking.quantum=0.5", "--set masking.quantum: masking is 1 already; expected a table"),
        ("--algorithm fedavg --set loss=hinge", "loss: expected 'one-class' or 'logistic'"),
        ("--algorithm fedavg --set loss=logistic --train-on normal", "train_on: fedavg learns from labels"),
        ("--clients 0", "clients: expected greater than or equal to 1, got '0'"),
        ("--clients 500", "firmware-sim: clients: 500 given, and 63 rows of cloud.csv train; expected 63 at most"),
        ("--fraction 1.2", "fraction: expected less than or equal to 1, got '1.2'"),
        ("--split half", "split: expected 'iid' or 'biased', got 'half'"),
        ("--protocol mine", "protocol: expected 'heldout' or 'whole', got 'mine'"),
        ("--train-on some", "train_on: expected 'normal' or 'all', got 'some'"),
        ("--repeats 0", "--repeats: expected at least 1, got 0"),
        ("--jobs 0", "--jobs: expected at least 1, got 0"),
        ("--json nowhere/out.json", "--json: 'nowhere/out.json' lies in a folder that does not exist"),
    ],
)
def test_a_wrong_option_is_named(csv_file: str, capsys: pytest.CaptureFixture[str], options: str, told: str) -> None:
    assert told in one_line(capsys, "--data", csv_file, "--repeats", "1", *options.split())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "t.csv: expected one column 'label' and at least one feature among the columns, got 'a', 'b'"),
        ("label\n1\n0\n", "no column of numbers among 'label'"),
        ("", "t.csv, line 1: no rows from here on"),
        ("a,label\n1,0\n2,2\n", "t.csv: column 'label' holds '0', '2'; expected 0 and 1 (1 = anomaly), or -1 and +1"),
        ("a,label\n1,0\n2,0\n", "both present"),
        ("a,label\n1,0\n", "holds '0'"),
        ("a,label\n1,0\n\n x ,1\n", "t.csv, line 4, column 'a': found ' x ', expected a number"),
        ("a,label\n1,0\n,1\n", "t.csv: data row 2: column 'a' holds nan; fill or drop such rows"),
        ("a,label\n1,0\n2\n", "t.csv, line 3: 1 cells, expected 2"),
        ("a,label\n1,0\nnan,1\n", "t.csv: data row 2: column 'a' holds nan; fill or drop such rows"),
        ('a,label\n"1,0\n', "cannot be split into cells"),
        ("a,label\n1,ok\n2,bad\n", "'label' holds words, such as 'ok'; classes are written as 0 (normal) and 1"),
        ("a,b\n1,2\n", "--label-column says which column holds the classes"),
        (
            "a,label\n1,0\n2,0\n3,1\n",
            "firmware-sim: t.csv: 1 row of class 1; expected at least 2 of each to hold some out",
        ),
    ],
)
def test_a_wrong_table_is_named_with_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert told in one_line(capsys, "--data", str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ("1,ok", "column 'fault': found 'ok', expected a number; correct the cell, or set decimal or columns; classes"),
        ("1,5", "t.csv: column 'fault' holds '0', '1', '5'; expected 0 and 1 (1 = anomaly)"),
        ("1,", "t.csv: data row 1: column 'fault' holds nan"),
    ],
)
def test_a_label_column_of_another_name_is_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cells: str, told: str
) -> None:
    (tmp_path / "t.csv").write_text(f"a,fault\n{cells}\n2,0\n3,1\n")
    assert told in one_line(capsys, "--data", str(tmp_path / "t.csv"), "--label-column", "fault")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('label-column = "label"\n', "settings.label-column is not known; did you mean label_column? Expected one of"),
        ('[cells]\nmethod = "*"\nspilt = ["iid"]\n', "cells.spilt is not known; did you mean split? Expected one of"),
    ],
)
def test_a_setting_and_an_axis_that_are_not_known_are_named_with_those_that_are(
    tmp_path: Path, csv_file: str, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (tmp_path / "e.toml").write_text(f'[settings]\ndata = "{Path(csv_file).name}"\n{text}')
    message = one_line(capsys, str(tmp_path / "e.toml"))
    assert told in message and "clients, data, fraction" in message


@pytest.mark.soak
def test_a_row_says_how_large_the_model_is_whatever_was_asked_for(
    csv_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three features two directions can be used, and no setting makes the model larger."""
    asked = ("--data", csv_file, "--algorithm", "federated-subspace", "--repeats", "1", "--set")
    reports = [result(capsys, *asked, f"components={count}") for count in (1, 2, 50)]
    few, most, more = (report["methods"][0]["parameters"]["mean"] for report in reports)
    assert few < most == more


def test_wrong_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--data is missing" in one_line(capsys)
    assert "gone.csv: no such file" in one_line(capsys, "--data", str(tmp_path / "gone.csv"))
    contents = {
        "t.wav": (b"hello", "expected a table (.csv, .tsv, .txt, .npz, .parquet, also as .gz or .zip) or a folder"),
        "t.csv.gz": (b"hello", "cannot be unpacked"),
        "t.npz": (b"hello", "expected the start of a zip archive; save it again with numpy.savez"),
        "u.npz": (b"PK\x03\x04 cut here", "archive: cannot be read"),
    }
    for name, (content, told) in contents.items():
        (tmp_path / name).write_bytes(content)
        message = one_line(capsys, "--data", str(tmp_path / name))
        assert name in message
        assert told in message
    np.savez(tmp_path / "v.npz", label=np.array([0, 1]), x=np.zeros(3))
    assert "array 'x' is float64 of shape (3,)" in one_line(capsys, "--data", str(tmp_path / "v.npz"))


@pytest.mark.soak
def test_wrong_folders_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "evaluation.toml" in one_line(capsys, "--data", str(tmp_path))
    made = str(folder(tmp_path))
    assert "clients belongs to tables" in one_line(capsys, "--data", made, "--clients", "2")
    file = tmp_path / "evaluation.toml"
    changes = {
        '"healthy.npz"': ('"gone.npz"', "gone.npz: no such file"),
        '"damaged.npz"': ('"healthy.npz"', "is both in healthy and in damaged"),
        "south = { sensor": ("south = { role", "gateways.south gives channels for ['role']"),
        '"b"': ('"c"', "gateways.south: healthy.npz: no channel 'c'; expected one of 'a', 'b'"),
        "rate_hz = 100.0": ("rate_hz = 50.0", "recorded at 100 Hz; expected features.rate_hz, 50 Hz"),
        "window_s = 1.0": ("window_s = 12.0", "8 s to cut windows from; expected at least 12 s"),
        "train_share = 0.6": ("train_share = 2", "evaluation.toml:4: train_share"),
        "hop_s": ("hops_s", "evaluation.toml:13: features.hops_s"),
    }
    text = file.read_text()
    for old, (new, told) in changes.items():
        file.write_text(text.replace(old, new))
        assert told in one_line(capsys, "--data", made)
    folder(tmp_path, holes=1_200)
    assert "every window has missing samples" in one_line(capsys, "--data", made)


def test_a_wrong_file_is_named_with_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "e.toml"
    for text, told in {
        'title = "t"\nclient = 3\n': "e.toml:2: client: is not a known key",
        'title = "t"\njobs = "much"\n': "e.toml:2: jobs: expected",
        "jobs = \n": "e.toml: not TOML: Invalid value (at line 1",
        "jobs = 2\n": "--data is missing",
        'probe = "none.such"\n[settings]\ndata = "e.toml"\n': "probe 'none.such': No module named 'none.such'",
    }.items():
        file.write_text(text)
        data = () if "missing" in told or "settings" in text else ("--data", str(file))
        assert told in one_line(capsys, str(file), *data)


def grouped(path: Path, groups: list[str]) -> str:
    rows = cloud()
    cells = zip(groups, rows.x.tolist(), rows.y.tolist(), strict=True)
    lines = ["gateway,a,b,c,label", *(",".join(map(str, [group, *x, y])) for group, x, y in cells)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


GROUPS = [("north", "south", "west")[i % 3] for i in range(102)]


def test_a_column_of_few_words_is_offered_as_gateways(tmp_path: Path) -> None:
    offer = "column 'gateway' names 3 groups and is left out: --groups gateway makes each one a gateway"
    path = Path(grouped(tmp_path / "t.csv", GROUPS))
    assert load_table(path).read_as.count(offer) == 1
    assert offer not in load_table(path, None, "gateway").read_as
    assert "names" not in load_table(Path(grouped(tmp_path / "u.csv", [f"row {i}" for i in range(102)]))).read_as


@pytest.mark.parametrize("names", [("north", "south", "west"), ("1", "2", "3")])
def test_each_group_is_a_gateway_that_keeps_its_rows(names: tuple[str, ...], tmp_path: Path) -> None:
    groups, rows = [names[i % 3] for i in range(102)], cloud()
    csv = Path(grouped(tmp_path / "t.csv", groups))
    columns = {"gateway": groups, "a": rows.x[:, 0], "b": rows.x[:, 1], "c": rows.x[:, 2], "label": rows.y}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", gateway=np.array(groups), x=rows.x, label=rows.y)
    for path in (csv, tmp_path / "t.parquet", tmp_path / "t.npz"):
        split = split_folder(by_group(load_table(path, None, "gateway")), PLAN)
        assert list(split.train) == list(names)
        for place, name in enumerate(names):
            x, y = rows.x[place::3], rows.y[place::3]
            assert np.array_equal(split.train[name][FEATURES], x[y == 0][:21])  # 70 % of 30, the first
            assert np.array_equal(split.test[name].x, np.concatenate([x[y == 0][21:], x[y == 1]]))


@pytest.mark.soak
def test_evaluate_says_who_the_groups_are_and_what_it_cannot_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data", grouped(tmp_path / "t.csv", GROUPS), "--repeats", "1")
    report = result(capsys, *words, "--groups", "gateway")
    assert mean(report, FIRST, "clients") == mean(report, FIRST, "judged") == 3
    drawn = {key.split(".")[1] for cell in report["cells"] for key in cell["figures"] if key.startswith("score.")}
    assert drawn == {"north", "south", "west"} and "normalisation=own" in report["about"]
    unknown = one_line(capsys, *words, "--groups", "plant")
    assert "no column 'plant'" in unknown and "'gateway', 'a'" in unknown
    assert "clients deals rows" in one_line(capsys, *words, "--groups", "gateway", "--clients", "3")
    few = ("--data", grouped(tmp_path / "few.csv", ["lone", "lone", *GROUPS[2:]]), "--repeats", "1")
    assert (
        "group 'lone' has 2 rows that are normal, of 2; expected at least 3, two to train on and one to score: leave"
        in one_line(capsys, *few, "--groups", "gateway")
    )
    empty = ("--data", grouped(tmp_path / "empty.csv", ["", *GROUPS[1:]]), "--groups", "gateway")
    assert "data row 1: column 'gateway' is empty; expected a gateway's name" in one_line(capsys, *empty)
    np.savez(tmp_path / "t.npz", gateway=np.array(GROUPS[1:]), x=cloud().x, label=cloud().y)
    npz = ("--data", str(tmp_path / "t.npz"), "--groups", "gateway")
    assert "groups 'gateway' have shape (101,)" in one_line(capsys, *npz)


def test_a_column_of_words_in_an_npz_is_named_with_the_option_that_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "t.npz")
    np.savez(path, gateway=np.array(GROUPS), state=np.array(GROUPS), x=cloud().x, label=cloud().y)
    hint = "say --groups gateway, else leave them out"
    assert re.search(rf"array 'gateway' is <U5 of .* {hint}", one_line(capsys, "--data", path))
    said = one_line(capsys, "--data", path, "--groups", "gateway")
    assert "array 'state' is <U5" in said and "--groups" not in said
    np.savez(path, x=cloud().x, label=np.array(GROUPS))
    assert "--groups" not in one_line(capsys, "--data", path)


@pytest.mark.soak
def test_a_gateway_without_anomalies_trains_and_counts_in_no_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = ["sound" if i < 45 else "faulty" for i in range(102)]
    report = result(capsys, "--data", grouped(tmp_path / "t.csv", groups), "--groups", "gateway", "--repeats", "1")
    assert (mean(report, FIRST, "clients"), mean(report, FIRST, "judged")) == (2, 1)
    assert all(0.0 <= line["AUC"]["mean"] <= 1.0 for line in report["methods"])
