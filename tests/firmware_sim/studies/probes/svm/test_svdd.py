"""Ensemble SVDD and Support Vector Election: figures are those of the data, and nothing scored leaks into a choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.svm import OneClassSVM

from fedgate.firmware_sim.engine.cells import cells_of, load_probe
from fedgate.firmware_sim.engine.spec import load_spec
from fedgate.firmware_sim.studies.datasets.outliers import FOLDER, Places, load
from fedgate.firmware_sim.studies.probes.svm import svdd
from fedgate.firmware_sim.studies.probes.svm.svdd import Case, draw_values, measure
from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated.protocol.run import Outcome, run
from tests.support.outlier_files import NORMAL, ROWS, write_outliers
from tests.support.syntax import ROOT

TABLES = ROOT / "firmware_sim" / "studies" / "tables"
SETS = {"breast_cancer_ad.csv", "pen_global.csv", "letter.csv", "satellite.csv"}
TABLE = "pen.csv"
LITERAL = {"caps": "c", "low": 0.2, "high": 0.8, "train_on": "all"}
NORMAL_ALONE = {"caps": "nu", "low": 0.01, "high": 0.2, "train_on": "normal"}
PLAIN = {"gamma": 1.0, "normalisation": "none", "anonymise": False}
METHODS: dict[str, dict[str, Any]] = {
    "ocsvm": {"gamma": 1.0},
    "svdd": {"gamma": 1.0},
    "centre": {},
    "ensemble-svdd": PLAIN,
    "support-vector-election": PLAIN,
}
FEDERATED = ("ensemble-svdd", "support-vector-election")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_outliers(tmp_path, (TABLE,))


def case_of(method: str, **given: Any) -> Case:
    chosen = {"algorithm": method, "settings": METHODS[method]}
    return Case.model_validate({"table": TABLE, "method": chosen, "form": LITERAL, "clients": 2, **given})


@pytest.mark.parametrize(("name", "count"), [("table-1", 4 * 2 * (3 + 2 * 24) + 4 * 3), ("table-2", 4 * 2 * 51)])
def test_the_files_hold_the_grid_of_the_paper(name: str, count: int) -> None:
    spec = load_spec(TABLES / f"svdd-{name}.toml")
    cells = cells_of(spec, load_probe(spec.probe), Path())
    assert len(cells) == count
    for case in [cell.case for cell in cells if isinstance(cell.case, Case)]:
        values = draw_values(case)
        assert len(values) == 10 and case.form.low <= min(values) < max(values) <= case.form.high
        assert case.table in SETS
    literal = next(cell.case for cell in cells if cell.coordinates["form"] == "literal")
    assert isinstance(literal, Case) and literal.form.model_dump() == LITERAL


def test_nothing_is_left_out_by_its_label_where_it_is_scored_as_well() -> None:
    spec = load_spec(TABLES / "svdd-table-1.toml")
    cases = [cell.case for cell in cells_of(spec, load_probe(spec.probe), Path())]
    assert {case.form.train_on for case in cases if isinstance(case, Case)} == {"all"}


def test_a_central_cell_is_what_scikit_learn_says(data: Path) -> None:
    case, rows = case_of("ocsvm", draws=3), load(data / FOLDER / TABLE)
    z = (rows.x - rows.x.min(axis=0)) / np.ptp(rows.x, axis=0)
    figures = measure(case, data)
    for index, nu in enumerate(draw_values(case)):
        theirs = OneClassSVM(gamma=1.0, nu=nu, tol=1e-8).fit(z)
        assert figures[f"auc.{index}"] == pytest.approx(roc_auc_score(rows.y, -theirs.decision_function(z)), abs=1e-3)
    assert set(figures) == {"auc.0", "auc.1", "auc.2"}


@pytest.mark.parametrize("method", FEDERATED)
def test_one_client_in_the_open_scores_as_its_central_counterpart(method: str, data: Path) -> None:
    """ESVDD of one member is SVDD; a hard sphere, which the literal C makes, is held by its vectors alone.

    The same but for rows on the border, which only rounding orders.
    """
    alone, central = (measure(case_of(each, clients=1, draws=2), data) for each in (method, "svdd"))
    assert alone == pytest.approx(central, abs=0.02)


@pytest.mark.parametrize("method", FEDERATED)
def test_clients_that_have_too_few_rows_leave_a_guess(method: str, data: Path) -> None:
    assert measure(case_of(method, clients=ROWS, draws=1), data) == {"auc.0": 0.5}


@pytest.mark.parametrize(("form", "rows"), [(LITERAL, ROWS), (NORMAL_ALONE, NORMAL)])
def test_clients_train_on_the_rows_of_the_form(
    form: dict[str, Any], rows: int, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def counted(algorithm: Any, clients: dict[str, Arrays], **others: Any) -> Outcome:
        counts.append(sum(len(each[FEATURES]) for each in clients.values()))
        return run(algorithm, clients, **others)

    monkeypatch.setattr(svdd, "run", counted)
    measure(case_of("ensemble-svdd", form=form, draws=1), data)
    assert counts == [rows]


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_a_value_is_chosen_without_a_look_at_the_rows_that_are_reported(
    method: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    area, seen = svdd.area, []

    def watched(case: Case, path: Path, value: float, train: Places, test: Places, seed: int) -> float:
        seen.append((set(train.tolist()), set(test.tolist())))
        return area(case, path, value, train, test, seed)

    monkeypatch.setattr(svdd, "area", watched)
    figures = measure(case_of(method, draws=2, folds=3), data)
    a_fold = 2 * 3 + 1  # two values on three inner folds, then the one that counts
    assert len(seen) == 3 * a_fold
    reported = []
    for start in range(0, len(seen), a_fold):
        *inner, (train, test) = seen[start : start + a_fold]
        assert not train & test and len(train | test) == ROWS
        assert all(each_train | each_test == train and not each_train & each_test for each_train, each_test in inner)
        reported += sorted(test)
    assert sorted(reported) == list(range(ROWS))
    assert {figures[f"value.{fold}"] for fold in range(3)} <= set(draw_values(case_of(method, draws=2)))
