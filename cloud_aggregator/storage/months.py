"""What the report of a month asks of the store: alarms that began in it, who came and went, what features were."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, select

from fedgate.cloud_aggregator.events import AlarmEvent
from fedgate.cloud_aggregator.storage import availability_table
from fedgate.cloud_aggregator.storage.alarm_summaries import SUMMARY
from fedgate.cloud_aggregator.storage.availability_table import PresenceRow
from fedgate.cloud_aggregator.storage.tables import ALARM_EVENTS, ALARMS, SUMMARIES
from fedgate.config.protocol.feature_summary import FeatureSummary


class Months:
    """Reads of times; each is from one moment of Unix time in ns to before another."""

    def __init__(self, read: Callable[[Select[Any]], Sequence[Row[Any]]]) -> None:
        self._read = read

    def count_alarms(self, from_ns: int, until_ns: int) -> int:
        """Return how many alarms began within a time, or before it and stood at its end."""
        return int(self._read(select(func.count()).select_from(ALARMS).where(_is_of(from_ns, until_ns)))[0][0])

    def read_alarms(self, from_ns: int, until_ns: int, most: int) -> list[Row[Any]]:
        """Return what a list shows of so many of these alarms, the last to begin, in the order in which they began."""
        columns, onset = (ALARMS.c[name] for name in SUMMARY), _begin()
        statement = select(*columns, onset.label("begun_ns")).where(_is_of(from_ns, until_ns))
        newest = self._read(statement.order_by(onset.desc(), ALARMS.c.gateway.desc()).limit(most))
        return list(newest[::-1])

    def read_events(self, from_ns: int, until_ns: int) -> list[AlarmEvent]:
        """Return what was done about these alarms, in its order."""
        is_it = (ALARMS.c.gateway == ALARM_EVENTS.c.gateway) & (ALARMS.c.id == ALARM_EVENTS.c.alarm)
        chosen = select(ALARM_EVENTS).join(ALARMS, is_it).where(_is_of(from_ns, until_ns))
        return [make_event(row) for row in self._read(chosen.order_by(ALARM_EVENTS.c.number))]

    def list_summarised(self, from_ns: int, until_ns: int) -> list[str]:
        """Return which gateways have summaries of features that begin within a time, by name."""
        chosen = select(SUMMARIES.c.gateway).distinct().where(*_is_within(from_ns, until_ns))
        return [row.gateway for row in self._read(chosen.order_by(SUMMARIES.c.gateway))]

    def read_summaries(self, gateway: str, from_ns: int, until_ns: int, most: int) -> list[FeatureSummary]:
        """Return the summaries of a gateway that begin within a time, so many of the last, in their order."""
        chosen = select(SUMMARIES.c.body).where(SUMMARIES.c.gateway == gateway, *_is_within(from_ns, until_ns))
        newest = self._read(chosen.order_by(SUMMARIES.c.t_ns.desc(), SUMMARIES.c.number.desc()).limit(most))
        return [FeatureSummary.model_validate_json(row.body) for row in newest[::-1]]

    def read_presence(self, from_ns: int, until_ns: int, most: int) -> list[PresenceRow]:
        """Return who came and went within a time, so many of the newest rows, in their order, and how each was before
        it.
        """
        rows = self._read(availability_table.choose(from_ns, until_ns, most))
        return [PresenceRow._make(row) for row in rows[::-1]]

    def read_present(self) -> frozenset[str]:
        """Return of whom the record does not say that they are gone; "" is the service."""
        return frozenset(row.gateway for row in self._read(availability_table.choose_present()))


def _is_within(from_ns: int, until_ns: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return SUMMARIES.c.t_ns >= from_ns, SUMMARIES.c.t_ns < until_ns


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
