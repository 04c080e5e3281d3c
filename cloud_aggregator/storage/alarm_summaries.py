"""Alarms as a list shows them, and marks by which it knows which of them to read again.

Alarms are counted in shares, each by the moment at which it was received: of one that was stored, changed or removed
the mark of a share changes, of a second one where it moves. A clock that is wrong changes no more than others do.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, func, select

from fedgate.cloud_aggregator.storage.tables import ALARMS, SHARE

SUMMARY = (
    *("gateway", "id", "cause", "kind", "severity", "text", "raised_ns", "cleared_ns", "score", "level"),
    *("rule", "common", "clock", "received_ns"),
)
AT_ONCE = 500  # rows of a list that need not be in memory together
MARK_MODULUS = 2**40  # of a moment in ns: sums of so many moments fit a column


class AlarmsMark(NamedTuple):
    """Of the alarms of a share what changes with each of them: how many there are, how many of them were raised and are
    over, and the sum of the moments at which they were received.
    """

    alarms: int
    raised: int
    over: int
    received: int


Marks = dict[int, AlarmsMark]  # by share
NOTHING = AlarmsMark(0, 0, 0, 0)


def select_marks() -> Select[Any]:
    """Return the statement that reads the number of each share that has alarms, and its `AlarmsMark`."""
    received = func.sum(ALARMS.c.received_ns % MARK_MODULUS)
    ends = [func.count(ALARMS.c.raised_ns), func.count(ALARMS.c.cleared_ns)]
    columns: list[ColumnElement[Any]] = [SHARE, func.count(), *ends, received]
    return select(*columns).group_by(SHARE)


def select_oldest(most: int) -> Select[Any]:
    """Return the statement that reads when the oldest of so many newest alarms was received; no row where all are."""
    return select(ALARMS.c.received_ns).order_by(ALARMS.c.received_ns.desc()).offset(most - 1).limit(1)


def select_summaries(oldest_ns: int, shares: Collection[int] | None = None) -> Select[Any]:
    """Return the statement that reads the alarms that stand and those that were received at `oldest_ns` or later; with
    shares those of them alone.
    """
    chosen = ALARMS.c.cleared_ns.is_(None) | (ALARMS.c.received_ns >= oldest_ns)
    if shares is not None:
        chosen = SHARE.in_(shares) & chosen
    columns = [
        *(ALARMS.c[name] for name in SUMMARY),
        func.coalesce(ALARMS.c.begun_ns, ALARMS.c.onset_ns).label("begun_ns"),
    ]
    return select(*columns).where(chosen).execution_options(yield_per=AT_ONCE)
