"""Small troubles of a gateway in the field, which once lost something, cost too much or said the wrong thing."""

from __future__ import annotations

import logging
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from fedgate.cloud_aggregator.events import Log
from fedgate.config.doctor import broker
from fedgate.config.protocol.messages import Receipt
from fedgate.config.protocol.topics import TRIED
from fedgate.config.settings.identity import Membership
from fedgate.config.settings.settings import Broker
from fedgate.config.transport import tls
from fedgate.config.transport.probe import ProbeError
from fedgate.gateway_agent.__main__ import main
from fedgate.gateway_agent.events import CLASSES, TELEMETRY_PRIORITY, ClockSet, Enqueue, Item, Publish, Received, Save
from fedgate.gateway_agent.outbox import outbox as queue
from fedgate.gateway_agent.outbox.outbox import ITEMS_MAX, Outbox, give_up
from fedgate.gateway_agent.runtime import renewal
from fedgate.gateway_agent.runtime.agent import Agent
from fedgate.gateway_agent.runtime.renewal import Renewer
from fedgate.gateway_agent.storage.store import Store
from fedgate.gateway_agent.write_budget import WriteBudget
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import after as cloud_after
from tests.cloud_aggregator.test_aggregator_machine import heard as cloud_heard
from tests.cloud_aggregator.test_aggregator_machine import opened as cloud_opened
from tests.gateway_agent.commands.test_models_command import SETTINGS
from tests.support.agents import after, commissioned, heard, kinds
from tests.support.kept import ME, Small, give, item, opened, ticked
from tests.support.sites import FEATURES, KEY, T0_NS, gateway_settings, topic
from tests.support.watchers import BLOCK, CALM, SENSITIVE, THIRD, Gateway

Capture = pytest.CaptureFixture[str]


def test_a_receipt_for_an_update_that_was_given_up_here_is_taken_in(tmp_path: Path) -> None:
    agent = opened(tmp_path / "gateway.db")
    give(agent, "update", item("update", 3))
    waiting = replace(agent.state.training, awaited="update", answered=("run", 3), is_counted=False)
    agent.state = replace(agent.state, training=waiting)
    outbox, _ = give_up(
        agent.state.outbox, agent.state.context, {"update": agent.state.outbox.items["update"]}, "outbox-full"
    )
    state = replace(agent.state, outbox=outbox)
    refusal, receipt = Receipt(accepted=False, reason="no"), Receipt(accepted=True)
    refused, _ = after(state, heard("receipt", "update", refusal.to_bytes()))
    assert not refused.training.is_counted
    state, effects = after(state, heard("receipt", "update", receipt.to_bytes()))
    assert (state.training.is_counted, state.training.last_counted) == (True, "update") and kinds(effects, Save)
    assert after(state, heard("receipt", "update", receipt.to_bytes())) == (state, [])
    agent.close()


def test_a_clock_that_is_set_begins_no_new_budget_of_the_flash(tmp_path: Path) -> None:
    agent = opened(tmp_path / "gateway.db", 20 * NS)
    agent.policy.flash = WriteBudget(20 * NS, 31 * 2**20)
    ticked(agent)
    agent.step(agent.state.context.uptime_ns, ClockSet(T0_NS))
    ticked(agent)
    assert agent.state.context.store.written_bytes >= 31 * 2**20 and agent.policy.flash.started_ns == 20 * NS
    ticked(agent, 86_400.0)
    assert agent.state.context.store.written_bytes < 2**20
    agent.close()


def test_a_log_that_a_power_cut_left_beside_a_new_store_goes_aside(tmp_path: Path) -> None:
    """The cut is between two renames: the damaged file is aside, its log is not, and the new file waits."""
    path, new = tmp_path / "gateway.db", tmp_path / "made.db"
    store = Small(path)
    store.commit([Enqueue(f"old-{n}", item(f"old-{n}", 0, 700)) for n in range(50)])
    log = path.with_name("gateway.db-wal").read_bytes()
    store.close()
    path.rename(tmp_path / "gateway.db.damaged-20260101T000000Z-000")
    other = Small(new)
    other.commit([Enqueue(f"kept-{n}", item(f"kept-{n}", 0, 700)) for n in range(150)])
    other.close()
    new.rename(tmp_path / "gateway.db.new")
    path.with_name("gateway.db-wal").write_bytes(log)
    store = Small(path)
    assert sorted(store.read().outbox) == sorted(f"kept-{n}" for n in range(150)) and not store.damage
    assert (tmp_path / "gateway.db.damaged-20260101T000000Z-000-wal").read_bytes() == log
    store.close()
    path.unlink()
    path.with_name("gateway.db-wal").write_bytes(log)  # of a store that somebody took away
    store = Small(path)
    assert not store.read().outbox and not store.damage
    store.close()


def test_a_store_of_no_bytes_is_damage_and_a_missing_one_is_a_new_gateway(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    agent = opened(path)
    assert not agent.store.damage and not agent.state.monitor.alarms.active
    agent.close()
    path.write_bytes(b"")
    agent = opened(path)
    assert "it is empty, and was a store" in agent.store.damage and "store-damaged" in agent.state.monitor.alarms.active
    agent.close()


def test_a_new_store_for_which_there_was_no_room_leaves_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    path = tmp_path / "gateway.db"
    with monkeypatch.context() as patch:
        patch.setattr("fedgate.gateway_agent.storage.files._prepare", full)
        with pytest.raises(OSError, match="disk is full"):
            Small(path)
    agent = opened(path)
    assert not agent.store.damage
    agent.close()


def test_what_arrives_counts_by_its_bytes_against_what_may_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "release.pub"
    key.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    base = gateway_settings()
    place = base.gateway.model_copy(update={"store": tmp_path / "gateway.db"})
    trust = base.trust.model_copy(update={"release_key": key})
    agent = Agent(base.model_copy(update={"gateway": place, "trust": trust}))
    offered: list[tuple[object, int]] = []
    monkeypatch.setattr(agent.loop, "offer", lambda event, size_bytes=0: offered.append((event, size_bytes)))
    agent.links[0]._on_message("a/topic", bytes(1_000))
    assert offered == [(Received("a/topic", bytes(1_000)), 1_007)]
    agent.stop()
    agent.run()


@pytest.mark.soak
def test_to_drain_a_large_outbox_costs_little_a_receipt() -> None:
    """Compared with copying a dict of its size, which is what a state without an item takes at least."""
    count = 20_000
    one = [
        Item(topic(ME, "telemetry", "x"), (b"y",), retain=False, priority=TELEMETRY_PRIORITY, t_ns=n)
        for n in range(count)
    ]
    context = commissioned().context
    outbox, sends = queue.send_due(Outbox({f"{n:064x}": each for n, each in enumerate(one)}), context, {})
    assert list(outbox.sent_ns) == list(outbox.items)[:ITEMS_MAX] and len(kinds(sends, Publish)) == ITEMS_MAX
    receipts, copied_s, settled_s = 90, list[float](), list[float]()
    for _ in range(receipts):  # in turn, so that a busy machine slows both
        began_s = time.process_time()
        held = dict(outbox.items)
        held.pop(next(iter(held)))
        dict(held)
        copied_s.append(time.process_time() - began_s)
        before, began_s = outbox, time.process_time()
        outbox, _ = queue.settle(before, next(iter(before.sent_ns)), Receipt(accepted=True))
        if queue.may_be_due(before, outbox):
            outbox, _ = queue.send_due(outbox, context, {})
        settled_s.append(time.process_time() - began_s)
    assert median(settled_s) < 2.0 * median(copied_s)
    assert len(outbox.items) == count - receipts and next(iter(outbox.items)) == f"{receipts:064x}"


def test_what_is_due_goes_by_class_and_age_however_it_was_queued() -> None:
    order = [3, 2, 3, 0, 2, 1, 0]
    named = {f"{place} {CLASSES[kind]}": item(f"i{place}", kind) for place, kind in enumerate(order)}
    outbox, effects = queue.send_due(Outbox(named), commissioned().context, {})
    expected = [name for kind in range(5) for name, one in named.items() if one.priority == kind]
    assert list(outbox.sent_ns) == expected and len(kinds(effects, Publish)) == len(order)


def test_an_older_model_does_not_take_the_place_of_a_newer_one_on_its_way() -> None:
    gateway = Gateway(CALM)
    for made in (THIRD, SENSITIVE):
        gateway.took(*after(gateway.state, heard("manifest", "current", made[0].to_bytes(), "all")))
    assert gateway.state.deployment.candidate == THIRD[0] and gateway.state.downloads.receiver.incoming.keys() == {
        THIRD[0].model.digest
    }
    gateway.offer(THIRD)
    assert gateway.version == 3


def test_a_model_for_this_gateway_alone_that_is_taken_back_stops_being_fetched() -> None:
    gateway = Gateway(CALM)
    gateway.took(*after(gateway.state, heard("manifest", "current", THIRD[0].to_bytes())))
    gateway.took(*after(gateway.state, heard("manifest", "current", b"")))
    assert gateway.state.deployment.candidate is None
    gateway.offer(SENSITIVE)
    assert gateway.version == 2


def test_a_probation_that_is_too_short_to_judge_is_refused() -> None:
    with pytest.raises(ValidationError, match="too short to judge a model; expected at least 128 s"):
        gateway_settings(models={"probation_s": float(BLOCK - 1)})
    for probation_s in (0.0, float(BLOCK)):
        assert gateway_settings(models={"probation_s": probation_s}).models.probation_s == probation_s


def test_what_a_doctor_tries_is_no_message_for_anyone() -> None:
    for channel in ("status", "alarm", "update", "telemetry", "tombstone", "want"):
        cloud, said = cloud_after(cloud_opened(), cloud_heard("nobody", channel, b"", TRIED))
        assert "nobody" not in cloud.access.gateways and not [one for one in said if isinstance(one, Log)]
        _, said = cloud_after(cloud, cloud_heard("nobody", channel, b"x", TRIED))
        assert [one for one in said if isinstance(one, Log)]
    state = commissioned()
    tried, effects = after(state, heard("receipt", TRIED, b""))
    assert not effects and tried.messages_dropped == state.messages_dropped


def test_the_status_says_the_same_of_what_waits_in_all_its_lines(tmp_path: Path, capsys: Capture) -> None:
    settings = tmp_path / "gateway.toml"
    settings.write_text(SETTINGS)
    store = Store(tmp_path / "gateway.db")
    store.commit([Enqueue(f"n{n}", item(f"n{n}", n % 5)) for n in range(10)])
    store.close()
    assert main(["status", "-c", str(settings)]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(place for place, line in enumerate(lines) if "waiting to be sent" in line)
    numbers = [
        [int(word) for word in line.replace(",", " ").split() if word.isdigit()] for line in lines[first : first + 6]
    ]
    assert numbers[0] == [sum(column) for column in zip(*numbers[1:], strict=True)] and numbers[0][0] == 10


@pytest.mark.parametrize("problem", ["", "rate_hz = true"])
def test_before_enrolment_the_check_says_whether_the_rest_is_good(
    tmp_path: Path, capsys: Capture, problem: str
) -> None:
    settings = tmp_path / "gateway.toml"
    text = SETTINGS.replace("[[source]]", IDENTITY + "[[source]]")
    settings.write_text(text.replace(f"rate_hz = {FEATURES['rate_hz']}", problem) if problem else text)
    assert main(["check", "-c", str(settings)]) == 2
    said = capsys.readouterr().err
    assert ("the file is good, but north is not enrolled yet" in said) == (not problem), said


IDENTITY = """
[broker]
host = "localhost"
ca_file = "ca.pem"
certificate_file = "north.pem"
key_file = "north.key"
[identity]
enrolment = "localhost:8884"
"""


def test_a_revoked_certificate_is_named_with_what_to_do() -> None:
    said = tls.advise("[SSL: SSLV3_ALERT_CERTIFICATE_REVOKED] sslv3 alert certificate revoked (_ssl.c:2580)")
    assert "was revoked" in said and "gateway-agent enrol --new-key" in said
    assert tls.advise("connection refused") == "connection refused" and tls.advise("") == ""
    trial = broker.try_gateway(Broker(), "bridge", ME, 1_024)
    found = broker._explain_refusal(trial, ProbeError(f"the connection ended: {said}"))
    assert found.level == "failure" and found.advice == tls.REVOKED


def test_a_renewal_that_ends_with_the_agent_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -TERM $$\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr(renewal, "STOP_S", 0.1)
    files = {"ca_file": "ca.pem", "certificate_file": "north.pem", "key_file": "north.key"}
    settings = gateway_settings(broker=files, identity={"enrolment": "localhost:1"})
    for is_stopped in (True, False):
        renewer = Renewer(settings, Membership(enrolment="localhost:1"))
        if is_stopped:
            renewer.stop()
        with caplog.at_level(logging.WARNING):
            assert renewer.look(time.time())
        assert ("certificate not renewed" in caplog.text) == (not is_stopped)
