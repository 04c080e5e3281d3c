"""Goal: the record of who was there when says what happened, once for each change, and claims no time that nobody saw.

Method: a real service with statuses, connections, restarts and clocks that are wrong; its rows on either database, and
what the report makes of them.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator import availability, presence
from fedgate.cloud_aggregator.context import SET_NS
from fedgate.cloud_aggregator.events import ClockSet, Connection, PresenceState, Received, RecordPresence, Tick
from fedgate.cloud_aggregator.health import HANGS_S
from fedgate.cloud_aggregator.limits import HourlyCount
from fedgate.cloud_aggregator.storage import availability_table
from fedgate.cloud_aggregator.storage.availability_table import PresenceRow
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.availability import cut, describe, list_known, measure
from fedgate.cloud_aggregator.web.pages.month import Month
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.database import DatabaseUrl
from fedgate.config.settings.identity import Identity
from fedgate.models.time_units import HOUR_NS, NS
from tests.support.cloud_service import Cloud, cloud, heard, mean_of
from tests.support.sites import T0_NS, topic

ALL = (0, 2**62, 10**6)
OFFLINE = Status(state="offline").to_bytes()


def say(made: Cloud, state: str = "online", gateway: str = "north", **more: Any) -> None:
    made.hear(heard(gateway, "status", Status.model_validate({"state": state, **more}).to_bytes()))


def rows(made: Cloud, gateway: str = "north") -> list[tuple[str, float]]:
    """Return the states that are stored of a gateway, with the seconds since the service began."""
    store = made.service.store
    return [(one.state, (one.t_ns - T0_NS) / NS) for one in store.months.read_presence(*ALL) if one.gateway == gateway]


@pytest.fixture
def made(tmp_path: Path) -> Any:
    with cloud(tmp_path, mean_of(2), ("north",)) as found:
        found.hear(Tick())
        yield found


def test_a_row_is_written_where_a_state_changes_and_nowhere_else(made: Cloud) -> None:
    for _ in range(5):
        made.now_ns += NS
        say(made)
    made.now_ns += NS
    say(made, "offline")
    say(made, "offline")
    made.now_ns += NS
    say(made, model_version=3)
    say(made, model_version=4)
    assert rows(made) == [("online", 0.0), ("offline", 6.0), ("watching", 7.0)]


def test_what_a_gateways_clock_says_moves_nothing(made: Cloud) -> None:
    made.now_ns += NS
    say(made, model_version=1, clock="synchronised", t_ns=5)
    assert rows(made)[-1] == ("watching", 1.0)


def test_what_the_broker_had_kept_counts_from_when_it_came(made: Cloud) -> None:
    made.now_ns += 9 * NS
    made.hear(Received(topic("north", "status", "agent"), OFFLINE, is_retained=True))
    assert rows(made)[-1] == ("offline", 9.0)


def test_the_service_says_when_its_connection_comes_and_goes(made: Cloud) -> None:
    made.hear(Connection(False), after_s=5)
    made.hear(Connection(True), after_s=5)
    assert rows(made, "") == [("connected", 0.0), ("disconnected", 5.0), ("connected", 10.0)]


def test_of_a_service_that_was_killed_nothing_is_known_since_its_last_sign(made: Cloud) -> None:
    for _ in range(100):
        made.hear(Tick(), after_s=1)
    made.now_ns += 50 * NS
    made.restart()
    found = rows(made, "")
    assert [state for state, _ in found] == ["connected", "disconnected", "connected"]
    assert found[1][1] == pytest.approx(presence.BEAT_S, abs=2) and found[2][1] == 150.0


def test_a_service_that_hung_watched_nobody_meanwhile(made: Cloud) -> None:
    made.hear(Tick(), after_s=1)
    made.hear(Tick(), after_s=HANGS_S + 60)
    assert [state for state, _ in rows(made, "")] == ["connected", "disconnected", "connected"]
    assert rows(made, "")[1][1] <= 1.0


@pytest.mark.soak
def test_a_gateway_that_comes_and_goes_without_end_has_few_rows_that_say_all(made: Cloud) -> None:
    for number in range(600):
        made.now_ns += 2 * NS
        say(made, "online" if number % 2 else "offline")
    stored = [one for one in made.service.store.months.read_presence(*ALL) if one.gateway == "north"]
    assert len(stored) == availability.ROWS_PER_HOUR
    assert sum(one.changes for one in stored) == 601
    folded = stored[-1]
    assert folded.until_ns - folded.t_ns == 2 * folded.online_ns + 2 * NS * (folded.changes % 2 == 0)
    assert (folded.longest_ns, folded.state) == (2 * NS, "online")


def test_rows_of_one_gateway_are_bounded_and_the_newest_stay(
    place: Path | DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability_table, "KEPT", 10)
    monkeypatch.setattr(availability_table, "BETWEEN", 5)
    with closing(Store(place)) as store:
        for number in range(SET_NS, SET_NS + 100):
            store.commit([RecordPresence("west", "online", number, number)])
        store.commit([RecordPresence("north", "offline", SET_NS, SET_NS)])
        folded = RecordPresence("west", "offline", SET_NS + 99, SET_NS + 120, 3, 9, 4, 6)
        store.commit([folded])
        found = store.months.read_presence(*ALL)
        assert [one for one in found if one.gateway == "north"] == [
            PresenceRow("north", SET_NS, "offline", SET_NS, 1, 0, 0, 0)
        ]
        west = [one for one in found if one.gateway == "west"]
        assert 10 <= len(west) < 15 and west[-1] == PresenceRow(
            "west", SET_NS + 99, "offline", SET_NS + 120, 3, 9, 4, 6
        )


@pytest.mark.soak
def test_rows_of_all_who_are_gone_are_bounded_together_and_others_stay(
    place: Path | DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability_table, "FORMER_KEPT", 10)
    with closing(Store(place)) as store:
        store.commit(
            [RecordPresence("stays", "online", SET_NS, SET_NS), RecordPresence("", "connected", SET_NS, SET_NS)]
        )
        for number in range(100):
            states: tuple[PresenceState, ...] = ("online", "offline", "gone")
            store.commit(
                [RecordPresence(f"name {number}", state, SET_NS + number, SET_NS + number) for state in states]
            )
        folded = RecordPresence("name 99", "gone", SET_NS + 99, SET_NS + 99, 3)
        store.commit([RecordPresence("name 99", "online", SET_NS + 99, SET_NS + 99), folded])
        found = store.months.read_presence(*ALL)
    assert [one.gateway for one in found[:2]] == ["stays", ""]
    assert [(one.gateway, one.state) for one in found[-4:]] == [
        *(("name 99", state) for state in ("online", "offline", "gone", "gone"))
    ]
    assert len(found) == 12


def test_of_before_a_time_the_last_row_of_each_is_read(place: Path | DatabaseUrl) -> None:
    at = [SET_NS + number for number in (10, 20, 30, 40, 50)]
    with closing(Store(place)) as store:
        store.commit([RecordPresence(name, "online", t_ns, t_ns) for t_ns in at for name in ("a", "b")])
        found = store.months.read_presence(at[2], at[4], 10**6)
        assert [(one.gateway, one.t_ns) for one in found] == [(name, t_ns) for t_ns in at[1:4] for name in ("a", "b")]
        assert len(store.months.read_presence(at[2], at[4], 3)) == 3


def test_a_clock_that_was_never_set_dates_nothing(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), ("north",)) as made:
        made.hear(ClockSet(-made.now_ns))  # 1970
        made.hear(Tick())
        say(made, "offline")
        made.hear(ClockSet(SET_NS), after_s=5)
        made.hear(Tick())
        found = made.service.store.months.read_presence(made.now_ns, 2**62, 10**6)
        last = {one.gateway: (one.state, one.t_ns) for one in found}
        assert last == {"": ("connected", SET_NS + made.now_ns), "north": ("offline", SET_NS + made.now_ns)}


def test_time_that_a_clock_left_out_is_not_known(made: Cloud) -> None:
    made.hear(ClockSet(3_600 * NS), after_s=10)
    assert rows(made, "")[-2:] == [("disconnected", 10.0), ("connected", 3_610.0)]


def test_after_a_clock_was_set_back_what_is_said_last_counts(made: Cloud) -> None:
    made.now_ns += 100 * NS
    say(made, "offline")
    made.hear(ClockSet(-50 * NS))
    assert rows(made)[-1] == ("offline", 50.0) and rows(made, "")[-1] == ("connected", 50.0)


def switch_identity_on(made: Cloud) -> None:
    made.settings = made.settings.model_copy(update={"identity": Identity()})


def test_who_is_a_stranger_once_the_site_has_an_identity_is_gone_and_that_is_said_once(made: Cloud) -> None:
    switch_identity_on(made)
    for _ in range(3):
        made.now_ns += 10 * NS
        made.restart()
    assert rows(made) == [("online", 0.0), ("gone", 10.0)]


def test_who_is_gone_by_a_clock_that_was_not_set_is_so_once_it_is(made: Cloud) -> None:
    switch_identity_on(made)
    made.anchor_ns = -made.now_ns  # 1970
    made.restart()
    assert rows(made) == [("online", 0.0)]
    made.hear(ClockSet(0), after_s=7)
    assert rows(made) == [("online", 0.0), ("gone", 7.0)]
    made.anchor_ns = 0
    made.restart()
    assert rows(made) == [("online", 0.0), ("gone", 7.0)]


MONTH = Month("m", "", "", SET_NS, SET_NS + 100 * HOUR_NS, SET_NS + 100 * HOUR_NS)


def row(state: Any, at_h: float, **more: Any) -> PresenceRow:
    t_ns = SET_NS + round(at_h * HOUR_NS)
    return PresenceRow("north", t_ns, state, t_ns, 1, 0, 0, 0)._replace(**more)


def sum_hours(gateway: list[PresenceRow], service: list[PresenceRow]) -> dict[str, float]:
    known = list(list_known(cut(service, MONTH.until_ns), MONTH, MONTH.until_ns))
    found = describe("north", measure(cut(gateway, MONTH.until_ns), known, MONTH), 0.0)
    return {name[:-2]: round(value / 3_600, 6) for name, value in found.items() if name.endswith("_s")} | {
        "outages": found["outages"]
    }


def test_states_hold_until_the_next_and_only_while_somebody_knows() -> None:
    service = [row("connected", -5), row("disconnected", 30), row("connected", 50)]
    gateway = [row("online", -9), row("offline", 10), row("watching", 40), row("offline", 90), row("online", 91)]
    assert sum_hours(gateway, service) == {
        "total": 100.0,
        "online": 10 + 40 + 9,
        "watched": 40.0,
        "offline": 20 + 1,
        "unknown": 20.0,
        "longest_outage": 20.0,
        "outages": 2,
    }


def test_before_a_gateway_came_and_after_it_went_it_has_no_time() -> None:
    found = sum_hours([row("online", 20), row("gone", 30), row("online", 90)], [row("connected", -1)])
    assert (found["total"], found["online"], found["unknown"]) == (20.0, 20.0, 0.0)


def test_without_a_sign_of_the_service_nothing_is_known() -> None:
    found = sum_hours([row("online", 0)], [])
    assert (found["total"], found["online"], found["unknown"]) == (100.0, 0.0, 100.0)


def test_folded_changes_count_by_their_sums() -> None:
    until_ns = SET_NS + 11 * HOUR_NS
    folded = row("offline", 10, until_ns=until_ns, changes=9, online_ns=HOUR_NS // 4, longest_ns=HOUR_NS // 8)
    found = sum_hours([row("online", 0), folded, row("online", 12)], [row("connected", -1)])
    assert (found["online"], found["offline"], found["unknown"]) == (98.25, 1.75, 0.0)
    assert found["longest_outage"] == 1.0  # the one behind the folded ones
    assert found["outages"] == 5


def test_what_was_said_last_of_a_time_counts() -> None:
    found = sum_hours([row("online", 0), row("offline", 80), row("online", 50)], [row("connected", -1)])
    assert (found["online"], found["offline"]) == (100.0, 0.0)


def test_a_fold_ends_with_its_hour_and_where_a_clock_was_set(made: Cloud) -> None:
    context = made.service.state.context
    known = availability.Changes(RecordPresence("a", "online", 10, 20), HourlyCount(99, context.uptime_ns))
    near = availability.note_change(known, context, "a", "offline", 30)
    assert (near.row.changes, near.row.until_ns) == (2, 30)
    for at_ns in (19, 11 + HOUR_NS):
        assert availability.note_change(known, context, "a", "offline", at_ns).row == RecordPresence(
            "a", "offline", at_ns, at_ns
        )
