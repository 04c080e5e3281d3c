"""What the report of a month asks of the store: the alarms that began in it, and who came and went."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select

from fedgate.cloud_aggregator.events import AlarmEvent
from fedgate.cloud_aggregator.storage import availability_table
from fedgate.cloud_aggregator.storage.alarm_summaries import SUMMARY
from fedgate.cloud_aggregator.storage.availability_table import PresenceRow
from fedgate.cloud_aggregator.storage.tables import ALARM_EVENTS, ALARMS, EVIDENCE


class Months:
    """Reads of times; each is from one moment of Unix time in ns to before another."""

    def __init__(self, read: Callable[[Select[Any]], Sequence[Row[Any]]]) -> None:
        self._read = read

    def read_alarms(self, from_ns: int, until_ns: int, most: int) -> tuple[int, list[Row[Any]]]:
        """Return how many alarms began within a time, or before it and stood at its end, and what a list shows of so
        many of them, the last to begin, in the order in which they began.
        """
        columns, is_of_it = (ALARMS.c[name] for name in SUMMARY), _is_of(from_ns, until_ns)
        count = self._read(select(func.count()).select_from(ALARMS).where(is_of_it))[0][0]
        onset = _begin()
        statement = select(*columns, onset.label("begun_ns")).where(is_of_it)
        newest = self._read(statement.order_by(onset.desc(), ALARMS.c.gateway.desc()).limit(most))
        return int(count), list(newest[::-1])

    def read_events(self, from_ns: int, until_ns: int) -> list[AlarmEvent]:
        """Return what was done about these alarms, in its order."""
        is_it = (ALARMS.c.gateway == ALARM_EVENTS.c.gateway) & (ALARMS.c.id == ALARM_EVENTS.c.alarm)
        chosen = select(ALARM_EVENTS).join(ALARMS, is_it).where(_is_of(from_ns, until_ns))
        return [make_event(row) for row in self._read(chosen.order_by(ALARM_EVENTS.c.number))]

    def read_evidence(self, from_ns: int, until_ns: int, most: int) -> list[Row[Any]]:
        """Return the evidence of alarms within a time, so many of the newest, the last first."""
        columns = (EVIDENCE.c.gateway, EVIDENCE.c.t_ns, EVIDENCE.c.body)
        is_of_it = (EVIDENCE.c.t_ns >= from_ns) & (EVIDENCE.c.t_ns < until_ns)
        return list(self._read(select(*columns).where(is_of_it).order_by(EVIDENCE.c.t_ns.desc()).limit(most)))

    def read_presence(self, from_ns: int, until_ns: int, most: int) -> list[PresenceRow]:
        """Return who came and went within a time, so many of the newest rows, in their order, and how each was before
        it.
        """
        rows = self._read(availability_table.choose(from_ns, until_ns, most))
        return [PresenceRow._make(row) for row in rows[::-1]]

    def read_present(self) -> frozenset[str]:
        """Return of whom the record does not say that they are gone; "" is the service."""
        return frozenset(row.gateway for row in self._read(availability_table.choose_present()))


def _begin() -> ColumnElement[int]:
    """Return when an alarm began, as far as it can be believed. An index of it saves no time: what stood is to be found
    among all.
    """
    return func.coalesce(ALARMS.c.begun_ns, ALARMS.c.onset_ns)


def _is_of(from_ns: int, until_ns: int) -> ColumnElement[bool]:
    stood, onset = ALARMS.c.cleared_ns.is_(None) | (ALARMS.c.cleared_ns >= until_ns), _begin()
    return (onset < until_ns) & ((onset >= from_ns) | stood)


def make_event(row: Row[Any]) -> AlarmEvent:
    """Return what was done about an alarm, by its row."""
    return AlarmEvent(row.gateway, row.alarm, row.cause, row.t_ns, row.who, row.kind, json.loads(row.body))
