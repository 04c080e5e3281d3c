"""The probe of Table B.3: nobody who is scored trains or chooses, bytes are those that travel, and losses are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.evaluate.training import Fit, train_fleet
from fedgate.firmware_sim.studies.datasets.wesad import load_subject
from fedgate.firmware_sim.studies.probes.networks import partial_incfed
from fedgate.firmware_sim.studies.probes.networks.partial_incfed import Case, Fold, folds, measure, present
from fedgate.models.arrays import LABELS, Arrays
from tests.support.wesad_files import FOLDER, write_wesad

SUBJECTS = ["S2", "S3", "S4", "S5"]
NETWORK = {"classes": 3, "units": 30, "leak": 1.0, "direct": False}
CHOICE = {"networks": {"small": {"units": 10}, "leaky": {"leak": 0.2}}, "ridges": [0.01, 1.0]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_wesad(tmp_path, SUBJECTS, rows=240)


def case_of(algorithm: str = "incfed", given: dict[str, Any] | None = None, **more: Any) -> Case:
    method = {"algorithm": algorithm, "settings": given or {}, "data": more.pop("data", "federated")}
    whole = {"folder": FOLDER, "subjects": SUBJECTS, "method": method, "network": NETWORK, **more}
    return Case.model_validate(whole)


def test_who_is_scored_does_not_train(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []

    def watched(algorithm: Any, clients: dict[str, Arrays], **others: Any) -> Fit:
        seen.append(set(clients))
        return train_fleet(algorithm, clients, **others)

    monkeypatch.setattr(partial_incfed, "train_fleet", watched)
    measure(case_of(share=0.5), data)
    assert [len(names) for names in seen] == [1, 1]
    for names, fold in zip(seen, folds(SUBJECTS, 2), strict=True):
        assert names <= set(fold.others) and not names & set(fold.scored)


def test_everybody_is_scored_once() -> None:
    names = [f"S{number}" for number in range(2, 12)]
    found = list(folds(names, 2))
    assert [name for fold in found for name in fold.scored] == names
    assert all(set(fold.scored) | set(fold.others) == set(names) and len(fold.others) == 8 for fold in found)


def test_a_smaller_share_is_part_of_a_larger_one() -> None:
    fold = Fold(0, ["x"], [f"S{index}" for index in range(8)])
    chain = [set(present(fold, share, 3)) for share in (0.25, 0.5, 0.75, 1.0)]
    assert [len(names) for names in chain] == [2, 4, 6, 8]
    assert chain[0] < chain[1] < chain[2] < chain[3]


def test_one_place_and_many_gateways_are_the_same_and_alone_is_worse(data: Path) -> None:
    federated, pooled, alone = (measure(case_of(data=where), data) for where in ("federated", "pooled", "local"))
    assert all(pooled[name] == pytest.approx(federated[name], rel=1e-6) for name in pooled)
    assert federated["error"] < alone["error"]
    assert federated["accuracy"] > measure(case_of("majority"), data)["accuracy"] == 0.5


def test_a_size_is_that_of_the_network_where_nothing_chooses_among_its_units(data: Path) -> None:
    def sent(algorithm: str, **given: Any) -> float:
        return measure(case_of(algorithm, given, size=8), data)["bytes_up"]

    small, mask = sent("incfed"), sent("partial-incfed", select="shared")
    driven = sent("partial-incfed", select="principal")
    assert small < driven + 200 < mask < 2_000
    whole = measure(case_of(), data)
    assert small < whole["bytes_up"] == pytest.approx(whole["of_square"] * 8 * 31 * 34)


def folder_with_another(data: Path, name: str) -> Path:
    """Return other data in which one subject has other rows."""
    other = write_wesad(data / "other", SUBJECTS, rows=240)
    file = other / FOLDER / f"{name}.npz"
    with np.load(file) as archive:
        changed = {**archive, "X": archive["X"][::-1] * -3.0, "y": archive["y"][::-1]}
    np.savez(file, **changed)
    return other


def chosen(case: Case, data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Figures, list[Figures]]:
    """Return the figures of a case, and those of each fold."""
    found: list[Figures] = []
    plain = partial_incfed.OTHERS["inner-folds"]

    def watched(*given: Any, **more: Any) -> Any:
        train = plain(*given, **more)

        def kept(fold: Fold) -> Any:
            trained = train(fold)
            found.append(trained.figures)
            return trained

        return kept

    monkeypatch.setitem(partial_incfed.OTHERS, "inner-folds", watched)
    figures = measure(case, data)
    monkeypatch.setitem(partial_incfed.OTHERS, "inner-folds", plain)
    return figures, found


@pytest.mark.soak
def test_what_is_scored_has_no_part_in_the_choice(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("inner-folds", CHOICE)
    (before, first), (after, second) = (
        chosen(case, where, monkeypatch) for where in (data, folder_with_another(data, "S2"))
    )
    assert first[0] == second[0] and sum(first[0].values()) == 1.0
    assert before["accuracy"] != after["accuracy"]
    assert sum(value for name, value in before.items() if name.startswith("chosen.")) == pytest.approx(1.0)


def test_an_inner_fold_is_the_training_without_one_subject(data: Path) -> None:
    """The sums less one subject's give the accuracy that a training on the others has there."""
    case = case_of()
    rows = {name: load_subject(data / FOLDER, name) for name in SUBJECTS}
    known = partial_incfed._summed(case.network, rows, 0)
    fold = Fold(0, ["S2"], ["S3", "S4", "S5"])
    expected = 0.0
    for name in fold.others:
        train = partial_incfed._readout(case, rows)
        left = train(Fold(0, [name], [other for other in fold.others if other != name]))
        expected += float(np.mean(left.outputs(name).argmax(axis=1) == rows[name][LABELS]))
    assert partial_incfed._inner_accuracy(known, rows, fold, 0.01) == pytest.approx(expected, abs=1e-9)


def test_a_sketch_of_all_units_is_incfed(data: Path) -> None:
    whole, sketch = measure(case_of(), data), measure(case_of("random-projection", size=30), data)
    assert all(sketch[name] == pytest.approx(whole[name], rel=1e-4) for name in ("accuracy", "error"))


def test_settings_that_a_method_does_not_have_are_refused() -> None:
    with pytest.raises(ValidationError, match="incfed has no setting 'neurons'"):
        case_of("incfed", {"neurons": 3})
    with pytest.raises(ValidationError, match="inner-folds has no setting 'ridge'"):
        case_of("inner-folds", {"ridge": 1.0})
