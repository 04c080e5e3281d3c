"""How figures of cells become rows and columns, beside the same in plain Python over random cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgate.firmware_sim.engine.frame import NothingShownError, Results, choices, lay_out
from fedgate.firmware_sim.engine.spec import Axes, Choice, Figure, StudyError, View

NAN = math.nan
REDUCED: dict[str, Callable[[list[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "sum": math.fsum,
}
Line = tuple[Axes, float, float]  # coordinates of one figure, the figure, its error

values = st.one_of(st.integers(-8, 8).map(lambda number: number / 4.0), st.just(NAN))
axes = st.fixed_dictionaries(
    {"method": st.sampled_from(["a", "b", "c"])},
    optional={"seed": st.integers(0, 2), "width": st.sampled_from([0.5, 20.0]), "whole": st.booleans()},
)
figures = st.dictionaries(st.sampled_from(["f", "auc.x", "auc.y", "auc.x|1", "auc.y|2"]), values, min_size=1)


@st.composite
def cells(draw: st.DrawFn) -> Results:
    """Draw cells of several products of axes: some lack coordinates, some figures, no two stand at one place."""
    drawn = draw(st.lists(st.tuples(axes, figures), min_size=1, max_size=12, unique_by=lambda cell: str(cell[0])))
    return [(each, {**found, **{f"e.{name}": 0.25 for name in found}}) for each, found in drawn]


def lines_of(results: Results, of: str) -> list[Line]:
    """Return the figures `f`, or all of `auc.{draw}`, with their coordinates."""
    found = []
    for coordinates, measured in results:
        for name, value in measured.items():
            if name == of:
                found.append((dict(coordinates), value, measured[f"e.{name}"]))
            elif of == "auc.{draw}" and name.startswith("auc."):
                found.append(({**coordinates, "draw": name[4:]}, value, measured[f"e.{name}"]))
    return found


def numbers(of: Iterable[float]) -> list[float]:
    return [value for value in of if not math.isnan(value)]


def grouped(lines: list[Line], keys: list[str]) -> dict[tuple[Any, ...], list[Line]]:
    found: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        if all(key in line[0] for key in keys):
            found.setdefault(tuple(line[0][key] for key in keys), []).append(line)
    return found


def spread_of(kind: str, group: list[Line]) -> float:
    known = numbers(value for _, value, _ in group)
    if kind in ("sd", "sem"):
        if len(known) < 2:
            return NAN
        return statistics.stdev(known) / (math.sqrt(len(known)) if kind == "sem" else 1.0)
    return statistics.fmean(error for _, _, error in group) if kind else NAN


def same(one: float, other: float) -> bool:
    return one == pytest.approx(other, rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.soak
@given(
    cells(),
    st.sampled_from(["f", "auc.{draw}"]),
    st.lists(st.sampled_from(["method", "seed", "width", "whole"]), max_size=3, unique=True),
    st.integers(0, 3),
    st.sampled_from(sorted(REDUCED)),
    st.sampled_from(["", "sd", "sem", "e.{of}"]),
    st.sampled_from([1.0, -2.0]),
)
def test_a_table_holds_what_plain_python_makes_of_the_cells(
    results: Results, of: str, keys: list[str], row_count: int, reduce: Any, spread: str, scale: float
) -> None:
    lines = [(place, value * scale, error * abs(scale)) for place, value, error in lines_of(results, of)]
    assume(lines)
    keys = [*keys, "draw"] if "{draw}" in of else keys
    wanted = grouped(lines, keys)
    shown = Figure(of=of, reduce=reduce, spread=spread.format(of=of), scale=scale)
    view = View(figures={"head": shown}, rows=keys[:row_count], columns=keys[row_count:])
    if not wanted:
        with pytest.raises(StudyError):
            lay_out(results, view)
        return
    found = lay_out(results, view)
    flat = {(*row, *column[:-1]): shown for row, columns in found.items() for column, shown in columns.items()}
    assert list(found) == list(dict.fromkeys(place[:row_count] for place in wanted))
    assert flat.keys() == wanted.keys()
    for place, group in wanted.items():
        known = numbers(value for _, value, _ in group)
        assert same(flat[place].value, REDUCED[reduce](known) if known else NAN), place
        assert same(flat[place].spread, spread_of(spread, group)), place


@pytest.mark.soak
@given(cells(), st.sampled_from(["f", "auc.{draw}"]), st.sampled_from([{"method": "a"}, {"seed": 0, "method": "b"}]))
def test_differences_are_to_the_cell_that_is_alike_in_all_else(results: Results, of: str, minus: Axes) -> None:
    lines = lines_of(results, of)
    assume(lines)

    def others(place: Axes) -> Axes:
        return {key: value for key, value in place.items() if key not in minus}

    base = [line for line in lines if all(line[0].get(key) == value for key, value in minus.items())]
    wanted: dict[Any, list[float]] = {}
    for place, value, _ in lines:
        if (place, value) not in [(each[0], each[1]) for each in base]:
            for other, less, _ in base:
                if others(place) == others(other):
                    wanted.setdefault(place["method"], []).append(value - less)
    view = View(figures={"difference": Figure(of=of, minus=minus)}, rows=["method"])
    if not wanted:
        with pytest.raises(StudyError):
            lay_out(results, view)
        return
    found = {row[0]: columns["difference",].value for row, columns in lay_out(results, view).items()}
    assert found.keys() == wanted.keys()
    for method, differences in wanted.items():
        known = numbers(differences)
        assert same(found[method], statistics.fmean(known) if known else NAN)


tried = st.lists(values, min_size=1, max_size=5)


@pytest.mark.soak
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), tried, min_size=1), st.booleans(), st.booleans())
def test_the_best_and_the_worst_of_what_was_tried_are_taken(
    decides: dict[str, list[float]], lowest: bool, both: bool
) -> None:
    results = [
        ({"method": method, "settings": f"w={place}"}, {"choice": value, "test": float(place)})
        for method, tries in decides.items()
        for place, value in enumerate(tries)
    ]
    choice = Choice(by="choice", among=["settings"], lowest=lowest, take=("best", "worst") if both else ("best",))
    rows = ["method", "rank"] if both else ["method"]
    found = lay_out(results, View(figures={"test": Figure(of="test")}, rows=rows, choose=choice))
    for method, tries in decides.items():
        known = numbers(tries) or tries  # all are alike where none is a number
        best, worst = (min(known), max(known)) if lowest else (max(known), min(known))
        wanted = {"(+)": best, "(-)": worst} if both else {"": best}
        for rank, value in wanted.items():
            place = next(
                place for place, each in enumerate(tries) if each == value or (math.isnan(each) and math.isnan(value))
            )
            row = (method, rank) if both else (method,)
            assert found[row]["test",].value == place, (method, rank, tries)


GRID = [
    ({"method": method, "settings": f"w={width}", "seed": seed}, {"choice": choice + seed, "test": test})
    for method, width, choice, test in (("a", 1, 0.5, 0.1), ("a", 2, 0.7, 0.2), ("b", 1, 0.9, 0.3), ("b", 2, 0.7, 0.4))
    for seed in (0, 1)
]
CHOSEN = Choice(by="choice", among=["settings"])


def test_a_choice_is_of_the_mean_over_all_other_coordinates_and_says_what_it_chose() -> None:
    view = View(figures={"test": Figure(of="test")}, rows=["method"])
    table = choices(GRID, view, CHOSEN)
    assert table.to_dict("records") == [{"method": "a", "settings": "w=2"}, {"method": "b", "settings": "w=1"}]
    one = view.model_copy(update={"rows": []})
    assert choices(GRID, one, CHOSEN).to_dict("records") == [{"settings": "w=1"}]  # 1.2 over both methods, w=2 has 1.2


def test_what_was_chosen_may_differ_from_the_base_of_a_difference() -> None:
    """Settings are chosen for each method, so the base has others than what is held against it."""
    view = View(
        figures={"difference": Figure(of="test", minus={"method": "a"}, spread="sd")}, rows=["method"], choose=CHOSEN
    )
    ((row, columns),) = lay_out(GRID, view).items()
    assert row == ("b",) and columns["difference",].value == pytest.approx(0.1) and columns["difference",].spread == 0.0


def test_cells_without_what_is_tried_stand_for_themselves() -> None:
    plain = ({"method": "plain", "seed": 0}, {"choice": 0.0, "test": 0.9})
    found = lay_out([*GRID, plain], View(figures={"test": Figure(of="test")}, rows=["method"], choose=CHOSEN))
    assert {row: columns["test",].value for row, columns in found.items()} == {
        ("a",): 0.2,
        ("b",): 0.3,
        ("plain",): 0.9,
    }
    found = lay_out([*GRID, plain], View(figures={"test": Figure(of="test")}, where={"method": "plain"}, choose=CHOSEN))
    assert {row: columns["test",].value for row, columns in found.items()} == {(): 0.9}


def test_whole_numbers_stay_such_beside_cells_without_them() -> None:
    results: Results = [({"count": 1_234_567, "on": True}, {"f": 1.0}), ({"method": "a"}, {"f": 2.0})]
    ((count, is_on),) = lay_out(results, View(figures={"f": Figure(of="f")}, rows=["count", "on"]))
    assert type(count) is int and is_on is True


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        ("{answer}|{measure}", {("no", "auc"): 1.0, ("yes|no", "auc"): 2.0}),
        ("{answer}|auc", {("no",): 1.0, ("yes|no",): 2.0}),
        ("a.c", {(): 4.0}),  # a dot is a dot
    ],
)
def test_places_in_names_are_coordinates(of: str, wanted: dict[tuple[str, ...], float]) -> None:
    results: Results = [({}, {"no|auc": 1.0, "yes|no|auc": 2.0, "abc": 3.0, "a.c": 4.0})]
    rows = [name for name in ("answer", "measure") if f"{{{name}}}" in of]
    found = lay_out(results, View(figures={"f": Figure(of=of)}, rows=rows))
    assert {row: columns["f",].value for row, columns in found.items()} == wanted


def test_several_figures_are_columns_of_the_same_rows() -> None:
    results = [({"method": "a"}, {"f": 1.0, "g": 2.0}), ({"method": "b"}, {"g": 3.0})]
    found = lay_out(results, View(figures={"F": Figure(of="f"), "G": Figure(of="g")}, rows=["method"]))
    assert {row: {column: shown.value for column, shown in columns.items()} for row, columns in found.items()} == {
        ("a",): {("F",): 1.0, ("G",): 2.0},
        ("b",): {("G",): 3.0},
    }


@pytest.mark.parametrize(
    ("view", "error", "words"),
    [
        ({"figures": {"F": "gone"}}, NothingShownError, "gone: no cell of this part of the report has such a figure"),
        ({"where": {"method": "c"}}, NothingShownError, "test: no cell"),
        ({"rows": ["metod"]}, StudyError, "test: cells have no coordinate 'metod'; expected one of method"),
        ({"figures": {"F": {"of": "test", "minus": {"metod": "a"}}}}, StudyError, "no coordinate 'metod'"),
        ({"figures": {"F": {"of": "test", "minus": {"method": "c"}}}}, NothingShownError, "test: .* method=c"),
        ({"figures": {"F": {"of": "test", "spread": "eror"}}}, StudyError, "test: .* 'eror'"),
        ({"choose": {"by": "choice", "among": ["setings"]}}, StudyError, "choose: .* 'setings'"),
        ({"choose": {"by": "chois", "among": ["settings"]}}, NothingShownError, "chois: no cell"),
    ],
)
def test_what_no_cell_has_is_named(view: dict[str, Any], error: type[StudyError], words: str) -> None:
    asked = View.model_validate({"figures": {"F": "test"}, **view})
    with pytest.raises(StudyError, match=words) as caught:
        lay_out(GRID, asked)
    assert caught.type is error


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["nan", "a"], ["nan", "a"]),
        (["inf", "-inf"], ["inf", "-inf"]),
        (["1", "1.00"], ["1", "1.00"]),
        (["03", "3", "0.50"], ["03", 3.0, 0.5]),
    ],
)
def test_every_name_in_a_figure_has_a_row_of_its_own(names: list[str], shown: list[float | str]) -> None:
    results: Results = [({}, {f"auc.{name}": float(index) for index, name in enumerate(names)})]
    found = lay_out(results, View(rows=["place"], figures={"f": Figure(of="auc.{place}")}))
    assert [place for (place,) in found] == shown


def test_a_figure_that_no_cell_has_is_answered_with_those_that_there_are() -> None:
    results: Results = [({}, {"auc": 1.0, "roc.0.05": 1.0, "roc.0.10": 1.0})]
    with pytest.raises(NothingShownError, match=r"acu: no cell .* has such a figure; there are auc, roc\.0\.05$"):
        lay_out(results, View(figures={"f": Figure(of="acu")}))
