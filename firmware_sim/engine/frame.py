"""Figures of cells as they are shown: taken out, chosen, compared, reduced, and laid out by row and column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedgate.firmware_sim.engine.spec import Axes, Choice, Figure, Figures, StudyError, View

Results = Sequence[tuple[Axes, Figures]]  # coordinates of each cell, and its figures
VALUE, ERROR = "·value", "·error"  # no coordinate is called so
HEAD = "figure"  # the coordinate of a figure among several
RANKS = {"best": "(+)", "worst": "(-)"}
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
    table = taken(selected(results, view.where), figure)
    if view.choose is not None:
        table = chosen(table, results, view, view.choose)
    if figure.minus:
        table = compared(table, figure.minus)
        if table.empty:
            raise NothingShownError(
                f"{figure.of}: no cell has one to be compared with; expected some with {figure.minus}"
            )
    missing = [key for key in keys if key not in table]
    if missing:
        known = ", ".join(str(key) for key in table)
        raise StudyError(f"{figure.of}: cells have no coordinate {missing[0]!r}; expected one of {known}")
    table = table.dropna(subset=keys)  # cells of another product of axes
    grouped = table.groupby(keys, sort=False, dropna=False) if keys else table.groupby(lambda _: 0)
    spread = grouped[ERROR].mean()
    if figure.spread in ("sd", "sem"):
        spread = grouped[VALUE].std() if figure.spread == "sd" else grouped[VALUE].sem()
    lines = pd.DataFrame({VALUE: grouped[VALUE].agg(figure.reduce), ERROR: spread})
    return lines.reset_index() if keys else lines


def selected(results: Results, where: Axes) -> Results:
    """Return the cells with these coordinates; a list means any of its values."""
    wanted = {key: value if isinstance(value, list) else [value] for key, value in where.items()}
    return [each for each in results if all(each[0].get(key) in values for key, values in wanted.items())]


def taken(results: Results, figure: Figure) -> pd.DataFrame:
    """Return a line for each cell that has the figure, or for each figure of that form, scaled."""
    pattern, names = _pattern(figure.of)
    error = "" if figure.spread in ("sd", "sem") else figure.spread
    lines = []
    for coordinates, figures in results:
        for name, value in figures.items():
            match = pattern.fullmatch(name)
            if match is None:
                continue
            places = dict(zip(names, match.groups(), strict=True))
            spread = figures[error.format(**places)] * figure.scale if error else float("nan")
            lines.append({**_shown(coordinates), **places, VALUE: value * figure.scale, ERROR: spread})
    if not lines:
        raise NothingShownError(f"{figure.of}: no cell of this part of the report has such a figure")
    return pd.DataFrame(lines)


def _shown(coordinates: Axes) -> Axes:
    return {name: value for name, value in coordinates.items() if "." not in name}


def _pattern(of: str) -> tuple[re.Pattern[str], list[str]]:
    parts = PLACE.split(of)
    text = "".join(f"({'.+'})" if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile(text), parts[1::2]


def chosen(table: pd.DataFrame, results: Results, view: View, choice: Choice) -> pd.DataFrame:
    """Return the lines of the combinations that were chosen, and of the worst where those are shown too."""
    picked = choices(results, view, choice)
    on = [key for key in picked if key in table and key != "rank"]
    return table.merge(picked, on=on)


def choices(results: Results, view: View, choice: Choice) -> pd.DataFrame:
    """Return for each row and column the combination of coordinates that decides best, and worst."""
    judged = taken(selected(results, view.where), Figure(of=choice.by))
    among = [key for key in choice.among if key in judged]
    keys = [key for key in [*view.rows, *view.columns] if key in judged and key not in among]
    means = judged.groupby([*keys, *among], sort=False, dropna=False)[VALUE].mean().reset_index()
    parts = []
    for rank in choice.take:
        ascending = choice.lowest == (rank == "best")
        ordered = means.sort_values(VALUE, ascending=ascending, kind="stable")
        picked = ordered.drop_duplicates(keys) if keys else ordered.head(1)
        parts.append(picked.sort_index().assign(rank=RANKS[rank]).drop(columns=VALUE))
    found = pd.concat(parts)
    return found if len(choice.take) > 1 else found.drop(columns="rank")


def compared(table: pd.DataFrame, minus: Axes) -> pd.DataFrame:
    """Return the differences to the lines with the coordinates `minus` that are alike in all others."""
    is_base = pd.Series(True, index=table.index)
    for key, value in minus.items():
        is_base &= table[key] == value
    others = [key for key in table if key not in (*minus, VALUE, ERROR)]
    base = table[is_base].drop(columns=list(minus))
    both = (
        table[~is_base].merge(base, on=others, suffixes=("", "·base"))
        if others
        else table[~is_base].merge(base, how="cross", suffixes=("", "·base"))
    )
    both[VALUE] -= both[f"{VALUE}·base"]
    both[ERROR] = (both[ERROR] ** 2 + both[f"{ERROR}·base"] ** 2) ** 0.5
    return both[list(table)]
