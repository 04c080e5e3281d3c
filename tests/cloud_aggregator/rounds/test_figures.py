"""Goal: how far a training has come is kept with each round, whatever units its numbers have.

Method: parameters by hand, and a real service whose rounds change what is known.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import CHANGE, Tick
from fedgate.cloud_aggregator.rounds.figures import FIGURES_MAX, describe_advance, measure_change
from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Server
from tests.support.cloud_service import cloud, mean_of

BEFORE: Arrays = {"a": np.array([3.0, 4.0]), "b": np.full((2, 2), 10.0), "n": np.array([1, 2])}


def test_it_is_the_relative_change_of_each_array_by_its_size() -> None:
    after = {"a": np.array([3.0, 9.0]), "b": np.full((2, 2), 11.0), "n": np.array([7, 7])}
    assert measure_change(BEFORE, after) == pytest.approx(np.sqrt((2 * 1.0**2 + 4 * 0.1**2) / 6))
    assert measure_change(BEFORE, BEFORE) == 0.0


@pytest.mark.parametrize("power", [-900, -20, 20, 900])
def test_no_unit_of_an_array_matters(power: int) -> None:
    after = {"a": np.array([3.5, 4.0]), "b": np.full((2, 2), 9.0)}
    scaled = [{**one, "b": np.ldexp(one["b"], power)} for one in (BEFORE, after)]
    assert measure_change(*scaled) == measure_change(BEFORE, after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"a": np.zeros(3)}, {"a": np.ones(3)}),
        ({"a": np.zeros(0)}, {"a": np.zeros(0)}),
        ({"a": np.ones(3)}, {"a": np.ones(4)}),
        ({"a": np.ones(3)}, {"b": np.ones(3)}),
        ({"a": np.ones(3, dtype=np.int64)}, {"a": np.zeros(3, dtype=np.int64)}),
        ({"a": np.array([np.inf])}, {"a": np.ones(1)}),
        ({"a": np.full(1, 1e-300)}, {"a": np.full(1, 1e300)}),
    ],
)
def test_of_what_cannot_be_compared_nothing_is_said(before: Arrays, after: Arrays) -> None:
    assert measure_change(before, after) is None


def test_numbers_are_few_and_finite_and_none_that_the_settings_say() -> None:
    constant: Arrays = {"gamma": np.array(2.0)}
    known: Arrays = {"gamma": np.array(2.0), "bad": np.array(np.nan), "w": np.ones(2)}
    own: Arrays = {f"n{place:03}": np.array(place) for place in range(99)}
    found = describe_advance(Server(known, own), Server(known, own), constant)
    assert len(found) == FIGURES_MAX and found[CHANGE] == 0.0 and "gamma" not in found and "bad" not in found
    assert json.loads(json.dumps(dict(found), allow_nan=False)) == found


def test_each_round_is_stored_with_what_it_changed(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(4), ("north",)) as made:
        for value in (1.0, 1.0, 0.5):
            made.send("north", made.body(value))
            made.hear(Tick(), after_s=1)
        rows = made.service.store.read_rows("rounds", "figures")
        assert [json.loads(row["figures"]) for row in rows] == [{}, {CHANGE: 1.0}, {CHANGE: 0.25}]
