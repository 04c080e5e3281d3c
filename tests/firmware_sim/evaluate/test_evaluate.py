"""Goal: the figures of `firmware-sim evaluate` are those of the data, and nothing that is scored leaks into training.

Method: small tables and recordings made here, the real command without a process of its own, twins in scikit-learn.
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM

from fedgate import firmware_sim
from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.__main__ import main as firmware_sim_main
from fedgate.firmware_sim.evaluate import probe
from fedgate.firmware_sim.evaluate.datasets import Labelled, Table
from fedgate.firmware_sim.evaluate.splits import Plan, partition, split_table
from fedgate.firmware_sim.evaluate.training import TrainingError
from fedgate.firmware_sim.progress import Progress
from fedgate.models.arrays import FEATURES, LABELS
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import NORMALISATION
from tests.support.graph_tricks import described

HELDOUT = Plan("heldout", "normal", with_labels=False, clients=3, partition="iid")
TIMES = ("fit s", "score µs")
FIRST = "support-vector-election"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluate(*options: str) -> int:
    return firmware_sim_main(["evaluate", "--jobs", "1", *options])


def result(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert evaluate(*options, "--json", "-") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def lines(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each method came to, without what a clock says."""
    return {
        line["method"]: {key: value for key, value in line.items() if key not in (*TIMES, "method")}
        for line in report["methods"]
    }


def mean(report: dict[str, Any], method: str = FIRST, figure: str = "AUC") -> Any:
    return lines(report)[method][figure]["mean"]


def cloud(normal: int = 90, outliers: int = 12, features: int = 3) -> Labelled:
    rng = np.random.default_rng(7)
    x = np.concatenate([rng.normal(0, 1, (normal, features)), rng.normal(2, 1, (outliers, features))])
    return Labelled(x, np.repeat([0, 1], [normal, outliers]))


def written(path: Path, rows: Labelled, names: tuple[str, ...] = ("a", "b", "c")) -> str:
    lines = [",".join(["label", *names])]
    lines += [",".join(map(repr, [int(y), *x.tolist()])) for x, y in zip(*rows, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def csv_file(tmp_path: Path) -> str:
    return written(tmp_path / "cloud.csv", cloud())


@pytest.mark.soak
def test_a_seed_fixes_every_figure_but_the_times(capsys: pytest.CaptureFixture[str], csv_file: str) -> None:
    options = ("--data", csv_file, "--clients", "3", "--repeats", "2", "--fresh")
    first, again, other = (result(capsys, *options, "--seed", seed) for seed in ("5", "5", "6"))
    assert all(line[key]["mean"] > 0 for line in first["methods"] for key in TIMES if key in line)
    assert lines(first) == lines(again)
    assert lines(first) != lines(other)


@pytest.mark.soak
def test_the_first_runs_do_not_depend_on_how_many_follow(capsys: pytest.CaptureFixture[str], csv_file: str) -> None:
    one = lines(result(capsys, "--data", csv_file, "--repeats", "1"))[FIRST]["AUC"]
    two = lines(result(capsys, "--data", csv_file, "--repeats", "2", "--fresh"))[FIRST]["AUC"]
    assert one["std"] is None
    spread = two["std"] / np.sqrt(2)  # of two values, the sample deviation is their distance / sqrt(2)
    assert min(abs(two["mean"] - spread - one["mean"]), abs(two["mean"] + spread - one["mean"])) < 1e-12


def held_out(table: Table, seed: int) -> np.ndarray:
    """Rows that are scored: column 0 counts the rows and scaling keeps the order, so ranks are row numbers."""
    split = split_table(table, HELDOUT._replace(train_on="all"), seed)
    scored = next(iter(split.test.values())).x[:, 0]
    trained = np.concatenate([data[FEATURES][:, 0] for data in split.train.values()])
    return np.searchsorted(np.sort(np.concatenate([scored, trained])), np.sort(scored))


@pytest.mark.parametrize("train_on", ["normal", "all"])
def test_what_is_scored_has_no_part_in_scale_or_training(train_on: Literal["normal", "all"]) -> None:
    x, y = cloud()
    x[:, 0] = np.arange(len(x))
    table = Table("t", Labelled(x, y), "")
    plan = HELDOUT._replace(train_on=train_on)
    split = split_table(table, plan, 11)
    moved = x.copy()
    moved[held_out(table, 11)] += 1e6
    if train_on == "normal":
        moved[y == 1] += 1e6
    after = split_table(Table("t", Labelled(moved, y), ""), plan, 11)
    for client, data in split.train.items():
        assert np.array_equal(data[FEATURES], after.train[client][FEATURES])
    together = np.concatenate([data[FEATURES] for data in split.train.values()])
    assert np.array_equal([together.min(axis=0), together.max(axis=0)], [np.zeros(3), np.ones(3)])
    assert after.test["client-1"].x.min() > 1e3
    assert len(split.test["client-1"].y) == len(held_out(table, 11))


def test_held_out_rows_are_three_tenths_of_each_class() -> None:
    split = split_table(Table("t", cloud(100, 10), ""), HELDOUT, 3)
    assert np.bincount(split.test["client-1"].y).tolist() == [30, 3]
    assert sum(split.row_counts) == 70  # normal rows alone


def test_protocol_whole_trains_and_scores_on_everything() -> None:
    rows = cloud()
    split = split_table(Table("t", rows, ""), HELDOUT._replace(protocol="whole", train_on="all"), 3)
    scaled = (rows.x - rows.x.min(axis=0)) / np.ptp(rows.x, axis=0)
    assert np.allclose(split.test["client-2"].x, scaled)
    trained = np.concatenate([data[FEATURES] for data in split.train.values()])
    assert np.allclose(trained[np.lexsort(trained.T)], scaled[np.lexsort(scaled.T)])


def test_one_class_algorithms_never_see_a_label() -> None:
    assert all(set(data) == {FEATURES} for data in split_table(Table("t", cloud(), ""), HELDOUT, 1).train.values())
    with_labels = split_table(Table("t", cloud(), ""), HELDOUT._replace(train_on="all", with_labels=True), 1)
    assert sum(int(data[LABELS].sum()) for data in with_labels.train.values()) == round(0.7 * 12)


def test_biased_parts_are_the_clusters_of_kmeans() -> None:
    x = cloud().x
    expected = KMeans(n_clusters=4, n_init=10, random_state=9).fit_predict(x)
    assert np.array_equal(partition(x, 4, "biased", 9), expected)


def test_fewer_distinct_rows_than_clients_leave_clients_without_rows() -> None:
    x = np.repeat([[0.0, 0.0], [1.0, 1.0]], 5, axis=0)
    assert sorted(np.bincount(partition(x, 5, "biased", 0), minlength=5).tolist()) == [0, 0, 0, 5, 5]


@pytest.mark.parametrize("unit", [2.0**-20, 1.0, 2.0**20])
def test_the_distance_from_the_mean_is_the_same_in_any_unit(unit: float) -> None:
    """A column that stood still in training had a scale of one, whatever its unit."""
    rng = np.random.default_rng(0)
    x, fresh = (np.column_stack([rng.normal(size=(50, 2)), np.full(50, value)]) for value in (3.0, 3.001))
    factor, plain = np.array([1.0, 1.0, unit]), probe._reference({FEATURES: x})
    reference = probe._reference({FEATURES: x * factor})
    np.testing.assert_array_equal(probe._distance(reference, fresh * factor), probe._distance(plain, fresh))
    assert (probe._distance(reference, fresh * factor) > 50.0).all()


@given(count=st.integers(0, 60), clients=st.integers(1, 20), seed=st.integers(0, 2**31 - 1))
def test_iid_parts_are_equal_and_drawn_from_the_seed(count: int, clients: int, seed: int) -> None:
    owners = partition(np.zeros((count, 1)), clients, "iid", seed)
    sizes = np.bincount(owners, minlength=clients)
    assert len(sizes) == clients
    assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(owners, partition(np.zeros((count, 1)), clients, "iid", seed))


@pytest.mark.soak
def test_one_client_without_noise_is_an_svdd_of_its_support_vectors(
    capsys: pytest.CaptureFixture[str], csv_file: str
) -> None:
    """The twin in scikit-learn: the vectors of a one-class SVM, and a second one-class SVM on them."""
    plain = ("--set", "anonymise=false", "--set", "nu=0.4", "--set", "gamma=1")
    report = result(capsys, "--data", csv_file, "--clients", "1", "--repeats", "1", "--protocol", "whole", *plain)
    rows = cloud()
    scaled = (rows.x - rows.x.min(axis=0)) / np.ptp(rows.x, axis=0)
    vectors = OneClassSVM(nu=0.4, gamma=1.0, tol=1e-6).fit(scaled).support_vectors_
    twin = OneClassSVM(nu=0.4, gamma=1.0, tol=1e-6).fit(vectors)
    assert mean(report) == pytest.approx(roc_auc_score(rows.y, -twin.decision_function(scaled)), abs=5e-3)
    assert mean(report, f"{FIRST}, local") == mean(report, f"{FIRST}, pooled")
    distances = np.linalg.norm((scaled - scaled.mean(axis=0)) / scaled.std(axis=0), axis=1)
    assert mean(report, "distance") == pytest.approx(roc_auc_score(rows.y, distances))


@pytest.mark.soak
def test_bytes_are_those_of_the_wire_for_the_share_that_takes_part(
    capsys: pytest.CaptureFixture[str], csv_file: str
) -> None:
    settings = ("--set", "components=0", "--set", "rounds=3")
    options = ("--algorithm", "fedavg", "--data", csv_file, "--clients", "8", "--fraction", "0.125", "--repeats", "1")
    report = result(capsys, *options, *settings)
    model = {"weights": np.zeros(3), "intercept": np.zeros(())}
    assert mean(report, "fedavg", "rounds") == 3
    assert mean(report, "fedavg", "kB up") == 3 * len(encode({**model, "samples": np.zeros(())})) / 8e3
    assert mean(report, "fedavg", "kB down") == 4e-3 * len(encode({**model, "step": np.array(3)}))  # and the end


@pytest.mark.soak
def test_clients_that_are_never_drawn_score_in_their_own_units_under_masks_too(
    capsys: pytest.CaptureFixture[str], csv_file: str
) -> None:
    options = ("--algorithm", "federated-subspace", "--data", csv_file, "--clients", "8", "--fraction", "0.5")
    settings = ("--set", "masking.fewest=3", "--set", "normalisation=own", "--set", "components=1", "--repeats", "1")
    assert 0.0 <= mean(result(capsys, *options, *settings), "federated-subspace") <= 1.0


@pytest.mark.soak
def test_json_holds_every_method_and_run_beside_table_and_page(
    capsys: pytest.CaptureFixture[str], csv_file: str, tmp_path: Path
) -> None:
    target = tmp_path / "out.json"
    two = ("--algorithm", FIRST, "--algorithm", "federated-subspace", "--set", "components=2")
    assert evaluate("--data", csv_file, *two, "--repeats", "2", "--json", str(target)) == 0
    printed, report = capsys.readouterr(), json.loads(target.read_text())
    assert {"data", "about", "runs", "page", "methods", "cells"} == report.keys()
    names = [f"{name}{part}" for part in ("", ", local", ", pooled") for name in (FIRST, "federated-subspace")]
    assert lines(report).keys() == {*names, "distance", "always"}
    assert len(report["cells"]) == 2 * 8 and report["runs"] == 2
    assert "label 1 read as anomaly (12 rows), 0 as normal (90 rows)" in printed.out
    assert "federated-subspace: normalisation=none, unit=feature, components=2." in report["about"]
    for name, each in lines(report).items():
        line = next(line for line in printed.out.splitlines() if line.startswith(f"{name}  "))
        assert f"{each['AUC']['mean']:.3f} ± {each['AUC']['std']:.3f}" in line
    page = Path(report["page"]).read_text("utf-8")
    assert page.count("data:image/png;base64,") == 3
    assert {"ROC curves", "Scores over time, client-1", "Bytes"} <= set(re.findall("<h2>(.*?)</h2>", page))


def test_a_roc_curve_has_every_threshold_of_few_rows_and_a_thinned_part_of_many() -> None:
    """Held against the definition: the share of anomalies above the score that so many normal rows exceed."""
    rng = np.random.default_rng(3)
    for normal, most in ((7, 29), (5_000, 201)):
        y = np.repeat([0, 1], [normal, 40])
        scores = rng.normal(size=len(y)) + y
        figures = probe._worth({"a": (y, scores)})
        curve = {float(name.removeprefix("roc.")): value for name, value in figures.items() if name.startswith("roc.")}
        assert len(curve) <= most and {0.0, 0.05, 0.5, 1.0} <= curve.keys()
        descending = np.sort(scores[y == 0])[::-1]
        counted = {k: curve[at] for k in range(normal) if (at := float(f"{k / normal:g}")) in curve}
        assert len(counted) >= min(normal, 150)
        assert counted == {k: pytest.approx(np.mean(scores[y == 1] > descending[k])) for k in counted}


@pytest.mark.soak
def test_where_nobody_is_judged_the_page_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A gateway's only anomaly trains where all rows do, so that none is left to be scored."""
    path = tmp_path / "apart.csv"
    rows = [f"{value},{value % 3},{site},{int((site, value) == ('b', 5))}" for site in "ab" for value in range(12)]
    path.write_text("\n".join(["x,z,site,label", *rows]))
    report = result(capsys, "--data", str(path), "--groups", "site", "--train-on", "all", "--repeats", "1")
    assert mean(report) is None and mean(report, figure="judged") == 0
    assert Path(report["page"]).read_text("utf-8").count("no client has scored rows of both classes") == 2


@pytest.mark.soak
def test_labelled_classes_train_and_f1_has_the_constant_answer_beside_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    x, y = cloud(60, 60)
    path = written(tmp_path / "classes.csv", Labelled(x + 2 * y[:, None], 2 * y - 1))
    learnt = ("--set", "loss=logistic", "--set", "learning_rate=1.0")
    report = result(capsys, "--algorithm", "fedavg", "--data", path, "--repeats", "2", *learnt)
    assert "label +1 read as positive class (60 rows), -1 as negative class (60 rows)" in report["about"]
    assert mean(report, "fedavg", "F1") > 0.95
    assert mean(report, "always", "F1") == pytest.approx(2 / 3)


@pytest.mark.soak
def test_another_column_may_hold_the_classes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = Path(written(tmp_path / "cloud.csv", cloud()))
    before = mean(result(capsys, "--data", str(path), "--repeats", "1"))
    path.write_text(path.read_text().replace("label,", "broken,", 1))
    after = result(capsys, "--data", str(path), "--repeats", "1", "--label-column", "broken")
    assert mean(after) == before
    assert evaluate("--data", str(path)) == 2
    assert "expected one column 'label'" in capsys.readouterr().err


@pytest.mark.soak
def test_clients_with_too_few_rows_are_counted_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = written(tmp_path / "small.csv", cloud(10, 4))
    options = ("--data", path, "--clients", "9", "--repeats", "1", "--protocol", "whole", "--set", "normalisation=own")
    report = result(capsys, *options)
    federated = next(cell["figures"] for cell in report["cells"] if cell["method"] == FIRST)
    assert (federated["rows_min"], federated["rows_max"]) == (1, 2)
    assert mean(report, f"{FIRST}, local", "could not train") == 4


@pytest.mark.soak
def test_an_algorithm_that_takes_several_clients_is_measured_and_has_no_baseline_of_one(
    capsys: pytest.CaptureFixture[str], csv_file: str
) -> None:
    options = ("--algorithm", "fedavg-median", "--data", csv_file, "--repeats", "1", "--set", "rounds=1")
    report = result(capsys, *options, "--clients", "3")
    assert mean(report, "fedavg-median, local", "could not train") == 3
    assert mean(report, "fedavg-median, local") is mean(report, "fedavg-median, pooled") is None
    assert evaluate(*options, "--clients", "2") == 2
    assert "expected 3 updates or more, got 2; ask more gateways" in capsys.readouterr().err


def test_a_budget_of_privacy_that_lasts_for_no_update_is_named(
    capsys: pytest.CaptureFixture[str], csv_file: str
) -> None:
    settings = ("local=sgd", "gamma=0.2", "privacy.clip=1.0", "privacy.noise_multiplier=1.0", "privacy.epsilon=0.1")
    assert evaluate("--algorithm", "fedavg", "--data", csv_file, *(f"--set={each}" for each in settings)) == 2
    assert "privacy.epsilon: 0.1 given, a budget that is spent before anything is sent" in capsys.readouterr().err


@pytest.mark.soak
def test_a_file_says_the_same_as_options_which_win(
    capsys: pytest.CaptureFixture[str], csv_file: str, tmp_path: Path
) -> None:
    file = tmp_path / "comparison.toml"
    file.write_text(
        """[settings]
data = "cloud.csv"
clients = 3
split = "biased"
seed = 4
train_on = "all"
[define.method.support-vector-election]
algorithm = "support-vector-election"
settings = { nu = 0.3, gamma = 1 }
[cells]
method = "*"
run = 1
"""
    )
    from_file = result(capsys, str(file))
    same = ("--data", csv_file, "--clients", "3", "--split", "biased", "--repeats", "1", "--train-on", "all")
    from_options = result(capsys, *same, "--seed", "4", "--set", "nu=0.3", "--set", "gamma=1")
    assert lines(from_file) == lines(from_options)
    won = result(capsys, str(file), "--seed", "8", "--set", "nu=0.2")
    assert "Seed 8." in won["about"] and "nu=0.2, gamma=1" in won["about"]


@pytest.mark.soak
def test_several_splits_are_one_comparison_with_a_panel_each(
    capsys: pytest.CaptureFixture[str], csv_file: str, tmp_path: Path
) -> None:
    file = tmp_path / "comparison.toml"
    file.write_text(
        """[settings]
data = "cloud.csv"
[define.method]
subspace = { algorithm = "federated-subspace", settings = { components = 2 } }
[cells]
split = ["iid", "biased"]
method = "*"
run = 1
"""
    )
    report = result(capsys, str(file))
    assert {(line["split"], line["method"]) for line in report["methods"]} == {
        (split, name)
        for split in ("iid", "biased")
        for name in ("subspace", "subspace, local", "subspace, pooled", "distance", "always")
    }
    assert "<p>The first run, split = iid; of no more" in Path(report["page"]).read_text("utf-8")


@pytest.mark.soak
def test_methods_of_which_none_is_federated_have_a_page_without_costs(
    capsys: pytest.CaptureFixture[str], csv_file: str, tmp_path: Path
) -> None:
    file = tmp_path / "comparison.toml"
    method = 'm = { algorithm = "federated-subspace", data = "pooled", settings = { components = 1 } }\n'
    file.write_text(f'[settings]\ndata = "cloud.csv"\n[define.method]\n{method}')
    report = result(capsys, str(file), "--repeats", "1")
    assert 0.5 < mean(report, "m") <= 1.0 and "kB up" not in lines(report)["m"]
    assert "<h2>Bytes</h2>" not in Path(report["page"]).read_text("utf-8")


@pytest.mark.soak
def test_an_axis_is_no_figure_beside_itself(capsys: pytest.CaptureFixture[str], csv_file: str, tmp_path: Path) -> None:
    file = tmp_path / "comparison.toml"
    method = '[define.method]\nm = { algorithm = "distance" }\n'
    file.write_text(f'[settings]\ndata = "cloud.csv"\n{method}[cells]\nmethod = "*"\nclients = [2, 3]\nrun = 1\n')
    assert {line["clients"] for line in result(capsys, str(file))["methods"]} == {2, 3}


@pytest.mark.soak
def test_the_docs_name_every_figure_that_is_measured(capsys: pytest.CaptureFixture[str], csv_file: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "evaluate.md").read_text("utf-8")
    rows = text.split("| figure | what it is | unit |")[1].split("\n\n")[0].splitlines()[2:]
    documented = {name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[1])}
    names = {name for cell in result(capsys, "--data", csv_file, "--repeats", "1")["cells"] for name in cell["figures"]}
    forms = {"roc": "roc.{false_alarms}", "score": "score.{client}.{place}", "anomaly": "anomaly.{client}.{place}"}
    assert documented == {forms.get(name.partition(".")[0], name) for name in names}


@pytest.mark.soak
def test_files_of_one_name_in_two_folders_and_of_two_formats_have_a_page_each(
    capsys: pytest.CaptureFixture[str], csv_file: str, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    text = Path(csv_file).read_text()
    (tmp_path / "other" / "cloud.csv").write_text(text)
    (tmp_path / "cloud.tsv").write_text(text.replace(",", "\t"))
    files = (csv_file, str(tmp_path / "other" / "cloud.csv"), str(tmp_path / "cloud.tsv"))
    pages = [result(capsys, "--data", file, "--repeats", "1")["page"] for file in files]
    assert len({*pages}) == 3 and all(Path(page).is_file() for page in pages)


@pytest.mark.soak
def test_the_shipped_recordings_tell_damage_from_health(capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(firmware_sim.__file__).parent / "recordings" / "data" / "munich_bridge"
    report = result(capsys, "--data", str(data), "--repeats", "1", "--set", "nu=0.1")
    assert (report["data"], mean(report, FIRST, "clients")) == ("munich_bridge", 3)
    assert mean(report) > 0.99
    assert "normalisation=own" in report["about"]


@pytest.mark.soak
def test_a_data_set_that_changed_is_measured_anew(capsys: pytest.CaptureFixture[str], csv_file: str) -> None:
    first = lines(result(capsys, "--data", csv_file, "--repeats", "1"))
    text = Path(csv_file).read_text()
    Path(csv_file).write_text(text.replace("\n1,", "\n2,").replace("\n0,", "\n1,").replace("\n2,", "\n0,"))
    assert lines(result(capsys, "--data", csv_file, "--repeats", "1")) != first


def test_a_graph_that_scores_otherwise_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], csv_file: str
) -> None:
    honest = DETECTORS["svdd"]
    wrong = honest._replace(graph=lambda p, personal: honest.graph({**p, "offset": p["offset"] + 0.01}, personal))
    monkeypatch.setitem(DETECTORS.ours, "svdd", wrong)
    assert evaluate("--data", csv_file, "--repeats", "1") == 2
    assert "the exported graph scores up to 0.01 away from the model" in capsys.readouterr().err


def keeps_more_than_units(name: str) -> bool:
    return bool(set(build(name, 3, {}).personal) - set(NORMALISATION))


@pytest.mark.soak
@pytest.mark.parametrize("normalisation", ["none", "own"])
@pytest.mark.parametrize("name", [*filter(keeps_more_than_units, ALGORITHMS.ours)])
def test_one_client_pooled_scores_as_it_does_alone(name: str, normalisation: str) -> None:
    """The part of a model that stays with a client, such as FedPer's last layer, was dropped where rows were pooled."""
    split = split_table(Table("t", cloud(), ""), HELDOUT._replace(clients=1), 5)
    algorithm = build(name, 3, {"normalisation": normalisation})
    pooled, alone = probe._pooled(algorithm, split, 5)["client-1"], probe._alone(algorithm, split, 5)["client-1"]
    x, score = split.test["client-1"].x, DETECTORS[algorithm.detector].score
    np.testing.assert_allclose(score(pooled, x), score(alone, x), rtol=1e-6, atol=1e-9)


def test_pooled_rows_that_an_algorithm_refuses_stop_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any refusal was shown as `-`, as if there were nothing to measure."""

    def refuse(*_: object) -> None:
        raise TrainingError("the solver does not converge")

    monkeypatch.setattr(probe, "_pooled", refuse)
    split = split_table(Table("t", cloud(), ""), HELDOUT, 5)
    case = probe.Case(data="t", method=probe.EvaluatedMethod(algorithm="fedavg", data="pooled"))
    with pytest.raises(TrainingError, match="does not converge"):
        probe._train(case, build("fedavg", 3, {}), split, 5)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_graph_that_every_gateway_refuses_is_an_error(
    csv_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = DETECTORS["svdd"]
    unfit = right._replace(graph=lambda params, personal: described(right.graph(params, personal)))
    monkeypatch.setattr(probe, "DETECTORS", {"svdd": unfit})
    assert evaluate("--data", csv_file) == 2
    assert "every gateway refuses the exported graph: it has field 10 of a graph of ONNX" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ('{ algorithm = "fedsvg" }', "algorithm: expected one of fedavg,"),
        ('{ algorithm = "fedavg", settings = { mu_0 = 1.0 } }', "settings: fedavg has no setting 'mu_0'"),
        ("{ }", "algorithm"),
    ],
)
def test_a_check_names_the_method_and_the_key(
    tmp_path: Path, csv_file: str, method: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.toml"
    keys = f'title = "t"\nabout = "a"\n[settings]\ndata = "{Path(csv_file).name}"\n[cells]\nmethod = "*"\n'
    file.write_text(f"{keys}[define.method]\nmine = {method}\n")
    assert firmware_sim_main(["check", str(file)]) == 2
    assert "method=mine, run=0: " in (said := capsys.readouterr().err) and words in said


def test_progress_is_one_line_on_a_terminal_and_sparse_elsewhere() -> None:
    terminal, plain = Terminal(), io.StringIO()
    for stream in (terminal, plain):
        progress = Progress(stream)
        progress("run 1 of 2: federated")
        progress("pooled")
        progress.close()
    assert terminal.getvalue().split("\r") == ["", "run 1 of 2: federated", "pooled".ljust(21), " " * 6, ""]
    assert plain.getvalue() == ""
