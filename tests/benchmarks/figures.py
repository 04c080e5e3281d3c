"""A measured figure beside its target, a peer and the hardware's limit: the table that `make bench` ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

COLUMNS = ("figure", "value", "unit", "target", "met", "peer", "ratio", "limit")


class Target(NamedTuple):
    """A limit that a figure should keep: at most, or at least, so much; `of_peer` is so many times the peer's value."""

    limit: float
    at_least: bool = False
    of_peer: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:.3g}{' of peer' if self.of_peer else ''}"


class Figure(NamedTuple):
    """One line of the table; without a target it is there to be known.

    `peer` is what another program takes for the same in the same run, and `hardware_limit` what this machine needs for
    it at the least, both in the unit of the value.
    """

    name: str
    value: float
    unit: str
    target: Target | None = None
    peer: float | None = None
    hardware_limit: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return the value beside the peer's, none without a peer."""
        return None if self.peer is None else self.value / self.peer

    @property
    def judged(self) -> float:
        """Return what the target is a limit of: the value, or its ratio to the peer's."""
        if self.target is None or not self.target.of_peer:
            return self.value
        if self.ratio is None:
            raise ValueError(f"{self.name}: a target beside a peer given, expected the value of the peer too")
        return self.ratio


def rounded(value: float | None) -> str:
    """Return three digits that count, more only where they stand before the point; nothing for no value."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cells(figure: Figure) -> tuple[str, ...]:
    target, met = "", ""
    if figure.target is not None:
        target, met = str(figure.target), "yes" if figure.target.met(figure.judged) else "NO"
    beside = (rounded(number) for number in (figure.peer, figure.ratio, figure.hardware_limit))
    return figure.name, rounded(figure.value), figure.unit, target, met, *beside


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the lines of the table, values flush right."""
    rows = [COLUMNS, *map(cells, figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = []
    for name, value, *rest in rows:
        others = "  ".join(cell.ljust(width) for cell, width in zip(rest, widths[2:], strict=True))
        lines.append(f"{name.ljust(widths[0])}  {value.rjust(widths[1])}  {others}".rstrip())
    return lines
