"""Goal: a page says of a gateway what the store knows, nothing else, and shows what a gateway wrote as text.

Method: a real store with what a gateway reported; the facts as a program gets them, and the markup as a browser does.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    Durable,
    RecordAlarm,
    RecordEvidence,
    RecordGateway,
    RecordLoss,
    RecordScores,
    RecordService,
    RecordSummary,
    SaveRollout,
)
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages import gateway, gateways
from fedgate.cloud_aggregator.web.pages.orders import WHAT_MAX
from fedgate.cloud_aggregator.web.pages.page import NotThereError
from fedgate.cloud_aggregator.web.pages.score_chart import WINDOWS
from fedgate.config.protocol.evidence import make_trail
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Device, SourceReport, Status
from fedgate.config.protocol.scores import Scores
from fedgate.config.web.status_facts import NOT_RECEIVED
from fedgate.models.time_units import DAY_NS, HOUR_NS, NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.support.batches import make_summary
from tests.support.evidence_samples import make_evidence
from tests.support.page_views import EVIL, NOW_NS, Markup, check_headings, commit, read_facts, render

WATCHING = Status(state="online", model_version=3, baseline_windows=60, baseline_needed=60)
IDENTITY = {"identity": {"folder": "."}}
HELD: Any = {"held_ns": NOW_NS - DAY_NS}


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service have the store, as far as its lock shows."""
    found = "fedgate.cloud_aggregator.storage.sqlite.SqliteDatabase.find_held_since_ns"
    monkeypatch.setattr(found, lambda _self: HELD["held_ns"])


def put(folder: Path, *effects: Durable, status: Status = WATCHING) -> None:
    beat = RecordService(NOW_NS - DAY_NS, NOW_NS, True, NOW_NS - DAY_NS)
    commit(folder, beat, RecordGateway("north", status, NOW_NS - NS), *effects)


def batch(t_ns: int, count: int, model: int = 3) -> Scores:
    return Scores(
        t_ns=t_ns,
        after_ms=tuple(1_000 * place for place in range(count)),
        scores=tuple(float(place) for place in range(count)),
        level=2.0,
        model_version=model,
    )


def read(folder: Path, name: str = "north", tables: Any = None) -> dict[str, Any]:
    return read_facts(folder, gateway.PAGE, tables=tables, gateway=name)


@pytest.mark.parametrize(
    ("more", "sentence", "is_well"),
    [
        ({}, "Online, watches with model 3.", True),
        ({"settling": True}, "Online, lets model 3 see its first windows.", False),
        ({"model_version": 0}, "Online, waits for its first model.", False),
        ({"baseline_windows": 59}, "Online, learns what is normal there: 59 of 60 windows.", True),
        ({"store_problem": "disk-full"}, "Online, watches with model 3; it reports 1 problem.", False),
        ({"clock": "unsynchronised", "link": "x"}, "Online, watches with model 3; it reports 2 problems.", False),
        ({"state": "offline"}, "Offline: nobody watches there as far as the aggregator knows.", False),
    ],
)
def test_one_sentence_says_how_a_gateway_is(
    tmp_path: Path, live: None, more: dict[str, Any], sentence: str, is_well: bool
) -> None:
    put(tmp_path, status=WATCHING.model_copy(update=more))
    found = read(tmp_path)
    assert (found["sentence"], found["is_well"]) == (sentence, is_well)


def test_an_alarm_that_stands_is_in_the_sentence_and_no_other_gateways_is(tmp_path: Path, live: None) -> None:
    one = ALARM.model_copy(update={"onset_ns": NOW_NS - NS, "t_ns": NOW_NS})
    put(tmp_path, *(RecordAlarm(name, one, NOW_NS, NOW_NS - NS) for name in ("north", "south")))
    found = read(tmp_path)
    assert found["sentence"] == "Online, watches with model 3; 1 alarm stands."
    assert [one["gateway"] for one in found["alarms"]] == ["north"]
    assert not found["is_well"]


def test_nobody_knows_how_it_is_while_the_service_stands_still(tmp_path: Path) -> None:
    put(tmp_path)
    assert read(tmp_path)["sentence"].startswith("Nobody knows")


@pytest.mark.parametrize("name", ["south", "all", "<b>", "n" * 999])
def test_who_is_no_gateway_has_no_page(tmp_path: Path, name: str) -> None:
    put(tmp_path)
    with pytest.raises(NotThereError, match="there is no gateway"):
        read(tmp_path, name)


def test_a_promise_counts_for_the_time_that_was_watched_with_the_model(tmp_path: Path) -> None:
    windows = 2 * 86_400  # of a second each
    more = {"model_windows": windows, "model_alarms": 5, "promised_alarms_per_day": 1.5}
    put(tmp_path, status=WATCHING.model_copy(update=more))
    assert read(tmp_path)["promise"] == {"days": 2.0, "promised_per_day": 1.5, "promised": 3.0, "raised": 5}


def test_labels_are_of_the_gateways_own_alarms(tmp_path: Path) -> None:
    effects: list[Durable] = []
    for place, (name, label) in enumerate([("north", "damage"), ("north", "false"), ("south", "false")]):
        one = ALARM.model_copy(update={"id": f"a{place}"})
        effects += [RecordAlarm(name, one, NOW_NS, NOW_NS)]
        effects += [AlarmEvent(name, one.id, "", NOW_NS, "ben", "label", {"label": label})]
    put(tmp_path, *effects)
    assert read(tmp_path)["labels"] == {"damage": 1, "work": 0, "sensor": 0, "weather": 0, "false": 1, "precision": 0.5}


def test_scores_are_drawn_in_their_time_with_holes_where_windows_are_missing(tmp_path: Path) -> None:
    first_ns = NOW_NS - HOUR_NS
    evidence = make_evidence(windows=3).model_copy(update={"alarm": "b"})
    assert evidence.trail is not None
    trail = evidence.trail.model_copy(update={"first_ns": first_ns - 60 * NS})
    effects = (
        RecordScores("north", "b", batch(first_ns + 600 * NS, 2), NOW_NS),
        RecordScores("north", "a", batch(first_ns, 3), NOW_NS),
        RecordScores("north", "old", batch(5, 4), NOW_NS),  # of a clock that was never set
        RecordScores("south", "a", batch(first_ns, 9), NOW_NS),
        RecordEvidence("north", evidence.model_copy(update={"trail": trail}), NOW_NS),
    )
    put(tmp_path, *effects)
    chart = read(tmp_path)["chart"]
    scores = [None if one is None else round(one, 6) for one in chart["series"][0]["values"]]
    assert scores == [0.0, 0.1, 0.2, None, 0.0, 1.0, 2.0, None, 0.0, 1.0]
    assert chart["x"] == sorted(chart["x"]) and chart["x"][-1] == (first_ns + 601 * NS) / NS
    assert chart["out_of_time"] == 4


def test_no_more_scores_are_drawn_than_a_browser_takes(tmp_path: Path) -> None:
    put(tmp_path, *(RecordScores("north", f"{b}", batch(NOW_NS - b * HOUR_NS, 900), NOW_NS) for b in range(9, 0, -1)))
    drawn = read(tmp_path)["chart"]
    assert sum(one is not None for one in drawn["series"][0]["values"]) == WINDOWS
    assert drawn["x"][-1] == (NOW_NS - HOUR_NS) / NS + 899  # the newest


def test_the_features_that_it_published_are_drawn_by_day(tmp_path: Path) -> None:
    days = [NOW_NS - day * DAY_NS for day in (40, 3, 2)]
    put(tmp_path, *(RecordSummary("north", f"{t_ns}", make_summary(t_ns), NOW_NS) for t_ns in days))
    (feature,) = read(tmp_path)["features"]
    assert (feature["days"], feature["whole"]["windows"]) == (2, 20)  # of the last month
    assert "Features, the last month" in render(tmp_path, gateway.PAGE, read(tmp_path))


def test_without_scores_nothing_is_drawn(tmp_path: Path) -> None:
    put(tmp_path)
    facts = read(tmp_path)
    assert facts["chart"] is None
    assert "data-chart" not in render(tmp_path, gateway.PAGE, facts)


def test_sensors_are_shown_with_what_is_known_of_them(tmp_path: Path) -> None:
    fault = ALARM.model_copy(update={"cause": "faulty-load", "kind": "sensor", "text": "load is stuck"})
    evidence = make_evidence("load")
    status = WATCHING.model_copy(update={"values_filled": {"load": 7, "wind": 1}})
    put(tmp_path, RecordAlarm("north", fault, NOW_NS, 1), RecordEvidence("north", evidence, NOW_NS - 9), status=status)
    load, wind = read(tmp_path)["channels"]
    assert load == {
        **{"channel": "load", **NOT_RECEIVED, "filled": 7, "fault": "load is stuck"},
        **{"outside": 0, "features": 0, "seen_ns": NOW_NS - 9},
    }
    assert wind == {
        "channel": "wind",
        **NOT_RECEIVED,
        "filled": 1,
        "fault": None,
        "outside": None,
        "features": None,
        "seen_ns": None,
    }


def test_orders_about_it_are_found_by_alarm_and_by_name(tmp_path: Path) -> None:
    put(tmp_path)
    with closing(Store(tmp_path / "aggregator.db")) as store:
        for kind, body in (
            ("alarm", {"action": "note", "alarms": ["north/a", "south/b"], "text": "seen", "who": "ada"}),
            ("alarm", {"action": "note", "alarms": ["northern/a"], "who": "ada"}),
            ("release", {"gateways": ["south", "north"], "share": 0.0, "who": "bob"}),
            ("action:plc", {"gateway": "north", "request": "7", "action": "window"}),
            ("samples", {"alarms": "x" * 9_999, "gateway": "north"}),
        ):
            store.order(kind, body)
    found = read(tmp_path)["orders"]
    assert [(one["number"], one["who"], one["state"]) for one in found] == [
        *((5, "", "waits"), (4, "plc", "waits"), (3, "bob", "waits"), (1, "ada", "waits")),
    ]
    assert found[1]["kind"] == "action" and "request" not in found[1]["what"]
    assert len(found[0]["what"]) == WHAT_MAX + 1


def test_certificates_say_until_when_they_count(tmp_path: Path) -> None:
    def make(serial: str, days: int, **more: Any) -> Certificate:
        return Certificate(serial, "north", "k", NOW_NS - DAY_NS, NOW_NS + days * DAY_NS, **more)

    over = make("a1", 3, reason="replaced", ended_ns=NOW_NS)
    put(tmp_path, RecordRegistry((over, make("b2", 13))))
    found = read(tmp_path, tables=IDENTITY)["certificates"]
    assert [(one["serial"], one["reason"], one["is_due"]) for one in found] == [
        ("b2", "", True),
        ("a1", "replaced", False),
    ]


@pytest.mark.parametrize(
    ("role", "reason", "tables", "is_there"),
    [
        ("admin", "", IDENTITY, True),
        ("operator", "", IDENTITY, False),
        ("admin", "revoked", IDENTITY, False),
        ("admin", "", None, False),
    ],
)
def test_an_admin_may_shut_out_who_is_in(
    tmp_path: Path, role: Any, reason: Any, tables: dict[str, Any] | None, is_there: bool
) -> None:
    one = Certificate("a1", "north", "k", 1, NOW_NS + DAY_NS, reason)
    put(tmp_path, RecordRegistry((one,)))
    facts = read(tmp_path, tables=tables)
    assert facts["can_be_revoked"] == (is_there or role == "operator")
    text = render(tmp_path, gateway.PAGE, facts, role)
    assert ('action="/orders/revoke"' in text) == is_there
    assert ('name="typed"' in text and 'name="password"' in text) == is_there


def test_who_was_let_in_and_has_never_spoken_has_a_page(tmp_path: Path, live: None) -> None:
    put(tmp_path, RecordRegistry((Certificate("a1", "west", "k", 1, NOW_NS + DAY_NS),)))
    facts = read(tmp_path, "west", IDENTITY)
    assert facts["sentence"] == "Enrolled, and has never spoken."
    check_headings(render(tmp_path, gateway.PAGE, facts))


@pytest.mark.parametrize(
    ("stage", "role"),
    [
        ({"stage": "watching", "canaries": ["north"]}, "It is a canary of model 4 (watching)."),
        ({"stage": "watching", "canaries": ["south"]}, ""),
        ({"stage": "everywhere", "canaries": ["north"]}, ""),
        (
            {"stage": "stopped", "recalled": ["north"], "recall": 5},
            "It was given back what all have, as model 5: model 4 was stopped.",
        ),
    ],
)
def test_a_canary_is_called_one(tmp_path: Path, stage: dict[str, Any], role: str) -> None:
    body = {"rollout": {"canaries": [], "recalled": [], "version": 4, **stage}, "everywhere": 3}
    put(tmp_path, SaveRollout(json.dumps(body).encode(), NOW_NS))
    assert read(tmp_path)["release"] == role


def make_everything(text: str, name: str) -> tuple[Status, list[Durable]]:
    """Return what a gateway may report, with a text and a name wherever one may stand."""
    status = Status(
        state="online",
        version=name,
        libraries=(name,),
        values_filled={name[:100]: 1},
        dropped={name: 2},
        rejected={name: text},
        refusal=text,
        training_remarks=text,
        link=text,
        store_problem=text,
        stale=text,
        device=Device(manufacturer=text, model=text, serial=text, location=text, category=name),
        model_version=3,
        probation_s=3.0,
    )
    alarm = ALARM.model_copy(update={"text": text, "id": name, "cause": "a", "feature": text})
    window = {"window": 1, "from_ns": 1, "to_ns": NOW_NS, "text": text}
    effects: list[Durable] = [
        RecordAlarm("north", alarm, NOW_NS, 1),
        RecordLoss(
            "north", Tombstone(id=name, kind="alarm", items=1, size_bytes=1, first_ns=1, last_ns=2, why=()), NOW_NS
        ),
        AlarmEvent("north", "", "", 1, text, "window", window),
        AlarmEvent("north", "", text, 1, text, "out-of-service"),
        RecordScores("north", name, batch(NOW_NS, 2), NOW_NS),
        RecordEvidence("north", make_evidence(name[:100]), NOW_NS),
        RecordSummary("north", "s", make_summary(NOW_NS - DAY_NS, features=(name[:200],)), NOW_NS),
    ]
    return status, effects


@pytest.mark.soak
@pytest.mark.parametrize("page", [gateway.PAGE, gateways.PAGE])
def test_what_a_gateway_wrote_is_text_and_no_markup(tmp_path: Path, page: Any) -> None:
    documents = []
    for place, (text, name) in enumerate([("plain", "plain"), ((EVIL * 60)[:4_096], (EVIL * 3)[:256])]):
        folder = tmp_path / str(place)
        folder.mkdir()
        status, effects = make_everything(text, name)
        put(folder, *effects, status=status)
        with closing(Store(folder / "aggregator.db")) as store:
            store.order("alarm", {"alarms": ["north/x"], "text": text, "who": text})
        documents.append(render(folder, page, read_facts(folder, page, gateway="north")))
    plain, evil = (Markup(one).elements for one in documents)
    assert plain == evil
    assert "\u202e" not in documents[1]


def test_the_list_is_chosen_by_state_and_name(tmp_path: Path, live: None) -> None:
    put(tmp_path, *(RecordGateway(f"Deck-{n}", Status(state="offline"), NOW_NS) for n in range(120)))
    facts = read_facts(tmp_path, gateways.PAGE, state="offline", name="deck-1", first="10")
    assert (facts["count"], len(facts["gateways"]), facts["next"], facts["before"]) == (31, 21, None, 0)
    assert facts["counts"] == {"offline": 120, "online": 1}
    every = read_facts(tmp_path, gateways.PAGE)
    assert (every["count"], len(every["gateways"]), every["next"]) == (121, 100, 100)
    text = render(tmp_path, gateways.PAGE, facts)
    assert 'href="/gateways/Deck-1' in text and "first=0" in text
    check_headings(text)


def test_its_page_has_its_headings_in_order(tmp_path: Path) -> None:
    status, effects = make_everything("text", "name")
    put(tmp_path, *effects, status=status)
    check_headings(render(tmp_path, gateway.PAGE, read(tmp_path)))


def test_the_newest_scores_are_those_of_the_last_status(tmp_path: Path) -> None:
    trail = make_trail([(NOW_NS - (9 - place) * NS, float(place), 4.0) for place in range(9)])
    put(tmp_path, status=WATCHING.model_copy(update={"trail": trail}))
    score, level = read(tmp_path)["chart"]["series"]
    assert score["values"] == list(map(float, range(9))) and level["values"] == [4.0] * 9


def test_sensors_are_shown_as_the_last_status_had_them(tmp_path: Path) -> None:
    sources = {
        EVIL: SourceReport(age_s=0.4, rate_hz=100.0, channels=("load", EVIL), units=("kN", EVIL), values=(210.6, None)),
        "idle": SourceReport(age_s=None, rate_hz=None, channels=("wind",)),
    }
    put(tmp_path, status=WATCHING.model_copy(update={"sources": sources}))
    facts = read(tmp_path)
    load, other, idle = (one for one in facts["channels"] if one["channel"] in ("load", EVIL, "wind"))
    assert (load["value"], load["unit"], load["rate_hz"], load["age_s"]) == (210.6, "kN", 100.0, 0.4)
    assert (other["value"], other["source"]) == (None, EVIL)
    assert (idle["source"], idle["age_s"], idle["value"]) == ("idle", None, None)
    markup = render(tmp_path, gateway.PAGE, facts)
    assert "210.6 kN" in markup and "100 Hz" in markup
    assert EVIL not in markup
