"""The webhook against a real receiver: every change is delivered, in order, at least once, whatever happens to either.

Method: the machine, the real store and the real thread against a real HTTP server on loopback; a power cut closes the
store and leaves what is under way to itself.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator import machine
from fedgate.cloud_aggregator.events import (
    Dequeue,
    Effect,
    Enqueue,
    Event,
    Post,
    Posted,
    Received,
    Send,
    Tick,
)
from fedgate.cloud_aggregator.runtime.webhook_client import WebhookClient, check
from fedgate.cloud_aggregator.state import Stored
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.notifications import WEBHOOK, Webhook
from fedgate.config.settings.settings import SettingsError
from fedgate.models.time_units import NS
from tests.cloud_aggregator.alarms.test_fleet import alarm, status
from tests.cloud_aggregator.alarms.test_service_requests import DEVICE
from tests.support import waiting
from tests.support.receivers import Receiver, Service, free_port
from tests.support.sites import SITE, T0_NS, aggregator_settings, start_cloud


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def serve(path: Path, **hook: Any) -> Service:
    return Service(path, webhook={"retry_s": 0.01, "retry_max_s": 0.02, "timeout_s": 0.5, **hook})


def changes(count: int, first: int = 0) -> list[Received]:
    return [alarm("a", "raised", cause=f"cause-{number}", onset_s=number) for number in range(first, first + count)]


def url(receiver: Receiver) -> str:
    return f"http://127.0.0.1:{receiver.port}/hook?site=1"


def test_each_change_is_posted_as_json_with_an_id_and_the_secret(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "secret").write_text("Bearer open-sesame\n")
    service = serve(tmp_path / "a.db", url=url(receiver), secret_file=tmp_path / "secret")
    service.step(status("a", device=DEVICE), alarm("a"), alarm("a"), alarm("a", "cleared"))
    service.run(service.empty)
    assert receiver.taken == service.enqueued and len(set(service.enqueued)) == 2  # a repeat is no change
    for where, headers, body in receiver.requests:
        said = json.loads(body)
        assert where == "/hook?site=1" and headers["Authorization"] == "Bearer open-sesame"
        assert headers["Content-Type"] == "application/json" and headers["Idempotency-Key"] == f'"{said["id"]}"'
        assert (said["site"], said["gateway"], said["device"]) == (SITE, "a", DEVICE.model_dump())
    told = [json.loads(body) for _, _, body in receiver.requests]
    assert [(one["active"], one["alarm"]["state"]) for one in told] == [(True, "raised"), (False, "cleared")]
    service.cut()


def test_a_fleet_alarm_is_posted_when_it_begins_and_its_cause_stays(tmp_path: Path, receiver: Receiver) -> None:
    service = serve(tmp_path / "a.db", url=url(receiver))
    now_s = (time.time_ns() - T0_NS) / NS
    service.step(*[alarm(gateway, onset_s=now_s) for gateway in "abc"], Tick(), alarm("d", onset_s=now_s), Tick())
    service.step(*[status(gateway, boot_id="two") for gateway in "abcd"], Tick())
    service.run(service.empty)
    fleet = [told for _, _, body in receiver.requests if (told := json.loads(body))["gateway"] == "all"]
    assert [(one["alarm"]["common"], one["active"]) for one in fleet] == [("undetermined", True)]
    assert receiver.taken == service.enqueued
    service.cut()


def slowly(handler: BaseHTTPRequestHandler) -> None:
    """Answer a byte at a time: no read takes long, the whole never ends."""
    try:
        for _ in range(200):
            handler.wfile.write(b"H")
            handler.wfile.flush()
            time.sleep(0.02)
    except OSError:
        handler.close_connection = True


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


FAULTS: list[tuple[Any, str]] = [
    (500, "127.0.0.1 answers 500"),
    (403, "127.0.0.1 answers 403"),
    (302, "127.0.0.1 answers 302, which sends elsewhere; give the address itself"),
    (hang_up, "127.0.0.1 cannot be reached (RemoteDisconnected"),
    (lambda handler: time.sleep(0.5), "127.0.0.1 did not answer within 0.2 s"),
    (slowly, "127.0.0.1 did not answer within 0.2 s"),
    (lambda handler: handler.wfile.write(b"what?\r\n\r\n"), "127.0.0.1 cannot be reached (BadStatusLine"),
]


@pytest.mark.parametrize(("answer", "words"), FAULTS, ids=[words[10:30] for _, words in FAULTS])
def test_a_fault_is_named_and_the_change_is_sent_again(
    tmp_path: Path, receiver: Receiver, answer: Any, words: str
) -> None:
    receiver.answer = answer
    service = serve(tmp_path / "a.db", url=url(receiver), timeout_s=0.2)
    service.step(*changes(3))
    service.run(lambda: bool(service.log))
    assert words in service.log[0] and "(attempt 1, 3 wait)" in service.log[0]
    assert not receiver.taken and {where for where, _, _ in receiver.requests} == {"/hook?site=1"}
    receiver.answer = 204
    service.run(service.empty)
    assert receiver.taken == service.enqueued
    service.cut()


def test_a_receiver_that_comes_later_hears_everything_across_restarts(tmp_path: Path) -> None:
    port, path, expected = free_port(), tmp_path / "a.db", []
    for start in range(3):
        service = serve(path, url=f"http://127.0.0.1:{port}/")
        service.step(*changes(4, 10 * start))
        expected += service.enqueued
        service.run(lambda: bool(service.log))  # noqa: B023 - called before the next one is made
        assert "127.0.0.1 cannot be reached (ConnectionRefusedError" in service.log[0]
        service.cut()
    service, late = serve(path, url=f"http://127.0.0.1:{port}/"), Receiver(port)
    service.run(service.empty)
    assert late.taken == expected and len(expected) == 12
    service.cut()
    late.close()
    assert Store(path).read_rows("posts") == []


def test_a_power_cut_between_taking_and_removing_delivers_again_under_the_same_id(
    tmp_path: Path, receiver: Receiver
) -> None:
    service = serve(tmp_path / "a.db", url=url(receiver))
    service.step(*changes(3))
    waiting.until(lambda: receiver.taken)  # the receiver has it, and the aggregator never learns that
    service.cut()
    again = serve(tmp_path / "a.db", url=url(receiver))
    again.run(again.empty)
    first, second, third = service.enqueued
    assert receiver.taken == [first, first, second, third]
    again.cut()


@pytest.mark.soak
def test_what_a_full_queue_gives_up_is_the_oldest_counted_stored_and_logged(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = 503
    service = serve(tmp_path / "a.db", url=url(receiver), queue=10, retry_s=600.0, retry_max_s=600.0)
    service.step(*changes(1))
    service.run(lambda: bool(service.log))
    service.step(*changes(24, 100))
    lost = [text for text in service.log if "is given up" in text]
    assert len(lost) == 4 and service.enqueued[0] in lost[0] and lost[-1].endswith("8 were so far")
    service.cut()
    receiver.answer = 200
    again = serve(tmp_path / "a.db", url=url(receiver), queue=10)
    assert again.state.alarms.queues[WEBHOOK].dropped == 15
    again.run(again.empty)
    assert receiver.taken == service.enqueued[15:]
    again.cut()


def test_turned_off_nothing_is_queued_and_what_waited_waits_on(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answer = 500
    service = serve(tmp_path / "a.db", url=url(receiver))
    service.step(*changes(2))
    service.cut()
    store = Store(tmp_path / "a.db")
    state = start_cloud(
        aggregator_settings(), Stored(gateways={"a": Status(state="online")}, alarms=store.read_alarms()), T0_NS
    )
    effects: list[Effect] = []
    events: list[Event] = [*changes(2, 50), Tick(), Posted("x")]
    for event in events:
        state, more = machine.step(state, T0_NS, event)
        effects += more
    assert not [one for one in effects if isinstance(one, Enqueue | Send | Dequeue)]
    assert len(store.read_rows("posts")) == len(state.alarms.queues[WEBHOOK].items) == 2
    store.close()


def test_certificates_that_cannot_be_read_are_named_and_a_server_without_them_is_not_trusted(
    tmp_path: Path, receiver: Receiver
) -> None:
    with pytest.raises(SettingsError, match=r"webhook\.ca_file: .*nowhere.* cannot be used"):
        check(Webhook(url="https://example.org/", ca_file=tmp_path / "nowhere"))
    poster = WebhookClient(Webhook(url=f"https://127.0.0.1:{receiver.port}/", timeout_s=1.0), lambda _posted: None)
    assert "127.0.0.1 cannot be reached (SSLError" in poster.attempt(Post("a", b"{}")).problem
    assert not receiver.requests


@pytest.mark.parametrize("status", [400, 404, 413, 422, 401, 403, 407, 408, 425, 429, 500, 503, 302])
def test_which_answers_are_for_good(receiver: Receiver, status: int) -> None:
    receiver.answer = status
    posted = WebhookClient(Webhook(url=url(receiver)), lambda _posted: None).attempt(Post("a", b"{}"))
    assert posted.id == "a" and f"answers {status}" in posted.problem
    assert posted.is_refused == (status in (400, 404, 413, 422))
