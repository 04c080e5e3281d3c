"""Which cells a file describes, and by what each is known."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.firmware_sim.engine.cells import Cell, cells_of, check_data, count_cells, load_probe
from fedgate.firmware_sim.engine.spec import Spec, StudyError, load_spec
from tests.support import powers
from tests.support.syntax import ROOT

PROBE = load_probe("tests.support.powers")
NOWHERE = Path("nowhere")
SHOWN = [{"kind": "text", "text": "t"}]
METHODS = {
    "square": {"exponent": 2, "settings": {"width": 1.0, "depth": 3}},
    "cube": {"like": "square", "exponent": 3, "settings": {"depth": 4}},
    "tuned": {"like": "cube", "grid": {"width": [0.5, 2.0], "mode": ["own", "none"]}},
    "few": {"exponent": 1, "only": {"number": [2, 3], "seed": 1}},
}


def spec_of(**given: Any) -> Spec:
    return Spec.model_validate({"title": "t", "about": "a", "probe": "tests.support.powers", "cells": {}, **given})


def cells(*, data: Path = NOWHERE, short: bool = False, **given: Any) -> list[Cell]:
    return cells_of(spec_of(**given), PROBE, data, short=short)


def case_of(cell: Cell) -> powers.Case:
    assert isinstance(cell.case, powers.Case)
    return cell.case


def places(found: list[Cell]) -> list[dict[str, Any]]:
    return [{key: value for key, value in cell.coordinates.items() if "." not in key} for cell in found]


@given(
    st.dictionaries(
        st.sampled_from(["number", "seed", "scale", "rounds"]),
        st.lists(st.integers(-3, 3), min_size=1, max_size=4, unique=True),
    )
)
def test_cells_are_the_product_of_the_axes_in_their_order(axes: dict[str, list[int]]) -> None:
    found = cells(cells=axes)
    wanted = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    assert places(found) == wanted
    for cell, coordinates in zip(found, wanted, strict=True):
        assert case_of(cell).model_dump(include=set(axes)) == coordinates


def test_an_axis_that_a_product_lacks_is_that_of_its_case_where_no_section_says_what_is_shown() -> None:
    products = [{"number": [1, 2]}, {"scale": [2.0], "number": [1]}, {"number": [1], "scale": [1.0]}]
    found = cells(cells=products, settings={"scale": 1.0})
    assert places(found) == [{"number": 1, "scale": 1.0}, {"number": 2, "scale": 1.0}, {"number": 1, "scale": 2.0}]
    assert places(cells(cells=products[:2], section=SHOWN)) == [
        {"number": 1},
        {"number": 2},
        {"scale": 2.0, "number": 1},
    ]


@pytest.mark.parametrize(
    ("axis", "value"), [("method", ["square"]), ("method.settings.width", [1.0]), ("names", [["a"]])]
)
def test_an_axis_that_a_product_lacks_and_its_case_too_is_refused(axis: str, value: list[Any]) -> None:
    with pytest.raises(StudyError, match=r"cells: '[a-z.]+' stands in one product and not in another"):
        cells(define={"method": METHODS}, cells=[{"method": ["cube"], axis: value}, {"number": [2]}])


def test_a_file_that_is_read_and_missing_is_named_and_cells_of_one_case_count_once(tmp_path: Path) -> None:
    reading = PROBE._replace(reads=lambda case, data: [data / "rows.csv"])
    found = cells_of(spec_of(cells={"number": 3}), reading, tmp_path)
    with pytest.raises(StudyError, match=r"rows\.csv: no such file or folder"):
        check_data(reading, found, tmp_path)
    (tmp_path / "rows.csv").touch()
    check_data(reading, found, tmp_path)
    assert count_cells([*found, found[0]]) == 3


def test_products_come_one_after_the_other_and_what_two_hold_is_one_cell() -> None:
    found = cells(section=SHOWN, cells=[{"number": 2, "seed": [7]}, {"number": [1, 5], "seed": [7]}, {"rounds": [3]}])
    assert places(found) == [
        {"number": 0, "seed": 7},
        {"number": 1, "seed": 7},
        {"number": 5, "seed": 7},
        {"rounds": 3},
    ]


def test_names_stand_for_what_is_defined_like_others_with_keys_of_their_own() -> None:
    found = cells(define={"method": METHODS}, cells={"method": ["square", "cube"]})
    assert [case_of(cell).method.model_dump() for cell in found] == [
        {"exponent": 2, "data": "whole", "settings": {"width": 1.0, "depth": 3}},
        {"exponent": 3, "data": "whole", "settings": {"width": 1.0, "depth": 4}},
    ]
    assert [cell.coordinates for cell in found] == [
        {"method": "square", "method.data": "whole"},
        {"method": "cube", "method.data": "whole"},
    ]


def test_a_grid_is_an_axis_of_its_own_and_overrides_settings() -> None:
    found = cells(define={"method": METHODS}, cells={"method": ["tuned", "square"]})
    assert places(found) == [
        *({"method": "tuned", "settings": f"width={w}, mode={m}"} for w in (0.5, 2.0) for m in ("own", "none")),
        {"method": "square"},
    ]
    assert [case_of(cell).method.settings for cell in found[1:3]] == [
        {"width": 0.5, "depth": 4, "mode": "none"},
        {"width": 2.0, "depth": 4, "mode": "own"},
    ]


def test_only_restricts_other_axes_to_values_or_to_one() -> None:
    found = cells(define={"method": METHODS}, cells={"method": ["few", "cube"], "number": 4, "seed": [0, 1]})
    few = [place for place in places(found) if place["method"] == "few"]
    assert few == [{"method": "few", "number": number, "seed": 1} for number in (2, 3)]
    assert len(found) == 2 + 8


def test_a_star_is_every_name_that_is_defined() -> None:
    found = cells(define={"method": METHODS}, cells={"method": "*", "number": [2], "seed": [1]})
    assert list(dict.fromkeys(place["method"] for place in places(found))) == list(METHODS)


def test_axes_reach_inside_others_and_settings_lie_below_all() -> None:
    found = cells(
        settings={"method": {"exponent": 5, "settings": {"width": 9.0, "rounds": 9}}, "seed": 4},
        define={"method": {"own": {"settings": {"width": 1.0}}}},
        cells={"method": ["own"], "method.settings.rounds": [1, 20], "method.exponent": [6]},
    )
    assert places(found) == [{"method": "own", "rounds": rounds, "exponent": 6} for rounds in (1, 20)]
    assert [case_of(cell).method.settings for cell in found] == [{"width": 1.0, "rounds": rounds} for rounds in (1, 20)]
    assert {(case_of(cell).method.exponent, case_of(cell).seed) for cell in found} == {(6, 4)}


def test_a_list_is_a_coordinate_by_its_words() -> None:
    (cell,) = cells(cells={"names": [["a", "b"]]})
    assert cell.coordinates == {"names": "a, b"} and case_of(cell).names == ["a", "b"]


def test_a_short_run_keeps_every_method_the_first_of_all_else_and_little_effort() -> None:
    found = cells(
        short=True,
        settings={"rounds": 40, "method": {"settings": {"epochs": 1, "steps": 50, "width": 50, "count": True}}},
        define={"method": METHODS},
        cells={"number": [2, 3, 4], "method": "*", "seed": [1, 2]},
    )
    assert places(found) == [
        {"number": 2, "method": "square", "seed": 1},
        {"number": 2, "method": "cube", "seed": 1},
        {"number": 2, "method": "tuned", "seed": 1, "settings": "width=0.5, mode=own"},
        {"number": 2, "method": "few", "seed": 1},
    ]
    assert {case_of(cell).rounds for cell in found} == {2}
    assert case_of(found[0]).method.settings == {"epochs": 1, "steps": 2, "width": 1.0, "count": True, "depth": 3}


sets = st.fixed_dictionaries(
    {},
    optional={
        "number": st.integers(0, 2),
        "scale": st.sampled_from([1.0, 2.0]),
        "names": st.lists(st.sampled_from(["a", "b"]), max_size=2),
        "method": st.fixed_dictionaries(
            {"exponent": st.integers(2, 3)},
            optional={
                "settings": st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from([0, 1, "1", [1], None]))
            },
        ),
    },
)


@given(sets, sets)
def test_cells_have_the_same_key_exactly_where_their_cases_are_the_same(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    (first,), (second,) = (cells(settings=each) for each in (one, two))
    assert (first.key == second.key) == (first.case == second.case)


def test_a_key_is_of_what_is_measured_and_neither_of_words_nor_of_places(tmp_path: Path) -> None:
    given: dict[str, Any] = {"define": {"method": METHODS}, "cells": {"number": [1, 2], "method": ["square"]}}
    folders = [tmp_path / name / "set" for name in ("here", "there/below")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text("1,2", "utf-8")

    def keys(place: Path = folders[0], **other: Any) -> list[str]:
        reading = PROBE._replace(reads=lambda case, data: [data / "set"])
        return [cell.key for cell in cells_of(spec_of(**{**given, **other}), reading, place.parent)]

    known = keys()
    assert len(set(known)) == 2
    section = {"title": "t", "figures": {"f": "power"}, "rows": ["number"], "labels": {"number": "n"}}
    assert keys(title="other", about="other", jobs=1, section=[section]) == known
    assert keys(folders[1]) == known
    renamed = {"method": {"called otherwise": METHODS["square"]}}
    assert keys(define=renamed, cells={"number": 3, "method": "*"})[1:] == known
    assert keys(settings={"seed": 0}) == known, "what is said and the default are one"
    assert not set(keys(settings={"seed": 1})) & set(known)
    (folders[0] / "a.csv").write_text("1,2,3", "utf-8")
    assert not set(keys()) & set(known), "another edition of the data"


def test_a_key_tells_what_is_no_number_from_what_is_endless() -> None:
    keys = set()
    for text in ("nan", "inf", "-inf", "0"):
        (cell,) = cells(settings={"method": {"exponent": 1, "settings": {"bound": float(text)}}})
        keys.add(cell.key)
    assert len(keys) == 4


def test_a_key_is_the_same_tomorrow() -> None:
    """Keys lie in files of measured cells: another form would measure all of them anew."""
    (cell,) = cells(define={"method": METHODS}, cells={"method": ["cube"], "number": [2]})
    assert cell.key == "5e17b0dc00fc7ed65bb3567e"


def test_every_file_that_a_case_reads_tells_it_from_one_of_another_edition(tmp_path: Path) -> None:
    reading = PROBE._replace(reads=lambda case, data: [data / name for name in case.names])

    def key(*names: str) -> str:
        (cell,) = cells_of(spec_of(settings={"names": list(names)}), reading, tmp_path)
        return cell.key

    for name in ("one/rows.csv", "two/rows.csv", "beside.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n", "utf-8")
    before = {"one": key("one"), "both": key("one", "two")}
    (tmp_path / "beside.csv").write_text("2\n", "utf-8")
    (tmp_path / "two/rows.csv").write_text("2\n", "utf-8")
    assert key("one") == before["one"] and key("one", "two") != before["both"]


@pytest.mark.parametrize(
    "table", sorted((ROOT / "firmware_sim/studies/tables").glob("*.toml")), ids=lambda path: path.stem
)
def test_cells_of_a_table_that_reads_data_are_others_for_other_data(table: Path, tmp_path: Path) -> None:
    spec = load_spec(table)
    probe = load_probe(spec.probe)
    found = set[Path]()
    for cell in cells_of(spec, probe, tmp_path, short=True):
        found |= {path for path in probe.reads(cell.case, tmp_path) if path.is_relative_to(tmp_path)}
    is_of_package = spec.data is not None or spec.probe == "fleet_causes"
    assert bool(found) != is_of_package
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1", "utf-8")
    one = cells_of(spec, probe, tmp_path, short=True)
    for path in found:
        path.write_text("2", "utf-8")
    two = cells_of(spec, probe, tmp_path, short=True)
    assert [a.key != b.key for a, b in zip(one, two, strict=True)] == [
        any(path in found for path in probe.reads(cell.case, tmp_path)) for cell in one
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cells": {"method": ["sqare"]}}, "cells.method: 'sqare' is not defined; expected one of square, cube, tuned"),
        ({"cells": {"method": []}}, r"cells.method: \[\] given; expected values, a number of them, or '\*' for all"),
        ({"cells": {"method": "square"}}, "cells.method: 'square' given; expected values"),
        ({"cells": {"number": 0}}, "cells.number: 0 given; expected values, a number of them"),
        ({"cells": {"number": True}}, "cells.number: True given; expected values"),
        ({"cells": {"number": "*"}}, r"cells.number: '\*' given; expected values"),
        ({"cells": {"method": [["square"]]}}, r"cells.method: \['square'\] is not defined"),
        ({"define": {"method": {"a": {"like": "b"}}}, "cells": {"method": ["a"]}}, "cells.method: 'b' is not defined"),
        (
            {"define": {"method": {"a": {"like": "b"}, "b": {"like": "a"}}}, "cells": {"method": ["a"]}},
            "define.method: a is like b is like a; expected one that is like none",
        ),
        ({"cells": {"number": [1], "exponent": [2]}}, "number=1, exponent=2: exponent"),
        ({"cells": {"number": ["one"]}}, "number=one: number"),
        ({"cells": {"method": ["square"]}, "settings": {"method": {"data": "all"}}}, "method=square: method.data"),
        ({"cells": {}, "settings": {"numbr": 1}}, "^numbr"),
        ({"cells": {"method.settings.x": [2], "method.x": [3]}}, "cells: several axes end with 'x'"),
        (
            {
                "section": SHOWN,
                "settings": {"method": {"exponent": 1}},
                "cells": [{"method.settings.seed": [2]}, {"seed": [2]}],
            },
            "seed=2: two cells that differ have these coordinates",
        ),
        (
            {"define": {"method": {"a": {"exponent": 1, "only": {"numbr": [1]}}}}, "cells": {"method": ["a"]}},
            "define.method: only: 'numbr' is no axis; expected one of method",
        ),
    ],
)
def test_what_is_wrong_with_an_axis_or_a_case_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        cells(**{"define": {"method": METHODS}, **given})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing-of-ours", "probe 'nothing-of-ours': No module named .*; expected a module with `Case` and `measure`"),
        ("tests.support.syntax", "probe 'tests.support.syntax': has no 'Case'; expected"),
    ],
)
def test_what_is_no_probe_is_named(name: str, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        load_probe(name)


@pytest.mark.parametrize("text", ["import no_such_package\n", "\nfrom pathlib import Pth\n"])
@pytest.mark.parametrize("name", ["broken_probe", "broken_probe.below"])
def test_what_a_probe_cannot_import_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    (tmp_path / "broken_probe").mkdir()
    (tmp_path / "broken_probe/__init__.py").write_text(text, "utf-8")
    (tmp_path / "broken_probe/below.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = r"cannot be imported: .*(no_such_package|Pth).*__init__\.py, line \d\)"
    with pytest.raises(StudyError, match=words):
        load_probe(name)
