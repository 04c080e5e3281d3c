"""The study of federated SVDD: its figures are those of the data, nothing scored leaks into a choice, losses are told.

The sets are made here under the names of the real ones, which are not part of the project.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM

from fedgate import firmware_sim
from fedgate.firmware_sim.studies.__main__ import main
from fedgate.firmware_sim.studies.engine.study import Cell, load_options
from fedgate.firmware_sim.studies.federated_svdd import membership, study, trials
from fedgate.firmware_sim.studies.federated_svdd.membership import sent_and_originals
from fedgate.firmware_sim.studies.federated_svdd.options import (
    CENTRAL,
    ESVDD,
    FEDERATED,
    SVE,
    Options,
    drawn_values,
    settings_of,
)
from fedgate.firmware_sim.studies.federated_svdd.picture import COMPARISONS, differences
from fedgate.firmware_sim.studies.federated_svdd.report import tables
from fedgate.firmware_sim.studies.federated_svdd.study import STUDY, cells, identity, measure
from fedgate.firmware_sim.studies.federated_svdd.trials import Rows, auc_of, dealt, stratified_folds, table
from fedgate.models.arrays import FEATURES, Array, Arrays, generator
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import Outcome, run

EXPERIMENTS = Path(firmware_sim.__file__).parent / "experiments"
FILES = ("breast_cancer_ad.csv", "pen_global.csv", "letter.csv", "satellite.csv")
FEATURE_COUNT = 4
CONFIGURATION = {"clients": 2, "fraction": 1.0, "split": "iid", "anonymise": False}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with small sets: normal rows around zero, a tenth of outliers around four."""
    (tmp_path / "tabular").mkdir()
    rng = np.random.default_rng(0)
    for name in FILES:
        y = np.repeat([0, 1], [80, 8])
        x = rng.normal(size=(len(y), FEATURE_COUNT)) + 4.0 * y[:, None]
        head = ",".join([*(f"f{index}" for index in range(FEATURE_COUNT)), "label"])
        lines = [",".join([*map(repr, row), str(label)]) for row, label in zip(x.tolist(), y, strict=True)]
        (tmp_path / "tabular" / name).write_text("\n".join([head, *lines]) + "\n")
    return tmp_path


def options_of(number: str, **changes: Any) -> Options:
    options = load_options(EXPERIMENTS / f"svdd-{number}.toml", STUDY, "full")
    assert isinstance(options, Options)
    return Options.model_validate({**options.model_dump(), **changes})


def cell_of(method: str, form: str = "literal", **more: Any) -> Cell:
    return {"method": method, "set": "pen", "form": form} | (CONFIGURATION if method in FEDERATED else {}) | more


@pytest.mark.parametrize(
    ("name", "count"),
    [("table-1", 4 * 2 * (3 + 2 * 24) + 4 * 3), ("table-2", 4 * 2 * (3 + 2 * 24)), ("membership", 4 * 2 * 2 * 2)],
)
def test_the_experiment_files_hold_the_grid_of_the_paper(name: str, count: int) -> None:
    options = options_of(name)
    found = cells(options)
    assert len(found) == count == len({str(sorted(cell.items())) for cell in found})
    assert tuple(options.sets.values()) == FILES
    for form in options.forms.values():
        values = drawn_values(options, form)
        assert len(values) == 10 and form.low <= values.min() < values.max() <= form.high
    literal = next(iter(options.forms.values()))
    assert (literal.caps, literal.low, literal.high, literal.train_on) == ("c", 0.2, 0.8, "all")
    assert (options.gamma, options.sigma, options.tau) == (1.0, 1.0, 1e-3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "table-1",
            ("printed in the paper", "## Targets", "τ = 0.001", "svdd-table-1-short-differences.png", "`nu`"),
        ),
        (
            "table-2",
            (
                "Nested cross-validation",
                "2 inner folds",
                "sample standard deviation",
                "## Best and worst configurations",
            ),
        ),
        (
            "membership",
            ("traced", "anonymised", "Over all cells", "ways to halve", "lower bound", "K = 5, rows dealt iid"),
        ),
    ],
)
def test_the_short_profile_gives_a_report(
    name: str, expected: tuple[str, ...], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, file = data / "results", EXPERIMENTS / f"svdd-{name}.toml"
    command = ["measure", str(file), "--data", str(data), "--profile", "short", "--jobs", "1"]
    assert main([*command, "--results", str(results)]) == 0
    text = (results / f"svdd-{name}-short.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out.startswith(text)
    for words in (
        *expected,
        "othing was tuned" if name == "membership" else "Nothing else was tuned on what is reported",
    ):
        assert words in text
    pictures = ["svdd-table-1-short-differences.png"] if name == "table-1" else []
    assert [each.name for each in results.glob("*.png")] == pictures
    assert "tau" not in text


def test_a_central_cell_is_what_scikit_learn_says(data: Path) -> None:
    options = options_of("table-1", values=3)
    rows = table(data, FILES[1])
    z = (rows.x - rows.x.min(axis=0)) / np.ptp(rows.x, axis=0)
    figures = measure(options, data, cell_of("ocsvm"))
    for index, nu in enumerate(drawn_values(options, options.forms["literal"])):
        theirs = OneClassSVM(gamma=1.0, nu=float(nu), tol=1e-8).fit(z)
        assert figures[f"auc.{index}"] == pytest.approx(roc_auc_score(rows.y, -theirs.decision_function(z)), abs=1e-3)
    assert set(figures) == {"auc.0", "auc.1", "auc.2"}


@pytest.mark.parametrize("method", FEDERATED)
def test_one_client_in_the_open_scores_as_its_central_counterpart(method: str, data: Path) -> None:
    """ESVDD of one member is SVDD; a hard sphere, which the literal C makes, is held by its vectors alone.

    The same but for rows on the border, which only rounding orders.
    """
    options = options_of("table-1", values=2)
    alone, central = (measure(options, data, cell) for cell in (cell_of(method, clients=1), cell_of("svdd")))
    assert alone == pytest.approx(central, abs=0.02)


@pytest.mark.parametrize(("number", "other", "rows"), [("table-1", "nu", 88), ("table-2", "recommended", 80)])
def test_outliers_are_left_out_only_where_other_rows_are_scored(
    number: str, other: str, rows: int, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, counts = options_of(number, table="plasticity", values=1), []

    def counted(algorithm: Any, clients: dict[str, Arrays], **others: Any) -> Outcome:
        counts.append(sum(len(each[FEATURES]) for each in clients.values()))
        return run(algorithm, clients, **others)

    monkeypatch.setattr(trials, "run", counted)
    for form in ("literal", other):
        measure(options, data, cell_of(ESVDD, form))
    assert counts == [88, rows]


@pytest.mark.parametrize("method", [*CENTRAL, *FEDERATED])
def test_a_value_is_chosen_without_a_look_at_the_rows_that_are_reported(
    method: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, seen = options_of("table-2", values=2), []

    def watched(options: Options, data: Path, cell: Cell, value: float, train: Rows, test: Rows, seed: int) -> float:
        seen.append((set(train.tolist()), set(test.tolist())))
        return auc_of(options, data, cell, value, train, test, seed)

    monkeypatch.setattr(study, "auc_of", watched)
    measure(options, data, cell_of(method))
    a_fold = 2 * 3 + 1  # two values on three inner folds, then the one that counts
    assert len(seen) == 3 * a_fold
    for start in range(0, len(seen), a_fold):
        *inner, (train, test) = seen[start : start + a_fold]
        assert not train & test and len(train | test) == 88
        assert all(each_train | each_test == train and not each_train & each_test for each_train, each_test in inner)


def test_folds_hold_every_row_once_and_their_share_of_each_class() -> None:
    y = np.repeat([0, 1], [70, 10])
    fold = stratified_folds(y, 3, np.random.default_rng(0))
    assert sorted(np.bincount(fold[y == 1])) == [3, 3, 4]
    assert sorted(np.bincount(fold[y == 0])) == [23, 23, 24]
    assert not np.array_equal(fold, stratified_folds(y, 3, np.random.default_rng(1)))


@pytest.mark.parametrize("anonymise", [True, False])
@pytest.mark.parametrize("method", FEDERATED)
def test_the_rows_behind_a_vector_are_those_of_what_is_really_sent(method: str, anonymise: bool, data: Path) -> None:
    options = options_of("membership")
    cell = cell_of(method, anonymise=anonymise, value=0.5)
    clients = dealt(options, data, cell, np.arange(88), seed=3)
    form = options.forms["literal"]
    algorithm = build(method, FEATURE_COUNT, settings_of(options, form, method, 0.5, anonymise=anonymise))
    updates: dict[str, Arrays] = {}

    def keep(client: str, update: Arrays) -> None:
        updates[client] = update

    run(algorithm, clients, seed=3, on_update=keep)
    for name, rows in clients.items():
        sent, originals = sent_and_originals(options, cell, rows[FEATURES], generator(3, 0, name))
        assert sent.shape == originals.shape
        assert sorted(sent.tolist()) == sorted(updates[name]["vectors"].tolist())
        known = {tuple(row) for row in rows[FEATURES].tolist()}
        assert {tuple(row) for row in originals.tolist() if not np.isnan(row).any()} <= known


def test_plain_vectors_betray_their_rows_and_fresh_rows_are_never_among_them(data: Path) -> None:
    options = options_of("membership", repeats=2)
    plain, moved = (
        measure(options, data, cell_of(ESVDD, "recommended", anonymise=each, value=0.1)) for each in (False, True)
    )
    assert plain["traced"] == plain["elected.auc"] == plain["elected.found"] == 1.0
    assert moved["traced"] < 1.0
    assert moved["update.found"] < plain["update.found"]
    assert 0.2 < plain["score.auc"] < 0.8


def test_a_client_that_sends_nothing_counts_as_nothing_found(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of four clients silent: every figure of the updates lies half way to guessing."""
    options, cell = options_of("membership", repeats=1), cell_of(SVE, clients=4, value=0.5)
    silent: list[bool] = []

    def sent(options: Options, cell: Cell, z: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        silent.append(len(silent) % 2 == 0)
        return (z[:0], z[:0]) if silent[-1] else (z, z)

    monkeypatch.setattr(membership, "sent_and_originals", sent)
    figures = measure(options, data, cell)
    assert silent == [True, False, True, False]
    assert (figures["update.auc"], figures["update.found"], figures["traced"]) == (0.75, 0.5, 0.5)


def test_a_measurement_is_known_by_what_it_depends_on_and_by_nothing_else() -> None:
    options, cell = options_of("table-1"), cell_of(SVE)
    same = {"title": "x", "paper": {}, "within": 0.5, "folds": 9, "repeats": 9, "clients": [7], "taus": [0.5]}
    assert all(
        identity(options_of("table-1", **{key: value}), cell) == identity(options, cell) for key, value in same.items()
    )
    other: dict[str, Any] = {"gamma": 2.0, "sigma": 2.0, "tau": 2.0, "values": 9, "seed": 1, "table": "generalisation"}
    other |= {"sets": {"pen": "x.csv"}, "forms": {"literal": options.forms["nu"].model_dump()}}
    assert all(
        identity(options_of("table-1", **{key: value}), cell) != identity(options, cell) for key, value in other.items()
    )
    assert identity(options_of("table-1", sigma=2.0), cell_of(ESVDD)) == identity(options, cell_of(ESVDD))
    assert identity(options_of("table-2", folds=9), cell) != identity(options_of("table-2"), cell)


def results_of(options: Options, **areas: float) -> list[tuple[Cell, dict[str, float]]]:
    """Return made-up figures of every cell: those of its method, less what a biased split and F = 0.5 cost."""
    results = []
    for cell in cells(options):
        cost = 0.1 * (cell.get("split") == "biased") + 0.2 * (cell.get("fraction") == 0.5)
        method: str = cell["method"]
        area = areas[{SVE: "sve", ESVDD: "esvdd"}.get(method, method)]
        results.append((cell, {"auc.0": area - cost, "auc.1": area - cost}))
    return results


def test_the_report_says_what_was_missed_and_what_lost(tmp_path: Path) -> None:
    options = options_of("table-1", sets={"pen": FILES[1]}, paper={"pen": [0.94, 0.79, 0.8, 0.88, 0.48, 0.6]}, taus=[])
    text = tables(
        options, results_of(options, ocsvm=0.9, svdd=0.5, distance=0.85, sve=0.78, esvdd=0.859), tmp_path / "label"
    )
    assert "| pen | SVE | 0.80 | 0.780 | yes |" in text
    assert "| pen | ESVDD | 0.88 | 0.859 | **no** |" in text
    assert "- pen, `literal`: OC-SVM 0.900; best federated 0.859." in text
    assert "| pen | `literal` | 0.900 ± 0.000 | 0.500 ± 0.000 | 0.780 ± 0.000 | 0.859 ± 0.000 | 0.480" in text
    assert "| pen | `literal` | SVE | K = 10, F = 1, iid, plain | K = 2, F = 0.5, biased, anonymised |" in text
    assert "How much hangs on τ" not in text


def test_the_picture_shows_differences_of_equal_configurations() -> None:
    options = options_of("table-1", sets={"pen": FILES[1]}, taus=[])
    results = results_of(options, ocsvm=0.9, svdd=0.5, distance=0.8, sve=0.7, esvdd=0.8)
    for comparison, expected in zip(COMPARISONS, (0.1, 0.2, 0.0), strict=True):
        found = differences(options, results, SVE, comparison)
        assert len(found) == 6 * (2 if comparison.key == "anonymise" else 1)
        assert all(np.allclose(each, expected) for each in found.values())
    assert set(differences(options, results, SVE, COMPARISONS[0])) == {
        f"K={clients} F={fraction}" for clients in (2, 5, 10) for fraction in ("0.5", "1")
    }
