"""Another device takes the name of a gateway: the alarms of the old one end, and the new one, its enrolment and its
doctor say that the broker has to be restarted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.enrolment import CertificateRequested, ForgetGateway
from fedgate.cloud_aggregator.events import Enqueue, Publish, RecordAlarm, Send
from fedgate.cloud_aggregator.state import State
from fedgate.config.identity import pki
from fedgate.config.settings.notifications import Webhook
from fedgate.config.settings.settings import GatewaySettings, load
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.gateway_agent.commands import doctor
from fedgate.gateway_agent.runtime import echo
from fedgate.gateway_agent.runtime.agent import Agent
from tests.cloud_aggregator.access.test_admission import OTHER, asks, enrolled, only, token
from tests.cloud_aggregator.pki.test_broker_access import Capture, denied, needs_broker
from tests.cloud_aggregator.test_aggregator_machine import ALARM, after, heard
from tests.support.site_folders import Folder, aggregator_of, broker_of, client, founded, until
from tests.support.sites import topic, with_record
from tests.support.waiting import until_all_came

ALARM_TOPIC = topic("north", "alarm", ALARM.cause)


def alarmed() -> State:
    """Return a site with a webhook where an alarm of north stands, and which waits for another device."""
    state = enrolled("north", "west")
    posts = state.context.settings.model_copy(update={"webhook": Webhook(url="https://nobody.example/")})
    state, _ = after(with_record(state, "context", settings=posts), heard("north", "alarm", ALARM.to_bytes(), "x"))
    state, _ = after(state, token(digest=OTHER, replaces=True))
    assert [known.active for known in state.alarms.book["north"].values()] == [True]
    return state


def test_the_alarms_of_a_device_end_when_another_takes_its_name() -> None:
    state, effects = after(alarmed(), asks(key="another", digest=OTHER, serial="b2"))
    end = only(effects, RecordAlarm)
    assert (end.gateway, end.alarm.state, end.ended) == ("north", "cleared", "replaced")
    assert "another device" in end.alarm.text and only(effects, ForgetGateway).gateway == "north"
    taken_away = {one.topic for one in effects if isinstance(one, Publish) and one.retain and not one.payload}
    assert {ALARM_TOPIC, topic("north", "status", "agent")} <= taken_away
    assert json.loads(only(effects, Enqueue).item.body)["active"] is False
    assert not [one for one in effects if isinstance(one, Send)]  # behind the raising, which is on its way
    assert "north" not in state.access.gateways
    state, _ = after(state, heard("north", "alarm", ALARM.model_copy(update={"id": "of the new"}).to_bytes(), "x"))
    state, effects = after(state, asks(key="another", digest=OTHER, serial="c3"))  # the answer was lost
    assert not [one for one in effects if isinstance(one, RecordAlarm)]
    # What was taken away comes back to us by our own subscription, and is no message of the gateway.
    assert after(state, heard("north", "alarm", b"", ALARM.cause), heard("north", "status", b""))[1] == []


def test_the_alarms_of_a_device_with_another_key_go_on() -> None:
    _, effects = after(alarmed(), CertificateRequested(7, "north", "another", "b2", OTHER, is_same_device=True))
    assert not [one for one in effects if isinstance(one, RecordAlarm | ForgetGateway)]


def admitted(site: Folder, folder: Path, capsys: Capture, *more: str) -> tuple[Path, str, str]:
    """Enrol a device as north, in a folder of its own; return its settings, and what was said as text and in JSON."""
    folder.mkdir()
    text = (site.path / "gateway.toml").read_text().replace('id = "gateway-1"', 'id = "north"')
    settings = folder / "gateway.toml"
    settings.write_text(f"{text}\n".replace("[identity]\n", "[identity]\ncheck_s = 1.0\n"))
    capsys.readouterr()
    words = ["gateways", "token", "north", "-c", str(site.path / "aggregator.toml"), "--json", *more]
    assert cloud_aggregator(words) == 0
    given = json.loads(capsys.readouterr().out)["token"]
    assert pki.read_token(given).gateway == "north"
    said = []
    for how in ([], ["--json"]):
        assert gateway_agent(["enrol", "-c", str(settings), "--token", given, *how]) == 0
        said.append(capsys.readouterr().out)
    return settings, said[0], said[1]


@contextmanager
def running(settings: Path) -> Iterator[None]:
    """Run the agent in a thread of its own, in which its store is opened, too."""
    agents: list[Agent] = []

    def run() -> None:
        agents.append(Agent(load(settings, GatewaySettings)))
        agents[0].run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        until(lambda: agents)
        agents[0].stop()
        thread.join()
        if renewer := agents[0]._renewer:
            renewer._thread.join()  # it ends with its child, which nobody ends where only this thread is the agent


def doctor_says(settings: Path, capsys: Capture) -> dict[str, dict[str, str]]:
    capsys.readouterr()
    gateway_agent(["doctor", "-c", str(settings), "--json"])
    found = json.loads(capsys.readouterr().out)
    return {one["name"]: one for one in (found["findings"] if isinstance(found, dict) else found)}


@pytest.mark.soak
@needs_broker
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_replaced_device_its_enrolment_and_its_doctor_say_to_restart_the_broker(
    tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(echo, "WAIT_S", 1.0)
    for name, of_little in (("BASE", ()), ("TRAINING", ()), ("OPTIONAL", {}), ("MEASURE_S", 0.01)):
        monkeypatch.setattr(doctor, name, of_little)  # the broker is what is looked at here
    site, words = founded(tmp_path / "site"), "restart fedgate-broker"
    with aggregator_of(site):
        with broker_of(site):
            old, said, _ = admitted(site, tmp_path / "old", capsys)
            assert "NOT YET" not in said
            own = (old.parent / "gateway.pem", old.parent / "gateway.key")
            cloud = (site.path / "cloud.pem", site.path / "cloud.key")
            with (
                client(site, "north", own) as (device, _, up),
                client(site, "watcher", cloud, ALARM_TOPIC) as (link, _, ups),
            ):
                until(lambda: up and ups)
                device.publish(ALARM_TOPIC, ALARM.to_bytes(), retain=True)
                until(lambda: alarms(site, capsys) == [""])
                new, said, in_json = admitted(site, tmp_path / "new", capsys, "--replace")
                assert words in said and words in json.loads(in_json)["notice"]
                assert alarms(site, capsys) == ["replaced"]
                until(lambda: denied(site))
            with client(site, "later", cloud, ALARM_TOPIC) as (link, shown, ups):
                until(lambda: ups)
                until_all_came(link, ALARM_TOPIC, lambda: shown)
                assert all(ALARM.cause.encode() not in body for _, body in shown)
            finding = doctor_says(new, capsys)["broker echo"]
            assert finding["level"] == "failure" and words in finding["advice"]
            with running(new):
                until(
                    lambda: echo.TEXT in caplog.text and "the aggregator says: the broker denies north" in caplog.text
                )
        with broker_of(site):
            until(lambda: not denied(site))
            caplog.clear()
            assert "broker may say" in doctor_says(new, capsys)
            with running(new):
                until(lambda: [one["state"] for one in shown_as_json(site, capsys, "status")["gateways"]] == ["online"])
                time.sleep(3.0)
                assert echo.TEXT not in caplog.text and "the aggregator says" not in caplog.text


def shown_as_json(site: Folder, capsys: Capture, part: str) -> Any:
    """Return what the aggregator's command shows."""
    capsys.readouterr()
    assert cloud_aggregator([part, "-c", str(site.path / "aggregator.toml"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def alarms(site: Folder, capsys: Capture) -> list[str]:
    """Return how each alarm in the registry ended."""
    return [one["ended"] or "" for one in shown_as_json(site, capsys, "alarms")]
