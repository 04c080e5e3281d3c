"""Goal: what is pressed on the page is done by the service, once, under the name of who pressed it, and seen at once.

Method: the real page and a real service beside it, joined by the socket; a store that changes, stops and is replaced.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.commands.alarms.alarms import read_rows
from fedgate.cloud_aggregator.commands.lists import LISTS
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import AlarmEvent, Durable
from fedgate.cloud_aggregator.runtime.order_socket import KINDS, ORDER_BYTES_MAX, OrderSocket
from fedgate.cloud_aggregator.storage.database import StoreError
from fedgate.cloud_aggregator.storage.sqlite import SqliteDatabase
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web.pages.alarm_list import AlarmList
from fedgate.cloud_aggregator.web.pages.orders import describe_order
from fedgate.config.settings.web import SOCKET
from fedgate.models.time_units import HOUR_NS
from tests.support.waiting import until
from tests.support.web_page import PASSWORD, make_alarm, make_site, open_page

AT = "/alarms/north/north.anomaly.2"
IT = {"alarms": "north/north.anomaly.2"}


@pytest.mark.soak
def test_an_alarm_is_handled_from_the_page(tmp_path: Path) -> None:
    with open_page(tmp_path, *make_site()) as site, site.serving():
        client = site.client("operator")
        for button, form in (
            ("acknowledge", {"text": "crew is on its way"}),
            ("label", {"label": "damage"}),
            ("assign", {"to": "ben"}),
            ("note", {"text": "bearing 3"}),
            ("shelve", {"hours": "8"}),
        ):
            assert client.press(button, AT, **IT, **form).headers["location"] == AT
            page = client.get(AT).text
            assert 'class="notice good"' in page, page
            assert 'class="notice good"' not in client.get(AT).text  # an answer is shown once
        facts = json.loads(client.get(f"/api{AT}").text)
        assert facts["alarm"]["state"] == "shelved"
        assert (facts["alarm"]["label"], facts["alarm"]["assignee"]) == ("damage", "ben")
        assert {one["who"] for one in facts["history"]} == {"operator"}
        assert [one["text"] for one in facts["history"] if one["text"]] == ["crew is on its way", "bearing 3"]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("button", "form", "told"),
    [
        ("shelve", {"hours": "9999"}, "hours: expected one of"),
        ("label", {"label": "nice"}, "label: expected one of"),
        ("note", {}, "text is missing"),
        ("acknowledge", {"alarms": "north/no-such"}, "there is no such alarm"),
    ],
)
def test_what_makes_no_order_is_said(tmp_path: Path, button: str, form: dict[str, str], told: str) -> None:
    with open_page(tmp_path, *make_site()) as site, site.serving():
        client = site.client("operator")
        client.press(button, AT, **IT | form)
        assert told in client.get(AT).text


@pytest.mark.soak
def test_without_the_service_nothing_is_ordered_and_that_is_said(tmp_path: Path) -> None:
    with open_page(tmp_path, *make_site()) as site:
        client = site.client("operator")
        client.press("acknowledge", AT, **IT)
        assert "the service does not run, so nothing was ordered" in client.get(AT).text
        assert "The service has never run on this store." in client.get("/").text


@pytest.mark.soak
def test_a_decision_about_a_release_asks_for_the_password(tmp_path: Path) -> None:
    with open_page(tmp_path, *make_site()) as site, site.serving():
        client = site.client("admin")
        client.press("stop", "/", version="3", password=PASSWORD[1:])
        assert "the password is wrong, so nothing was ordered" in client.get("/").text
        with closing(Store(tmp_path / "aggregator.db", is_read_only=True)) as store:
            assert store.read_rows("orders") == []
        client.press("stop", "/", version="3", password=PASSWORD)
        assert "no release is under way" in client.get("/").text  # the service's own answer
        with closing(Store(tmp_path / "aggregator.db", is_read_only=True)) as store:
            (order,) = store.read_rows("orders")
        assert json.loads(order["body"])["who"] == "admin"


@pytest.mark.soak
def test_who_is_shut_out_is_named_twice_and_with_the_password(tmp_path: Path) -> None:
    admitted = RecordRegistry((Certificate("a1", "north", "k", 1, 2**62),))
    with open_page(tmp_path, *make_site(), admitted, has_identity=True) as site, site.serving():
        form = {"gateway": "north", "typed": "north", "password": PASSWORD}
        assert site.client("operator").press("revoke", "/", **form).status == 403
        client = site.client("admin")
        for wrong, problem in (
            ({"typed": "south"}, "type the name of the gateway, north, to shut it out"),
            ({"gateway": "", "typed": ""}, "type the name of the gateway"),
            ({"password": PASSWORD[1:]}, "the password is wrong, so nothing was ordered"),
        ):
            client.press("revoke", "/", **form | wrong)
            assert problem in client.get("/").text
        with closing(Store(tmp_path / "aggregator.db", is_read_only=True)) as store:
            assert store.read_rows("orders") == []
        client.press("revoke", "/gateways/north", **form)
        page = client.get("/gateways/north").text
        assert "north is revoked: its messages count no more" in page and "/orders/revoke" not in page
        facts = json.loads(client.get("/api/gateways/north").text)
        assert facts["gateway"]["state"] == "revoked" and facts["certificates"][0]["reason"] == "revoked"
        (order,) = facts["orders"]
        assert (order["who"], order["kind"], order["what"]) == ("admin", "revoke", "gateway north")


@pytest.mark.soak
def test_a_change_reaches_a_browser_that_waits_for_it(tmp_path: Path) -> None:
    with open_page(tmp_path, *make_site()) as site:
        client = site.client("viewer")
        since = client.get("/").text.partition("/events?since=")[2].partition('"')[0]
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        lines: list[str] = []
        with closing(connection):
            connection.request("GET", f"/events?since={since}", headers={"Cookie": cookie})
            stream = connection.getresponse()
            assert stream.getheader("content-type") == "text/event-stream; charset=utf-8"

            def listen() -> None:
                while "event: changed" not in lines:
                    lines.append(stream.readline().decode().strip())

            listener = threading.Thread(target=listen, daemon=True)
            listener.start()
            until(lambda: ": listening" in lines)
            site.commit(*make_alarm("south", "anomaly", 0.1))
            until(lambda: "event: changed" in lines)
            listener.join()
        assert "south.anomaly.0.1" in client.get("/").text


@pytest.mark.soak
def test_the_page_goes_on_when_the_store_is_restored_or_written_to_again(tmp_path: Path) -> None:
    with open_page(tmp_path, *make_site()) as site:
        client = site.client("viewer")
        assert json.loads(client.get("/api/overview").text)["alarm_counts"]["unacknowledged"] == 1
        with site.serving():  # which begins a log beside the file that was read without one
            site.commit(*make_alarm("west", "anomaly", 0.2))
            assert json.loads(client.get("/api/overview").text)["alarm_counts"]["unacknowledged"] == 2
        other = tmp_path / "other.db"
        with closing(Store(other)) as store:
            store.commit(make_alarm("east", "anomaly", 0.3))
        SqliteDatabase(tmp_path / "aggregator.db").put(other)  # as a restore does
        found = json.loads(client.get("/api/alarms").text)["alarms"]
        assert [one["gateway"] for one in found] == ["east"]
        (tmp_path / "aggregator.db").unlink()
        answer = client.get("/")
        assert (answer.status, "there is no store yet" in answer.text) == (503, True)


def test_the_list_of_alarms_says_what_the_command_says(tmp_path: Path) -> None:
    """Whatever happens between two looks: the list reads only what changed."""
    listed = AlarmList()
    with closing(Store(tmp_path / "a.db")) as store:
        steps: list[list[Durable]] = [
            make_alarm("north", "anomaly", 2),
            make_alarm("south", "anomaly", 3, "raised", "cleared"),
            [AlarmEvent("north", "north.anomaly.2", "", 1, "ben", "acknowledge", {})],
            make_alarm("north", "anomaly", 2, "raised", "cleared"),
            [AlarmEvent("south", "south.anomaly.3", "", 1, "ben", "label", {"label": "false"})],
            make_alarm("west", "faulty-load", 1),
            [AlarmEvent("west", "", "faulty-load", 1, "ben", "out-of-service", {})],
            [AlarmEvent("west", "", "faulty-load", 1, "ben", "in-service", {})],
            [AlarmEvent("all", "", "", 1, "ben", "window", {"window": 1, "from_ns": 0, "to_ns": 2**62, "text": ""})],
        ]
        for hour, effects in enumerate(steps):
            store.commit(effects)
            for now_ns in (hour * HOUR_NS, (hour + 1) * HOUR_NS):
                known = {(row["gateway"], row["id"]): row for row in read_rows(store, now_ns)}
                found = listed.read(store, now_ns)
                assert [(one.gateway, one.id) for one in found] == list(known)
                for one in found:
                    row = known[one.gateway, one.id]
                    assert (one.state, one.label, one.is_active) == (row["state"], row["label"], row["is_active"])


def ask(path: Path, sent: bytes) -> dict[str, object]:
    """Send something to the socket, and return its answer."""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.connect(str(path))
        wire.sendall(sent)
        wire.shutdown(socket.SHUT_WR)
        with wire.makefile("rb") as answer:
            return dict(json.loads(answer.readline()))


def test_an_order_has_the_user_of_the_process_that_gave_it_whatever_that_says(tmp_path: Path) -> None:
    taken: list[dict[str, object]] = []

    def place(_kind: str, body: dict[str, object]) -> int:
        taken.append(body)
        return len(taken)

    server = OrderSocket(tmp_path / SOCKET, place)
    server.start()
    try:
        assert ask(tmp_path / SOCKET, b'{"kind": "stop", "body": {"who": "ada", "uid": 12345}}\n') == {"order": 1}
    finally:
        server.stop()
    assert taken == [{"who": "ada", "uid": os.geteuid()}]


@pytest.mark.soak
def test_the_list_of_orders_shows_who_ordered_and_which_user_gave_it(tmp_path: Path) -> None:
    with open_page(tmp_path, *make_site()) as site, site.serving():
        site.client("operator").press("note", AT, **IT, text="bearing 3")
    with closing(Store(site.settings.aggregator.store, is_read_only=True)) as store:
        (order,) = LISTS["orders"].rows_of(store, argparse.Namespace(all=True))
    assert f"who=operator uid={os.geteuid()}" in order["what"] and order["state"] == "done"


def test_the_socket_takes_orders_of_a_page_and_nothing_else(tmp_path: Path) -> None:
    taken: list[str] = []

    def place(kind: str, _body: dict[str, object]) -> int:
        if kind == "stop":
            raise StoreError("the disk is full")
        taken.append(kind)
        return len(taken)

    path = tmp_path / SOCKET
    path.write_text("what a process that was killed has left")
    server = OrderSocket(path, place)
    server.start()
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        assert ask(path, b'{"kind": "alarm", "body": {"action": "note"}}\n') == {"order": 1}
        assert ask(path, b'{"kind": "stop", "body": {}}\n') == {"problem": "the disk is full"}
        nested = b"[" * 100_000
        long = json.dumps({"kind": "alarm", "body": {"text": "x" * ORDER_BYTES_MAX}}).encode()
        for wrong in (
            b"",
            b"{}",
            b"null",
            b'{"kind": ["x"], "body": {}}',
            b'{"kind": "alarm", "body": {"action": "window"}}',
            b'{"kind": "alarm", "body": 3}',
            nested,
            long,
        ):
            assert "problem" in ask(path, wrong + b"\n")
        for kind in ("token", "keys", "certified", "remove"):
            assert kind not in KINDS
            assert "problem" in ask(path, json.dumps({"kind": kind, "body": {}}).encode() + b"\n")
        with socket.socket(socket.AF_UNIX) as silent:  # says nothing, and keeps nobody else waiting for ever
            silent.connect(str(path))
            silent.shutdown(socket.SHUT_WR)
            assert ask(path, b'{"kind": "alarm", "body": {"action": "note"}}\n') == {"order": 2}
    finally:
        server.stop()
    assert taken == ["alarm", "alarm"]
    assert not path.exists()
    tmp_path.chmod(0o2750)
    shared = OrderSocket(path, place)
    assert path.stat().st_mode & 0o777 == 0o660
    shared.start()
    shared.stop()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"action": "shelve", "alarms": ["north/a"], "for_s": 28_800.0}, "action shelve, alarms north/a, for 8 h"),
        (
            {"action": "window", "from_s": 1.8e9, "to_s": 1.8e9 + 60, "text": ""},
            "action window, from 2027-01-15 08:00:00 UTC, to 2027-01-15 08:01:00 UTC",
        ),
        ({"from_s": 1e300, "for_s": -(10**40)}, f"from_s 1e+300, for_s -{10**40}"),
        ({"from_s": float("nan"), "for_s": float("inf"), "to_s": True}, "from_s nan, for_s inf, to_s"),
    ],
)
def test_an_order_has_its_times_in_words_whatever_it_says(body: dict[str, object], what: str) -> None:
    row = {"number": 1, "kind": "alarm", "body": json.dumps(body), "answer": None, "problem": ""}
    assert describe_order(row)["what"] == what
