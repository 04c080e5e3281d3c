"""The stress probe on synthetic wrists: it learns, and who is reported chooses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgate.firmware_sim.engine.cells import cells_of, load_probe
from fedgate.firmware_sim.engine.spec import Figures, load_spec
from fedgate.firmware_sim.studies.datasets.stress_predict import FOLDER, Subject
from fedgate.firmware_sim.studies.datasets.tiny import wrist
from fedgate.firmware_sim.studies.probes.networks.stress import (
    Case,
    choose,
    find_threshold,
    fit,
    measure,
    prepare,
    split,
)
from tests.support.syntax import ROOT

SPEC = load_spec(ROOT / "firmware_sim" / "studies" / "tables" / "stress-predict.toml")
CELLS = {
    (cell.coordinates["method"], cell.coordinates["units"]): cell.case
    for cell in cells_of(SPEC, load_probe("networks.stress"), Path())
    if isinstance(cell.case, Case) and cell.coordinates["features"] == "seven"
}
QUICK = {"folds": 2, "inner_folds": 2, "late_s": 700.0}
UNITS_20 = {"units": 20}


def case_of(method: str, units: str = "recording", repeats: int = 1, **changes: Any) -> Case:
    """Return a case of the file, quick: few folds, small networks, a few rounds."""
    whole = CELLS[method, units].model_dump(mode="json")
    chosen = whole["method"]["settings"]
    if "network" in chosen:
        chosen["network"] |= UNITS_20
    if "rounds" in chosen:
        chosen["rounds"] = 3
    whole["method"]["choices"] = {name: values[:2] for name, values in whole["method"]["choices"].items()}
    whole["method"]["repeats"] = repeats
    return Case.model_validate({**whole, **QUICK, **changes})


@pytest.fixture(scope="module")
def data(tiny: Path) -> Path:
    return tiny


@pytest.fixture(scope="module")
def with_a_stranger(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where S02 is another subject, with the labels the wrong way round."""
    folder, stranger = tmp_path_factory.mktemp("stranger"), wrist(9)
    stranger["label_1hz"] = np.where(stranger["label_1hz"] < 0, -1, 1 - stranger["label_1hz"])
    (folder / FOLDER).mkdir(parents=True)
    for path in (data / FOLDER).glob("S0[345].npz"):
        (folder / FOLDER / path.name).symlink_to(path)
    np.savez(folder / FOLDER / "S02.npz", **stranger)
    return folder


@pytest.fixture(scope="module")
def subjects(data: Path) -> list[Subject]:
    return [whole for whole, _ in prepare(case_of("logistic"), data)]


def mean_auc(figures: Figures) -> float:
    return float(np.mean([value for name, value in figures.items() if name.startswith("auc.")]))


@pytest.mark.soak
def test_signals_and_the_clock_tell_stress_and_federation_costs_bytes_alone(data: Path) -> None:
    clock, logistic = (measure(case_of(name), data) for name in ("clock alone", "logistic, moving averages"))
    federated, pooled = (measure(case_of(name, repeats=2), data) for name in ("ESN, IncFed", "ESN, pooled"))
    assert mean_auc(clock) > 0.9
    assert min(mean_auc(logistic), mean_auc(federated)) > 0.8
    same = [name for name in federated if name.startswith(("auc.", "late."))]
    assert len(same) == 8
    assert {name: federated[name] for name in same} == pytest.approx({name: pooled[name] for name in same}, abs=1e-9)
    assert federated["bytes_up"] > pooled["bytes_up"] == 0.0
    assert federated["chosen.ridge.0"] in (0.1, 1.0) and federated["chosen.network.leak.1"] in (0.02, 0.05)
    assert 0.0 < federated["reservoirs"] < 0.2 and "reservoirs" not in clock


@pytest.mark.soak
def test_a_network_with_a_bias_tells_the_time_without_a_signal(data: Path) -> None:
    whole = CELLS["ESN with a bias that hears nothing", "recording"]
    case = whole.model_copy(update={**QUICK, "method": whole.method.model_copy(update={"repeats": 1})})
    assert mean_auc(measure(case, data)) > 0.6


@pytest.mark.parametrize("method", [method for method, units in CELLS if units == "recording"])
def test_every_method_of_the_file_can_be_measured(method: str, subjects: list[Subject]) -> None:
    case = case_of(method)
    values = {name: offered[0] for name, offered in case.method.choices.items()}
    assert np.isfinite(fit(case, values, subjects[:2], 0).score(subjects[3])).all()


@pytest.mark.soak
@pytest.mark.parametrize("method", ["clock alone", "logistic, moving averages", "ESN, IncFed"])
def test_who_is_reported_chooses_nothing(method: str, data: Path, with_a_stranger: Path) -> None:
    """With another subject as S02, whoever is left out beside it is scored as before, and no one else is."""
    case = case_of(method)
    whole = [whole for whole, _ in prepare(case, data)]
    (beside,) = (
        {each.name for each in left_out} - {"S02"}
        for left_out, _ in split(whole, 2)
        if "S02" in [each.name for each in left_out]
    )
    before, after = (measure(case, folder) for folder in (data, with_a_stranger))
    for name in {"S03", "S04", "S05"}:
        alike = all(before[f"{key}.{name}"] == after[f"{key}.{name}"] for key in ("auc", "ba", "f1", "late"))
        assert alike == (name in beside), name


def test_thresholds_are_chosen_on_subjects_that_did_not_train(subjects: list[Subject]) -> None:
    case = case_of("logistic, FedAvg")
    values = {"learning_rate": 0.1}
    chosen, threshold = choose(
        case.model_copy(update={"method": case.method.model_copy(update={"choices": {"learning_rate": [0.1]}})}),
        subjects[:2],
        0,
    )
    scores, labels = [], []
    for left_out, rest in split(subjects[:2], 2):
        fitted = fit(case, values, rest, 0)
        scores += [fitted.score(each)[each.known] for each in left_out]
        labels += [each.y[each.known] for each in left_out]
    assert threshold == find_threshold(np.concatenate(labels), np.concatenate(scores))
    assert chosen == values


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=30))
def test_the_threshold_is_the_best_of_all(rows: list[tuple[int, int]]) -> None:
    label, score = np.array([each[0] for each in rows]), np.array([float(each[1]) for each in rows])
    assume({*label.tolist()} == {0, 1})

    def gain(least: float) -> float:
        stress, rest = score[label == 1] >= least, score[label == 0] >= least
        return float(stress.mean() - rest.mean())

    found = find_threshold(label, score)
    assert found in score
    assert gain(found) == pytest.approx(max(gain(least) for least in score))


def test_every_subject_is_left_out_once(subjects: list[Subject]) -> None:
    names = [subject.name for left_out, _ in split(subjects, 2) for subject in left_out]
    assert sorted(names) == [subject.name for subject in subjects]
    assert all(not {s.name for s in out} & {s.name for s in rest} for out, rest in split(subjects, 2))
    assert all(len(out) == len(rest) == 2 for out, rest in split(subjects, 2))


def test_a_late_start_in_moving_units_begins_anew(data: Path) -> None:
    whole, late = prepare(case_of("logistic", "moving"), data)[0]
    assert not late.x[0].any()  # its own moving mean begins with it
    assert whole.x[-len(late.x)].any()
    assert prepare(case_of("logistic"), data)[0][1].x[0].any()


def test_features_that_nobody_measures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'eda\.tonik' is no feature"):
        case_of("logistic", features=["eda.tonik"])
