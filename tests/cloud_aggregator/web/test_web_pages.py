"""Goal: every page is served to who is logged in, and to nobody else, as HTML without anything inline and as JSON.

Method: requests to the application itself, of somebody whom a listed proxy has logged in, over a real store.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.enrolment import ForgetGateway
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    RecordAlarm,
    RecordDenied,
    RecordEvidence,
    RecordGateway,
    RecordModel,
    RecordScores,
    RecordService,
)
from fedgate.cloud_aggregator.storage.sqlite import SqliteDatabase
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.app import PAGES, Web
from fedgate.cloud_aggregator.web.pages import overview
from fedgate.cloud_aggregator.web.pages.page import Context
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.scores import Scores
from fedgate.config.web.charts import Facts
from fedgate.config.web.formats import show_iso
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.evidence_samples import make_evidence
from tests.support.page_views import NOW_NS, check_headings, check_moment, commit, make_settings, read_facts, render

HERE, PROOF = "127.0.0.1", "what the proxy alone knows"
ADDRESSES = {
    "/": "/overview",
    "/alarms": "/alarms",
    "/alarms/{gateway}/{alarm}": "/alarms/north/a",
    "/gateways": "/gateways",
    "/gateways/{gateway}": "/gateways/north",
    "/learning": "/learning",
    "/report": "/report",
}
INLINE = re.compile(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", re.IGNORECASE)


@pytest.fixture
def web(tmp_path: Path) -> Web:
    """The page of a site with one gateway, which trusts a proxy."""
    values = {"after_ms": (0, 1000), "scores": (1.0, 2.0), "level": 2.0, "model_version": 1}
    commit(
        tmp_path,
        RecordGateway("north", Status(state="online", model_version=1), NOW_NS),
        RecordModel(FIRST[0], b"body"),
        RecordAlarm("north", ALARM, NOW_NS, NOW_NS),
        RecordEvidence("north", make_evidence().model_copy(update={"alarm": "a"}), NOW_NS),
        RecordScores("north", "s", Scores(t_ns=NOW_NS, **values), NOW_NS),
    )
    (tmp_path / "proxy.secret").write_text(PROOF)
    proxy = {"addresses": [HERE], "user_header": "Remote-User", "secret_file": tmp_path / "proxy.secret"}
    return Web(make_settings(tmp_path, web={"proxy": proxy}))


def test_who_is_denied_at_the_broker_is_on_the_first_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteDatabase, "find_held_since_ns", lambda _self: 1)
    names = [f"<b>{place:03}" for place in range(overview.DENIED_SHOWN + 7)]
    beat = RecordService(1, NOW_NS, True, 1)
    commit(tmp_path, beat)
    assert read_facts(tmp_path, overview.PAGE)["is_well"]
    commit(tmp_path, RecordDenied(frozenset(names)))
    found = read_facts(tmp_path, overview.PAGE)
    assert not found["is_well"] and found["sentence"].startswith("The broker denies <b>000, ")
    assert (found["denied"], found["denied_count"]) == (names[: overview.DENIED_SHOWN], len(names))
    text = render(tmp_path, overview.PAGE, found)
    assert "<b>" not in text and "and 7 more" in text
    check_headings(text)
    commit(tmp_path, RecordDenied(frozenset()))
    assert read_facts(tmp_path, overview.PAGE)["denied"] == []


@pytest.mark.parametrize(
    ("more", "sentence", "is_well"),
    [
        ({}, "All is well.", True),
        ({"settling": True}, "North does not watch yet.", False),
        ({"model_version": 0, "link": "it ends"}, "North does not watch yet; north reports a problem.", False),
        ({"clock": "unsynchronised"}, "North reports a problem.", False),
        ({"state": "offline", "link": "it ends"}, "North does not speak.", False),
    ],
)
def test_all_is_well_where_every_gateway_watches_and_reports_nothing(
    more: dict[str, Any], sentence: str, is_well: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteDatabase, "find_held_since_ns", lambda _self: 1)
    status = Status.model_validate({"state": "online", "model_version": 3, **more})
    commit(tmp_path, RecordService(1, NOW_NS, True, 1), RecordGateway("north", status, NOW_NS))
    found = read_facts(tmp_path, overview.PAGE)
    assert (found["sentence"], found["is_well"]) == (sentence, is_well)
    shelved = AlarmEvent("north", ALARM.id, "", NOW_NS, "ann", "shelve", {"until_ns": NOW_NS + NS})
    commit(tmp_path, RecordAlarm("north", ALARM, NOW_NS, NOW_NS), shelved)
    found = read_facts(tmp_path, overview.PAGE)
    assert found["sentence"] == ("All is well; 1 alarm is shelved." if is_well else sentence)


def test_the_age_of_data_is_that_of_what_was_received_last_whenever_the_service_gave_its_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_ns, online = NOW_NS - 56 * NS, Status(state="online")
    monkeypatch.setattr(SqliteDatabase, "find_held_since_ns", lambda _self: 1)
    commit(tmp_path, RecordService(1, sign_ns, True, 1))
    assert read_facts(tmp_path, overview.PAGE)["seen_ns"] is None
    commit(tmp_path, RecordGateway("north", online, NOW_NS - 9 * NS), RecordGateway("south", online, NOW_NS - NS))
    found = read_facts(tmp_path, overview.PAGE)
    assert (found["seen_ns"], found["service"]["age_s"]) == (NOW_NS - NS, 56.0)
    text = render(tmp_path, overview.PAGE, found)
    assert f'newest data received <time datetime="{show_iso(NOW_NS - NS)}"' in text
    assert "states known until" not in text
    monkeypatch.setattr(SqliteDatabase, "find_held_since_ns", lambda _self: None)  # it has ended
    text = render(tmp_path, overview.PAGE, read_facts(tmp_path, overview.PAGE))
    assert f'states known until <time datetime="{show_iso(sign_ns)}"' in text


def ask(web: Web, path: str, user: str = "") -> tuple[int, dict[str, str], str]:
    """Return what is answered: status, headers and text."""
    sent: list[MutableMapping[str, Any]] = []
    where, _, query = path.partition("?")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [
        (b"host", b"localhost"),
        *([(b"remote-user", user.encode()), (b"x-proxy-secret", PROOF.encode())] if user else []),
    ]
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http"},
        **{"path": where, "raw_path": where.encode(), "query_string": query.encode(), "root_path": ""},
        **{"headers": headers, "client": (HERE, 1), "server": (HERE, 80)},
    }
    asyncio.run(web.app(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(one.get("body", b"") for one in sent[1:]).decode()


def test_each_page_is_asked_for_here() -> None:
    assert ADDRESSES.keys() == {page.path for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.title)
def test_a_page_is_for_who_is_logged_in_and_has_nothing_inline(web: Web, page: Any) -> None:
    address = ADDRESSES[page.path]
    shown = "/" if address == "/overview" else address
    assert ask(web, shown)[:1] == (303,)
    assert ask(web, f"/api{address}")[:1] == (401,)
    status, headers, text = ask(web, shown, "ada")
    assert status == 200 and "script-src 'self'" in headers["content-security-policy"]
    assert not INLINE.search(text)
    check_headings(text)
    check_moment(text)
    assert 'action="/orders/' not in text  # whom the proxy gives no role is a viewer
    status, _, facts = ask(web, f"/api{address}", "ada")
    assert status == 200 and json.loads(facts)


def read_documented() -> dict[str, set[str]]:
    """Return the fields of each address by the table of the page's document; under "" what is within others."""
    text = Path("docs/reference/page.md").read_text()
    lines = text.partition("| address | field |")[2].partition("\n\n")[0].splitlines()[2:]
    found = defaultdict[str, set[str]](set)
    for line in lines:
        _, addresses, fields, _meaning = line.split("|", 3)
        for address in addresses.split(","):
            found[address.strip()] |= set(re.findall("`([a-z_]+)", fields + line * (not address.strip())))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.title)
def test_each_field_that_a_program_gets_is_documented_and_no_other(web: Web, page: Any) -> None:
    facts, documented = json.loads(ask(web, f"/api{ADDRESSES[page.path]}", "ada")[2]), read_documented()
    names = {"/alarms/{gateway}/{alarm}": "an alarm", "/gateways/{gateway}": "a gateway", "/": "overview"}
    assert facts.keys() == documented[names.get(page.path, page.path[1:])]


def test_what_a_program_gets_of_alarms_and_gateways_is_documented(web: Web) -> None:
    facts = json.loads(ask(web, "/api/overview", "ada")[2])
    text = Path("docs/reference/page.md").read_text()
    names = {name for kind in ("alarms", "gateways") for one in facts[kind] for name in one}
    assert len(names) > 30 and not {name for name in names if f"`{name}`" not in text}


def test_a_status_is_parsed_where_it_is_another_one_and_forgotten_with_its_gateway(tmp_path: Path) -> None:
    known: dict[str, tuple[int, Facts]] = {}

    def read() -> list[tuple[str, str]]:
        with closing(Store(tmp_path / "aggregator.db", is_read_only=True)) as store:
            context = Context(make_settings(tmp_path), store, NOW_NS, statuses=known)
            return [(one["gateway"], one["version"]) for one in overview.read_overview(context, {})["gateways"]]

    first, second = (Status(state="online", version=version) for version in ("1", "2"))
    commit(tmp_path, RecordGateway("north", first, NOW_NS), RecordGateway("south", first, NOW_NS))
    assert read() == [("north", "1"), ("south", "1")]
    kept = known["north"][1]
    commit(tmp_path, RecordGateway("south", second, NOW_NS))  # which came in the same moment
    assert read() == [("north", "1"), ("south", "2")] and known["north"][1] is kept
    commit(tmp_path, ForgetGateway("south"))
    assert read() == [("north", "1")] and known.keys() == {"north"}


def test_a_gateway_names_its_sources_as_it_likes(web: Web, tmp_path: Path) -> None:
    names = ("items", "values", "keys", "get")
    sources = {name: {"age_s": 1.0, "rate_hz": 2.0, "channels": ["load"]} for name in names}
    status = {"state": "online", "sources": sources, "dropped": dict.fromkeys(names, 1), "rejected": {"items": "why"}}
    commit(tmp_path, RecordGateway("north", Status.model_validate(status), NOW_NS))
    answered, _, text = ask(web, "/gateways/north", "ada")
    assert answered == 200 and "items: 1" in text


@pytest.mark.parametrize(
    "path", ["/alarms?state=<b>", "/gateways?state=bogus", "/gateways/nobody", "/report?month=13", "/gateways/<b>"]
)
def test_what_is_not_there_is_said_in_words(web: Web, path: str) -> None:
    status, _, text = ask(web, path, "ada")
    assert status == 404 and "<b>" not in text
    assert json.loads(ask(web, f"/api{path}", "ada")[2])["problem"]
