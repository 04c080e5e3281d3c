"""The robust SVM beside its baselines: what could cheat, on small tables and clouds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.studies.datasets.tabular import Split
from fedgate.firmware_sim.studies.probes.svm import robust_svm
from fedgate.firmware_sim.studies.probes.svm.robust_svm import Case, deal, draw_split, judge, measure, train
from fedgate.models.arrays import FEATURES, LABELS, Arrays
from fedgate.models.federated.protocol.run import run
from tests.support.given_width import build
from tests.support.tabular_files import write_table

METHODS: dict[str, Any] = {
    "linear SVM": {"algorithm": "linear-svm", "data": "pooled"},
    "Central": {"algorithm": "central", "data": "pooled"},
    "SM": {"algorithm": "robust-svm-subgradient"},
    "ADMM": {"algorithm": "robust-svm-admm"},
    "ADMM-REG": {"algorithm": "robust-svm-admm", "is_validated": False},
}
GRID: dict[str, Any] = {
    "linear SVM": {"c": [1.0]},
    "Central": {"radius": [0.001], "kappa": [1.0]},
    "SM": {"radius": [0.001], "kappa": [1.0], "step": [10.0], "rounds": [2, 4]},
    "ADMM": {"radius": [0.001], "kappa": [1.0], "rho": [0.01, 0.1], "rounds": [1, 3]},
    "ADMM-REG": {"radius": [0.001], "kappa": ["none"], "rho": [0.01], "rounds": [3]},
}
CLOUDS = {"features": 3, "train": 40, "test_each": 30, "clients": 4, "stream": "clouds"}


def case_of(**given: Any) -> Case:
    plain = {"source": CLOUDS, "methods": METHODS, "grids": [GRID], "metric": "balanced accuracy", "repeat": 0}
    return Case.model_validate({**plain, **given})


def without_times(figures: Figures) -> Figures:
    return {key: value for key, value in figures.items() if not key.startswith(("seconds.", "ms."))}


@pytest.mark.soak
def test_every_method_is_measured_at_every_setting() -> None:
    figures = measure(case_of(worst_case=(0.001, 1.0)), Path())
    assert {key: value for key, value in figures.items() if key.startswith("count.")} == {
        "count.linear SVM": 1.0,
        "count.Central": 1.0,
        "count.SM": 2.0,
        "count.ADMM": 4.0,
        "count.ADMM-REG": 1.0,
    }
    assert "tried|federated|ADMM-REG|radius=0.001, kappa=none, rho=0.01, rounds=3" in figures
    assert figures["tried|pooled|always one class|-"] == 0.5
    assert {key for key in figures if key.startswith("chosen|federated")} == {
        "chosen|federated|SM|-",
        "chosen|federated|ADMM|-",
        "chosen|federated|SM or ADMM|-",
    }
    assert min(value for key, value in figures.items() if key.startswith(("seconds.", "ms."))) > 0.0


@pytest.mark.soak
def test_a_cell_is_a_function_of_its_case(tmp_path: Path) -> None:
    write_table(tmp_path, "sonar", gap=True)
    source = {"table": "sonar", "clients": 3}
    first, again, other = (measure(case_of(source=source, metric="f1", repeat=k), tmp_path) for k in (1, 1, 0))
    assert without_times(first) == without_times(again) != without_times(other)


@pytest.mark.soak
def test_what_is_chosen_never_saw_the_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With test labels turned round the figures differ, but what was chosen is the same setting."""
    seen, drawn = [], draw_split
    for turn in (False, True):
        monkeypatch.setattr(
            robust_svm,
            "draw_split",
            lambda *given, turn=turn: (split := drawn(*given))._replace(test_y=abs(split.test_y - turn)),
        )
        figures = measure(case_of(), Path())
        best = {key: value for key, value in figures.items() if key.startswith("chosen|") and "always" not in key}
        seen.append(best)
    assert seen[0].keys() == seen[1].keys()
    assert all(seen[0][key] + seen[1][key] == pytest.approx(1.0) for key in seen[0])


def test_between_our_methods_the_training_rows_choose() -> None:
    """SM is better on the inner split, whatever the test rows say; of equals the first counts."""
    tried = {"federated|ADMM|a": (0.6, 0.0), "federated|SM|a": (0.7, 0.0), "federated|SM|b": (0.7, 1.0)}
    assert robust_svm._choose({**tried, "pooled|Central|d": (0.9, 0.0)}) == {
        "federated|ADMM": "federated|ADMM|a",
        "federated|SM": "federated|SM|a",
        "federated|ADMM or SM": "federated|SM|a",
        "pooled|Central": "pooled|Central|d",
    }


def fleet() -> dict[str, Arrays]:
    case = case_of()
    return deal(case, draw_split(case, Path(), np.random.default_rng(0)).scaled())


def test_a_training_looked_at_on_the_way_is_the_training() -> None:
    for rounds, (shared, _) in zip((1, 4), train("robust-svm-admm", {"rho": 0.05}, fleet(), [1, 4]), strict=True):
        plain = run(build("robust-svm-admm", 3, {"rho": 0.05, "normalisation": "none"}), fleet(), rounds=rounds)
        np.testing.assert_allclose(shared["weights"], plain.server.global_state["weights"])


def test_a_gateway_with_nothing_to_say_does_not_stop_a_training() -> None:
    silent = {**fleet(), "gateway-999": {FEATURES: np.zeros((0, 3)), LABELS: np.zeros(0, dtype=np.int64)}}
    with_it, without = (train("robust-svm-admm", {"rho": 0.05}, each, [2, 3]) for each in (silent, fleet()))
    for (first, _), (second, _) in zip(with_it, without, strict=True):
        np.testing.assert_allclose(first["weights"], second["weights"])


@pytest.mark.parametrize(("unequal", "counts"), [(False, [10, 10, 10, 10]), (True, [4, 8, 12, 16])])
def test_rows_are_dealt_once_each(unequal: bool, counts: list[int]) -> None:
    case = case_of(condition={"unequal": unequal})
    split = Split(np.arange(40.0)[:, None], np.arange(40) % 2, np.arange(40), np.zeros((0, 1)), np.zeros(0, dtype=int))
    parts = list(deal(case, split).values())
    assert [len(part[LABELS]) for part in parts] == counts
    assert np.concatenate([part[FEATURES][:, 0] for part in parts]).tolist() == list(range(40))


def test_conditions_change_labels_and_shares_as_they_say() -> None:
    conditions: tuple[dict[str, float], ...] = ({}, {"flipped": 0.1}, {"positives": 0.2})
    nominal, flipped, unequal = (
        draw_split(case_of(condition=each), Path(), np.random.default_rng(0)).y for each in conditions
    )
    assert (nominal != flipped).sum() == 4 and (nominal.mean(), unequal.mean()) == (0.5, 0.2)


def test_fault_codes_are_judged_by_the_share_that_is_named() -> None:
    truth = np.array([0, 1, 2, 2])
    assert judge("accuracy", truth, np.array([0, 2, 2, 2])) == 0.75
    assert judge("f1", np.minimum(truth, 1), np.array([0, 1, 1, 0])) == pytest.approx(0.8)
