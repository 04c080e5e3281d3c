"""What a view makes of cells that are written down here: means before spreads, ratios, and sections that share keys."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim.engine.frame import Results, Shown, lay_out
from fedgate.firmware_sim.engine.pictures import draw
from fedgate.firmware_sim.engine.report import parts_of
from fedgate.firmware_sim.engine.spec import Section, Spec, StudyError, View, load_spec

SEEDS, ROOMS = (0, 1), ("a", "b")
ERRORS = {"ridge": (1.0, 3.0), "network": (2.0, 8.0)}  # of room a and b with the first seed; the second has one more


def results() -> Results:
    return [
        (
            {"method": method, "room": room, "seed": seed},
            {"mse": ERRORS[method][place] + seed, "error": 0.5, "loss.1": 1.0, "loss.10": 0.5, "loss.2": 0.7},
        )
        for method in ERRORS
        for place, room in enumerate(ROOMS)
        for seed in SEEDS
    ]


def view(figure: dict[str, Any], **more: Any) -> View:
    return View.model_validate({"rows": ["method"], "figures": {"MSE": figure}, **more})


def of(found: dict[tuple[Any, ...], dict[tuple[Any, ...], Shown]], *row: str) -> Shown:
    return found[row][("MSE",)]


def test_a_spread_is_over_what_is_left_of_the_means() -> None:
    averaged = of(lay_out(results(), view({"of": "mse", "spread": "sd"}, averaged=["room"])), "ridge")
    assert averaged.value == 2.5 and averaged.spread == pytest.approx(
        math.sqrt(0.5)
    )  # of 2 and 3, the means over rooms of each seed
    apart = of(lay_out(results(), view({"of": "mse", "spread": "sd"})), "ridge")
    assert apart.value == 2.5 and apart.spread > averaged.spread
    worst = of(lay_out(results(), view({"of": "mse", "reduce": "max"}, averaged=["seed"])), "ridge")
    assert worst.value == 3.5


def test_a_mean_is_undefined_where_a_part_of_it_is() -> None:
    cells = [({"method": "ridge", "room": room}, {"mse": value}) for room, value in (("a", 1.0), ("b", math.nan))]
    assert math.isnan(of(lay_out(cells, view({"of": "mse"}, averaged=["room"])), "ridge").value)


def test_a_ratio_is_to_the_cell_that_is_alike_in_all_else() -> None:
    over = {"of": "mse", "over": {"method": "ridge"}, "spread": "error"}
    by_room = lay_out(results(), view(over, rows=["method", "room"], where={"seed": 0}))
    assert set(by_room) == {("network", "a"), ("network", "b")}
    first = of(by_room, "network", "a")
    assert first.value == 2.0 and first.spread == pytest.approx(2.0 * math.hypot(0.5 / 2.0, 0.5 / 1.0))
    of_means = lay_out(results(), view({"of": "mse", "over": {"method": "ridge"}}, averaged=["room", "seed"]))
    assert of(of_means, "network").value == 5.5 / 2.5


def test_a_figure_has_coordinates_of_its_own() -> None:
    heads = {name: {"of": "mse", "where": {"room": room}} for name, room in (("first", "a"), ("second", "b"))}
    found = lay_out(results(), View.model_validate({"figures": heads, "rows": ["method"], "where": {"seed": 0}}))
    assert {head: shown.value for (head,), shown in found["network",].items()} == {"first": 2.0, "second": 8.0}


def test_rounds_in_the_names_of_figures_lie_along_a_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = Section.model_validate(
        {"kind": "lines", "rows": ["round"], "columns": ["method"], "figures": {"loss": "loss.{round}"}}
    )
    drawn: list[list[float]] = []
    draw_points = Axes.errorbar

    def watch(axes: Axes, x: list[float], *values: Any, **look: Any) -> Any:
        drawn.append(list(x))
        return draw_points(axes, x, *values, **look)

    monkeypatch.setattr(Axes, "errorbar", watch)
    draw(section, results(), tmp_path / "losses.png")
    assert [sorted(x) for x in drawn] == [[1.0, 2.0, 10.0]] * 2


def test_a_section_is_written_for_each_value(tmp_path: Path) -> None:
    section = {
        "each": "room",
        "text": "Two rooms.",
        "rows": ["method"],
        "figures": {"MSE": "mse"},
        "where": {"seed": 0},
    }
    spec = Spec.model_validate({"title": "x", "about": "x", "probe": "x", "cells": {"a": [1]}, "section": [section]})
    first, second = parts_of(spec, results(), tmp_path / "study")
    assert [first.title, first.text, second.title, second.text] == ["a", "Two rooms.", "b", ""]
    assert first.table is not None and first.table.rows == [["ridge", "1.000"], ["network", "2.000"]]
    assert second.table is not None and second.table.rows == [["ridge", "3.000"], ["network", "8.000"]]


def test_a_section_is_written_for_each_name_in_a_figure(tmp_path: Path) -> None:
    section = {"each": "room", "rows": ["set"], "figures": {"MSE": "mse.{room}"}}
    spec = Spec.model_validate({"title": "x", "about": "x", "probe": "x", "cells": {"a": [1]}, "section": [section]})
    figures = {"mse.hall": 1.0, "mse.attic": 2.0}
    parts = list(parts_of(spec, [({"set": "pump"}, figures)], tmp_path / "study"))
    assert [part.title for part in parts] == ["hall", "attic"]
    assert [part.table.rows for part in parts if part.table] == [[["pump", "1.000"]], [["pump", "2.000"]]]


@pytest.mark.parametrize("each", ["", "room"])
def test_a_section_without_figures_says_what_it_is_to_say_or_is_an_error(tmp_path: Path, each: str) -> None:
    section = {"title": "Rooms", "each": each, "rows": ["set"], "figures": {"MSE": "mse.{room}"}}
    given = {"title": "x", "about": "x", "probe": "x", "cells": {"a": [1]}, "section": [section]}
    results = [({"set": "pump"}, {"recall": 1.0})]
    with pytest.raises(StudyError, match=r"section 'Rooms': mse\.\{room\}: no cell"):
        list(parts_of(Spec.model_validate(given), results, tmp_path / "study"))
    section["otherwise"] = "There are no rooms."
    (part,) = parts_of(Spec.model_validate(given), results, tmp_path / "study")
    assert (part.title, part.text, part.table) == ("Rooms", "There are no rooms.", None)


def test_a_section_like_another_has_its_keys_and_coordinates_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    text = """
title = "x"
about = "x"
probe = "x"
cells = [{ a = [1] }]
[[section]]
title = "pump"
where = { set = "pump", part = "reported" }
figures = { recall = "recall" }
[[section]]
like = "pump"
title = "rooms"
where = { set = "rooms" }
"""
    path.write_text(text, encoding="utf-8")
    pump, rooms = load_spec(path).section
    assert pump.where == {"set": "pump", "part": "reported"} and rooms.where == {"set": "rooms"}
    assert rooms.figures == pump.figures and rooms.title == "rooms"
    path.write_text(text.replace('like = "pump"', 'like = "NAB"'), encoding="utf-8")
    with pytest.raises(SettingsError, match=r"section\.like: 'NAB' given; expected the title of a section before it"):
        load_spec(path)


def test_what_is_shown_of_the_same_stands_behind_a_section(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    text = """
title = "x"
cells = [{ a = [1] }]
[[section]]
title = "MSE"
text = "Lower is better."
rows = ["set", "room"]
figures = { MSE = "mse", recall = "recall" }
also = [{ kind = "lines", rows = ["room"], figures = { MSE = "mse" } }, { text = "Too." }]
[[section]]
title = "after"
figures = { recall = "recall" }
"""
    path.write_text(text, encoding="utf-8")
    first, picture, again, last = load_spec(path).section
    assert (first.title, picture.title, again.title, last.title) == ("MSE", "", "", "after")
    assert (picture.kind, picture.rows, picture.text) == ("lines", ["room"], "")
    assert list(picture.figures) == ["MSE"] and again.figures == first.figures and again.text == "Too."
    path.write_text(text.replace('kind = "lines", rows', 'kind = "lines", row'), encoding="utf-8")
    with pytest.raises(SettingsError, match="section 'MSE': also: row"):
        load_spec(path)
    path.write_text(text.replace('kind = "lines", rows = ["room"]', 'kind = "lines", rows = []'), encoding="utf-8")
    with pytest.raises(SettingsError, match="'lines' has no `rows`"):
        load_spec(path)


def test_a_section_may_be_like_one_of_the_file_that_its_file_is_like(tmp_path: Path) -> None:
    head = 'title = "x"\ncells = [{ a = [1] }]\n'
    pump = '[[section]]\ntitle = "pump"\nrows = ["a"]\nfigures = { MSE = "mse" }\n'
    (tmp_path / "base.toml").write_text(head + pump, encoding="utf-8")
    own = 'like = "base.toml"\n[[section]]\nlike = "pump"\ntext = "Mine."\n'
    (tmp_path / "own.toml").write_text(own, encoding="utf-8")
    (section,) = load_spec(tmp_path / "own.toml").section
    assert (section.title, section.rows, section.text) == ("pump", ["a"], "Mine.")
