"""Goal: who is on the gateway sees what it does now and why it alarms, and nobody else sees anything.

Method: the real server over a real store and the real socket, with an agent that is a state.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.settings.web import GATEWAY_SOCKET
from fedgate.firmware_sim import children
from fedgate.gateway_agent.__main__ import main
from fedgate.gateway_agent.runtime.page_socket import PageSocket
from fedgate.gateway_agent.web.app import is_own_name
from fedgate.gateway_agent.web.pages import read_certificate
from fedgate.gateway_agent.web.reading import Reader
from fedgate.models.time_units import DAY_NS, NS
from tests.benchmarks.central import make_certificate
from tests.gateway_agent.commands.test_models_command import SETTINGS
from tests.gateway_agent.monitor.test_gateway_sensors import feed
from tests.support.agents import changed
from tests.support.gateway_page import GatewayPage, open_gateway_page
from tests.support.page_views import EVIL, Markup, check_headings, check_moment
from tests.support.sites import gateway_settings, samples
from tests.support.some_packages import only
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S


def read_change(settings: GatewaySettings) -> str:
    """Return what says that a page would show something else."""
    return asyncio.run(Reader(settings).read_change())


ADDRESSES = ("/", "/device", "/api/overview", "/api/device")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayPage]:
    """The page of a gateway on which an anomaly stands, and whose agent runs."""
    with open_gateway_page(tmp_path_factory.mktemp("gateway")) as page, page.running():
        yield page


def test_it_shows_what_the_agent_knows_now(page: GatewayPage) -> None:
    found = json.loads(page.client().get("/api/overview").text)
    assert found["is_live"] and not found["is_well"] and found["notice"] == ""
    assert found["sentence"] == "The agent watches with model 1: anomaly."
    (alarm,), evidence = found["alarms"], found["evidence"]
    assert alarm["cause"] == "anomaly" and evidence["alarm"] == alarm["id"] and not found["is_over"]
    assert set(found["charts"]) == {"bands", "spectrum", "trail"}
    latest = page.state.monitor.latest["deck"]
    (channel,) = found["channels"]
    assert (channel["channel"], channel["source"], channel["rate_hz"]) == ("load", "deck", latest.rate_hz)
    assert channel["value"] == pytest.approx(latest.values[0], rel=1e-3)
    scores = found["chart"]["series"][0]["values"]
    assert len(scores) == len(page.state.monitor.trail) and scores[-1] == pytest.approx(
        page.state.monitor.trail[-1][1], rel=1e-3
    )
    assert found["chart"]["linear_to"] > 0  # or nothing would be seen of the others
    assert found["promise"]["raised"] == 1


def test_the_device_has_its_models_its_link_and_its_store(page: GatewayPage) -> None:
    found = json.loads(page.client().get("/api/device").text)
    (model,) = found["models"]
    assert (model["role"], model["version"]) == ("in force", 1) and found["link"]["state"] == "up"
    assert found["store"]["store"] == str(page.settings.gateway.store) and found["certificate"] is None
    assert found["versions"]["page"] == found["reported"]["version"]


@pytest.mark.parametrize("path", ADDRESSES)
def test_each_answer_says_what_a_browser_may_do_with_it(page: GatewayPage, path: str) -> None:
    answer = page.client().get(path)
    assert answer.status == 200 and "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    if not path.startswith("/api"):
        check_headings(answer.text)
        check_moment(answer.text)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8471", "127.0.0.1.evil.example", "192.168.1.7", ""])
def test_a_name_that_leads_here_from_elsewhere_gets_nothing(page: GatewayPage, host: str) -> None:
    for path in (*ADDRESSES, "/events", "/static/fedgate.js"):
        answer = page.client().get(path, Host=host)
        assert answer.status in (400, 421) and "deck" not in answer.text, path


def test_loopback_is_known_by_each_of_its_names() -> None:
    for name in (b"localhost:9000", b"127.0.0.1", b"127.0.0.1:8471", b"[::1]:8471", b"127.0.0.2:1"):
        assert is_own_name([name])
    for names in ([], [b"localhost", b"localhost"], [b"[::1.evil"], [b"\xff"]):
        assert not is_own_name(names)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_takes_no_order(page: GatewayPage, method: str) -> None:
    for path in (*ADDRESSES, "/orders/acknowledge"):
        assert page.client().ask(method, path, {"alarms": "x"}).status in (404, 405)


def test_what_sensors_and_the_site_say_stays_text(page: GatewayPage) -> None:
    before = page.state
    alarm = before.monitor.alarms.active["anomaly"].model_copy(update={"text": EVIL})
    assert before.monitor.evidence is not None
    evidence = before.monitor.evidence.model_copy(update={"rule": EVIL, "text": EVIL})
    book = replace(before.monitor.alarms, active={"anomaly": alarm})
    page.state = changed(before, "monitor", alarms=book, evidence=evidence, values_filled={EVIL: 3})
    page.state = changed(page.state, "context", refusal=EVIL)
    time.sleep(0.6)  # within which who asks again gets the same
    try:
        text = page.client().get("/").text
    finally:
        page.state = before
    found = Markup(text)
    assert sum(one.count(EVIL) for one in found.texts) >= 3 and not [one for one in found.elements if one[0] == "img"]
    assert all("src" in one for one in found.elements if one[0] == "script")


def test_a_page_follows_what_happens_and_not_what_only_passes(tmp_path: Path) -> None:
    with open_gateway_page(tmp_path) as page, page.running():
        first = read_change(page.settings)
        later = changed(page.state, "context", uptime_ns=page.state.context.uptime_ns + NS, bytes_sent=9)
        page.state = later
        assert read_change(page.settings) == first
        page.state, _ = feed(page.state, samples(45, 1), 45.0 + 60)
        assert read_change(page.settings) != first


@pytest.mark.soak
def test_without_a_running_agent_it_says_so_and_shows_what_is_stored(tmp_path: Path) -> None:
    with open_gateway_page(tmp_path) as page:
        before = (tmp_path / "gateway.db").stat().st_mtime_ns
        for path in ADDRESSES:
            assert page.client().get(path).status == 200
        found = json.loads(page.client().get("/api/overview").text)
        assert found["sentence"].startswith("The agent does not run") and not found["is_well"]
        assert "systemctl start gateway-agent" in found["notice"]
        assert json.loads(page.client().get("/api/device").text)["models"][0]["version"] == 1
        log = tmp_path / "gateway.db-wal"  # which whoever reads such a file finds or makes
        assert (tmp_path / "gateway.db").stat().st_mtime_ns == before and log.stat().st_size == 0
        with page.running():
            time.sleep(0.6)
            assert json.loads(page.client().get("/api/overview").text)["is_live"]


@pytest.mark.soak
def test_without_a_store_there_is_a_page_too_and_it_makes_none(tmp_path: Path) -> None:
    with open_gateway_page(tmp_path, is_stored=False) as page:
        for path in ADDRESSES:
            assert page.client().get(path).status == 200
        assert "there is no store yet" in page.client().get("/").text
        assert list(tmp_path.iterdir()) == []


def test_another_user_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "gateway.db")

    with open_gateway_page(tmp_path) as page:
        monkeypatch.setattr("fedgate.config.runtime.store_lock.find_holder", refuse)
        found = json.loads(page.client().get("/api/overview").text)
        assert "as the user of the agent" in found["notice"] and "Permission denied" in found["notice"]


def test_an_agent_of_another_version_is_no_error(tmp_path: Path) -> None:
    with open_gateway_page(tmp_path) as page:
        socket = PageSocket(tmp_path / GATEWAY_SOCKET, lambda: b'{"status": {"state": "dancing"}}')
        socket.start()
        try:
            assert not json.loads(page.client().get("/api/overview").text)["is_live"]
        finally:
            socket.stop()


@pytest.mark.parametrize("listen", ["0.0.0.0:8471", "192.168.1.7:8471", "[::]:8471"])
def test_it_is_never_served_to_others(listen: str) -> None:
    with pytest.raises(ValidationError, match=r"ssh -L 8471:127\.0\.0\.1:8471"):
        gateway_settings(web={"listen": listen})
    assert gateway_settings().web is None


def test_the_command_says_what_is_lacking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(SETTINGS)
    assert main(["web", "-c", str(path)]) == 2
    assert "there is no table [web]" in capsys.readouterr().err


def test_a_certificate_says_until_when_it_is_good(tmp_path: Path) -> None:
    now_ns = time.time_ns()
    assert read_certificate(None, now_ns) is None
    missing = read_certificate(tmp_path / "none.pem", now_ns)
    assert missing is not None and "none.pem" in missing["problem"]
    found = read_certificate(make_certificate(tmp_path), now_ns)
    assert found is not None and found["problem"] == "" and found["not_after_ns"] > found["issued_ns"]
    later = read_certificate(tmp_path / "server.crt", now_ns - 20 * DAY_NS)
    assert found["is_due"] and later is not None and not later["is_due"]


@pytest.mark.soak
def test_without_its_extra_the_command_says_which_one_to_install(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(f"{SETTINGS}\n[web]\n")
    command = [sys.executable, "-P", "-m", "fedgate.gateway_agent", "web", "-c", str(path)]
    run = children.run(command, PATIENCE_S, text=True, env=only(tmp_path / "base"), cwd=ROOT)
    assert run.returncode == 2 and "it comes with fedgate's extra 'web'" in run.stderr
    assert "Traceback" not in run.stderr
