"""Goal: who was shut out stays out at the broker: under any client id, whoever has his name now, whatever went wrong.

Method: the barrier with commands that fail or count, and Mosquitto with a real aggregator and links that hold
certificates which ended.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import Certificate, Denied, RecordRegistry, Revoke
from fedgate.cloud_aggregator.events import Event
from fedgate.cloud_aggregator.pki import broker_access, broker_process
from fedgate.cloud_aggregator.pki.broker_access import BrokerAccess
from fedgate.cloud_aggregator.pki.broker_process import BrokerError
from fedgate.cloud_aggregator.pki.enrolment_service import DONE, EnrolmentService
from fedgate.cloud_aggregator.pki.quarantine import Quarantine
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.identity import pki
from fedgate.config.identity.pki import IdentityError
from fedgate.config.settings.identity import Identity
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import mosquitto_program
from fedgate.gateway_agent.runtime.enrolment import enrol
from fedgate.gateway_agent.runtime.membership import Files
from tests.support import waiting
from tests.support.site_folders import Folder, aggregator_of, broker_of, client, founded, until
from tests.support.sites import SITE, topic
from tests.support.soak import some
from tests.support.waiting import PATIENCE_S, until_all_came

needs_broker = pytest.mark.skipif(
    mosquitto_program() is None, reason="Mosquitto is not installed (Debian: apt install mosquitto)"
)
QUIET_S = 0.5
OLD = Certificate("1f", "north", "k", 1, 2, "revoked", 3)
NEW = Certificate("2f", "north", "l", 4, 5)
OTHER = Certificate("3f", "south", "m", 1, 2, "revoked", 3)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def site(tmp_path: Path) -> Folder:
    return founded(tmp_path / "site")


def wanted(*certificates: Certificate, cut: tuple[str, ...] = ()) -> Revoke:
    registry = Registry({one.serial: one for one in certificates})
    return Revoke(registry.list_ended(), registry.barred, cut, registry.list_outlived())


def made(site: Folder, **spec: Any) -> BrokerAccess:
    return BrokerAccess(site.settings, Identity(folder=site.path, **spec), site.authority, lambda _event: None)


def counting(log: Path, code: int) -> tuple[str, ...]:
    return ("sh", "-c", f"echo called >> {log}; exit {code}")


def calls(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def denied(site: Folder) -> bool:
    return "user north\ntopic deny #\n" in (site.path / "mosquitto.acl").read_text()


@pytest.mark.parametrize("is_by_hand", [False, True])
def test_an_order_whose_aggregator_ended_at_the_broker_is_answered_by_the_next(
    is_by_hand: bool, site: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, path = tmp_path / "calls", tmp_path / "cloud.db"
    spec = Identity(folder=site.path, reload_command=[] if is_by_hand else counting(log, 0))
    settings = site.settings.model_copy(update={"identity": spec, "enrolment": None})

    def running(store: Store) -> Service:
        return Service(
            settings, store, Ed25519PrivateKey.generate(), uptime_ns=time.time_ns(), anchor_ns=0, beginning="a"
        )

    with closing(Store(path)) as store:
        store.commit([RecordRegistry((replace(NEW, not_after_ns=time.time_ns() + 10**15),))])
        number = store.order("revoke", {"gateway": "north"})
        service = running(store)
        assert any(isinstance(one, Revoke) for one in service.step(time.time_ns(), service.read_orders()[0]))
        assert store.answer(number) is None  # and here its power fails
    with closing(Store(path)) as store:
        service, told = running(store), list[Event]()
        assert service.state.access.registry is not None and not service.read_orders()
        door = EnrolmentService(settings, spec, told.append)
        door.start(service.state.access.registry, store.read_half_answered())
        door.stop()
        service.step_all(time.time_ns(), told)
        text, problem = store.answer(number) or ("", "")
        assert text == DONE and ("reload the broker by hand" in problem) is is_by_hand and bool(problem) is is_by_hand
        assert store.read_half_answered() == [] and denied(site) and (calls(log) > 0) is not is_by_hand
    assert ("reload the broker by hand" in caplog.text) is is_by_hand


@pytest.mark.parametrize("content", [None, "", "mosquitto"])
def test_a_pid_file_that_names_no_process_tells_no_broker(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.pid"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BrokerError, match=r"identity.broker_pid_file: .*; is the broker running"):
        broker_process.reload(Identity(folder=tmp_path, broker_pid_file=path))


def test_a_broker_that_was_not_told_is_told_until_it_worked_and_at_every_start(
    site: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_access, "AGAIN_S", 0.0)
    log = tmp_path / "calls"
    failing = made(site, reload_command=counting(log, 1))
    failing.bar(wanted(OLD))
    for number in (1, 2, 3):
        assert calls(log) == number
        failing.tick()
    # The files say it all by now. Only that the broker has read them is not known, and never is after a restart.
    again = made(site, reload_command=counting(log, 1))
    again.bar(wanted(OLD))
    again.tick()
    assert calls(log) == 6
    working = made(site, reload_command=counting(log, 0))
    working.bar(wanted(OLD))
    working.tick()
    assert calls(log) == 7
    working.bar(wanted(OLD, OTHER))
    assert calls(log) == 8


def test_a_name_with_another_device_is_denied_until_the_broker_is_another_process(site: Folder) -> None:
    held = Quarantine(site.path / "seen.json")
    ended, outlived = [("1f", 3)], [("1f", "north")]
    assert not held.list_held(ended, [], "first")  # the name is barred anyway
    assert held.list_held(ended, outlived, "first") == {"north"} == held.list_held(ended, outlived, "")
    held = Quarantine(site.path / "seen.json")  # as after a restart of the aggregator
    assert held.list_held(ended, outlived, "first") == {"north"}
    assert not held.list_held(ended, outlived, "second") and not held.list_held(ended, outlived, "second")
    assert held.list_held([*ended, ("2f", 4)], [*outlived, ("2f", "north")], "second") == {"north"}
    # Where none runs there is no connection to outlive; where it cannot be seen nothing is let in.
    assert not Quarantine(site.path / "other.json").list_held(ended, [], "")
    unseen = Quarantine(site.path / "third.json")
    assert unseen.list_held(ended, outlived, None) == unseen.list_held(ended, outlived, "first") == {"north"}
    unseen.release()
    assert not unseen.list_held(ended, outlived, None)
    (site.path / "seen.json").write_text("{")
    with pytest.raises(IdentityError, match="restart the broker"):
        Quarantine(site.path / "seen.json")


def test_who_is_denied_is_said_once_and_once_more_when_nobody_is(site: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Event] = []
    spec = Identity(folder=site.path, reload_command=("true",))
    access = BrokerAccess(site.settings, spec, site.authority, said.append)
    monkeypatch.setattr(broker_process, "find_running", lambda _spec: "first")
    access.bar(wanted(OLD, NEW))
    access.bar(wanted(OLD, NEW))
    assert said == [Denied(frozenset({"north"}))]
    monkeypatch.setattr(broker_process, "find_running", lambda _spec: "second")
    access.tick()
    assert said[1:] == [Denied(frozenset())]


def test_the_restart_command_makes_a_name_good_again_and_only_where_it_worked(
    site: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_access, "AGAIN_S", 0.0)
    log, reload = tmp_path / "calls", ("true",)
    by_hand = made(site, reload_command=reload)
    by_hand.bar(wanted(OLD, NEW))
    by_hand.tick()
    assert denied(site)
    failing = made(site, reload_command=reload, restart_command=counting(log, 1))
    failing.bar(wanted(OLD, NEW))
    failing.tick()
    assert denied(site) and calls(log) == 2
    working = made(site, reload_command=reload, restart_command=counting(log, 0))
    working.bar(wanted(OLD, NEW))
    for _ in range(3):
        working.tick()
    assert not denied(site) and calls(log) == 3
    later = made(site, reload_command=reload, restart_command=counting(log, 0))
    later.bar(wanted(OLD, NEW))
    assert not denied(site) and calls(log) == 3


def enrolled(site: Folder, name: str, file: str, capsys: Capture, *more: str) -> tuple[Path, Path]:
    """Enrol a device, with the files of this name, as the gateway of that name."""
    capsys.readouterr()
    words = ["gateways", "token", name, "-c", str(site.path / "aggregator.toml"), "--json", *more]
    assert cloud_aggregator(words) == 0
    token = pki.read_token(json.loads(capsys.readouterr().out)["token"])
    mine = Files(*(site.path / f"{file}.{end}" for end in ("key", "pem", "ca", "pub", "root", "json")))
    enrol(token, mine)
    return mine.certificate, mine.key


def revoke(site: Folder, name: str) -> None:
    assert cloud_aggregator(["gateways", "revoke", name, "-c", str(site.path / "aggregator.toml")]) == 0


@contextmanager
def watched(site: Folder, name: str) -> Iterator[tuple[Any, list[tuple[str, bytes]]]]:
    cloud = (site.path / "cloud.pem", site.path / "cloud.key")
    with client(site, "watcher", cloud, f"fedgate/v1/{SITE}/{name}/#") as (link, seen, up):
        until(lambda: up)
        mark = (topic(name, "resend", "mark"), b"")  # which no gateway here listens to
        until_all_came(link, mark[0], lambda: mark in seen)
        seen.remove(mark)
        yield link, seen


# Takes no signal for a moment, as Mosquitto does between writing its number and listening; its name is an argument.
STARTING = """
import signal, sys, time
from pathlib import Path
time.sleep(0.3)
signal.signal(signal.SIGHUP, lambda *_: Path(sys.argv[1]).touch())
while True:
    time.sleep(0.01)
"""


def test_a_broker_that_is_still_starting_is_not_ended_by_what_should_make_it_read(tmp_path: Path) -> None:
    pid_file, heard = tmp_path / "mosquitto.pid", tmp_path / "heard"
    process = children.start([sys.executable, "-c", STARTING, str(heard), "mosquitto"])
    try:
        pid_file.write_text(str(process.pid))
        assert broker_process.reload(Identity(folder=tmp_path, broker_pid_file=pid_file)) == ""
        until(heard.exists)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


@pytest.mark.soak
@needs_broker
@pytest.mark.slow
# paho leaves the socket of a handshake that failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_revoked", some([True, False]))
def test_a_device_lives_on_under_no_client_id_when_its_name_is_anothers(
    is_revoked: bool, site: Folder, capsys: Capture
) -> None:
    where, receipts = topic("north", "alarm", "x"), f"fedgate/v1/{SITE}/north/receipt/+"
    with aggregator_of(site):
        with broker_of(site):
            old = enrolled(site, "north", "old", capsys)
            with (
                client(site, "innocent", old, receipts) as (thief, heard, ups),
                watched(site, "north") as (cloud, seen),
            ):
                until(lambda: ups and thief.publish(where, b"as long as it may") and seen)
                if is_revoked:
                    revoke(site, "north")
                new = enrolled(site, "north", "new", capsys, "--replace")
                until(lambda: denied(site))
                time.sleep(QUIET_S)
                seen.clear()
                thief.publish(where, b"thief")
                cloud.publish(topic("north", "receipt", "x"), b"secret")
                time.sleep(QUIET_S)
                assert ups == [True] and not heard and (where, b"thief") not in seen
        with broker_of(site):
            until(lambda: not denied(site))
            with (
                client(site, "innocent", old, receipts) as (thief, heard, ups),
                client(site, "north", new, receipts) as (device, welcome, up),
                watched(site, "north") as (cloud, seen),
            ):
                until(lambda: up and device.publish(where, b"device") and (where, b"device") in seen)
                until(lambda: cloud.publish(topic("north", "receipt", "y"), b"welcome") and welcome)
                assert True not in ups and not heard


@pytest.mark.soak
@needs_broker
@pytest.mark.slow
def test_what_a_revoked_gateway_retained_is_taken_away(site: Folder, capsys: Capture) -> None:
    with aggregator_of(site), broker_of(site):
        own = enrolled(site, "north", "north", capsys)
        with client(site, "north", own) as (link, _, up):
            until(lambda: up)
            for number in range(50):
                assert link.publish(topic("north", "telemetry", f"x{number}"), bytes(1_000), retain=True)
            until(lambda: link.drain(0.1))
        with watched(site, "north") as (_, seen):
            until(lambda: len(seen) >= 50)
        revoke(site, "north")

        def left() -> int:
            with watched(site, "north") as (_, seen):
                return len(seen)

        # Asking is itself a message of north's, and while those come the aggregator goes on taking them away.
        waiting.until(lambda: left() == 0, poll_s=10 * broker_access.LISTEN_S)


@needs_broker
@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
def test_the_broker_speaks_no_old_tls(site: Folder, version: ssl.TLSVersion) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(site.path / "ca.pem")
    context.load_cert_chain(site.path / "cloud.pem", site.path / "cloud.key")
    context.set_ciphers("ALL:@SECLEVEL=0")  # else our own side would refuse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    with broker_of(site), socket.create_connection(("127.0.0.1", site.port)) as plain:
        if version == ssl.TLSVersion.TLSv1_2:
            with context.wrap_socket(plain, server_hostname="localhost") as tls:
                assert tls.version() == "TLSv1.2"
        else:
            with pytest.raises(ssl.SSLError, match=r"ALERT_PROTOCOL_VERSION|alert protocol version"):
                context.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.soak
@needs_broker
@pytest.mark.slow
def test_a_broker_that_kept_more_than_it_may_hold_starts_again(site: Folder) -> None:
    """One gateway can retain that much. The unit removes the file before each start, and nothing needs it."""
    conf, kept = site.path / "mosquitto.conf", site.path / "mosquitto.db"
    own = site.certified("north")
    with broker_of(site), client(site, "north", own) as (link, _, up):
        until(lambda: up)
        for number in range(60):
            until(partial(link.publish, topic("north", "telemetry", f"x{number}"), bytes(200_000), retain=True))
        until(lambda: link.drain(0.1))
    assert kept.stat().st_size > 10_000_000
    conf.write_text(conf.read_text().replace("memory_limit 1073741824", "memory_limit 8388608"))
    program = mosquitto_program()
    assert program is not None
    ended = children.run([program, "-c", conf], PATIENCE_S)
    assert ended.returncode != 0
    unit = (resources.files("fedgate.config") / "fedgate-broker.service").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStartPre=(.*)$", unit, re.MULTILINE)
    words = line.replace("/etc/fedgate/", f"{site.path}/").replace("+128M", "+4M").split()
    assert children.run(words, PATIENCE_S).returncode == 0 and not kept.exists()
    with broker_of(site), client(site, "north", own) as (_, _, up):
        until(lambda: up)
