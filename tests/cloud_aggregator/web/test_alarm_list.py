"""Goal: the list of alarms that is kept and read anew in part is the one that is read as a whole, whatever happened.

Method: random histories of a store, with a clock of the aggregator that goes back, ends that come before their alarm
was raised, and alarms that are removed; after each step the kept list is held against a new one.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import delete

from fedgate.cloud_aggregator.events import AlarmEvent, Durable, RecordAlarm
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.storage.tables import ALARMS
from fedgate.cloud_aggregator.web.pages import alarm_list
from fedgate.cloud_aggregator.web.pages.alarm_list import AlarmList
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM

STEPS, GATEWAYS = 60, ("north", "south")


def make_step(random: Random, number: int, known: list[tuple[str, str]]) -> Durable:
    """Return something that is stored: an alarm, a change of a known one, or what was done about it."""
    if random.random() < 0.3 and known:
        kind, body = random.choice((("acknowledge", {}), ("label", {"label": random.choice(("damage", "false"))})))
        return AlarmEvent(*random.choice(known), "", number, "ben", kind, body)
    is_new = random.random() < 0.5 or not known
    if is_new:
        known.append((random.choice(GATEWAYS), f"alarm {number}.{len(known)}"))
    gateway, name = known[-1] if is_new else random.choice(known[-6:])
    state, received_ns = random.choice(("raised", "cleared")), random.choice((number, number, 3)) * NS
    told = {"id": name, "cause": f"cause of {name}", "state": state, "t_ns": number * NS, "text": f"text {number}"}
    return RecordAlarm(gateway, ALARM.model_copy(update=told), received_ns, received_ns)


@pytest.mark.parametrize("seed", range(8))
def test_the_kept_list_is_the_one_that_is_read_anew(seed: int, tmp_path: Path) -> None:
    random, kept, known = Random(seed), AlarmList(), list[tuple[str, str]]()
    with closing(Store(tmp_path / "a.db")) as store:
        for number in range(1, STEPS):
            store.commit([make_step(random, number, known) for _ in range(random.choice((0, 1, 1, 3)))])
            if random.random() < 0.1 and len(known) > 1:
                gateway, name = known.pop(0)
                with store._db.begin():
                    store._db.execute(delete(ALARMS).where(ALARMS.c.gateway == gateway, ALARMS.c.id == name))
            assert list(kept.read(store, number * NS)) == list(AlarmList().read(store, number * NS))


def test_one_alarm_more_is_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, read = AlarmList(), list[int]()
    with closing(Store(tmp_path / "a.db")) as store:
        read_all = store.read_summaries

        def count_read(most: int, since_ns: int = 0) -> list[object]:
            parts = [[row for part in read_all(most, since_ns) for row in part]]
            read.append(len(parts[0]))
            return list(parts)

        monkeypatch.setattr(store, "read_summaries", count_read)
        for number in (100, 101):
            first = 0 if number == 100 else 100
            told = [ALARM.model_copy(update={"id": str(one), "cause": str(one)}) for one in range(first, number)]
            store.commit([RecordAlarm("north", alarm, (i + first) * NS, NS) for i, alarm in enumerate(told, 1)])
            assert len(kept.read(store, NS)) == number
    assert read[0] == 100 and read[1] <= 2  # beside it the one before


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
