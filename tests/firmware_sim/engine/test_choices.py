"""Goal: a choice is made of nothing but the cells that it is for, and a difference is between what was chosen."""

from __future__ import annotations

from fedgate.firmware_sim.engine.frame import Results, choices, lay_out
from fedgate.firmware_sim.engine.spec import Choice, View

# By method, seed and setting: what decides, and what is shown.
FIGURES = {
    ("one", 0): {"a": (0.9, 10.0), "b": (0.1, 20.0)},
    ("one", 1): {"a": (0.2, 30.0), "b": (0.8, 40.0)},
    ("two", 0): {"a": (0.3, 1.0), "b": (0.4, 2.0)},
    ("two", 1): {"a": (0.3, 3.0), "b": (0.2, 5.0)},
}
RESULTS: Results = [
    ({"method": method, "seed": seed, "settings": setting}, {"choice": choice, "shown": shown})
    for (method, seed), settings in FIGURES.items()
    for setting, (choice, shown) in settings.items()
]


def view(each: list[str], **figure: object) -> View:
    choice = Choice(by="choice", among=["settings"], each=each)
    return View.model_validate({"rows": ["method"], "choose": choice, "figures": {"x": {"of": "shown", **figure}}})


def test_each_seed_chooses_for_itself_where_that_is_asked() -> None:
    anew, together = (view(each, spread="sd") for each in (["seed"], []))
    assert lay_out(RESULTS, anew)[("one",)][("x",)].value == (10.0 + 40.0) / 2
    assert lay_out(RESULTS, together)[("one",)][("x",)].value == (10.0 + 30.0) / 2  # a has the better mean
    picked = choices(RESULTS, anew, Choice(by="choice", among=["settings"], each=["seed"]))
    assert picked[["method", "seed", "settings"]].values.tolist() == [
        ["one", 0, "a"],
        ["one", 1, "b"],
        ["two", 0, "b"],
        ["two", 1, "a"],
    ]


def test_a_difference_is_between_what_either_side_chose() -> None:
    found = lay_out(RESULTS, view(["seed"], minus={"method": "two"}))
    assert list(found) == [("one",)]
    assert found[("one",)][("x",)].value == ((10.0 - 2.0) + (40.0 - 3.0)) / 2
