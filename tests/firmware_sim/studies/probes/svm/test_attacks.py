"""What answers to lies are worth: that a lie meets who is marked and that answers see the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgate.firmware_sim.studies.probes.svm.attacks import Case, measure
from tests.support.tabular_files import write_table


def case_of(**given: Any) -> Case:
    plain = {"table": "t", "sharing": "iid", "gateways": 5, "lie": "none", "liars": 0, "rounds": 3, "draw": 0}
    return Case.model_validate({**plain, "method": {}, **given})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_table(tmp_path, "t", rows=300)
    return tmp_path


def test_the_mean_is_ruined_by_two_who_shout_and_the_median_is_not(data: Path) -> None:
    honest = measure(case_of(), data)
    lied = case_of(lie="times 10, flipped", liars=2)
    mean, median = (measure(lied.model_copy(update={"method": each}), data) for each in _answers("fedavg-median"))
    assert honest["auc"] > 0.9 and mean["auc"] < 0.5 < 0.9 < median["auc"]


def _answers(name: str) -> list[Any]:
    return [case_of(method=each).method for each in ({}, {"algorithm": name})]


def test_who_is_alone_meets_no_lie_and_no_liar(data: Path) -> None:
    alone = {"alone": True}
    quiet, lied = (measure(case_of(method=alone, lie=lie, liars=2), data) for lie in ("label noise", "not a number"))
    assert quiet == lied and 0.5 < quiet["accuracy"] <= 1.0


def test_liars_are_as_many_as_the_case_says_and_honest_without_a_lie(data: Path) -> None:
    without, marked, lied = (
        measure(case_of(lie=lie, liars=liars), data) for lie, liars in (("none", 0), ("none", 2), ("sign flip", 2))
    )
    assert without == marked != lied


def test_a_judge_with_trusted_rows_stands_a_lie(data: Path) -> None:
    answer = {"defence": {"kind": "trusted"}}
    assert measure(case_of(method=answer, lie="times 10, flipped", liars=2), data)["auc"] > 0.9
