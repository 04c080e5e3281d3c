"""Goal: the page of an alarm says under which maintenance it fell, how old it is, and what came behind its evidence."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    RecordAlarm,
    RecordEvidence,
    RecordFetch,
    RecordFetched,
    RecordFleet,
    RecordGateway,
)
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages import alarm, overview
from fedgate.cloud_aggregator.web.pages.alarm import BESIDE_SHOWN
from fedgate.cloud_aggregator.web.pages.alarm_list import AlarmList
from fedgate.config.evidence.text import render_evidence
from fedgate.config.protocol.evidence import BandChange, ChannelHealth, make_trail
from fedgate.config.protocol.messages import Alarm, FleetAlarm, Status
from fedgate.config.protocol.samples import encode_clip
from fedgate.config.protocol.topics import ALL
from fedgate.config.web.charts import BEFORE_SHOWN, Facts, describe_evidence
from fedgate.config.web.formats import show_ago, show_time
from fedgate.models.time_units import DAY_NS, HOUR_NS, NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.config.evidence.test_likely_cause import DOWN, FAR, Case, make_case
from tests.support.clip_samples import make_clip, make_pieces
from tests.support.evidence_samples import make_evidence
from tests.support.page_views import EVIL, NOW_NS, commit, read_facts, render

ONSET_NS, END_NS = NOW_NS - 5 * HOUR_NS, NOW_NS - 2 * HOUR_NS
RAISED = ALARM.model_copy(update={"t_ns": ONSET_NS, "onset_ns": ONSET_NS})
CLEARED = RAISED.model_copy(update={"state": "cleared", "t_ns": END_NS})


@pytest.mark.parametrize(
    ("gateway", "first_h", "last_h", "is_shown"),
    [
        ("north", 6, 1, True),
        (ALL, 4, 3, True),
        ("north", 9, 5.5, False),
        ("north", 1, -2, False),
        ("south", 6, 1, False),
        ("north", 6, 6, False),
    ],
)
def test_maintenance_within_which_an_alarm_stood_is_said(
    gateway: str, first_h: float, last_h: float, is_shown: bool, tmp_path: Path
) -> None:
    times = {"from_ns": NOW_NS - round(first_h * HOUR_NS), "to_ns": NOW_NS - round(last_h * HOUR_NS)}
    window = AlarmEvent(gateway, "", "", NOW_NS - DAY_NS, "ada", "window", {"window": 1, **times, "text": EVIL})
    records = [RecordAlarm("north", one, NOW_NS, ONSET_NS) for one in (RAISED, CLEARED)]
    commit(tmp_path, window, *records)
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert [one["gateway"] for one in facts["maintenance"]] == [gateway] * is_shown
    markup = render(tmp_path, alarm.PAGE, facts)
    assert ("Maintenance is announced" in markup) is is_shown and EVIL not in markup


def test_of_a_clock_that_was_not_set_all_times_on_the_page_are_of_the_aggregator(tmp_path: Path) -> None:
    own = [one.model_copy(update={"clock": "unsynchronised"}) for one in (RAISED, CLEARED)]
    commit(tmp_path, RecordAlarm("north", own[0], NOW_NS - HOUR_NS, NOW_NS - HOUR_NS))
    commit(tmp_path, RecordAlarm("north", own[1], NOW_NS, NOW_NS - HOUR_NS))
    markup = render(tmp_path, alarm.PAGE, read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id))
    assert f"its end was received at {show_time(NOW_NS)}" in markup and "ended 2" not in markup
    assert show_time(ONSET_NS) not in markup and show_time(END_NS) not in markup


@pytest.mark.parametrize(("after_s", "stood_s"), [(10, 10.0), (0, None), (-10, None)])
def test_an_alarm_stood_as_long_as_its_gateway_spoke_after_it_was_raised(
    after_s: int, stood_s: float | None, tmp_path: Path
) -> None:
    spoke = RecordGateway("north", Status(state="online", clock="synchronised"), RAISED.t_ns + after_s * NS)
    commit(
        tmp_path, RecordAlarm("north", RAISED, NOW_NS, RAISED.t_ns), RecordEvidence("north", EVIDENCE, NOW_NS), spoke
    )
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert facts["stood_s"] == stood_s
    words = "stood for 10 s at least" if stood_s else "not known: its gateway last spoke"
    assert words in render(tmp_path, alarm.PAGE, facts)


EVIDENCE = make_evidence(bands=3).model_copy(
    update={
        "alarm": ALARM.id,
        "t_ns": ONSET_NS + 2 * NS,
        "onset_ns": ONSET_NS,
        "trail": make_trail([(ONSET_NS + place * NS, 2.0, 1.0) for place in range(-9, 3)]),
        "changes": (BandChange(channel="deck", decibels=(-12, 0, 4)),),
    }
)


def commit_scores(folder: Path, alarm_: Alarm, *later_s: int) -> Facts:
    """Store an alarm, its evidence, and a status with scores so many seconds after the onset."""
    trail = make_trail([(ONSET_NS + place * NS, 0.5, 1.0) for place in later_s])
    status = Status(state="online", clock="synchronised", trail=trail)
    heard = (RecordAlarm("north", one, NOW_NS, ONSET_NS) for one in dict.fromkeys((RAISED, alarm_)))
    commit(folder, *heard, RecordEvidence("north", EVIDENCE, NOW_NS), RecordGateway("north", status, NOW_NS))
    return read_facts(folder, alarm.PAGE, gateway="north", alarm=ALARM.id)


def test_the_scores_go_on_behind_the_evidence_while_an_alarm_stands(tmp_path: Path) -> None:
    facts = commit_scores(tmp_path, RAISED, -3, 2, 7, 8)
    chart = facts["charts"]["trail"]
    assert [one["label"] for one in chart["marks"]] == ["stays over the level", "raised"]
    assert facts["newest"] == {"t_ns": ONSET_NS + 8 * NS, "score": 0.5, "level": 1.0}
    scores = chart["series"][0]["values"]
    assert scores[:12] == [2.0] * 12 and scores[12:] == [None, 0.5, 0.5]  # a hole where nothing is known
    markup = render(tmp_path, alarm.PAGE, facts)
    assert "at least (score 0.5 at the level 1; the signs are of when it was raised, at 3.58)" in markup
    facts["evidence"]["rule"] = "reach"
    assert "the signs are of when it was raised)" in render(tmp_path, alarm.PAGE, facts)
    assert 'class="down strong" d="M0 5h1v5h-1z"' in markup and 'class="up" d="M2 0h1v5h-1z"' in markup


def test_evidence_that_holds_little_or_odd_things_breaks_no_page(tmp_path: Path) -> None:
    odd = {"spectrum": None, "trail": None, "health": (), "changes": (BandChange(channel=EVIL[:99], decibels=()),)}
    commit(tmp_path, RecordAlarm("north", RAISED, NOW_NS, ONSET_NS))
    commit(tmp_path, RecordEvidence("north", EVIDENCE.model_copy(update=odd), NOW_NS))
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert (
        facts["charts"] == {"trail": None, "spectrum": None, "bands": None}
        and facts["likely_cause"]["kind"] == "undetermined"
    )
    assert "The rules cannot say" in render(tmp_path, alarm.PAGE, facts)
    assert "The rules cannot say" in render_evidence(EVIDENCE.model_copy(update=odd))


def test_scores_are_shown_for_as_long_behind_the_evidence_as_before_it(tmp_path: Path) -> None:
    over = CLEARED.model_copy(update={"t_ns": ONSET_NS + 20 * NS})
    facts = commit_scores(tmp_path, over, 10, 13, 14)
    chart = facts["charts"]["trail"]
    assert [one["label"] for one in chart["marks"]][-1] == "ended" and facts["newest"] is None
    assert chart["x"][-1] == ONSET_NS / NS + 13  # the evidence reaches 11 s back from its last window, at 2 s
    assert "<dt>Now</dt><dd>ended</dd>" in render(tmp_path, alarm.PAGE, facts)


@pytest.mark.parametrize(
    ("days", "text"),
    [(16.84, "16.8 d ago"), (2.96, "2.96 d ago"), (0.1262, "3.03 h ago"), (1e-4, "9 s ago"), (1e-6, "0 s ago")],
)
def test_an_age_is_as_exact_as_its_unit(days: float, text: str) -> None:
    assert show_ago(NOW_NS - round(days * DAY_NS), NOW_NS) == text


def test_the_lists_have_the_likely_cause_once_evidence_is_here(tmp_path: Path) -> None:
    other = RAISED.model_copy(update={"id": "other"})
    with closing(Store(tmp_path / "aggregator.db")) as store:
        store.commit([RecordAlarm("north", one, NOW_NS, ONSET_NS) for one in (RAISED, other)])
        listed = AlarmList()

        def show() -> list[str]:
            return sorted(one["likely"] for one in listed.show(store, listed.read(store, NOW_NS)))

        assert show() == ["", ""]
        damage = make_case(Case(FAR, (DOWN,) * 3)).model_copy(update={"alarm": "other"})
        store.commit([RecordEvidence("south", damage, NOW_NS)])  # of another gateway, and the same id
        assert show() == ["", ""]
        store.commit([RecordEvidence("north", damage, NOW_NS)])
        assert show() == ["", "damage"] == show()
    markup = render(tmp_path, overview.PAGE, read_facts(tmp_path, overview.PAGE))
    assert markup.count('<strong class="bad">probably damage</strong>: ') == 1


def test_likely_damage_comes_before_what_is_more_severe_and_behind_no_state_before_it(tmp_path: Path) -> None:
    alarms = [
        RAISED.model_copy(update={"id": name, "severity": severity})
        for name, severity in (("minor", "warning"), ("worst", "critical"), ("damaged", "warning"))
        for name in (name, f"{name}-over", f"{name}-seen", f"{name}-shelved")
    ]
    damage = make_case(Case(FAR, (DOWN,) * 3))
    commit(tmp_path, *(RecordAlarm("north", one, NOW_NS, ONSET_NS) for one in alarms))
    for one in alarms:
        if one.id.startswith("damaged"):
            commit(tmp_path, RecordEvidence("north", damage.model_copy(update={"alarm": one.id}), NOW_NS))
        if one.id.endswith("-over"):
            over = one.model_copy(update={"state": "cleared", "t_ns": ONSET_NS + NS})
            commit(tmp_path, RecordAlarm("north", over, NOW_NS, ONSET_NS))
        if one.id.endswith("-seen"):
            commit(tmp_path, AlarmEvent("north", one.id, "", NOW_NS, "ann", "acknowledge", {}))
        if one.id.endswith("-shelved"):
            commit(tmp_path, AlarmEvent("north", one.id, "", NOW_NS, "ann", "shelve", {"until_ns": NOW_NS + NS}))
    found = [one["id"] for one in read_facts(tmp_path, overview.PAGE)["alarms"]]
    ends = ("", "-seen", "-over", "-shelved")
    assert found == [f"{name}{end}" for end in ends for name in ("damaged", "worst", "minor")]


def test_what_comes_slowly_began_before_its_score_was_over_the_level(tmp_path: Path) -> None:
    scores = [*[0.0] * 30, *(place / 10 for place in range(11))]
    trail = make_trail([(ONSET_NS + (place - 40) * NS, score, 1.0) for place, score in enumerate(scores)])
    slow = EVIDENCE.model_copy(update={"trail": trail, "window_s": 1.0})
    commit(tmp_path, RecordAlarm("north", RAISED, NOW_NS, ONSET_NS), RecordEvidence("north", slow, NOW_NS))
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    began_ns = facts["likely_cause"]["rising_ns"]
    assert began_ns == ONSET_NS - 8 * NS
    markup = render(tmp_path, alarm.PAGE, facts)
    assert f"began {show_time(began_ns)} (above its level from <time" in markup and ">09:13:20 UTC</time>, " in markup
    for part, name, wrong in (("alarm", "is_clock_set", False), ("likely_cause", "rising_ns", ONSET_NS + 1)):
        assert "above its level from" not in render(tmp_path, alarm.PAGE, facts | {part: facts[part] | {name: wrong}})


def test_an_alarm_by_a_clock_that_is_not_set_stood_when_its_gateway_last_spoke(tmp_path: Path) -> None:
    unset = RAISED.model_copy(update={"clock": "unsynchronised"})
    spoke = RecordGateway("north", Status(state="online", clock="unsynchronised"), NOW_NS)
    commit(
        tmp_path,
        RecordAlarm("north", unset, NOW_NS - NS, NOW_NS - NS),
        RecordEvidence("north", EVIDENCE, NOW_NS),
        spoke,
    )
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert facts["stood_s"] is None and "<dd>stood when its gateway last spoke" in render(tmp_path, alarm.PAGE, facts)


@pytest.mark.parametrize("count", [0, 1, BESIDE_SHOWN + 5])
def test_alarms_of_other_gateways_at_the_time_are_beside_it(count: int, tmp_path: Path) -> None:
    others = [RecordAlarm(f"g{number}", RAISED, NOW_NS, ONSET_NS) for number in range(count)]
    commit(tmp_path, RecordAlarm("north", RAISED, NOW_NS, ONSET_NS), RecordEvidence("north", EVIDENCE, NOW_NS), *others)
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert len(facts["beside"]) == min(count, BESIDE_SHOWN) and facts["seen_ns"] is None
    markup = render(tmp_path, alarm.PAGE, facts)
    assert "its end has not come" in markup and ("Nothing at other gateways" in markup) is (count == 0)


def test_a_chart_begins_as_long_before_an_alarm_as_shows_what_is_ordinary(tmp_path: Path) -> None:
    trail = make_trail([(ONSET_NS + place * NS, 2.0, 1.0) for place in range(-99, 3)])
    health = (ChannelHealth(channel="deck", features=9, outside=1, farthest="deck.level", deviation=9.0),)
    long = EVIDENCE.model_copy(update={"trail": trail, "health": health})
    commit(tmp_path, RecordAlarm("north", RAISED, NOW_NS, ONSET_NS), RecordEvidence("north", long, NOW_NS))
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert facts["charts"]["trail"]["x"][0] == ONSET_NS / NS - BEFORE_SHOWN
    assert "clearly outside</span>" in render(tmp_path, alarm.PAGE, facts)


def test_raw_samples_that_are_here_are_drawn_for_whom_asks(tmp_path: Path) -> None:
    body = encode_clip(make_clip(*make_pieces(np.arange(4.0)[:, None], 0.0), alarm=ALARM.id))
    fetch = RecordFetch("north", ALARM.id, 7)
    commit(tmp_path, RecordAlarm("north", RAISED, NOW_NS, RAISED.t_ns), fetch)
    assert read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id, samples="drawn")["samples"]["drawn"] == []
    commit(tmp_path, RecordFetched("north", ALARM.id, NOW_NS, body=body, bounds=(10**6, 10**6)))
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert facts["samples"]["drawn"] == [] and "?samples=drawn#samples" in render(tmp_path, alarm.PAGE, facts)
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id, samples="drawn")
    assert facts["samples"]["drawn"][0]["chart"]["series"][0]["values"] == [0.0, 1.0, 2.0, 3.0]
    assert 'id="chart-samples-1"' in render(tmp_path, alarm.PAGE, facts)
    damaged = body[:-1] + bytes([body[-1] ^ 1])
    commit(tmp_path, RecordFetched("north", ALARM.id, NOW_NS, body=damaged, bounds=(10**6, 10**6)))
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id, samples="drawn")
    assert facts["samples"]["drawn"] == []
    markup = render(tmp_path, alarm.PAGE, facts)
    assert "can be neither drawn nor exported: clip: message: its digest differs" in markup
    assert "Draw them" not in markup and "samples export" not in markup


def test_a_gateway_that_raises_hundreds_hides_no_alarm_of_another(tmp_path: Path) -> None:
    damage = make_case(Case(FAR, (DOWN,) * 3))
    of_one = [
        RAISED.model_copy(update={"id": f"{place:03}", "severity": "critical", "onset_ns": ONSET_NS + place})
        for place in range(3 * overview.SHOWN)
    ]
    feigned = [damage.model_copy(update={"alarm": one.id}) for one in of_one]
    commit(tmp_path, *(RecordAlarm("evil", one, NOW_NS, one.onset_ns) for one in of_one))
    commit(tmp_path, *(RecordEvidence("evil", one, NOW_NS) for one in feigned))
    mild = RAISED.model_copy(update={"severity": "warning"})
    commit(tmp_path, *(RecordAlarm(name, mild, NOW_NS, ONSET_NS) for name in ("north", "south")))
    facts = read_facts(tmp_path, overview.PAGE)
    names = [one["gateway"] for one in facts["alarms"]]
    assert len(names) == overview.SHOWN and {"north", "south"} < set(names)
    assert [one["id"] for one in facts["alarms"]][:2] == ["149", "148"]
    assert "all 152</a>" in render(tmp_path, overview.PAGE, facts)
    beside = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=RAISED.id)["beside"]
    assert len(beside) == BESIDE_SHOWN and "south" in {one["gateway"] for one in beside}


def test_an_alarm_says_where_it_is_and_that_others_have_changed(tmp_path: Path) -> None:
    status = Status.model_validate({"state": "online", "device": {"location": "pier <3>"}})
    commit(tmp_path, RecordAlarm("north", RAISED, NOW_NS, ONSET_NS), RecordEvidence("north", EVIDENCE, NOW_NS))
    facts = read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id)
    assert (facts["location"], facts["of_site"]) == ("", "")
    assert "other gateways have changed" not in render(tmp_path, alarm.PAGE, facts)
    told = {"id": "fleet 1", "cause": "fleet", "common": "undetermined", "gateways": ("north",)}
    site = FleetAlarm.model_validate(RAISED.model_dump() | told)
    commit(tmp_path, RecordGateway("north", status, NOW_NS), RecordFleet(site, NOW_NS))
    markup = render(tmp_path, alarm.PAGE, read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id))
    assert "<bdi>pier &lt;3&gt;</bdi>" in markup
    assert '<dt>Others</dt><dd><a href="/alarms/all/fleet%201">other gateways have changed</a>' in markup
    of_site = render(tmp_path, alarm.PAGE, read_facts(tmp_path, alarm.PAGE, gateway=ALL, alarm="fleet 1"))
    assert "have the structure looked at" in of_site


@pytest.mark.parametrize(
    ("amounts", "shares"),
    [((2.0, 1.0, -1.0), [1.0, 0.5, 0.0]), ((0.0,), [0.0]), ((-1.0,), [0.0]), ((1e300, 5e-324), [1.0, 0.0]), ((), [])],
)
def test_contributions_are_drawn_as_shares_of_the_largest(amounts: tuple[float, ...], shares: list[float]) -> None:
    first = EVIDENCE.contributions[0]
    evidence = EVIDENCE.model_copy(
        update={"contributions": tuple(first.model_copy(update={"amount": one}) for one in amounts)}
    )
    found = describe_evidence(evidence)["evidence"]["contributions"]
    assert [one["share"] for one in found] == shares


def test_shares_are_bars_beside_what_stands_out(tmp_path: Path) -> None:
    first = EVIDENCE.contributions[0]
    parts = tuple(first.model_copy(update={"amount": one}) for one in (4.0, 1.0, 0.0))
    proof = EVIDENCE.model_copy(update={"contributions": parts})
    commit(tmp_path, RecordAlarm("north", RAISED, NOW_NS, ONSET_NS), RecordEvidence("north", proof, NOW_NS))
    markup = render(tmp_path, alarm.PAGE, read_facts(tmp_path, alarm.PAGE, gateway="north", alarm=ALARM.id))
    assert re.findall(r'class="share".*?width="(\d+)" height', markup) == ["100", "25"]


def test_alarms_that_stand_take_the_places_of_masked_ones(tmp_path: Path) -> None:
    alarms = [RAISED.model_copy(update={"id": f"{place:03}"}) for place in range(overview.SHOWN)]
    shelved = [AlarmEvent("south", one.id, "", NOW_NS, "ann", "shelve", {"until_ns": NOW_NS + NS}) for one in alarms]
    commit(tmp_path, *(RecordAlarm("north", one, NOW_NS, ONSET_NS) for one in alarms[:20]))
    commit(tmp_path, *(RecordAlarm("south", one, NOW_NS, ONSET_NS) for one in alarms), *shelved)
    names = [one["gateway"] for one in read_facts(tmp_path, overview.PAGE)["alarms"]]
    assert names == ["north"] * 20 + ["south"] * (overview.SHOWN - 20)
