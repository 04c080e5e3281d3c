"""All alarms as the pages list them, kept in memory, so that ten thousand cost one read when one of them changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Row

from fedgate.cloud_aggregator.alarms.workflow import (
    AlarmCondition,
    AlarmKey,
    Handled,
    State,
    Workflow,
    find_state,
    fold,
)
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.settings.notifications import SEVERITIES

OPEN = ("unacknowledged", "acknowledged", "shelved", "suppressed", "out-of-service", "returned-unacknowledged")
HANDLED = Handled()
LISTED_MAX = 20_000  # the newest, besides those that stand


class Listed(NamedTuple):
    """An alarm with its state; `begun_ns` is its onset as far as it can be believed."""

    gateway: str
    id: str
    cause: str
    kind: str
    severity: str
    text: str
    state: State
    is_active: bool
    begun_ns: int
    cleared_ns: int | None
    score: float | None
    level: float | None
    label: str
    assignee: str
    common: str
    is_clock_set: bool
    rule: str

    @property
    def rank(self) -> tuple[int, int, int]:
        """By which the worst comes first: what nobody has seen to, then severity, then the newest."""
        return (
            OPEN.index(self.state) if self.state in OPEN else len(OPEN),
            -SEVERITIES.index(self.severity),
            -self.begun_ns,
        )


class AlarmList:
    """The alarms of a store, of which those that changed are read again; use it from one thread."""

    def __init__(self) -> None:
        self._mark: object = None
        self._rows: list[Row[Any]] = []
        self._over: dict[AlarmKey, tuple[Row[Any], Listed]] = {}  # whose state hangs on no time any more
        self._last_event, self._workflow = 0, Workflow()

    @property
    def workflow(self) -> Workflow:
        """What was done about alarms, causes and maintenance windows until the alarms were read last."""
        return self._workflow

    def read(self, store: Store, now_ns: int) -> list[Listed]:
        """Return all alarms at a time of day, in the order in which they began; raises `StoreError`."""
        self._last_event, events = store.read_events_after(self._last_event)
        if events:
            self._workflow = fold(events, self._workflow)
        for event in events:
            self._over.pop(AlarmKey(event.gateway, event.alarm), None)
        mark = store.read_alarms_mark()
        if mark != self._mark:
            self._rows, self._mark = store.read_summaries(LISTED_MAX), mark
            self._forget_removed()
        found, known = list[Listed](), self._over
        self._over = {}
        for row in self._rows:
            key = AlarmKey(row.gateway, row.id)
            held = known.get(key)
            one = held[1] if held is not None and held[0] == row else describe(self._workflow, key, row, now_ns)
            if not one.is_active:
                self._over[key] = (row, one)
            found.append(one)
        return found

    def _forget_removed(self) -> None:
        """Forget what was done about alarms that are listed no more."""
        listed = {AlarmKey(row.gateway, row.id) for row in self._rows}
        handled = {key: one for key, one in self._workflow.handled.items() if key in listed}
        self._workflow = replace(self._workflow, handled=handled)


def describe(workflow: Workflow, key: AlarmKey, row: Row[Any], now_ns: int) -> Listed:
    """Return an alarm by its row and what was done about it."""
    is_active = row.raised_ns is not None and row.cleared_ns is None
    handled = workflow.handled.get(key, HANDLED)
    state = find_state(workflow, key, AlarmCondition(row.cause, row.begun_ns, is_active), now_ns)
    return Listed(
        *(row.gateway, row.id, row.cause, row.kind, row.severity, row.text, state, is_active, row.begun_ns),
        *(row.cleared_ns, row.score, row.level, handled.label, handled.assignee, row.common or ""),
        row.clock != "unsynchronised",
        row.rule or "",
    )


def count_states(alarms: Iterable[Listed]) -> dict[str, int]:
    """Return how many alarms are in each state but normal."""
    counts = dict.fromkeys(OPEN, 0)
    for one in alarms:
        if one.state in counts:
            counts[one.state] += 1
    return counts
