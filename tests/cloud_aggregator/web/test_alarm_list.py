"""Goal: the list of alarms that is kept and read anew in part is the one that is read as a whole, whatever happened.

Method: random histories of a store, with a clock of the aggregator that was behind or ahead, ends that come before
their alarm was raised, and alarms that are removed; after each step the kept list is held against a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import delete

from fedgate.cloud_aggregator.events import AlarmEvent, Durable, RecordAlarm
from fedgate.cloud_aggregator.storage.alarm_summaries import select_marks, select_summaries
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.storage.tables import ALARMS
from fedgate.cloud_aggregator.web.pages import alarm_list
from fedgate.cloud_aggregator.web.pages.alarm_list import AlarmList
from fedgate.config.settings.notifications import SEVERITIES
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM

STEPS, GATEWAYS = 60, ("north", "south")


def make_step(random: Random, number: int, known: list[tuple[str, str]]) -> Durable:
    """Return something that is stored: an alarm, a change of a known one, or what was done about it."""
    if random.random() < 0.3 and known:
        shelve, label = {"until_ns": (number + random.randrange(9)) * NS}, {"label": random.choice(("damage", "false"))}
        kind, body = random.choice((("acknowledge", {}), ("label", label), ("shelve", shelve), ("unshelve", {})))
        return AlarmEvent(*random.choice(known), "", number, "ben", kind, body)
    is_new = random.random() < 0.5 or not known
    if is_new:
        known.append((random.choice(GATEWAYS), f"alarm {number}.{len(known)}"))
    gateway, name = known[-1] if is_new else random.choice(known[-6:])
    state = random.choice(("raised", "cleared"))
    received_ns = random.choice((number * NS, number * NS, 3 * NS + number, (10**6 + number) * NS))
    told = {"id": name, "cause": f"cause of {name}", "state": state, "t_ns": number * NS, "text": f"text {number}"}
    told["severity"] = random.choice(SEVERITIES)
    return RecordAlarm(gateway, ALARM.model_copy(update=told), received_ns, received_ns)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 8))])
def test_the_kept_list_is_the_one_that_is_read_anew(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_list, "SORTED_ANEW", 2)
    random, kept, known = Random(seed), AlarmList(), list[tuple[str, str]]()
    with closing(Store(tmp_path / "a.db")) as store:
        for number in range(1, STEPS):
            store.commit([make_step(random, number, known) for _ in range(random.choice((0, 1, 1, 3)))])
            if random.random() < 0.1 and len(known) > 1:
                gateway, name = known.pop(0)
                with store._db.begin():
                    store._db.execute(delete(ALARMS).where(ALARMS.c.gateway == gateway, ALARMS.c.id == name))
            anew = AlarmList()
            assert list(kept.read(store, number * NS)) == list(anew.read(store, number * NS))
            assert kept.groups == anew.groups


@pytest.mark.soak
@pytest.mark.parametrize("ahead_s", [0, 3_600], ids=["right", "ahead for a while"])
def test_one_alarm_more_is_read_with_few_others_whatever_the_clock_was(
    ahead_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, read = AlarmList(), list[int]()
    with closing(Store(tmp_path / "a.db")) as store:
        read_all = store.read_summaries

        def count_read(oldest_ns: int, shares: Collection[int] | None = None) -> list[list[Any]]:
            rows = [row for part in read_all(oldest_ns, shares) for row in part]
            read.append(len(rows))
            return [rows]

        def store_alarms(numbers: Iterable[int], ahead_s: int = 0) -> None:
            told = {one: ALARM.model_copy(update={"id": str(one), "cause": str(one)}) for one in numbers}
            store.commit([RecordAlarm("north", alarm, (one + ahead_s) * NS, NS) for one, alarm in told.items()])

        monkeypatch.setattr(store, "read_summaries", count_read)
        store_alarms(range(1, 500))
        store_alarms(range(500, 510), ahead_s)
        assert len(kept.read(store, NS)) == 509
        for number in range(510, 520):
            store_alarms([number])
            assert len(kept.read(store, NS)) == number
    assert read[0] == 509 and max(read[1:]) <= 12  # of one share


def test_a_list_that_has_grown_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_list, "LISTED_MAX", 5)
    monkeypatch.setattr(alarm_list, "GROWN_MAX", 2)
    kept = AlarmList()
    with closing(Store(tmp_path / "a.db")) as store:
        for number in range(1, 20):
            told = {"id": str(number), "cause": str(number), "state": "cleared"}
            store.commit([RecordAlarm("north", ALARM.model_copy(update=told), number * NS, NS)])
            found = kept.read(store, number * NS)
            assert min(number, 5) <= len(found) <= 7
            assert str(number) in {one.id for one in found}


def test_what_ends_by_a_clock_before_all_that_is_listed_stands_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm_list, "LISTED_MAX", 2)
    kept = AlarmList()
    with closing(Store(tmp_path / "a.db")) as store:
        for number in range(1, 4):
            told = {"id": str(number), "cause": str(number)}
            store.commit([RecordAlarm("north", ALARM.model_copy(update=told), number * NS, NS)])
        assert sum(one.is_active for one in kept.read(store, NS)) == 3
        over = ALARM.model_copy(update={"id": "3", "cause": "3", "state": "cleared"})
        store.commit([RecordAlarm("north", over, 1, NS)])
        assert [one.id for one in kept.read(store, NS) if one.is_active] == ["1", "2"]


def test_marks_are_read_from_their_index_alone(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "a.db")) as store, store._db.begin():
        for statement, plan in ((select_marks(), "SCAN alarms USING COVERING"), (select_summaries(0, [3]), "SEARCH")):
            compiled = statement.compile(store._db.engine, compile_kwargs={"literal_binds": True})
            found = store._db.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}").all()
            assert any(plan in row[3] and "INDEX alarms_marks" in row[3] for row in found), found
