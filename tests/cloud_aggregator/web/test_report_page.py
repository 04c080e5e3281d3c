"""Goal: the report of a month counts what began in it, says what became of that, and claims nothing that nobody knows.

Method: a real store with alarms on both sides of the month's edges; the facts as a program gets them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    Durable,
    RecordAlarm,
    RecordGateway,
    RecordLoss,
    RecordModel,
    RecordPresence,
    RecordRound,
    RecordScores,
    RecordService,
    RecordSummary,
    SaveRollout,
)
from fedgate.cloud_aggregator.web.pages import availability, feature_trends, month, report
from fedgate.cloud_aggregator.web.pages.page import NotThereError
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.scores import Scores
from fedgate.models.time_units import DAY_NS, DAY_S, HOUR_NS, NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.batches import make_summary
from tests.support.page_views import EVIL, NOW_NS, Markup, check_headings, commit, read_facts, render


def find_ns(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * NS


AUGUST = find_ns("2026-08-01")
SEPTEMBER = find_ns("2026-09-01")


def make_alarm(
    name: str, begun_ns: int, stood_h: float | None = None, gateway: str = "north", **more: Any
) -> list[Durable]:
    one = ALARM.model_copy(update={"id": name, "onset_ns": begun_ns, "t_ns": begun_ns + NS, "rule": "score", **more})
    made: list[Durable] = [RecordAlarm(gateway, one, begun_ns, begun_ns)]
    if stood_h is not None:
        over = one.clear(begun_ns + round(stood_h * HOUR_NS), "over")
        made.append(RecordAlarm(gateway, over, begun_ns, begun_ns))
    return made


def do(name: str, kind: str, t_ns: int, gateway: str = "north", **body: Any) -> AlarmEvent:
    return AlarmEvent(gateway, name, "", t_ns, "ben", kind, body)


def read(folder: Path, month: str = "2026-08") -> dict[str, Any]:
    return read_facts(folder, report.PAGE, month=month)


def test_an_alarm_is_of_the_month_in_which_it_began(tmp_path: Path) -> None:
    edges = (AUGUST - 1, AUGUST, SEPTEMBER - 1, SEPTEMBER)
    commit(tmp_path, *(one for place, at in enumerate(edges) for one in make_alarm(f"a{place}", at, 1)))
    assert [one["id"] for one in read(tmp_path)["alarms"]] == ["a1", "a2"]
    assert [one["id"] for one in read(tmp_path, "2026-07")["alarms"]] == ["a0"]
    assert [one["id"] for one in read(tmp_path, "")["alarms"]] == ["a3"]  # the present month


@pytest.mark.parametrize("month", ["2026-13", "2026-8", "26-08", "0000-01", "<b>", "2026-10", "9999-12", "2026-08\n"])
def test_what_is_no_month_so_far_has_no_report(tmp_path: Path, month: str) -> None:
    commit(tmp_path)
    with pytest.raises(NotThereError, match="month: "):
        read(tmp_path, month)


@pytest.mark.parametrize(
    ("name", "before", "after", "days"),
    [
        ("2026-01", "2025-12", "2026-02", 31.0),
        ("2025-12", "2025-11", "2026-01", 31.0),
        ("2024-02", "2024-01", "2024-03", 29.0),
        ("2026-09", "2026-08", "", (NOW_NS - SEPTEMBER) / DAY_NS),
    ],
)
def test_months_follow_one_another(name: str, before: str, after: str, days: float) -> None:
    found = month.find_month(name, NOW_NS)
    assert (found.before, found.next, found.days) == (before, after, days)


def test_it_says_what_became_of_alarms(tmp_path: Path) -> None:
    commit(
        tmp_path,
        *make_alarm("a", AUGUST, 10, severity="warning"),
        *make_alarm("b", AUGUST + HOUR_NS, 2, severity="critical"),
        *make_alarm("c", AUGUST + DAY_NS, severity="warning", kind="sensor"),
        *make_alarm("d", AUGUST + DAY_NS, 1, gateway="south", clock="unsynchronised"),
        do("a", "acknowledge", AUGUST + HOUR_NS),
        do("b", "acknowledge", AUGUST + 4 * HOUR_NS),
        do("a", "label", AUGUST + HOUR_NS, label="damage"),
        do("b", "label", AUGUST + HOUR_NS, label="false"),
    )
    found = read(tmp_path)
    assert [one["id"] for one in found["alarms"]] == ["a", "b", "d", "c"]  # damage, then by severity
    assert found["counts"]["labels"] == {"damage": 1, "work": 0, "sensor": 0, "weather": 0, "false": 1, "none": 2}
    assert found["counts"]["severities"] == {"critical": 1, "major": 1, "warning": 2}
    assert found["counts"]["kinds"] == {"anomaly": 3, "sensor": 1}
    assert found["counts"]["states"] == {"normal": 2, "returned-unacknowledged": 1, "unacknowledged": 1}
    times = found["times"]
    assert (times["acknowledged"], times["acknowledged_median_s"], times["acknowledged_longest_s"]) == (2, 7200, 10800)
    by_name = {one["id"]: one for one in found["alarms"]}
    assert (by_name["a"]["stood_s"], by_name["a"]["acknowledged_by"]) == (36_000, "ben")
    assert by_name["c"]["stood_s"] == (SEPTEMBER - AUGUST - DAY_NS) / NS  # and stands
    assert by_name["d"]["stood_s"] is None  # by a clock that was not set
    assert found["rates"]["precision"] == [
        {
            "gateway": "north",
            "rule": "score",
            "precision": 0.5,
            "damage": 1,
            "work": 0,
            "sensor": 0,
            "weather": 0,
            "false": 1,
        }
    ]


def test_what_stood_is_what_stood_at_the_end_of_the_month(tmp_path: Path) -> None:
    commit(
        tmp_path,
        *make_alarm("over", AUGUST, 1),
        *make_alarm("since", SEPTEMBER - 2 * HOUR_NS, 3),  # over in September
        *make_alarm("old", AUGUST - 40 * DAY_NS, 24 * 80),  # from before, over in September
        *make_alarm("later", SEPTEMBER + 1),
    )
    found = read(tmp_path)["rates"]
    assert (found["alarms"], found["standing"], found["standing_over_24_h"]) == (2, 2, 1)
    assert (found["per_day"], found["per_10_min"]) == (None, None)  # nobody knows for how long somebody watched


def watch(gateway: str, state: Any, after_ns: int = 0) -> RecordPresence:
    """Return a change of who is there, so long after the month began; of the broker where no gateway is named."""
    return RecordPresence(gateway, state, AUGUST + after_ns, AUGUST + after_ns)


def test_a_gateways_promise_is_for_the_time_that_it_watched_and_false_alarms_are_its_own(tmp_path: Path) -> None:
    status = Status(state="online", promised_alarms_per_day=0.5, model_version=3)
    commit(
        tmp_path,
        *(watch("", "connected"), watch("north", "watching"), watch("south", "offline")),
        watch("north", "online", 10 * DAY_NS),
        RecordGateway("north", status, NOW_NS),
        RecordGateway("south", Status(state="offline"), NOW_NS),
        *make_alarm("a", AUGUST, 1),
        *make_alarm("b", AUGUST, 1, kind="sensor"),
        *make_alarm("c", AUGUST - 1, 1),
        do("a", "label", AUGUST, label="false"),
        do("c", "label", AUGUST, label="false"),
    )
    north, south = read(tmp_path)["gateways"]
    assert (north["promised"], north["anomalies"], north["false"]) == (5.0, 1, 1)
    assert north["watched_s"] == 10 * DAY_S
    assert (south["promised"], south["anomalies"], south["false"]) == (0.0, 0, 0)


def test_times_without_a_link_and_losses_are_those_of_the_month(tmp_path: Path) -> None:
    def batch(t_ns: int, count: int) -> Scores:
        values = {"after_ms": tuple(range(count)), "scores": (1.0,) * count}
        return Scores(t_ns=t_ns, level=1.0, model_version=1, **values)

    def lose(name: str, first_ns: int, last_ns: int, items: int) -> RecordLoss:
        stone = Tombstone(id=name, kind="alarm", items=items, size_bytes=1, first_ns=first_ns, last_ns=last_ns, why=())
        return RecordLoss("north", stone, NOW_NS)

    commit(
        tmp_path,
        RecordGateway("north", Status(state="online"), NOW_NS),
        RecordScores("north", "a", batch(AUGUST, 7), NOW_NS),
        RecordScores("north", "b", batch(AUGUST + DAY_NS, 5), NOW_NS),
        RecordScores("north", "c", batch(SEPTEMBER, 9), NOW_NS),
        lose("a", AUGUST - 9, AUGUST, 2),
        lose("b", SEPTEMBER - 1, SEPTEMBER + 9, 3),
        lose("c", SEPTEMBER, SEPTEMBER + 9, 50),
        lose("d", AUGUST - 9, AUGUST - 1, 90),
    )
    (north,) = read(tmp_path)["gateways"]
    assert (north["unlinked_s"], north["lost"]) == (12.0, 5)  # windows of a second each


def test_changes_are_those_of_the_month(tmp_path: Path) -> None:
    def release(everywhere: int, at_ns: int) -> SaveRollout:
        body = {"rollout": {"stage": "everywhere", "canaries": [], "recalled": [], "version": 1}}
        return SaveRollout(json.dumps(body | {"everywhere": everywhere}).encode(), at_ns)

    def announce(number: int, from_ns: int, to_ns: int) -> AlarmEvent:
        body = {"window": number, "from_ns": from_ns, "to_ns": to_ns, "text": "bearing"}
        return AlarmEvent("all", "", "", from_ns, "ben", "window", body)

    commit(
        tmp_path,
        *(RecordModel(FIRST[0].changed(version=version), b"x") for version in (1, 2, 3)),
        *(release(version, at_ns) for version, at_ns in ((1, AUGUST - 1), (2, AUGUST + 5), (3, SEPTEMBER))),
        announce(1, AUGUST - 9, AUGUST),
        announce(2, AUGUST - 9, AUGUST + 1),
        announce(3, SEPTEMBER, SEPTEMBER + 1),
        RecordRound("run", 1, "fedavg", ("a",), 2, AUGUST, 70),
        RecordRound("run", 2, "fedavg", ("a",), 1, AUGUST + 1, 30),
        RecordRound("run", 3, "fedavg", ("a",), 4, SEPTEMBER, 900),
    )
    found = read(tmp_path)
    assert found["models"] == [{"t_ns": AUGUST + 5, "version": 2, "what": "released to all"}]
    assert [one["number"] for one in found["windows"]] == [2]
    assert found["rounds"] == {"closed": 2, "bytes_received": 100, "refused": 3}


def test_each_alarm_is_on_its_day(tmp_path: Path) -> None:
    alarms = [("a", AUGUST, {}), ("b", AUGUST + DAY_NS - 1, {"kind": "sensor"}), ("c", SEPTEMBER - 1, {})]
    commit(tmp_path, *(one for name, at, more in alarms for one in make_alarm(name, at, 1, **more)))
    chart = read(tmp_path)["chart"]
    of_all, structure = (one["values"] for one in chart["series"])
    assert chart["x"] == list(range(1, 32))
    assert (of_all[0], of_all[30], sum(of_all)) == (2, 1, 3)
    assert (structure[0], structure[30], sum(structure)) == (1, 1, 2)


@pytest.mark.soak
def test_of_many_alarms_the_worst_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    count = report.ALARMS_SHOWN + 5
    many = [one for place in range(count) for one in make_alarm(f"w{place}", AUGUST + place, 1, severity="warning")]
    commit(tmp_path, *many, *make_alarm("bad", AUGUST, 1, severity="critical"))
    found = read(tmp_path)
    assert (found["counts"]["alarms"], len(found["alarms"])) == (count + 1, report.ALARMS_SHOWN)
    assert found["alarms"][0]["id"] == "bad"
    assert f"{report.ALARMS_SHOWN} of {count + 1}" in render(tmp_path, report.PAGE, found)


@pytest.mark.soak
def test_what_a_gateway_wrote_is_text_and_no_markup(tmp_path: Path) -> None:
    documents = []
    for place, text in enumerate(("plain", (EVIL * 60)[:4_096])):
        folder = tmp_path / str(place)
        folder.mkdir()
        window = {"window": 1, "from_ns": AUGUST, "to_ns": SEPTEMBER, "text": text}
        commit(
            folder,
            RecordGateway("north", Status(state="online", version=text[:200]), NOW_NS),
            *make_alarm(text[:200], AUGUST, 1, text=text, rule=text[:200], feature=text),
            AlarmEvent("north", text[:200], "", AUGUST, text, "acknowledge", {"text": text}),
            AlarmEvent("north", text[:200], "", AUGUST, text, "label", {"label": "false"}),
            AlarmEvent("north", "", "", AUGUST, text, "window", window),
        )
        documents.append(render(folder, report.PAGE, read(folder)))
    plain, evil = (Markup(one).elements for one in documents)
    assert plain == evil
    check_headings(documents[1])


def test_alarms_of_a_month_are_found_however_many_came_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgate.cloud_aggregator.web.pages.alarm_list.LISTED_MAX", 3)
    commit(
        tmp_path,
        *make_alarm("a", AUGUST, 2),
        *make_alarm("b", AUGUST + HOUR_NS, 2),
        do("a", "acknowledge", AUGUST + HOUR_NS),
        do("a", "label", AUGUST + HOUR_NS, label="damage"),
        *(one for place in range(9) for one in make_alarm(f"later{place}", SEPTEMBER + place, 1)),
    )
    found = read(tmp_path)
    assert [(one["id"], one["label"], one["acknowledged_by"]) for one in found["alarms"]] == [
        ("a", "damage", "ben"),
        ("b", "", ""),
    ]
    assert found["counts"]["states"] == {"normal": 1, "returned-unacknowledged": 1}
    assert found["alarms_left_out"] == 0


def test_where_not_all_alarms_are_looked_at_it_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(month, "ALARMS_SEARCHED", 4)
    commit(tmp_path, *(one for place in range(9) for one in make_alarm(f"{place}", AUGUST + place, 1)))
    found = read(tmp_path)
    assert (found["alarms_left_out"], found["counts"]["alarms"]) == (5, 4)
    assert {one["id"] for one in found["alarms"]} == {"5", "6", "7", "8"}
    assert "There are 5 alarms more" in render(tmp_path, report.PAGE, found)


def test_it_says_who_was_there(tmp_path: Path) -> None:
    def change(gateway: str, state: Any, day: float) -> RecordPresence:
        t_ns = AUGUST + round(day * DAY_NS)
        return RecordPresence(gateway, state, t_ns, t_ns)

    commit(
        tmp_path,
        change("", "connected", -3),
        change("north", "watching", -2),
        change("north", "offline", 10),
        change("north", "online", 12),
        change("", "disconnected", 21),
        change("south", "online", 29),
        change("", "connected", 30),
    )
    found = read(tmp_path)["availability"]
    day_s = DAY_NS / NS
    assert (found["known_s"], found["unknown_s"]) == (22 * day_s, 9 * day_s)
    north, south = found["gateways"]
    named = ("total_s", "online_s", "offline_s", "unknown_s", "watched_s", "longest_outage_s")
    assert [north[name] / day_s for name in named] == [31, 20, 2, 9, 10, 2]
    assert [south[name] / day_s for name in named] == [2, 1, 0, 1, 0, 0]
    assert (north["outages"], north["longest_outage_ns"]) == (1, AUGUST + 10 * DAY_NS)
    assert found["site"]["online_s"] == 21 * day_s
    text = render(tmp_path, report.PAGE, read(tmp_path))
    assert "2026-08-11 00:00, north" in text and "63.64 %" in text


def test_of_a_service_that_does_not_run_nothing_is_known_since_its_last_sign(tmp_path: Path) -> None:
    beat_ns = SEPTEMBER + DAY_NS
    connected = RecordPresence("", "connected", AUGUST, AUGUST)
    online = RecordPresence("north", "online", AUGUST, AUGUST)
    commit(tmp_path, RecordService(AUGUST, beat_ns, True, AUGUST), connected, online)
    (north,) = read(tmp_path, "2026-09")["availability"]["gateways"]
    assert north["online_s"] == DAY_NS / NS
    assert north["unknown_s"] == (NOW_NS - beat_ns) / NS


def test_where_more_changed_than_is_looked_at_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "ROWS_SEARCHED", 3)
    commit(tmp_path, *(RecordPresence("north", "online", AUGUST + place, AUGUST + place) for place in range(5)))
    found = read(tmp_path)
    assert found["availability"]["is_cut"]
    assert "There were more changes" in render(tmp_path, report.PAGE, found)


def test_trends_are_those_of_days_of_the_month(tmp_path: Path) -> None:
    days = {-1: 9.0, 0: 1.0, 1: 1.0, 3: 5.0, 4: 7.0, 31: 9.0}  # the last is of September
    made = [
        make_summary(AUGUST + day * DAY_NS + hour * HOUR_NS, mean + 2.0 * hour, 0.0)
        for day, mean in days.items()
        for hour in (0, 1)
    ]
    commit(tmp_path, *(RecordSummary("north", f"{place}", one, NOW_NS) for place, one in enumerate(made)))
    found = read(tmp_path)["trends"]
    ((north,), others) = found["gateways"], found["others"]
    (feature,) = north["features"]
    assert (north["gateway"], feature["feature"], others) == ("north", "load.level", [])
    assert (feature["days"], feature["compared_days"]) == (4, 2)
    whole = {"windows": 80, "mean": 4.5, "least": -1.0, "most": 11.0}
    assert {name: feature["whole"][name] for name in whole} == whole
    first, last = feature["first"], feature["last"]
    assert (first["windows"], first["mean"], first["deviation"], last["mean"]) == (40, 2.0, 1.0, 7.0)
    assert feature["moved"] == pytest.approx(5.0)
    mean, low, high = (one["values"] for one in feature["chart"]["series"])
    assert mean == [2.0, 2.0, None, 6.0, 8.0]  # a hole where a day is missing
    assert low == [1.0, 1.0, None, 5.0, 7.0] and high == [3.0, 3.0, None, 7.0, 9.0]
    noons = [(AUGUST + day * DAY_NS + 12 * HOUR_NS) / NS for day in (0, 1, 2, 3, 4)]
    assert feature["chart"]["x"] == noons
    check_headings(render(tmp_path, report.PAGE, read(tmp_path)))


@pytest.mark.soak
def test_of_many_gateways_with_trends_those_with_anomalies_come_first(tmp_path: Path) -> None:
    names = [f"g{place}" for place in range(feature_trends.GATEWAYS_SHOWN + 2)]
    effects = [RecordSummary(name, "a", make_summary(AUGUST), NOW_NS) for name in names]
    commit(tmp_path, *effects, *make_alarm("one", AUGUST, gateway=names[-1]))
    found = read(tmp_path)["trends"]
    assert [one["gateway"] for one in found["gateways"]] == [names[-1], *names[: feature_trends.GATEWAYS_SHOWN - 1]]
    assert found["others"] == names[feature_trends.GATEWAYS_SHOWN - 1 : -1]
    assert f"Those of {len(found['others'])} gateways more" in render(tmp_path, report.PAGE, read(tmp_path))


def test_of_one_day_nothing_has_moved(tmp_path: Path) -> None:
    commit(tmp_path, RecordSummary("north", "a", make_summary(AUGUST), NOW_NS))
    ((feature,),) = (one["features"] for one in read(tmp_path)["trends"]["gateways"])
    assert (feature["days"], feature["compared_days"], feature["moved"]) == (1, 0, None)
    page = render(tmp_path, report.PAGE, read(tmp_path))
    assert "standard deviations of the first" not in page and "-1 and 3 kN." in page and "not synchronised" not in page


def test_trends_of_a_clock_that_was_not_set_are_shown_and_say_so(tmp_path: Path) -> None:
    unset = make_summary(AUGUST + DAY_NS, clock="unsynchronised", windows=7)
    commit(tmp_path, RecordSummary("north", "a", make_summary(AUGUST), NOW_NS), RecordSummary("north", "b", unset, 1))
    ((feature,),) = (one["features"] for one in read(tmp_path)["trends"]["gateways"])
    assert (feature["days"], feature["whole"]["windows"], feature["unsynchronised"]) == (2, 17, 7)
    assert "Of 7 windows the clock of the gateway was not synchronised" in render(tmp_path, report.PAGE, read(tmp_path))


def test_a_gateway_that_floods_its_trends_takes_no_more_than_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_trends, "SUMMARIES_SEARCHED", 5)
    made = [make_summary(AUGUST + place, features=(f"{EVIL[:200]}{place}",)) for place in range(9)]
    commit(tmp_path, *(RecordSummary("north", f"{place}", one, NOW_NS) for place, one in enumerate(made)))
    ((feature,),) = (one["features"] for one in read(tmp_path)["trends"]["gateways"])
    assert feature["whole"]["windows"] == 10  # those that the newest summary names, and no other
    assert EVIL[:20] not in render(tmp_path, report.PAGE, read(tmp_path))


def test_a_month_without_anything_has_a_report(tmp_path: Path) -> None:
    commit(tmp_path)
    text = render(tmp_path, report.PAGE, read(tmp_path))
    assert "Of this month nothing is known: " in text and "data-chart" not in text
    assert " began" not in text and "Known for" not in text and text.count("<td>not known</td>") == 2
    check_headings(text)


def test_a_month_of_which_minutes_are_known_promises_and_counts_for_minutes(tmp_path: Path) -> None:
    """Three minutes of operation: nothing is said of the month."""
    minutes_ns = 180 * NS
    commit(
        tmp_path,
        RecordGateway("north", Status(state="online", promised_alarms_per_day=1.0), NOW_NS),
        *(watch("", "connected"), watch("north", "watching"), *make_alarm("a", AUGUST + NS, 1)),
        watch("", "disconnected", minutes_ns),
    )
    found = read(tmp_path)
    assert found["month"]["known_s"] == 180.0
    assert found["rates"]["per_day"] == pytest.approx(480.0) and found["rates"]["per_10_min"] == pytest.approx(10 / 3)
    assert found["gateways"][0]["promised"] == pytest.approx(180 / DAY_S)
    text = render(tmp_path, report.PAGE, found)
    assert "Known for 3 min of the 31 d;" in text and "1 in the 3 min known" in text and "0.002083 in 3 min" in text
    assert "As far as is known, the gateways were online for 100 % of the time, offline for 0 %." in text


def test_what_was_watched_without_the_service_and_delivered_later_is_known(tmp_path: Path) -> None:
    """Else the alarms of ten days would be divided by one."""
    after_ms = tuple(range(86_400 // 100))
    one = {"after_ms": after_ms, "scores": (1.0,) * len(after_ms), "level": 1.0, "model_version": 1}
    commit(
        tmp_path,
        *(watch("", "connected"), watch("north", "watching"), watch("", "disconnected", 60 * NS)),
        RecordScores("north", "a", Scores(t_ns=AUGUST + HOUR_NS, **one), NOW_NS),
    )
    assert read(tmp_path)["month"]["known_s"] == 60.0 + len(after_ms)  # windows of a second each


def test_alarms_of_a_month_of_which_nothing_else_is_known_are_told(tmp_path: Path) -> None:
    commit(tmp_path, *make_alarm("a", AUGUST, 1))
    text = render(tmp_path, report.PAGE, read(tmp_path))
    assert "Of this month nothing is known but the alarms that came: " in text and "1 alarm began" in text
