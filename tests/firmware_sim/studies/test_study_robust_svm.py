"""The studies of the robust SVM: short profiles on made-up tables of the same names, and the parts that could cheat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.studies.engine.study import StudyOptions, load_options
from fedgate.firmware_sim.studies.registry import STUDIES
from fedgate.firmware_sim.studies.robust_svm import methods, sensitivity
from fedgate.firmware_sim.studies.robust_svm import study as robust_svm
from fedgate.firmware_sim.studies.robust_svm.data import clouds, drawn, fault_codes, shuffled, table
from fedgate.firmware_sim.studies.robust_svm.figures import NEARLY, paired, standing
from fedgate.firmware_sim.studies.robust_svm.methods import (
    CENTRAL,
    EITHER,
    FEDERATED,
    LINEAR,
    OURS,
    Grid,
    Split,
    Tried,
    compared,
    evenly,
    gateways_of,
    models_of,
    trained,
)
from fedgate.firmware_sim.studies.runner import measured
from fedgate.models.arrays import FEATURES, LABELS, Floats
from fedgate.models.federated.protocol.run import run
from tests.support.given_width import build
from tests.support.syntax import ROOT

EXPERIMENTS = ROOT / "firmware_sim" / "experiments"
NAMES = ("fdr-svm-table-1", "fdr-svm-sensitivity", "fdr-svm-scaling")
SETS = ("banknote", "breast_cancer_wdbc", "sonar", "mammographic_mass", "parkinsons", "rice_cammeo_osmancik")
SMALL = Grid(
    federated={"ADMM": Tried(values=(0.01, 0.1), rounds=(1, 3)), "SM": Tried(values=(10.0,), rounds=(4,))},
    central_radii=(1e-3,),
    central_kappas=(1.0,),
    costs=(1.0,),
)


def write(path: Path, header: str, rows: list[str]) -> None:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tables of the real names and layouts."""
    root = tmp_path_factory.mktemp("data")
    folder, rng = root / "tabular", np.random.default_rng(0)
    folder.mkdir()
    for name in (*SETS, "user_knowledge"):
        y = np.arange(60) % 2
        x = rng.normal(size=(60, 3)) + 2.0 * y[:, None]
        lines = [",".join(f"{v:.4f}" for v in row) + f",{2 * label - 1}" for row, label in zip(x, y, strict=True)]
        lines[1] = f",{lines[1].split(',', 1)[1]}"  # a missing cell
        write(folder / f"{name}.csv", "a,b,c,label", lines)
    write(folder / "parkinsons.groups.csv", "subject", [f"S{k // 6:02d}" for k in range(60)])
    codes = np.array([0, 1, 10, 11])[np.arange(96) % 4]
    x = rng.normal(size=(96, 3)) + 3.0 * np.eye(4)[np.arange(96) % 4, :3]
    lines = [",".join(f"{v:.4f}" for v in row) + f",{1 if code else -1}" for row, code in zip(x, codes, strict=True)]
    write(folder / "pump_triplex.csv", "a,b,c,label", lines)
    write(folder / "pump_triplex.classes.csv", "faultCode", [str(code) for code in codes])
    return root


def options_of(name: str, profile: Any = "short") -> StudyOptions:
    study = {"fdr-svm-table-1": "", "fdr-svm-sensitivity": "-sensitivity", "fdr-svm-scaling": "-scaling"}[name]
    return load_options(EXPERIMENTS / f"{name}.toml", STUDIES[f"robust-svm{study}"], profile)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_the_short_profile_runs_to_its_report(name: str, data: Path, tmp_path: Path) -> None:
    outcome = measured(
        name, options_of(name), data, results=tmp_path, profile="short", command="x", jobs=1, say=lambda text: None
    )
    text = outcome.path.read_text(encoding="utf-8")
    assert len(outcome.measured) > 0
    for picture in (part.split(")")[0] for part in text.split("](")[1:]):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    if name == "fdr-svm-table-1":
        assert all(f"| {each} |" in text for each in (*SETS, "user_knowledge", "parkinsons, by person"))
        assert "at or above linear SVM and Central on at least 5 sets" in text
        assert "Fault codes of the pump" in text and "ours is" in text and "| SM or ADMM |" in text
    elif name == "fdr-svm-sensitivity":
        assert all(f"| {setting} |" in text for setting in sensitivity.SETTINGS)
        assert text.count("Target, flipped labels") == text.count("Statements of the paper") == 2
    else:
        assert "program ms" in text and "| all | SM needs far longer" in text
    assert {each.name for each in tmp_path.glob("*.png")} == {part.split(")")[0] for part in text.split("](")[1:]}
    assert all(each.name.startswith(f"{name}-short-") for each in tmp_path.glob("*.png"))


@pytest.mark.parametrize("name", NAMES)
def test_the_full_profile_is_a_valid_one(name: str) -> None:
    options = options_of(name, "full")
    study = STUDIES[options.study]
    cells = study.cells(options)
    assert len({str(cell) for cell in cells}) == len(cells) > 20
    if isinstance(options, robust_svm.Options):
        for method, setting in options.defaults.items():
            grid = options.grid
            if method in FEDERATED:
                names = [f"{n} T={t}" for n, _ in grid.settings(method) for t in grid.federated[method].rounds]
            elif method == CENTRAL:
                names = [f"eps={r:g} kappa={k:g}" for r in grid.central_radii for k in grid.central_kappas]
            else:
                names = [f"C={cost:g}" for cost in grid.costs]
            assert setting in names


def test_a_cell_is_a_function_of_its_arguments(data: Path) -> None:
    options = options_of("fdr-svm-table-1")
    cell = {"set": "sonar", "shuffle": 1}
    first, again = (robust_svm.STUDY.measure(options, data, cell) for _ in range(2))
    assert first == again
    assert first != robust_svm.STUDY.measure(options, data, {"set": "sonar", "shuffle": 0})


def test_what_is_chosen_never_saw_the_test_rows(data: Path) -> None:
    """With other test labels the figures differ, but what was chosen is the same setting."""
    split, share = shuffled(table(data, "sonar"), np.random.default_rng(1)), evenly(3, 0)
    seen: list[list[str]] = []
    for test_y in (split.test_y, 1 - split.test_y):
        ranks: list[str] = []
        turned = split._replace(test_y=test_y)
        figures = compared(turned, share, (SMALL,), robust_svm.accuracy, np.random.default_rng(2))
        for method in (LINEAR, CENTRAL, *OURS):
            same = [k for k, v in figures.items() if k.startswith(f"{method}|") and v == figures[f"{method}|chosen"]]
            ranks.append(sorted(same)[0])
        seen.append(ranks)
    assert seen[0] == seen[1]


def test_between_our_methods_the_training_rows_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """SM is better on the inner split, ADMM on the test rows: SM is what is reported."""
    worth = {"test": {"ADMM|a": 0.9, "SM|a": 0.5, "SM|b": 0.4}, "inner": {"ADMM|a": 0.6, "SM|a": 0.7, "SM|b": 0.8}}
    worth = {name: {**each, f"{LINEAR}|c": 0.1, f"{CENTRAL}|d": 0.2} for name, each in worth.items()}
    calls = iter(("test", "inner"))
    monkeypatch.setattr(methods, "models_of", lambda *rest: {})
    monkeypatch.setattr(methods, "judged", lambda *rest: worth[next(calls)])
    split = Split(np.zeros((10, 1)), np.arange(10) % 2, np.zeros((4, 1)), np.arange(4) % 2)
    figures = compared(split, evenly(2, 0), (SMALL,), robust_svm.accuracy, np.random.default_rng(0))
    assert (figures["SM|chosen"], figures["ADMM|chosen"], figures[f"{EITHER}|chosen"]) == (0.4, 0.9, 0.4)


def test_a_paired_difference_within_its_error_is_not_told_apart() -> None:
    figures = [{"a": 0.9, "b": 0.8, "c": 0.9 - 0.5 * (-1) ** k} for k in range(4)]
    clear, unclear = paired(figures, "a", "b"), paired(figures, "a", "c")
    assert clear.mean == pytest.approx(0.1) and clear.reading == "above"
    assert paired(figures, "b", "a").reading == "below"
    assert unclear.deviation == pytest.approx(np.std([0.5, -0.5, 0.5, -0.5], ddof=1))
    assert unclear.error == pytest.approx(unclear.deviation / 2) and unclear.reading == "not told apart"
    assert paired(figures[:1], "a", "b").reading == paired(figures, "a", "a").reading == "not told apart"


def test_statements_are_read_by_one_margin() -> None:
    told = standing({"p": NEARLY * 1.1, "q": NEARLY * 0.9, "r": -NEARLY * 1.1, "s": 0.0})
    assert told == "above on 1 of 4 (p +0.011), equal on 2 of 4 (q +0.009; s +0.000), below on 1 of 4 (r -0.011)"


def test_scaling_and_medians_come_from_what_learns() -> None:
    x = np.array([[0.0, 1.0], [10.0, np.nan], [np.nan, 3.0], [1e9, 1e9], [5.0, 2.0]])
    split = Split(x[:2], np.array([0, 1]), x[3:], np.array([0, 1]))
    scaled = split._replace(x=np.nan_to_num(split.x)).scaled()
    assert (scaled.x.min(), scaled.x.max()) == (0.0, 1.0)
    assert scaled.test_x[0, 0] == 1e8


def test_gaps_are_filled_by_the_median_of_what_learns(data: Path) -> None:
    rows = table(data, "sonar")
    assert np.isnan(rows.x[1, 0])
    for seed in range(4):
        split = shuffled(rows, np.random.default_rng(seed))
        filled = np.concatenate([split.x, split.test_x])
        known = np.isin(split.x[:, 0], rows.x[~np.isnan(rows.x[:, 0]), 0])
        medians = {float(np.median(split.x[known, 0])), float(np.median(split.x[:, 0]))}
        unknown = filled[~np.isin(filled[:, 0], rows.x[:, 0]), 0]
        assert all(min(abs(value - m) for m in medians) < 1e-9 for value in unknown)


def test_no_person_learns_and_is_scored(data: Path) -> None:
    rows = table(data, "parkinsons", grouped=True)
    split = shuffled(rows, np.random.default_rng(3))
    owner = {tuple(row[1:]): group for row, group in zip(rows.x, rows.groups, strict=True)}
    inner = split.inner(np.random.default_rng(4))
    assert len(inner.y) + len(inner.test_y) == len(split.y)
    for each in (split, inner):
        learns, scored = ({owner[tuple(row[1:])] for row in part} for part in (each.x, each.test_x))
        assert learns and scored and not learns & scored


def test_fault_codes_become_classes_in_their_order(data: Path) -> None:
    np.testing.assert_array_equal(fault_codes(data, "pump_triplex")[:8], [0, 1, 2, 3, 0, 1, 2, 3])


def test_a_table_that_cannot_be_read_says_why(data: Path) -> None:
    write(data / "tabular" / "wrong.csv", "a,b", ["1,2"])
    with pytest.raises(DataError, match="last column 'label', got 'b'"):
        table(data, "wrong")
    write(data / "tabular" / "words.csv", "a,label", ["one,1"])
    with pytest.raises(DataError, match="expected numbers or empty cells"):
        table(data, "words")
    write(data / "tabular" / "words.groups.csv", "g", ["1", "2"])
    with pytest.raises(DataError):
        table(data, "words", grouped=True)
    with pytest.raises(DataError, match=r"class 0 has 20 rows, expected at least 800 \+ 100"):
        drawn(clouds(2, 40, 1.0, 0), (800, 2), 100, np.random.default_rng(0))


def test_a_training_looked_at_on_the_way_is_the_training() -> None:
    rows = clouds(3, 60, 1.0, 0)
    split = Split(rows.x, rows.y, rows.x, rows.y).scaled()
    gateways = gateways_of(split.x, split.y, evenly(3, 0))
    settings = {"rho": 0.05}
    for rounds, shared, _ in trained("robust-svm-admm", settings, gateways, (1, 4)):
        plain = run(build("robust-svm-admm", 3, {**settings, "normalisation": "none"}), gateways, rounds=rounds)
        np.testing.assert_allclose(shared["weights"], plain.server.global_state["weights"])


def test_a_gateway_with_nothing_to_say_does_not_stop_a_training() -> None:
    rows = clouds(3, 60, 1.0, 0)
    split = Split(rows.x, rows.y, rows.x, rows.y).scaled()
    gateways = gateways_of(split.x, split.y, evenly(3, 0))
    silent = {**gateways, "gateway-999": {FEATURES: split.x[:0], LABELS: split.y[:0]}}
    with_it, without = (trained("robust-svm-admm", {"rho": 0.05}, each, (2, 3)) for each in (silent, gateways))
    assert [rounds for rounds, _, _ in with_it] == [2, 3]
    for (_, first, _), (_, second, _) in zip(with_it, without, strict=True):
        np.testing.assert_allclose(first["weights"], second["weights"])


CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("fdr-svm-table-1", {"set": "sonar", "shuffle": 0}, {"title": "x", "shuffles": 7, "claims": {}}, True),
    ("fdr-svm-table-1", {"set": "sonar", "shuffle": 0}, {"fault_grid": SMALL, "defaults": {}}, True),
    ("fdr-svm-table-1", {"set": "sonar", "shuffle": 0}, {"grid": SMALL}, False),
    ("fdr-svm-table-1", {"set": "faults", "shuffle": 0}, {"fault_grid": SMALL}, False),
    ("fdr-svm-sensitivity", {"data": "pump", "setting": "nominal"}, {"flipped_share": 0.3, "repeats": 9}, True),
    ("fdr-svm-sensitivity", {"data": "pump", "setting": "flipped labels"}, {"flipped_share": 0.3}, False),
    ("fdr-svm-sensitivity", {"data": "pump", "setting": "class imbalance"}, {"fault_share": 0.3}, False),
    ("fdr-svm-scaling", {"axis": "rows"}, {"axes": {}, "claims": {}}, True),
    ("fdr-svm-scaling", {"axis": "rows"}, {"test_each": 7}, False),
]


@pytest.mark.parametrize(("name", "cell", "changes", "same"), CHANGES)
def test_a_measurement_is_known_by_what_it_depends_on(
    name: str, cell: dict[str, Any], changes: dict[str, Any], same: bool
) -> None:
    options = options_of(name)
    identity = STUDIES[options.study].identity
    first, second = (json.dumps(identity(each, cell)) for each in (options, options.model_copy(update=changes)))
    assert (first == second) == same


def test_times_are_measured_one_at_a_time() -> None:
    assert options_of("fdr-svm-scaling").jobs == options_of("fdr-svm-scaling", "full").jobs == 1


def test_every_method_is_trained_at_every_setting() -> None:
    rows = clouds(3, 60, 1.0, 0)
    split = Split(rows.x, rows.y, rows.x, rows.y).scaled()
    keys = models_of(split, evenly(3, 0), SMALL, (LINEAR, CENTRAL, *SMALL.federated)).keys()
    assert {key.partition("|")[0] for key in keys} == {LINEAR, CENTRAL, "ADMM", "SM"}
    assert len([key for key in keys if key.startswith("ADMM|")]) == 4


@pytest.mark.parametrize("unequal", [False, True])
def test_rows_are_dealt_once_each(unequal: bool) -> None:
    parts = sensitivity.dealt(4, unequal=unequal)(100)
    assert np.concatenate(parts).tolist() == list(range(100))
    assert [len(part) for part in parts] == ([10, 20, 30, 40] if unequal else [25, 25, 25, 25])


def test_labels_are_flipped_only_where_the_setting_says_so(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Floats] = {}

    def looked_at(split: Split, *rest: Any) -> dict[str, float]:
        seen[str(len(seen))] = np.array([split.y.mean(), *split.y])
        return {}

    monkeypatch.setattr(sensitivity, "compared", looked_at)
    options = options_of("fdr-svm-sensitivity")
    for setting in (sensitivity.NOMINAL, sensitivity.FLIPPED, sensitivity.CLASSES):
        sensitivity.STUDY.measure(options, data, {"data": "clouds", "setting": setting, "repeat": 0})
    nominal, flipped, unequal = seen.values()
    assert (nominal[1:] != flipped[1:]).sum() == 4  # a tenth of 40
    assert (nominal[0], unequal[0]) == (0.5, 0.2)


def test_gateways_keep_labels() -> None:
    parts = gateways_of(np.zeros((5, 2)), np.array([0, 1, 0, 1, 1]), evenly(2, 0))
    assert sorted(label for part in parts.values() for label in part[LABELS]) == [0, 0, 1, 1, 1]
