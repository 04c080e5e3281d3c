"""All alarms as the pages list them, kept in memory: of ten thousand those that changed are read again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from sys import intern
from typing import Any, NamedTuple

from sqlalchemy import Row

from fedgate.cloud_aggregator.alarms.workflow import (
    UNTOUCHED,
    AlarmCondition,
    AlarmKey,
    State,
    Workflow,
    find_state,
    fold,
)
from fedgate.cloud_aggregator.storage.alarm_summaries import NOTHING, Marks
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.evidence.likely_cause import Kind, find_likely_cause
from fedgate.config.settings.notifications import SEVERITIES
from fedgate.config.web.charts import Facts

MASKED_STATES = ("shelved", "suppressed", "out-of-service")
OPEN_STATES = ("unacknowledged", "acknowledged", "returned-unacknowledged", *MASKED_STATES)
ASKING_STATES = ("unacknowledged", "acknowledged")  # states of alarms that stand and that nothing masks

STATE_RANKS = {name: place for place, name in enumerate(OPEN_STATES)}
SEVERITY_RANKS = {name: place for place, name in enumerate(reversed(SEVERITIES))}
LISTED_MAX = 20_000  # the newest, besides those that stand
EVENTS_AT_ONCE = 500
SORTED_ANEW = 200  # changes; a few are put where they belong
GROWN_MAX = 1_000  # beyond that, before they are counted anew
OF_A_GATEWAY = 10  # alarms in a short list, while other gateways have any


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
    is_raised: bool  # its raising has come, which may be later than its end
    received_ns: int  # by the aggregator, of what was heard of it last

    @property
    def rank(self) -> tuple[int, int, int]:
        """By which the worst comes first: by the order of states, then severity, then the newest."""
        return STATE_RANKS.get(self.state, len(OPEN_STATES)), SEVERITY_RANKS[self.severity], -self.begun_ns


ORDER = attrgetter("begun_ns", "gateway", "id")
Groups = dict[tuple[str, str], list[Listed]]  # by state and severity


class AlarmList:
    """The alarms of a store, of which those that changed are read again; use it from one thread."""

    def __init__(self) -> None:
        self._marks: Marks = {}
        self._oldest_ns = 0  # when the oldest that is listed though it is over was received
        self._known: dict[AlarmKey, Listed] = {}
        self._ordered: list[Listed] = []
        self._groups: Groups = group(())
        self._active: set[AlarmKey] = set()  # whose states hang on the time
        self._last_event, self._workflow = 0, Workflow()
        self._causes: dict[AlarmKey, Kind] = {}  # of those that were shown and whose evidence is here

    @property
    def workflow(self) -> Workflow:
        """What was done about alarms, causes and maintenance windows until the alarms were read last."""
        return self._workflow

    @property
    def groups(self) -> Groups:
        """The alarms that asked for somebody when they were read last, by state and severity, the worst first; those of
        a group in the order in which they began.
        """
        return self._groups

    def read(self, store: Store, now_ns: int) -> Sequence[Listed]:
        """Return all alarms at a time of day, in the order in which they began; raises `StoreError`."""
        touched = self._read_events(store)
        changed = self._read_changed(store, now_ns)
        touched = touched & self._known.keys() | self._active
        for key in touched - changed.keys():
            if (one := renew(self._workflow, key, self._known[key], now_ns)) is not self._known[key]:
                changed[key] = one
        if changed:
            self._put(changed)
        return self._ordered

    def show(self, store: Store, alarms: Iterable[Listed]) -> list[Facts]:
        """Return alarms as pages show them, each with the kind of its likely cause: empty without evidence."""
        shown = {AlarmKey(one.gateway, one.id): one for one in alarms}
        if len(self._causes) > LISTED_MAX:
            self._causes.clear()
        asked = {key for key, one in shown.items() if one.kind == "anomaly"} - self._causes.keys()
        for gateway, evidence in store.read_evidence_of(asked):
            self._causes[AlarmKey(gateway, evidence.alarm)] = find_likely_cause(evidence).kind
        return [one._asdict() | {"likely": self._causes.get(key, "")} for key, one in shown.items()]

    def _put(self, changed: Mapping[AlarmKey, Listed]) -> None:
        """Take in alarms that are new or other than they were; of a few no other alarm is looked at."""
        if len(changed) > SORTED_ANEW:
            self._known |= changed
            self._ordered = sorted(self._known.values(), key=ORDER)
            self._groups = group(self._ordered)
        else:
            for key, one in changed.items():
                if (before := self._known.get(key)) is not None:
                    for among in self._list_places(before):
                        del among[bisect_left(among, ORDER(before), key=ORDER)]
                for among in self._list_places(one):
                    insort(among, one, key=ORDER)
                self._known[key] = one
        self._active -= changed.keys()
        self._active |= {key for key, one in changed.items() if one.is_active}

    def _list_places(self, one: Listed) -> list[list[Listed]]:
        """Return the lists that an alarm is in."""
        return [self._ordered] if one.state == "normal" else [self._ordered, self._groups[one.state, one.severity]]

    def _read_events(self, store: Store) -> set[AlarmKey]:
        """Take in what was done since they were read last; return about which alarms."""
        touched = set[AlarmKey]()
        while True:
            self._last_event, events = store.read_events_after(self._last_event, EVENTS_AT_ONCE)
            if not events:
                return touched
            self._workflow = fold(events, self._workflow)
            touched |= {AlarmKey(event.gateway, event.alarm) for event in events}

    def _read_changed(self, store: Store, now_ns: int) -> dict[AlarmKey, Listed]:
        """Return the alarms that were stored or changed since they were read last, and others beside them."""
        marks, before = store.read_alarm_marks(), self._marks
        shares = {one for one in marks.keys() | before.keys() if marks.get(one) != before.get(one)}
        if not shares:
            return {}
        if before:
            found = self._describe(store.read_summaries(self._oldest_ns, shares), now_ns)
            if self._are_all(found, shares, marks):
                self._marks = marks
                return {key: one for key, one in found.items() if one != self._known.get(key)}
        return self._read_all(store, marks, now_ns)

    def _are_all(self, found: Mapping[AlarmKey, Listed], shares: Iterable[int], marks: Marks) -> bool:
        """Tell whether nothing but what was found has made the difference to the marks before."""
        new = found.keys() - self._known.keys()
        if len(self._known) + len(new) > LISTED_MAX + GROWN_MAX:
            return False
        changes = [(marks.get(one, NOTHING), self._marks.get(one, NOTHING)) for one in shares]
        were_over = sum(self._known[key].cleared_ns is not None for key in found.keys() - new)
        over = sum(one.cleared_ns is not None for one in found.values()) - were_over
        return (len(new), over) == (
            sum(mark.alarms - before.alarms for mark, before in changes),
            sum(mark.over - before.over for mark, before in changes),
        )

    def _read_all(self, store: Store, marks: Marks, now_ns: int) -> dict[AlarmKey, Listed]:
        """Return all alarms: at first, where some were removed, or where there are too many."""
        self._known, self._ordered, self._groups, self._active = {}, [], group(()), set()
        self._marks, self._oldest_ns = marks, store.find_oldest(LISTED_MAX)
        changed = self._describe(store.read_summaries(self._oldest_ns), now_ns)
        known = self._workflow.handled
        handled = {key: known[key] for key in changed if key in known}  # with the keys that are here: half the memory
        self._workflow = replace(self._workflow, handled=handled)
        return changed

    def _describe(self, parts: Iterable[Sequence[Row[Any]]], now_ns: int) -> dict[AlarmKey, Listed]:
        found = (describe(self._workflow, row, now_ns) for row in chain.from_iterable(parts))
        return {AlarmKey(one.gateway, one.id): one for one in found}


def describe(workflow: Workflow, row: Row[Any], now_ns: int) -> Listed:
    """Return an alarm at a time of day by its row and what was done about it."""
    gateway, name, cause, kind, severity, text, raised_ns, cleared_ns, score, level, *rest = tuple(row)
    rule, common, clock, received_ns, onset_ns = rest
    one = Listed(
        *(intern(gateway), name, intern(cause), intern(kind), intern(severity), text, "normal"),
        *(raised_ns is not None and cleared_ns is None, onset_ns, cleared_ns, score, level, "", ""),
        *(common or "", clock != "unsynchronised", intern(rule or ""), raised_ns is not None, received_ns),
    )
    return renew(workflow, AlarmKey(one.gateway, name), one, now_ns)


def renew(workflow: Workflow, key: AlarmKey, one: Listed, now_ns: int) -> Listed:
    """Return an alarm as it is at a time of day, by what was done about it."""
    handled = workflow.handled.get(key, UNTOUCHED)
    state = find_state(workflow, key, AlarmCondition(one.cause, one.begun_ns, one.is_active), now_ns)
    if (one.state, one.label, one.assignee) == (state, handled.label, handled.assignee):
        return one
    return one._replace(state=state, label=handled.label, assignee=handled.assignee)


def group(alarms: Iterable[Listed]) -> Groups:
    """Return the alarms that ask for somebody by state and severity, the worst first; in a group as they were given."""
    groups: Groups = {(state, severity): [] for state in OPEN_STATES for severity in reversed(SEVERITIES)}
    for one in alarms:
        if one.state != "normal":
            groups[one.state, one.severity].append(one)
    return groups


def count_states(groups: Groups) -> dict[str, int]:
    """Return how many alarms are in each state but normal."""
    return {name: sum(len(found) for (state, _), found in groups.items() if state == name) for name in OPEN_STATES}


def list_asking(groups: Groups) -> Iterator[Listed]:
    """Yield the alarms that stand and that nothing masks."""
    return chain.from_iterable(found for (state, _), found in groups.items() if state in ASKING_STATES)


def list_worst(groups: Groups) -> Iterator[Listed]:
    """Yield the alarms that ask for somebody, the worst first, of groups in the order in which they began."""
    return chain.from_iterable(map(reversed, groups.values()))


def shorten(alarms: Iterable[Listed], most: int) -> list[Listed]:
    """Return so many of some alarms in their order. Those that are not masked come before all others, and of them at
    first a few of each gateway: one that raises hundreds takes the places of a few.
    """
    counts = Counter[str]()
    few, more, masked = list[tuple[int, Listed]](), list[tuple[int, Listed]](), list[tuple[int, Listed]]()
    for place, one in enumerate(alarms):
        counts[one.gateway] += 1
        among = masked if one.state in MASKED_STATES else few if counts[one.gateway] <= OF_A_GATEWAY else more
        if len(among) < most:
            among.append((place, one))
        if len(few) == most:
            break
    return [one for _, one in sorted((few + more + masked)[:most])]
