"""A measured figure beside its target, and the table that `make bench` ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

COLUMNS = ("figure", "value", "unit", "target", "met")


class Target(NamedTuple):
    """A limit that a figure should keep: at most, or at least, so much."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


class Figure(NamedTuple):
    """One line of the table; without a target it is there to be known."""

    name: str
    value: float
    unit: str
    target: Target | None = None


def rounded(value: float) -> str:
    """Return three digits that count, more only where they stand before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(figure: Figure) -> tuple[str, ...]:
    if figure.target is None:
        return figure.name, rounded(figure.value), figure.unit, "", ""
    met = "yes" if figure.target.met(figure.value) else "NO"
    return figure.name, rounded(figure.value), figure.unit, str(figure.target), met


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the lines of the table, numbers flush right."""
    rows = [COLUMNS, *map(cells, figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = []
    for name, value, *rest in rows:
        others = "  ".join(cell.ljust(width) for cell, width in zip(rest, widths[2:], strict=True))
        lines.append(f"{name.ljust(widths[0])}  {value.rjust(widths[1])}  {others}".rstrip())
    return lines
