"""Figures of cells as they are shown: taken out, chosen, compared, reduced, and laid out by row and column."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedgate.firmware_sim.engine.spec import Axes, Choice, Figure, Figures, StudyError, View

Results = Sequence[tuple[Axes, Figures]]  # coordinates of each cell, and its figures
VALUE, ERROR = "·value", "·error"  # no coordinate is called so
RANKS = {"best": "(+)", "worst": "(-)"}
NAMED = 20  # figures, where one is not found
PLACE = re.compile(r"\{(\w+)\}")


class NothingShownError(StudyError):
    """No cell has what a part of the report asks for."""


class Shown(NamedTuple):
    """One entry of a table: its figure and its spread, nan where there is none."""

    value: float
    spread: float


def lay_out(results: Results, view: View) -> dict[tuple[Any, ...], dict[tuple[Any, ...], Shown]]:
    """Return the entries of a view by row and column, in the order in which the cells come.

    The key of a column holds the coordinates in `columns` and, last, the head of the figure.
    """
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], Shown]] = {}
    for head, figure in view.figures.items():
        table = reduced(results, view, figure)
        for *place, value, spread in table.itertuples(index=False):
            row, column = tuple(place[: len(view.rows)]), (*place[len(view.rows) :], head)
            found.setdefault(row, {})[column] = Shown(value, spread)
    return found


def reduced(results: Results, view: View, figure: Figure) -> pd.DataFrame:
    """Return a line for each row and column of a view with its coordinates, value and spread."""
    keys = [*view.rows, *view.columns]
    table = taken(results, figure, view.where | figure.where)
    if view.choose is not None:
        table = chosen(table, results, view, view.choose)
    if view.averaged:
        table = averaged(table, view.averaged)
    if figure.minus or figure.over:
        table = compared(table, figure)
    _check_coordinates(table, keys, figure.of)
    table = table.dropna(subset=keys)  # cells of another product of axes
    if table.empty:
        raise NothingShownError(f"{figure.of}: no cell has all of the coordinates {', '.join(keys)}")
    grouped = table.groupby(keys, sort=False, dropna=False) if keys else table.groupby(lambda _: 0)
    spread = grouped[ERROR].mean()
    if figure.spread in ("sd", "sem"):
        spread = grouped[VALUE].std() if figure.spread == "sd" else grouped[VALUE].sem()
    values = grouped[VALUE].sum(min_count=1) if figure.reduce == "sum" else grouped[VALUE].agg(figure.reduce)
    lines = pd.DataFrame({VALUE: values, ERROR: spread})
    return lines.reset_index() if keys else lines


def _check_coordinates(columns: Iterable[Any], keys: Iterable[str], what: str) -> None:
    known = [key for key in columns if key not in (VALUE, ERROR)]
    if missing := [key for key in keys if key not in known]:
        raise StudyError(f"{what}: cells have no coordinate {missing[0]!r}; expected one of {', '.join(known)}")


def selected(results: Results, where: Axes) -> Results:
    """Return the cells with these coordinates; a list means any of its values."""
    return [each for each in results if _is_at(each[0], where)]


def _is_at(coordinates: Axes, where: Axes) -> bool:
    return all(coordinates.get(key) in (value if isinstance(value, list) else [value]) for key, value in where.items())


def taken(results: Results, figure: Figure, where: Axes) -> pd.DataFrame:
    """Return a line for each cell that has the figure, or for each figure of that form, scaled.

    `where` names coordinates, of cells or in names of figures; a list means any of its values.
    """
    pattern, names = _pattern(figure.of)
    error = "" if figure.spread in ("sd", "sem") else figure.spread
    numbers = [_as_numbers(dict.fromkeys(texts)) for texts in zip(*_places(results, pattern), strict=True)]
    lines = []
    for coordinates, figures in results:
        for name, value in figures.items():
            match = pattern.fullmatch(name)
            if match is None:
                continue
            texts = dict(zip(names, match.groups(), strict=True))
            places = {key: known[text] for (key, text), known in zip(texts.items(), numbers, strict=True)}
            if not _is_at({**coordinates, **places}, where):
                continue
            spread = _spread(figures, error.format(**texts), figure) if error else float("nan")
            lines.append({**_shown(coordinates), **places, VALUE: value * figure.scale, ERROR: spread})
    if not lines:
        known = ", ".join(_forms(results)[:NAMED])
        raise NothingShownError(f"{figure.of}: no cell of this part of the report has such a figure; there are {known}")
    table = pd.DataFrame(lines, dtype=object)  # a whole number stays one where other cells have none
    return table.astype({VALUE: float, ERROR: float})


def _places(results: Results, pattern: re.Pattern[str]) -> set[tuple[str, ...]]:
    """Return what stands in the places of a pattern, over all figures."""
    names = dict.fromkeys(name for _, figures in results for name in figures)
    return {match.groups() for name in names if (match := pattern.fullmatch(name))}


def _forms(results: Results) -> list[str]:
    """Return the names of all figures, of those with the same first part the first, such as `roc.0.05`."""
    names = dict.fromkeys(name for _, figures in results for name in figures)
    return list({re.split(r"[.|]", name)[0]: name for name in reversed(names)}.values())[::-1]


def _spread(figures: Figures, name: str, figure: Figure) -> float:
    if name not in figures:
        raise StudyError(f"{figure.of}: a cell that has it has no figure {name!r}, which is to be its spread")
    return figures[name] * abs(figure.scale)


def _as_numbers(texts: Iterable[str]) -> dict[str, float | str]:
    """Return places in names of figures as numbers where they are written as such; `03` and `nan` are names, and `1`
    and `1.00` are two.
    """
    numbers = {text: number for text in texts if (number := _as_number(text)) is not None}
    counts = Counter(numbers.values())
    return {text: numbers[text] if counts[numbers.get(text, math.nan)] == 1 else text for text in texts}


def _as_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and text in (f"{number:g}", f"{number:.2f}") else None


def _shown(coordinates: Axes) -> Axes:
    return {name: value for name, value in coordinates.items() if "." not in name}


def _pattern(of: str) -> tuple[re.Pattern[str], list[str]]:
    parts = PLACE.split(of)
    text = "".join(f"({'.+'})" if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile(text), parts[1::2]


def chosen(table: pd.DataFrame, results: Results, view: View, choice: Choice) -> pd.DataFrame:
    """Return the lines of the combinations that were chosen, and of the worst where those are shown too; what was tried
    is a coordinate no more, where it is not shown.
    """
    picked = choices(results, view, choice)
    on = [key for key in picked if key in table and key != "rank"]
    if not on:  # these cells differ in nothing that was tried
        return table
    shown = (*view.rows, *view.columns)
    return table.merge(picked, on=on).drop(columns=[key for key in choice.among if key in on and key not in shown])


def choices(results: Results, view: View, choice: Choice) -> pd.DataFrame:
    """Return for each row and column the combination of coordinates that decides best, and worst."""
    judged = taken(results, Figure(of=choice.by), view.where)
    _check_coordinates({*judged, *(key for coordinates, _ in results for key in coordinates)}, choice.among, "choose")
    among = [key for key in choice.among if key in judged]
    keys = [key for key in [*view.rows, *view.columns, *choice.each] if key in judged and key not in among]
    if not (keys or among):
        return pd.DataFrame()
    means = judged.groupby([*keys, *among], sort=False, dropna=False)[VALUE].mean().reset_index()
    parts = []
    for rank in choice.take:
        ascending = choice.lowest == (rank == "best")
        ordered = means.sort_values(VALUE, ascending=ascending, kind="stable")
        picked = ordered.drop_duplicates(keys) if keys else ordered.head(1)
        parts.append(picked.sort_index().assign(rank=RANKS[rank]).drop(columns=VALUE))
    found = pd.concat(parts)
    return found if len(choice.take) > 1 else found.drop(columns="rank")


def averaged(table: pd.DataFrame, over: Sequence[str]) -> pd.DataFrame:
    """Return the means over some coordinates, nan where any of the values is; without an error, which is another's."""
    keys = [key for key in table if key not in (*over, VALUE, ERROR)]
    if not keys:
        return pd.DataFrame({VALUE: [table[VALUE].mean(skipna=False)], ERROR: math.nan})
    means = table.groupby(keys, sort=False, dropna=False)[VALUE].agg(lambda values: values.mean(skipna=False))
    return means.reset_index().assign(**{ERROR: math.nan})


def compared(table: pd.DataFrame, figure: Figure) -> pd.DataFrame:
    """Return the differences to the lines with the coordinates `minus` that are alike in all others, or the ratios to
    those with the coordinates `over`; errors are taken for independent.
    """
    to = figure.minus or figure.over
    _check_coordinates(table, to, figure.of)
    is_base = pd.Series(True, index=table.index)
    for key, value in to.items():
        is_base &= table[key] == value
    others = [key for key in table if key not in (*to, VALUE, ERROR)]
    base = table[is_base].drop(columns=list(to))
    both = (
        table[~is_base].merge(base, on=others, suffixes=("", "·base"))
        if others
        else table[~is_base].merge(base, how="cross", suffixes=("", "·base"))
    )
    if both.empty:
        where = ", ".join(f"{key}={value}" for key, value in to.items())
        raise NothingShownError(f"{figure.of}: no cell differs from one with {where} in nothing else")
    value, error, base_value, base_error = (both[key] for key in (VALUE, ERROR, f"{VALUE}·base", f"{ERROR}·base"))
    if figure.over:
        both[VALUE] = value / base_value
        both[ERROR] = ((error / base_value) ** 2 + (value * base_error / base_value**2) ** 2) ** 0.5
    else:
        both[VALUE] = value - base_value
        both[ERROR] = (error**2 + base_error**2) ** 0.5
    return both[list(table)]
