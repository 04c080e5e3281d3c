"""Figures that are compared, and coordinates that stand in their names."""

from __future__ import annotations

from math import isnan, sqrt

import pytest
from pydantic import ValidationError

from fedgate.firmware_sim.engine.frame import NothingShownError, Results, lay_out
from fedgate.firmware_sim.engine.spec import Choice, Figure, View

# Two repetitions of two methods, of which A was tried with two settings and B with other ones.
TRIED: Results = [
    ({"repeat": 0}, {"A|x": 1.0, "A|y": 4.0, "B|z": 2.0}),
    ({"repeat": 1}, {"A|x": 2.0, "A|y": 8.0, "B|z": 3.0}),
]
FORM = "{method}|{setting}"


def shown(view: View) -> dict[str, tuple[float, float]]:
    return {row[0]: next(iter(columns.values())) for row, columns in lay_out(TRIED, view).items()}


def test_coordinates_in_names_of_figures_are_picked_as_those_of_cells_are() -> None:
    view = View(figures={"f": Figure(of=FORM)}, rows=["setting"], where={"method": "A", "repeat": [1]})
    assert {row: value for row, (value, _) in shown(view).items()} == {"x": 2.0, "y": 8.0}
    with pytest.raises(NothingShownError):
        lay_out(TRIED, view.model_copy(update={"where": {"method": "C"}}))


def test_a_choice_sees_only_what_is_picked() -> None:
    choice = Choice(by=FORM, among=["setting"])
    view = View(figures={"f": Figure(of=FORM)}, rows=["method"], choose=choice, where={"setting": ["x", "z"]})
    assert {row: value for row, (value, _) in shown(view).items()} == {"A": 1.5, "B": 2.5}


def test_methods_are_compared_repetition_by_repetition_each_at_the_setting_that_was_chosen() -> None:
    choice = Choice(by=FORM, among=["setting"])
    figure = Figure(of=FORM, minus={"method": "B"}, spread="sem")
    found = shown(View(figures={"f": figure}, rows=["method"], choose=choice))
    assert list(found) == ["A"] and found["A"] == pytest.approx((3.5, sqrt(4.5 / 2)))  # of 4 - 2 and 8 - 3


def test_a_ratio_is_taken_repetition_by_repetition_too() -> None:
    choice = Choice(by=FORM, among=["setting"])
    figure = Figure(of=FORM, over={"method": "B"}, reduce="max")
    (value, spread) = shown(View(figures={"f": figure}, rows=["method"], choose=choice))["A"]
    assert value == pytest.approx(8.0 / 3.0) and isnan(spread)


def test_the_spread_of_a_ratio_is_that_of_both_its_parts() -> None:
    cells: Results = [({"method": "A"}, {"f": 6.0, "e": 0.6}), ({"method": "B"}, {"f": -2.0, "e": 0.1})]
    figure = Figure(of="f", over={"method": "B"}, spread="e")
    ((value, spread),) = lay_out(cells, View(figures={"f": figure}, rows=["method"]))["A",].values()
    assert value == -3.0 and spread == pytest.approx(3.0 * sqrt(0.1**2 + 0.05**2))


def test_a_figure_is_a_difference_or_a_ratio() -> None:
    with pytest.raises(ValidationError, match="minus and over: both given; expected a difference or a ratio"):
        Figure(of="f", minus={"method": "A"}, over={"method": "B"})
