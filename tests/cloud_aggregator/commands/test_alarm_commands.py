"""Goal: an operator finds an alarm by what is known of it, does what is to be done, and sees what became of it.

Method: real commands on a store; a service takes the orders between two of them, as one that was started does.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.alarms import rates
from fedgate.cloud_aggregator.commands import store as command_store
from fedgate.cloud_aggregator.events import AlarmEvent, RecordAlarm, RecordEvidence, RecordFetch, RecordFetched, Tick
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.samples import encode_clip
from fedgate.config.runtime import times
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.models.time_units import DAY_NS, HOUR_NS, NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.support.clip_samples import make_clip, make_pieces
from tests.support.evidence_samples import make_evidence
from tests.support.sites import KEY

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A site with alarms: two that stand and one that is over."""
    monkeypatch.setattr(command_store, "WAIT_S", 0.0)
    monkeypatch.setenv("SUDO_USER", "ann")
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback"]) == 0
    capsys.readouterr()
    now_ns = time.time_ns()
    with closing(Store(tmp_path / "site/aggregator.db")) as store:
        for gateway, cause, ago_h, state in (
            ("north", "anomaly", 30, "raised"),
            ("north", "faulty-load", 2, "raised"),
            ("south", "anomaly", 3, "raised"),
            ("south", "anomaly", 3, "cleared"),
        ):
            onset_ns = now_ns - ago_h * HOUR_NS
            told = {"id": f"{gateway}.{cause}.{ago_h}", "cause": cause, "state": state, "rule": "score"}
            one = ALARM.model_copy(update=told | {"onset_ns": onset_ns, "t_ns": onset_ns + NS})
            store.commit([RecordAlarm(gateway, one, onset_ns, onset_ns)])
    return tmp_path / "site"


@pytest.fixture
def say(folder: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    def run(words: str, *more: str) -> tuple[int, str, str]:
        code = cloud_aggregator([*shlex.split(words), *more, "-c", str(folder / "aggregator.toml")])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def serve(folder: Path) -> list[tuple[str, str]]:
    """Let a service carry out what waits, and return what became of all orders."""
    settings = load(folder / "aggregator.toml", AggregatorSettings)
    store, now_ns = Store(folder / "aggregator.db", program="aggregator"), time.time_ns()
    with closing(Service(settings, store, KEY, uptime_ns=now_ns, anchor_ns=0, beginning="one")) as service:
        for order in service.read_orders():
            service.step_all(now_ns, [order])
        service.step_all(now_ns, [Tick()])
        return [(row["answer"], row["problem"]) for row in store.read_rows("orders")]


def listed(say: Say, words: str = "alarms") -> dict[str, Any]:
    """Return the states of the alarms that are listed, by their ids."""
    code, out, err = say(words, "--json")
    assert code == 0, err
    return {row["id"]: row["state"] for row in json.loads(out)}


@pytest.mark.soak
def test_alarms_are_listed_by_what_is_asked_for(say: Say) -> None:
    everything = {
        "north.anomaly.30": "unacknowledged",
        "south.anomaly.3": "returned-unacknowledged",
        "north.faulty-load.2": "unacknowledged",
    }
    assert listed(say) == listed(say, "alarms list") == everything
    assert list(listed(say)) == list(everything)  # the newest last
    assert listed(say, "alarms --active").keys() == {"north.anomaly.30", "north.faulty-load.2"}
    assert listed(say, "alarms list --gateway south").keys() == {"south.anomaly.3"}
    assert listed(say, "alarms --since 4h").keys() == {"south.anomaly.3", "north.faulty-load.2"}
    assert listed(say, "alarms list --state returned-unacknowledged --active") == {}
    assert "unacknowledged" in say("alarms")[1].splitlines()[1]


@pytest.mark.soak
def test_an_alarm_is_handled_and_shown_with_who_did_what(folder: Path, say: Say) -> None:
    code, out, _ = say("alarms ack north/anomaly south.an --note 'crew is on its way'")
    assert code == 0 and "order 1 waits" in out
    over = "south/south.anomaly.3: acknowledged; it is over, and normal"
    assert serve(folder)[0] == (f"north/north.anomaly.30: acknowledged\n{over}", "")
    for words in (
        "alarms label north/anomaly damage",
        "alarms note north/anomaly 'a bearing'",
        "alarms assign north/anomaly --to bob --who eve",
        "alarms shelve north/faulty-load --for 2h",
        "alarms out-of-service south anomaly",
    ):
        assert say(words)[0] == 0
    assert {problem for _, problem in serve(folder)} == {""}
    states = {"north.anomaly.30": "acknowledged", "south.anomaly.3": "normal", "north.faulty-load.2": "shelved"}
    assert listed(say) == states
    shown = json.loads(say("alarms show north/anomaly", "--json")[1])
    assert (shown["label"], shown["assignee"], shown["acknowledged_by"]) == ("damage", "bob", "ann")
    done = [(event["who"], event["what"]) for event in shown["history"]]
    assert done == [("ann", "acknowledge"), ("ann", "label"), ("ann", "note"), ("eve", "assign")]
    text = say("alarms show north/anomaly")[1]
    assert "north/north.anomaly.30: acknowledged" in text and "crew is on its way" in text
    assert "eve  assigned to bob" in text and "ann  labelled damage" in text
    shelved = json.loads(say("alarms show north/faulty-load", "--json")[1])
    assert (
        shelved["shelved_until"] and f"shelved until: {shelved['shelved_until']}" in say("alarms show north.faulty")[1]
    )
    assert say("alarms unshelve north/faulty-load")[0] == say("alarms in-service south anomaly")[0] == 0
    serve(folder)
    assert listed(say)["north.faulty-load.2"] == "unacknowledged"
    assert json.loads(say("alarms show north/faulty-load", "--json")[1])["shelved_until"] == ""
    assert "alarms=north/north.faulty-load.2" in say("orders --all")[1]


def test_orders_that_make_no_sense_are_listed_as_they_can_be_shown(folder: Path, say: Say) -> None:
    with closing(Store(folder / "aggregator.db")) as store:
        for body in ({"alarms": [7]}, {"alarms": ["x"], "text": "\u202egnissim \x1b[2J"}):
            store.order("alarm", {"action": "acknowledge", "who": "ann", **body})
    serve(folder)
    code, out, _ = say("orders")
    assert code == 0 and "alarms=7" in out and "gnissim" in out and not {"\u202e", "\x1b"} & set(out)


@pytest.mark.soak
def test_an_alarm_that_only_the_store_remembers_can_be_labelled(folder: Path, say: Say) -> None:
    """Of a cause the service holds the newest only."""
    now_ns = time.time_ns()
    with closing(Store(folder / "aggregator.db")) as store:
        for number in range(12):
            for state in ("raised", "cleared"):
                told = {"id": f"many.{number}", "cause": "many", "state": state, "t_ns": number + 1, "onset_ns": number}
                store.commit([RecordAlarm("north", ALARM.model_copy(update=told), now_ns + number, now_ns + number)])
    say("alarms label north/many.0 work")
    assert serve(folder) == [("north/many.0: label work", "")]
    say("alarms label north/many.0 work")
    assert serve(folder)[-1] == ("north/many.0: has the label work already", "")
    assert len(json.loads(say("alarms show north/many.0", "--json")[1])["history"]) == 1
    say("alarms shelve north/many.0")
    assert "it is over" in serve(folder)[-1][1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "alarms ack nothing",
            "'nothing' given; expected the beginning of an id, or GATEWAY/CAUSE (these stand: north/",
        ),
        ("alarms show north", "'north' given, with which 2 alarms begin: north/north.anomaly.30, north/north.faulty"),
        ("alarms ack ''", "'' given; expected the beginning of an id"),
        ("alarms rates --days 0", "--days: expected more than 0, got 0"),
        ("alarms rates --days nan", "--days: expected more than 0, got nan"),
    ],
)
def test_what_cannot_be_is_named_with_what_can(say: Say, words: str, told: str) -> None:
    code, out, err = say(words)
    assert code == 2 and told in err and out == ""


def test_a_refused_action_says_so(folder: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    say("alarms shelve north/anomaly --for 9d")
    assert serve(folder) == [("refused", "north/north.anomaly.30: for: expected 1 minute to 7 days, got 777600 s")]
    monkeypatch.setattr(Store, "answer", lambda self, number: ("refused", "no"))
    code, _, err = say("alarms ack north/anomaly")
    assert code == 1 and err == "cloud-aggregator: no\n"


@pytest.mark.parametrize("words", ["alarms", "alarms ack north/anomaly", "alarms list", "maintenance list"])
def test_the_settings_are_asked_for(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cloud_aggregator(shlex.split(words))
    assert "the following arguments are required: -c/--config" in capsys.readouterr().err


@pytest.mark.soak
def test_maintenance_is_listed_and_ended(folder: Path, say: Say) -> None:
    assert say("maintenance add --all --to 2099-01-01T00:00+00:00 --why works")[0] == 0
    assert "a window of at most 31 days" in serve(folder)[0][1]
    later = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 3_600))
    assert say(f"maintenance add --gateway north --from now --to {later} --why 'new bearings'")[0] == 0
    serve(folder)
    (row,) = json.loads(say("maintenance list", "--json")[1])
    assert (row["number"], row["gateway"], row["state"], row["who"]) == (1, "north", "at hand", "ann")
    assert [row["mask"] for row in json.loads(say("alarms masks", "--json")[1])] == ["maintenance"]
    assert say("maintenance end 1")[0] == 0 and serve(folder)[-1] == ("maintenance window 1 ended", "")
    assert json.loads(say("maintenance list", "--json")[1])[0]["state"] == "over"


@pytest.mark.parametrize(
    ("given", "begins_s", "ends_s"),
    [
        ("--to 3m", 0, 180),
        ("--from now --to 3m", 0, 180),
        ("--from 2h --to 3h", 7_200, 18_000),
        ("--from 2h --to 2d", 7_200, 180_000),
    ],
)
def test_a_duration_of_a_window_looks_ahead_from_now_or_from_its_beginning(
    folder: Path, say: Say, given: str, begins_s: float, ends_s: float
) -> None:
    before_s = time.time()
    assert say(f"maintenance add --all {given} --why storm")[0] == 0
    with closing(Store(folder / "aggregator.db")) as store:
        body = store.read_orders()[0].body
    assert before_s <= body["from_s"] - begins_s <= time.time() and body["to_s"] - body["from_s"] == ends_s - begins_s


def test_what_a_moment_may_be_is_taught_and_what_it_is_not_refused(
    say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        say("maintenance add --all --to soon --why storm")
    assert "'soon' given; expected a time such as 2026-05-04T08:00" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cloud_aggregator(["maintenance", "add", "--help"])
    told = capsys.readouterr().out
    assert "--from now --to 3h" in told and "--to 3h ends three hours after the beginning" in told


@pytest.mark.soak
def test_what_calls_nobody_is_listed(folder: Path, say: Say) -> None:
    assert "nothing is shelved" in say("alarms masks")[1] and json.loads(say("alarms masks", "--json")[1]) == []
    for words in (
        "alarms shelve north/faulty-load --for 2h --note 'a cable'",
        "alarms out-of-service south silent-load --note removed --who eve",
        "maintenance add --gateway south --from 1h --to 1h --why later",
    ):
        assert say(words)[0] == 0
    assert {problem for _, problem in serve(folder)} == {""}
    found = json.loads(say("alarms masks", "--json")[1])
    assert [(row["mask"], row["gateway"], row["of"], row["who"], row["why"]) for row in found] == [
        ("shelved", "north", "faulty-load", "ann", "a cable"),
        ("out-of-service", "south", "silent-load", "eve", "removed"),
    ]
    assert [bool(row["until"]) for row in found] == [True, False] and "a cable" in say("alarms masks")[1]
    say("alarms unshelve north/faulty-load")
    say("alarms in-service south silent-load")
    serve(folder)
    assert json.loads(say("alarms masks", "--json")[1]) == []


def test_only_what_touches_an_alarm_is_told_of_it_in_plain_words(folder: Path, say: Say) -> None:
    now_ns = time.time_ns()
    with closing(Store(folder / "aggregator.db")) as store:
        for number, (gateway, begins_h, ends_h, why) in enumerate(
            [("south", -10, -8, "long before"), ("all", -4, -2, "painting"), ("south", -2, 1, "paint dries"),
             ("north", -4, -2, "elsewhere"), ("south", 2, 3, "to come")], start=1
        ):  # fmt: skip
            times = {"from_ns": now_ns + begins_h * HOUR_NS, "to_ns": now_ns + ends_h * HOUR_NS}
            body = {"window": number, **times, "text": why}
            store.commit([AlarmEvent(gateway, "", "", now_ns - 11 * HOUR_NS, "ann", "window", body)])
        for at_h, kind in ((-9, "out-of-service"), (-8, "in-service"), (-2, "out-of-service"), (0, "in-service")):
            for gateway in ("south", "north"):
                store.commit([AlarmEvent(gateway, "", "anomaly", now_ns + at_h * HOUR_NS, "ann", kind)])
        suppressed = AlarmEvent("south", "south.anomaly.3", "", now_ns - 3 * HOUR_NS, "", "suppress")
        store.commit([replace(suppressed, body={"is_notified": False, "by": "suppressed"})])
    text = say("alarms show south/anomaly")[1]
    assert "painting" in text and "paint dries" in text and "nobody is called (maintenance)" in text
    assert not [word for word in ("long before", "elsewhere", "to come", "is_notified", "=") if word in text]
    assert "taken out of service" not in text  # that was before it and after it
    assert "taken out of service" in say("alarms show north/anomaly")[1]


@pytest.mark.soak
def test_the_list_fits_a_terminal_and_its_names_are_those_of_alarms(folder: Path, say: Say) -> None:
    now_ns = time.time_ns()
    with closing(Store(folder / "aggregator.db")) as store:
        for gateway, cause, at_ns in (
            ("gateway-12", "faulty-vertical", now_ns),
            ("gateway-12", "faulty-vertical", now_ns + NS),
            ("gateway-12", "anomaly", now_ns),
            ("a", "anomaly", now_ns),
            ("a", "anomaly", now_ns + 1),  # which the digits that are usually shown do not tell apart
        ):
            name = f"{gateway}.{cause}.{at_ns}.0f8fad5b-d9cb-469f-a165-70867728950e"
            for state in ("raised", "cleared"):
                told = {"id": name, "cause": cause, "state": state, "onset_ns": at_ns, "t_ns": at_ns + NS}
                store.commit([RecordAlarm(gateway, ALARM.model_copy(update=told), at_ns, at_ns)])
    assert say("alarms assign north/anomaly --to 'somebody with a long name'")[0] == 0
    serve(folder)
    lines = say("alarms")[1].splitlines()
    assert max(map(len, lines)) <= 120 and "score_of" in say("alarms --wide")[1]
    for name, row in zip([line.split()[0] for line in lines[1:]], json.loads(say("alarms", "--json")[1]), strict=True):
        assert json.loads(say(f"alarms show {name}", "--json")[1])["id"] == row["id"]
        assert json.loads(say(f"alarms show {row['gateway']}/{name}", "--json")[1])["id"] == row["id"]


def test_a_clock_that_is_wrong_and_an_alarm_that_came_late_are_told_with_both_times(folder: Path, say: Say) -> None:
    came_ns = time.time_ns() - HOUR_NS
    told = {"id": "north.silent.1", "cause": "silent", "onset_ns": 5 * NS, "t_ns": 6 * NS, "clock": "unsynchronised"}
    late = {"id": "north.late.1", "cause": "late", "onset_ns": came_ns - 2 * HOUR_NS, "t_ns": came_ns - HOUR_NS}
    with closing(Store(folder / "aggregator.db")) as store:
        store.commit([RecordAlarm("north", ALARM.model_copy(update=told), came_ns, came_ns)])
        store.commit([RecordAlarm("north", ALARM.model_copy(update=late), came_ns, came_ns - 2 * HOUR_NS)])
    arrival = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(came_ns / NS))
    text = say("alarms show north/silent")[1]
    assert f"began: {arrival}, as far as it can be believed" in text
    assert "onset: 1970-01-01T00:00:05+00:00 by the clock of its gateway, which is not synchronised" in text
    assert f"received: {arrival}" in say("alarms show north/late")[1]
    assert "received" not in say("alarms show north/anomaly")[1]
    marked = [line for line in say("alarms")[1].splitlines() if "?" in line]
    assert (
        marked[0].startswith("north.silent.1 ")
        and "the clock of its gateway is wrong" in marked[1]
        and len(marked) == 2
    )


def test_a_score_is_told_as_what_it_is(folder: Path, say: Say) -> None:
    with closing(Store(folder / "aggregator.db")) as store:
        for state, score in (("raised", 3.0), ("cleared", 9.0)):
            told = {"id": "north.over.1", "cause": "over", "state": state, "score": score, "level": 2.0}
            store.commit([RecordAlarm("north", ALARM.model_copy(update=told), 1, 1)])
        told |= {"id": "north.standing.1", "cause": "standing", "state": "raised"}
        store.commit([RecordAlarm("north", ALARM.model_copy(update=told), 1, 1)])
    assert "score: 9, its peak" in say("alarms show north/over")[1]
    assert "score: 9, the highest until it was raised" in say("alarms show north/standing")[1]
    assert json.loads(say("alarms show north/over", "--json")[1])["score_of"] == "peak"


def test_rates_are_those_of_a_plain_count() -> None:
    now_ns = 10 * DAY_NS
    onsets = [*(DAY_NS * day for day in range(10)), *(5 * DAY_NS + 60 * NS * minute for minute in range(1, 15))]
    facts = [rates.Fact("a", "anomaly", "score", onset, onset == 0, "normal", "") for onset in onsets]
    labels = ("damage", "damage", "damage", "false", "work", "sensor")
    facts += [rates.Fact("b", "anomaly", "slow", 9 * DAY_NS + HOUR_NS, True, "shelved", label) for label in labels]
    facts.append(rates.Fact("c", "anomaly", "score", 9 * DAY_NS, False, "normal", "work"))
    found = rates.measure(facts, now_ns, 9 * DAY_NS)
    assert found["alarms"] == len([one for one in facts if one.onset_ns >= DAY_NS])
    assert found["per_day"] == found["alarms"] / 9 and found["per_10_min"] == found["alarms"] / (9 * 144)
    starts = [one.onset_ns for one in facts]
    assert found["peak_per_10_min"] == max(sum(at <= one < at + 600 * NS for one in starts) for at in starts) == 10
    assert (found["standing"], found["standing_over_24_h"], found["states"]["shelved"]) == (7, 1, 6)
    assert [(one["gateway"], one["alarms"]) for one in found["sources"]] == [("a", 23), ("b", 6), ("c", 1)]
    assert found["precision"] == [
        {
            "gateway": "b",
            "rule": "slow",
            "precision": 0.75,
            "damage": 3,
            "work": 1,
            "sensor": 1,
            "weather": 0,
            "false": 1,
        },
        {
            "gateway": "c",
            "rule": "score",
            "precision": None,
            "damage": 0,
            "work": 1,
            "sensor": 0,
            "weather": 0,
            "false": 0,
        },
    ]
    assert rates.measure([], now_ns, DAY_NS)["peak_per_10_min"] == 0


def test_an_alarm_is_found_by_when_it_began_and_not_by_a_clock_that_was_never_set(folder: Path, say: Say) -> None:
    now_ns = time.time_ns()
    told = {"id": "north.silent.1", "cause": "silent", "state": "raised", "onset_ns": 5 * NS, "t_ns": 6 * NS}
    with closing(Store(folder / "aggregator.db")) as store:
        store.commit([RecordAlarm("north", ALARM.model_copy(update=told), now_ns, now_ns - HOUR_NS)])
    assert list(listed(say, "alarms --active --since 4h")) == ["north.faulty-load.2", "north.silent.1"]


def test_no_option_is_ignored(say: Say) -> None:
    assert [row["gateway"] for row in json.loads(say("alarms --gateway south --json")[1])] == ["south"]
    for words in ("alarms --active rates", "alarms rates --active", "alarms --json show north/anomaly"):
        with pytest.raises(SystemExit):
            say(words)


def test_what_an_alarm_rests_on_is_shown_with_it(folder: Path, say: Say) -> None:
    evidence = make_evidence().model_copy(update={"alarm": "north.anomaly.30"})
    with closing(Store(folder / "aggregator.db")) as store:
        store.commit([RecordEvidence("north", evidence, time.time_ns())])
    assert json.loads(say("alarms show north/anomaly", "--json")[1])["evidence"] == evidence.model_dump(mode="json")
    assert "healthy windows" in say("alarms show north/anomaly")[1]
    assert json.loads(say("alarms show north/faulty-load", "--json")[1])["evidence"] is None


def test_a_user_without_a_name_runs_everything_but_what_needs_one(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a number for a user."""

    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setattr("getpass.getuser", fail)
    assert say("alarms")[0] == 0
    assert "--who: this user has no login name; give one" in say("alarms ack north/anomaly")[2]
    assert say("alarms ack north/anomaly --who ann")[0] == 0


def test_samples_of_a_sensor_alarm_are_refused_at_once(folder: Path, say: Say) -> None:
    sensor = ALARM.model_copy(update={"id": "north.silent.1", "cause": "silent-deck", "kind": "sensor"})
    with closing(Store(folder / "aggregator.db")) as store:
        store.commit([RecordAlarm("north", sensor, sensor.t_ns, sensor.t_ns)])
    code, _, err = say("samples fetch north/silent-deck")
    assert code != 0 and "it is a sensor alarm; a gateway keeps the samples around anomalies alone" in err
    say("samples fetch north/anomaly")
    assert len(serve(folder)) == 1


@pytest.mark.parametrize("ending", ["csv", "mseed"])
def test_exported_samples_are_private_and_overwrite_nothing(ending: str, folder: Path, say: Say) -> None:
    body = encode_clip(make_clip(*make_pieces(np.zeros((4, 1), np.float32), 0.0), alarm="north.anomaly.30"))
    asked = RecordFetch("north", "north.anomaly.30", 1)
    fetched = RecordFetched("north", "north.anomaly.30", 2, body=body, bounds=(10**6, 10**6))
    with closing(Store(folder / "aggregator.db")) as store:
        store.commit([asked, fetched])
    file, words = folder / f"alarm.{ending}", f"samples export north/anomaly --output {folder}/alarm.{ending}"
    file.write_text("mine")
    code, _, err = say(words)
    assert code != 0 and "give --replace to overwrite it" in err and file.read_text() == "mine"
    assert say(f"{words} --replace")[0] == 0
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_bytes() != b"mine"


def test_rates_are_shown(folder: Path, say: Say) -> None:
    say("alarms label north/anomaly false")
    serve(folder)
    text = say("alarms rates")[1]
    assert "3 alarms in 30 days: 0.1 a day, at most 1 within 10 minutes; 2 stand, 1 of them for more" in text
    assert json.loads(say("alarms rates", "--json")[1])["precision"][0]["precision"] == 0.0


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("30m", 1_800.0), ("1.5h", 5_400.0), ("2d", 172_800.0)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert times.read_duration_s(text) == seconds
    assert abs(times.read_moment_ns(text) - (time.time_ns() - seconds * NS)) < 60 * NS


@pytest.mark.parametrize("text", ["", "8", "-1h", "8 h", "h", "1e3s", "yesterday", "2026-13-01", "9999999999999h"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    for read in (times.read_duration_s, times.read_moment_ns, times.read_coming):
        with pytest.raises(argparse.ArgumentTypeError, match=r"given; expected a"):
            read(text)
