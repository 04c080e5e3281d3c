"""Pictures of a section: what is drawn where, whatever the figures are; each is written as PNG without a warning."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes as Panel
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from fedgate.firmware_sim.engine import pictures
from fedgate.firmware_sim.engine.frame import Results
from fedgate.firmware_sim.engine.spec import Section

NAN = math.nan
KINDS = ("lines", "points", "bars")
Drawn = Callable[..., Figure]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """Draw a section and return the figure, laid out as it would be written."""
    figures = list[Figure]()

    def keep(figure: Figure, _path: Path) -> None:
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        figures.append(figure)

    monkeypatch.setattr(pictures, "write", keep)

    def draw(results: Results, **section: Any) -> Figure:
        pictures.draw(Section.model_validate({"figures": {"AUC": "auc"}, **section}), results, Path())
        return figures[-1]

    return draw


def cells(places: list[Any], methods: list[str], of: Callable[[Any, str], float] = lambda place, _: place) -> Results:
    return [
        ({"at": place, "method": method}, {"auc": float(of(place, method)), "error": 0.1})
        for place in places
        for method in methods
    ]


def panels(figure: Figure) -> list[Panel]:
    return [panel for panel in figure.axes if panel.axison]


def points(panel: Panel) -> dict[str, list[tuple[float, float]]]:
    """Return the places and heights of what stands in a panel, by name."""
    found = {}
    for container in panel.containers:
        if isinstance(container, BarContainer):
            found[str(container.get_label())] = [
                (round(bar.get_x() + bar.get_width() / 2, 6), bar.get_height()) for bar in container.patches
            ]
        elif isinstance(container, ErrorbarContainer) and container.lines[0] is not None:
            x, y = container.lines[0].get_data()
            found[str(container.get_label())] = list(zip(np.asarray(x), np.asarray(y), strict=True))
    return {name: [(float(x), float(y)) for x, y in each] for name, each in found.items()}


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for each in figure.legends for text in each.get_texts()]


def ticks(panel: Panel) -> list[str]:
    return [label.get_text() for label in panel.get_xticklabels()]


@pytest.mark.soak
def test_numbers_are_a_scale_for_lines_in_their_order_and_places_for_points(drawn: Drawn) -> None:
    results = cells([40, 1, 5], ["a", "b"], of=lambda place, method: place + (method == "b"))
    (panel,) = panels(drawn(results, kind="lines", rows=["at"], columns=["method"]))
    assert points(panel) == {"a": [(1, 1), (5, 5), (40, 40)], "b": [(1, 2), (5, 6), (40, 41)]}
    (panel,) = panels(drawn(results, kind="points", rows=["at"], columns=["method"]))
    assert points(panel) == {
        "a": [(-0.125, 40), (0.875, 1), (1.875, 5)],
        "b": [(0.125, 41), (1.125, 2), (2.125, 6)],
    }
    assert ticks(panel) == ["40", "1", "5"]


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_places_in_the_order_in_which_they_come(drawn: Drawn, kind: str) -> None:
    results = cells(["z", "a"], ["m"], of=lambda place, _: place == "a")
    figure = drawn(results, kind=kind, rows=["at"], labels={"z": "first", "at": "where"})
    (panel,) = panels(figure)
    assert list(points(panel).values()) == [[(0.0, 0.0), (1.0, 1.0)]]
    assert ticks(panel) == ["first", "a"] and panel.get_xlabel() == "where" and panel.get_ylabel() == "AUC"
    assert legend(figure) == []


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_there_is_a_panel_for_each_value_and_one_look_for_each_name(drawn: Drawn, kind: str) -> None:
    results = cells([1, 2], ["a", "b", "c", "d"])
    lacking = [each for each in results if (each[0]["at"], each[0]["method"]) not in ((1, "a"), (2, "c"))]
    figure = drawn(lacking, kind=kind, rows=["at"], columns=["method"], panels="method")
    assert [panel.get_title(loc="left") for panel in panels(figure)] == ["b", "c", "d", "a"]
    wide = [({**each, "width": width}, found) for each, found in lacking for width in ("narrow", "wide")]
    figure = drawn(wide, kind=kind, rows=["width"], columns=["at", "method"], panels="at")
    first, second = (points(panel) for panel in panels(figure))
    assert list(first) == ["b", "c", "d"] and sorted(second) == ["a", "b", "d"]
    assert legend(figure) == ["b", "c", "d", "a"]
    assert {name: places for name, places in first.items() if name in second} == {
        name: [(x, y - 1) for x, y in places] for name, places in second.items() if name in first
    }, "beside the same others"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (1, 3)), (4, (2, 2)), (5, (2, 3)), (7, (3, 3))]
)
def test_panels_stand_in_rows_of_three_at_most(drawn: Drawn, count: int, shape: tuple[int, int]) -> None:
    figure = drawn(
        cells([1], [f"m{index}" for index in range(count)]),
        kind="points",
        rows=["at"],
        columns=["method"],
        panels="method",
    )
    places = [panel.get_subplotspec() for panel in panels(figure)]
    assert len(places) == count
    assert {place.get_gridspec().get_geometry() for place in places if place is not None} == {shape}


@pytest.mark.soak
def test_stacked_panels_share_the_axis_below_and_have_heights_of_their_own(drawn: Drawn) -> None:
    results = cells([1, 2], ["a", "b", "c", "d"], of=lambda place, method: place * (1000.0 if method == "a" else 1.0))
    shown = panels(drawn(results, kind="lines", rows=["at"], columns=["method"], panels="method", stacked=True))
    assert [panel.get_xlabel() for panel in shown] == ["", "", "", "at"]
    assert len({panel.get_xlim() for panel in shown}) == 1
    assert len({panel.get_position().x0 for panel in shown}) == 1
    assert shown[0].get_ylim()[1] > 1000.0 and shown[1].get_ylim()[1] < 3.0


@pytest.mark.soak
def test_several_figures_are_lines_or_panels_of_their_own(drawn: Drawn) -> None:
    both = {"figures": {"AUC": "auc", "E": "error"}, "rows": ["at"], "kind": "lines"}
    figure = drawn(cells([1, 2], ["a"]), **both)
    assert list(points(panels(figure)[0])) == legend(figure) == ["AUC", "E"]
    figure = drawn(cells([1, 2], ["a"]), panels="figure", **both)
    assert [panel.get_title(loc="left") for panel in panels(figure)] == ["AUC", "E"] and legend(figure) == []


@pytest.mark.soak
def test_many_lines_are_told_apart(drawn: Drawn) -> None:
    names = [f"m{index}" for index in range(24)]
    (panel,) = panels(drawn(cells([1, 2], names), kind="lines", rows=["at"], columns=["method"]))
    lines = [each.lines[0] for each in panel.containers if isinstance(each, ErrorbarContainer)]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 24


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("log", ["", "xy"])
def test_one_point_is_drawn_whatever_it_is(drawn: Drawn, kind: str, log: str) -> None:
    results = [
        ({"at": place, "method": f"{place} {value}"}, {"auc": value, "error": 0.1})
        for place, value in ((1, NAN), (0, 0.0), ("name", -1.0), (True, 1.0), (0.5, math.inf))
    ]
    figure = drawn(
        results,
        kind=kind,
        rows=["at"],
        columns=["method"],
        panels="method",
        log=log,
        figures={"AUC": {"of": "auc", "spread": "error"}},
    )
    assert len(panels(figure)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_leaves_a_gap_and_spreads_may_lack(drawn: Drawn, kind: str) -> None:
    results: Results = [
        ({"at": place}, {"auc": value, "error": error})
        for place, value, error in ((1, 1.0, 0.1), (2, NAN, 0.1), (3, 2.0, NAN), (4, 1.5, 0.2))
    ]
    (panel,) = panels(drawn(results, kind=kind, rows=["at"], figures={"AUC": {"of": "auc", "spread": "error"}}))
    ((_, (_, gap), *_),) = points(panel).values()
    assert math.isnan(gap)


def test_levels_are_lines_across_with_their_names(drawn: Drawn) -> None:
    (panel,) = panels(drawn(cells([1, 2], ["a"]), kind="bars", rows=["at"], level={"guessing": 0.5}))
    assert [text.get_text() for text in panel.texts] == ["guessing"]
    assert [list(np.asarray(line.get_ydata())) for line in panel.lines] == [[0.5, 0.5]]


def test_a_log_axis_names_the_places(drawn: Drawn) -> None:
    (panel,) = panels(drawn(cells([1, 5, 200], ["a"]), kind="lines", rows=["at"], log="x"))
    assert ticks(panel) == ["1", "5", "200"] and panel.get_xscale() == "log" and panel.get_yscale() == "linear"


@pytest.mark.soak
@pytest.mark.parametrize("count", [1, 2, 3, 6, 17, 90])
@pytest.mark.parametrize("length", [3, 24])
def test_labels_neither_run_into_each_other_nor_out_of_the_picture(drawn: Drawn, count: int, length: int) -> None:
    names = [f"{index:02} one-class SVM, whitened"[:length] for index in range(count)]
    results = cells(names, ["a long name of a line", "b"], of=lambda *_: 1.0)
    figure = drawn(results, kind="points", rows=["at"], columns=["method"])
    (panel,) = panels(figure)
    labels, (key,) = panel.get_xticklabels(), figure.legends
    boxes = [label.get_window_extent() for label in labels]
    for box in (*boxes, key.get_window_extent()):
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height
    if all(label.get_rotation() == 0 for label in labels):
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    else:
        assert all(right.x1 - left.x1 > 7.0 for left, right in pairwise(boxes)), "a turned letter is so high"
    assert key.get_window_extent().y1 <= min(box.y0 for box in boxes)


def test_texts_are_written_as_they_are(drawn: Drawn) -> None:
    """No dollar begins a formula, and a name with a line below it in front is a name."""
    strange = ["$\\frac$", "_hidden", "", "a\nb", "%s {x} \\", "ν ≤ 1"]
    words = {"level": {"$\\x$": 1.0}, "labels": {"at": "$\\y$"}}
    results = cells(strange, strange, of=lambda *_: 1.0)
    figure = drawn(results, kind="points", rows=["at"], columns=["method"], **words)
    assert len(legend(figure)) == len(strange)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_figures_are_the_same_picture(tmp_path: Path, kind: str) -> None:
    section = Section.model_validate({"kind": kind, "rows": ["at"], "columns": ["method"], "figures": {"AUC": "auc"}})
    for name in ("one.png", "two.png"):
        pictures.draw(section, cells([1, 2], ["a", "b"]), tmp_path / name)
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one == two and one.startswith(b"\x89PNG\r\n\x1a\n")
