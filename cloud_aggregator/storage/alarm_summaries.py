"""Alarms as a list shows them, and a mark by which it knows which of them to read again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, func, select

from fedgate.cloud_aggregator.storage.tables import ALARMS

SUMMARY = (
    *("gateway", "id", "cause", "kind", "severity", "text", "raised_ns", "cleared_ns", "score", "level"),
    *("rule", "common", "clock", "received_ns"),
)
AT_ONCE = 500  # rows of a list that need not be in memory together
MARK_MODULUS = 2**40  # of a moment in ns: sums of so many moments fit a column


class AlarmsMark(NamedTuple):
    """Of all alarms of a store what changes with each of them: how many there are, how many of them were raised and are
    over, and the sum of the moments at which they were received.
    """

    alarms: int
    raised: int
    over: int
    received: int

    @classmethod
    def sum_up(cls, alarms: Iterable[Any]) -> AlarmsMark:
        """Return what some alarms add to it, by `is_raised`, `cleared_ns` and `received_ns`."""
        given = [(1, one.is_raised, one.cleared_ns is not None, one.received_ns % MARK_MODULUS) for one in alarms]
        return cls(*map(sum, zip(*given, strict=True))) if given else cls(0, 0, 0, 0)


def select_mark() -> Select[Any]:
    """Return the statement that reads an `AlarmsMark` of all alarms."""
    received: ColumnElement[Any] = func.coalesce(func.sum(ALARMS.c.received_ns % MARK_MODULUS), 0)
    ends = [func.count(ALARMS.c.raised_ns), func.count(ALARMS.c.cleared_ns)]
    counts: list[ColumnElement[Any]] = [func.count(), *ends, received]
    return select(*counts)


def select_oldest(most: int) -> Select[Any]:
    """Return the statement that reads when the oldest of so many newest alarms was received; no row where all are."""
    return select(ALARMS.c.received_ns).order_by(ALARMS.c.received_ns.desc()).offset(most - 1).limit(1)


def select_summaries(since_ns: int, oldest_ns: int) -> Select[Any]:
    """Return the statement that reads the alarms that were received at a time or later; without one, those that stand
    and those that were received at `oldest_ns` or later.
    """
    chosen = ALARMS.c.received_ns >= since_ns
    if not since_ns:
        chosen = ALARMS.c.cleared_ns.is_(None) | (ALARMS.c.received_ns >= oldest_ns)
    columns = [
        *(ALARMS.c[name] for name in SUMMARY),
        func.coalesce(ALARMS.c.begun_ns, ALARMS.c.onset_ns).label("begun_ns"),
    ]
    return select(*columns).where(chosen).execution_options(yield_per=AT_ONCE)
