"""Channels of `[[notify]]` against real receivers: every change that is meant for one is delivered, at least once and
in order, whatever happens to it or to another.

Method: the machine, the real store and Apprise in its real child process against real HTTP servers on loopback, by its
schemes `json://` and `form://`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.events import Post, Tick
from fedgate.cloud_aggregator.notifications.notices import Notice
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.runtime import notify_client
from fedgate.cloud_aggregator.runtime.app import Aggregator
from fedgate.cloud_aggregator.runtime.notify_client import NotifyClient
from fedgate.config.protocol.messages import Device
from fedgate.config.settings.notifications import NotifyChannel
from fedgate.firmware_sim import children
from fedgate.models.time_units import NS
from tests import conftest
from tests.cloud_aggregator.alarms.test_fleet import alarm, status
from tests.support import waiting
from tests.support.receivers import Receiver, Service, receiving
from tests.support.sites import KEY, SITE, T0_NS, aggregator_settings

QUICK = {"retry_s": 0.01, "retry_max_s": 0.02, "timeout_s": 120.0}
PLACE = Device(location="north pier")


def title_of(body: bytes) -> str:
    return str(json.loads(body)["title"])


def channel(folder: Path, name: str, *addresses: str, **settings: Any) -> dict[str, Any]:
    """Return the settings of a channel with these addresses in a file of its own."""
    file = folder / f"{name}.urls"
    file.write_text("\n".join(["# who is called", "", *addresses]))
    return {"name": name, "url_file": file, **QUICK, **settings}


def client(folder: Path, *addresses: str, **settings: Any) -> NotifyClient:
    spec = NotifyChannel.model_validate(channel(folder, "crew", *addresses, **settings))
    return NotifyClient(spec, lambda _posted: None)


def post(title: str = "t") -> Post:
    return Post("id", Notice(title, "b").to_bytes(), "a", "crew")


def address(receiver: Receiver, scheme: str = "json") -> str:
    return f"{scheme}://127.0.0.1:{receiver.port}/{scheme}"


def list_workers() -> list[int]:
    """Return the children that send."""
    return [pid for pid in children.family(os.getpid()) if "notify_worker" in conftest._command(pid)]


def is_idle() -> bool:
    return not list_workers()


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Answer a byte at a time, for ever: no read takes long, and the answer never ends."""
    try:
        while True:
            handler.wfile.write(b"H")
            handler.wfile.flush()
            time.sleep(0.02)
    except OSError:
        handler.close_connection = True


@pytest.mark.soak
def test_each_channel_gets_what_it_is_for_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving(name=title_of) as all_of_it, receiving(name=lambda body: "form") as severe:
        monkeypatch.setenv("SEVERE", address(severe, "form"))
        chosen = {**QUICK, "name": "severe", "url_env": "SEVERE", "severity": "major", "gateways": ["b"]}
        service = Service(tmp_path / "a.db", notify=[channel(tmp_path, "all", address(all_of_it)), chosen])
        change: dict[str, Any] = {"severity": "critical", "text": "3.1-3.4 Hz carries 6 times its usual energy"}
        service.step(status("a", device=PLACE), alarm("a"), alarm("a", **change, onset_s=9), alarm("b", **change))
        service.step(alarm("b", "cleared", **change), alarm("b", cause="silent-x", kind="sensor"))
        service.run(service.empty)
        service.cut()
    told = [json.loads(body) for _, _, body in all_of_it.requests]
    assert len(told) == 6 and all_of_it.taken == [one["title"] for one in told]
    first, critical = told[0], next(one for one in told if "critical" in one["title"] and "north" in one["title"])
    assert (first["title"], first["type"]) == (f"{SITE}, north pier: anomaly raised, warning", "warning")
    assert critical["type"] == "failure"
    assert critical["message"].split("\n") == [
        f"Site: {SITE}",
        "Gateway: a",
        "Place: north pier",
        "What: anomaly raised, critical",
        f"Since: {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(T0_NS // NS + 9))} UTC",
        "3.1-3.4 Hz carries 6 times its usual energy",
    ]
    bodies = [body for _, _, body in severe.requests]
    assert len(bodies) == 2 and b"raised" in bodies[0] and b"cleared" in bodies[1] and b"Until" in bodies[1]


@pytest.mark.soak
def test_an_alarm_of_the_whole_site_goes_to_channels_of_that_kind(tmp_path: Path) -> None:
    with receiving(name=title_of) as fleet, receiving(name=title_of) as sensor:
        for_fleet = channel(tmp_path, "fleet", address(fleet), kinds=["fleet"], gateways=["nobody"])
        service = Service(
            tmp_path / "a.db", notify=[for_fleet, channel(tmp_path, "s", address(sensor), kinds=["sensor"])]
        )
        now_s = (time.time_ns() - T0_NS) / NS
        service.step(*[alarm(gateway, onset_s=now_s) for gateway in "abc"], Tick())
        service.run(service.empty)
        service.cut()
    assert [title.split(":")[0] for title in fleet.taken] == [f"{SITE}, the whole site"] and not sensor.requests


HOSTILE = (
    "<img src=x onerror=alert(1)> [pay here](https://evil.example/a) `x` **now** ||x|| @everyone <!channel> &lt;b&gt; "
    "\u202e\u200bdesrever \x1b[31m\r\nBcc: x"
)


@pytest.mark.soak
def test_what_a_gateway_says_stays_text_and_short(tmp_path: Path) -> None:
    with receiving(name=title_of) as receiver:
        html = f"{address(receiver)}?format=html"  # Apprise makes HTML of the text for this one
        service = Service(tmp_path / "a.db", notify=[channel(tmp_path, "crew", address(receiver), html)])
        service.step(status("a", device=Device(location=HOSTILE * 3)), alarm("a", text=HOSTILE * 30))
        service.run(service.empty)
        service.cut()
    plain, html_said = sorted(
        (json.loads(body) for _, _, body in receiver.requests), key=lambda one: "&" in one["message"]
    )
    assert len(plain["title"]) <= 160 and len(plain["message"]) <= 1_600
    assert not set("".join([plain["title"], plain["message"], html_said["title"]])) & set(
        "<>[]`*|@\\\x1b\r\u202e\u200b"
    )
    assert "://" not in plain["message"] and "(at)everyone" in plain["message"]
    assert len(plain["message"].split("\n")) == 6  # no line of its own making
    assert "<img" not in html_said["message"] and "<a" not in html_said["message"]


@pytest.mark.soak
@pytest.mark.parametrize(("answer", "is_refused"), [(404, True), (422, True), (401, False), (429, False), (503, False)])
def test_which_answers_are_for_good(tmp_path: Path, answer: int, is_refused: bool) -> None:
    with receiving(name=title_of) as receiver:
        receiver.answer = answer
        posted = client(tmp_path, address(receiver)).attempt(post())
    assert (posted.id, posted.channel, posted.is_refused) == ("id", "crew", is_refused)
    assert posted.problem == f"address 1 (JSON): it answers {answer}" and len(receiver.requests) == 1


@pytest.mark.soak
def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with receiving(name=title_of) as receiver:
        receiver.answer = 307
        assert "it answers 307" in client(tmp_path, address(receiver)).attempt(post()).problem
        assert {where for where, _, _ in receiver.requests} == {"/json"}


@pytest.mark.soak
def test_who_has_a_change_is_not_sent_it_again_while_another_fails(tmp_path: Path) -> None:
    with receiving(name=title_of) as good, receiving(name=title_of) as bad:
        bad.answer = 503
        crew = client(tmp_path, address(good), address(bad))
        assert crew.attempt(post()).problem == "address 2 (JSON): it answers 503"
        bad.answer = 200
        assert crew.attempt(post()).problem == ""
        assert (good.taken, bad.taken) == (["t"], ["t"])


@pytest.mark.soak
def test_a_receiver_that_hangs_holds_up_no_other_and_leaves_no_process(tmp_path: Path) -> None:
    with receiving() as stuck, receiving(name=title_of) as good:
        stuck.answer = drip
        specs = [channel(tmp_path, "stuck", address(stuck)), channel(tmp_path, "good", address(good))]
        service = Service(tmp_path / "a.db", notify=specs)
        service.step(*[alarm("a", cause=f"cause-{number}") for number in range(2)])
        service.run(lambda: bool(stuck.requests) and not service.state.alarms.queues["good"].items)
        assert len(good.taken) == 2 and len(service.state.alarms.queues["stuck"].items) == 2
        service.cut()
        waiting.until(is_idle)


@pytest.mark.soak
def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    with receiving() as stuck:
        stuck.answer = drip
        posted = client(tmp_path, address(stuck), timeout_s=1.0).attempt(post())
    assert posted.problem == "address 1: no answer within 1 s" and not posted.is_refused
    assert is_idle()


@pytest.mark.soak
def test_a_plugin_that_crashes_ends_its_own_process_alone(tmp_path: Path) -> None:
    with receiving() as stuck:
        stuck.answer = drip
        found = list[str]()
        crew = client(tmp_path, address(stuck))
        thread = threading.Thread(target=lambda: found.append(crew.attempt(post()).problem))
        thread.start()
        waiting.until(lambda: stuck.requests)
        (pid,) = list_workers()
        os.kill(pid, signal.SIGSEGV)
        thread.join()
    assert found == ["address 1: Apprise ended its process with signal 11"]


@pytest.mark.soak
def test_a_child_whose_parent_is_gone_ends_by_itself() -> None:
    with receiving() as stuck:
        stuck.answer = drip
        job = {"urls": [[1, address(stuck)]], "within_s": 1, "title": "t", "body": "b", "kind": "info"}
        with children.start(list(notify_client.COMMAND), stdin=subprocess.PIPE) as child:
            assert child.stdin is not None
            child.stdin.write(json.dumps(job).encode())
            child.stdin.close()
            waiting.until(lambda: child.poll() is not None)
        assert child.returncode == -signal.SIGALRM


@pytest.mark.soak
def test_what_waits_goes_out_in_order_after_a_restart(tmp_path: Path) -> None:
    with receiving(name=title_of) as receiver:
        receiver.answer = 503
        specs = [channel(tmp_path, "crew", address(receiver))]
        service = Service(tmp_path / "a.db", notify=specs)
        service.step(*[alarm("a", cause=f"cause-{number}", onset_s=number) for number in range(3)])
        service.run(lambda: bool(service.log))
        assert service.log[0].startswith("notify crew: address 1 (JSON): it answers 503 (attempt 1, 3 wait)")
        service.cut()
        receiver.answer = 200
        again = Service(tmp_path / "a.db", notify=specs)
        again.run(again.empty)
        again.cut()
    assert [title.split(": ")[1].split()[0] for title in receiver.taken] == ["cause-0", "cause-1", "cause-2"]


def test_a_child_knows_no_secret_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hidden")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    environment = notify_client.select_environment()
    assert "PGPASSWORD" not in environment and environment["HTTPS_PROXY"] == "http://127.0.0.1:9"
    assert environment.get("PATH") == os.environ.get("PATH")


@pytest.mark.soak
def test_a_running_aggregator_sends_and_ends_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where Apprise takes too long to say whether it understands the addresses."""
    monkeypatch.setattr(notify_client, "CHECK_S", 0.001)
    monkeypatch.setattr(site_keys, "release_key", lambda *_: KEY)
    with receiving(name=title_of) as good, receiving() as stuck:
        stuck.answer = drip
        specs = [channel(tmp_path, "good", address(good)), channel(tmp_path, "stuck", address(stuck))]
        site = {"site": SITE, "store": tmp_path / "a.db"}
        with pytest.raises(ChildProcessError, match=r"address 1: no answer within 0\.001 s"):
            notify_client.check(aggregator_settings(notify=specs).notify)
        aggregator = Aggregator(aggregator_settings(aggregator=site, notify=specs))
        waiting.until(lambda: "notify good: url_file" in caplog.text)
        aggregator.step([status("a"), alarm("a")])
        waiting.until(lambda: good.taken and stuck.requests)
        aggregator.end()
        waiting.until(is_idle)
        aggregator.service.close()
    Aggregator(aggregator_settings(aggregator=site)).service.close()
    assert "notify stuck: 1 changes of alarms wait for it, and the settings have no such receiver" in caplog.text


@pytest.mark.soak
def test_alarms_are_received_while_files_of_receivers_are_missing_and_delivered_once_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(site_keys, "release_key", lambda *_: KEY)
    with receiving(name=title_of) as crew, receiving() as hook:
        spec = channel(tmp_path, "crew", address(crew))
        (tmp_path / "crew.urls").unlink()
        webhook = {"url": f"http://127.0.0.1:{hook.port}/", "secret_file": tmp_path / "secret", **QUICK}
        site = {"site": SITE, "store": tmp_path / "a.db"}
        chosen = aggregator_settings(aggregator=site, notify=[spec], webhook=webhook)
        aggregator = Aggregator(chosen)
        aggregator.step([status("a"), alarm("a")])
        waiting.until(lambda: caplog.text.count("cannot be read") >= 2)
        assert f"channel crew: notify crew: url_file {tmp_path / 'crew.urls'}: cannot be read" in caplog.text
        assert f"the webhook: webhook.secret_file: {tmp_path / 'secret'} cannot be read" in caplog.text
        aggregator.end()
        aggregator.service.close()
        service = Service(tmp_path / "a.db", notify=[spec], webhook=webhook)
        service.run(lambda: len({line.split(":")[0] for line in service.log}) == 2)
        assert not crew.requests and not hook.requests and not service.empty()
        (tmp_path / "secret").write_text("Bearer open-sesame")
        channel(tmp_path, "crew", address(crew))
        service.run(service.empty)
        service.cut()
    assert len(crew.taken) == 1 and hook.requests[0][1]["Authorization"] == "Bearer open-sesame"
