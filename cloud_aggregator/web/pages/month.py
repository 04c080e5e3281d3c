"""A month of the report: when it begins and ends, and the alarms of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from fedgate.cloud_aggregator.alarms.workflow import AlarmKey, Workflow, fold
from fedgate.cloud_aggregator.web.pages.alarm_list import Listed, describe
from fedgate.cloud_aggregator.web.pages.page import Context, NotThereError
from fedgate.models.time_units import DAY_NS, NS

MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
ALARMS_SEARCHED = 50_000  # the last to begin


class Month(NamedTuple):
    """A month as far as it is over; times in ns of Unix time."""

    name: str
    before: str
    next: str
    from_ns: int
    to_ns: int  # where it ends
    until_ns: int  # or now, where that is earlier

    def has_moment(self, t_ns: int | None) -> bool:
        """Tell whether a moment lies in it."""
        return t_ns is not None and self.from_ns <= t_ns < self.until_ns

    def has_alarm(self, one: Listed) -> bool:
        """Tell whether an alarm began in it, or before it and stood at its end."""
        stood = one.cleared_ns is None or one.cleared_ns >= self.until_ns
        return self.has_moment(one.begun_ns) or (one.begun_ns < self.from_ns and stood)

    @property
    def days(self) -> float:
        """How long it is so far."""
        return (self.until_ns - self.from_ns) / DAY_NS


def find_month(text: str, now_ns: int) -> Month:
    """Return a month by its name, the present one where it is empty; raises `NotThereError` for what is none, or not
    begun.
    """
    found = MONTH.fullmatch(text or f"{datetime.fromtimestamp(now_ns // NS, UTC):%Y-%m}")
    if found is None or found[1] == "0000":
        raise NotThereError(f"month: expected one such as 2026-11, got {text[:20]!r}")
    year, number = int(found[1]), int(found[2])
    from_ns = _find_begin_ns(year, number)
    if from_ns >= now_ns:
        raise NotThereError(f"month: {found[0]} has not begun yet")
    to_ns = _find_begin_ns(year, number + 1)
    names = [f"{year + place // 12:04}-{place % 12 + 1:02}" for place in (number - 2, number)]
    return Month(found[0], names[0], names[1] if to_ns < now_ns else "", from_ns, to_ns, min(to_ns, now_ns))


def _find_begin_ns(year: int, number: int) -> int:
    """Return when a month begins, counted from January of a year: the 13th is the first of the next."""
    return round(datetime(year + (number - 1) // 12, (number - 1) % 12 + 1, 1, tzinfo=UTC).timestamp()) * NS


class Alarms(NamedTuple):
    """The alarms that began in a month, or before it and stood at its end, and what was done about them."""

    alarms: list[Listed]
    workflow: Workflow
    left_out: int  # of them, the first to begin


def read_alarms(context: Context, month: Month, listed: Iterable[Listed]) -> Alarms:
    """Return the alarms of a month, those among them that are `listed` already as they are."""
    store, workflow = context.store, context.alarms.workflow
    own, count = list(filter(month.has_alarm, listed)), store.months.count_alarms(month.from_ns, month.until_ns)
    if count == len(own) <= ALARMS_SEARCHED:
        return Alarms(own, workflow, 0)
    known = {AlarmKey(one.gateway, one.id): one for one in own}
    rows = store.months.read_alarms(month.from_ns, month.until_ns, ALARMS_SEARCHED)
    keys = [AlarmKey(row.gateway, row.id) for row in rows]
    if unknown := set(keys) - known.keys():
        events = store.months.read_events(month.from_ns, month.until_ns)
        handled = fold(event for event in events if AlarmKey(event.gateway, event.alarm) in unknown).handled
        workflow = replace(workflow, handled={**workflow.handled, **handled})
    found = [known.get(key) or describe(workflow, row, context.now_ns) for key, row in zip(keys, rows, strict=True)]
    return Alarms(found, workflow, count - len(rows))
