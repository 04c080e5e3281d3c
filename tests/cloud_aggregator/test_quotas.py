"""What one gateway may have kept, told and asked for: a bound for each table, each message and each queue.

Goal: one enrolled gateway harms itself and nobody else. Method: the real service on its real store, and a gateway that
sends the largest that the messages' own types allow, as often as it likes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator import machine
from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.alarms import handling
from fedgate.cloud_aggregator.alarms.handling import CHANGE_S, CHANGES, RESERVED
from fedgate.cloud_aggregator.enrolment import (
    Certificate,
    RecordRegistry,
    Token,
)
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    Answered,
    Connection,
    DropHeld,
    Durable,
    Effect,
    Event,
    HoldUpdate,
    Log,
    Outward,
    Posted,
    Publish,
    RecordAlarm,
    RecordCount,
    RecordDenied,
    RecordDiscovery,
    RecordEvidence,
    RecordFetch,
    RecordFetched,
    RecordGateway,
    RecordLoss,
    RecordModel,
    RecordPresence,
    RecordRound,
    RecordScores,
    RecordService,
    RecordSummary,
    SaveRollout,
    SaveTraining,
    Send,
    Tick,
)
from fedgate.cloud_aggregator.notifications import post_queue
from fedgate.cloud_aggregator.releases import announce
from fedgate.cloud_aggregator.releases.deploy import GOLDEN_ROWS, GOLDEN_VALUES
from fedgate.cloud_aggregator.releases.releases import ModelRelease, Releases, dump
from fedgate.cloud_aggregator.rounds import round
from fedgate.cloud_aggregator.runtime.app import LOG
from fedgate.cloud_aggregator.state import Stored
from fedgate.cloud_aggregator.storage import (
    availability_table,
    evidence_table,
    history_table,
    models_table,
    samples_table,
    store,
)
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import (
    CONTROL,
    NAME_MAX,
    SHORT_MAX,
    Alarm,
    FleetAlarm,
    Manifest,
    RoundOpen,
    Status,
    Want,
)
from fedgate.config.protocol.scores import Scores
from fedgate.config.protocol.topics import Topic, party, topic_of, urgency
from fedgate.config.protocol.transfer import FRAMING_BYTES, PACKET_BYTES_MAX, ChunkHeader, describe
from fedgate.config.runtime.app import write_log
from fedgate.config.settings.notifications import WEBHOOK
from fedgate.config.transport.send_queue import Outgoing, SendQueue
from fedgate.gateway_agent.events import Dequeue, Enqueue, Item, Keep, Save
from fedgate.gateway_agent.storage.store import Store as GatewayStore
from fedgate.models.time_units import NS
from tests.cloud_aggregator.alarms.test_losses import settings_file
from tests.cloud_aggregator.test_aggregator_machine import ALARM, READY
from tests.gateway_agent.deployment.test_gateway_models import FIRST, signed
from tests.support.agents import after, commissioned
from tests.support.agents import heard as heard_by_agent
from tests.support.batches import make_summary
from tests.support.cloud_service import chunks_of, cloud, heard, mean_of, receipts, said_under
from tests.support.evidence_samples import make_evidence
from tests.support.sites import T0_NS, aggregator_settings, frame, samples, start_cloud
from tests.support.syntax import ROOT
from tests.support.watchers import CALM

WIDE = "\N{MUSICAL SYMBOL G CLEF}"  # four bytes, of which a JSON of ASCII makes twelve
FLOOD, KEPT = 60, 10
STONE = Tombstone(id="x", kind="alarm", items=1, size_bytes=1, first_ns=0, last_ns=1, why=("outbox-full",))
BATCH = Scores(t_ns=T0_NS, after_ms=(0,), scores=(0.5,), level=1.0, model_version=1)
SUMMARY = make_summary(T0_NS)
HOOK = {"webhook": {"url": "http://127.0.0.1:9/x", "retry_s": 600.0, "retry_max_s": 600.0}}


def as_said(kind: type[Any], told: dict[str, Any]) -> Any:
    """Return a message as the aggregator reads it."""
    return kind.from_bytes(json.dumps(told).encode())


def largest_alarm(cause: str = "c" * 64, **change: Any) -> Alarm:
    """Return an alarm whose every text is as long as it may be."""
    names = dict.fromkeys(("id", "rule", "model_digest", "boot_id", "store_id"), WIDE * NAME_MAX)
    told = {**ALARM.model_dump(), "kind": "anomaly", "cause": cause, "onset_ns": T0_NS, "t_ns": T0_NS, **names}
    long = {"text": WIDE * 2 * SHORT_MAX, "feature": WIDE * SHORT_MAX}
    alarm: Alarm = as_said(Alarm, {**told, **long, **change})
    return alarm


def largest_status() -> Status:
    """Return a status whose device is described at any length; as sent it is nearly as large as the broker takes."""
    words = dict.fromkeys(("manufacturer", "model", "serial", "location"), WIDE * 15_000)
    device = {**words, "category": WIDE * NAME_MAX}
    told = {**json.loads(READY.to_bytes()), "version": WIDE * NAME_MAX, "device": device, "boot_id": "b"}
    assert 240_000 < len(json.dumps(told, ensure_ascii=False).encode()) < PACKET_BYTES_MAX
    status: Status = as_said(Status, told)
    return status


def packet_bytes(one: Publish) -> int:
    return Outgoing(one.topic, one.payload, one.retain, 1).size + FRAMING_BYTES


def test_no_message_that_is_made_of_a_gateways_texts_exceeds_what_the_broker_takes(tmp_path: Path) -> None:
    """Each is what led to a message over the limit, and so to an aggregator that was disconnected without end."""
    with cloud(tmp_path, mean_of(2), home_assistant={"enabled": True}) as made:
        said = made.hear(heard("west", "status", largest_status().to_bytes()))
        for number in range(3):
            for alarm in (largest_alarm(f"{number}"), largest_alarm(f"{number}", state="cleared")):
                said += made.hear(heard("west", "alarm", alarm.to_bytes()))
        said += made.hear(Connection(True), Tick())
        channels = {one.topic.split("/")[-2 if one.topic.startswith("fedgate/") else 0] for one in publishes(said)}
        assert {"receipt", "service-request", "homeassistant"} <= channels
        assert max(map(packet_bytes, publishes(said))) < PACKET_BYTES_MAX
        assert packet_bytes(Publish("", largest_alarm().to_bytes())) < PACKET_BYTES_MAX


def publishes(said: Sequence[Effect]) -> list[Publish]:
    return [one for one in said if isinstance(one, Publish)]


def test_a_site_as_large_as_its_broker_is_invited_and_told_of_in_one_message(tmp_path: Path) -> None:
    (most,) = re.findall(r"^max_connections (\d+)$", (ROOT / "config" / "mosquitto.conf").read_text(), re.MULTILINE)
    names = tuple(f"{number:064d}" for number in range(int(most)))
    with cloud(tmp_path, mean_of(2)) as made:
        state = made.service.state
        invitation = round.make_invitation(replace(state.rounds, asked=names), state.context)
        assert RoundOpen.from_bytes(invitation.payload).cohort == names
        told = largest_alarm("fleet").model_dump() | {"common": "power", "gateways": names, "text": "t" * SHORT_MAX}
        fleet = replace(state.alarms.fleet, alarm=FleetAlarm.model_validate(told))
        effects = handling.publish_alarms(replace(state.alarms, fleet=fleet), state.context, state.access.gateways)[1]
        golden = ((-1.1754943508222875e-38,) * (GOLDEN_VALUES // GOLDEN_ROWS),) * GOLDEN_ROWS
        widest = FIRST[0].model_copy(update={"golden_x": golden, "golden_score": golden[0][:GOLDEN_ROWS]})
        assert (
            packet_bytes(announce.manifest(state.context, widest)) < PACKET_BYTES_MAX / 2
        )  # with room for what is set
        of_fleet = [one for one in effects if isinstance(one, Publish) and one.topic.endswith("/fleet")]
        assert len(of_fleet) == 2 and all(map(json.loads, (one.payload for one in of_fleet)))
        assert max(map(packet_bytes, [invitation, *of_fleet])) < PACKET_BYTES_MAX


@pytest.mark.soak
def test_what_a_status_changes_of_its_device_is_told_once_a_minute_however_many_alarms_there_are(
    tmp_path: Path,
) -> None:
    with cloud(tmp_path, mean_of(2), home_assistant={"enabled": True}) as made:
        for number in range(20):
            alarm = ALARM.model_copy(update={"id": f"{number}", "cause": f"{number}"})
            made.hear(heard("west", "alarm", alarm.to_bytes()))
        said: list[Outward] = []
        for second in range(120):
            device = {"location": f"room {second}"}
            status = Status.model_validate({**json.loads(READY.to_bytes()), "device": device})
            said += made.hear(heard("west", "status", status.to_bytes()), Tick(), after_s=1.0)
        assert len(said_under("service-request", said)) == 2 * 20
        made.hear(Tick(), after_s=60.0)
        assert b'"room 119"' in publishes(made.said)[-1].payload


def changes(gateway: str, count: int, **change: Any) -> list[Event]:
    """Return so many alarms of a gateway, one after the other, each another one."""
    named = "".join(map(str, change.values()))
    told = [ALARM.model_copy(update={"id": f"{gateway}{named}-{number}", **change}) for number in range(count)]
    return [heard(gateway, "alarm", one.to_bytes()) for one in told]


@pytest.mark.soak
def test_who_raises_without_end_is_slowed_down_and_nothing_of_it_is_lost(tmp_path: Path) -> None:
    """Its changes have no answer, so it keeps them; what it says of sensors leaves room for what it says of more."""
    with cloud(tmp_path, mean_of(2)) as made:
        of_sensors = changes("west", CHANGES, kind="sensor", cause="silent-deck")
        assert len(receipts(made.hear(*of_sensors, at_once=True))) == CHANGES - RESERVED
        anomalies = changes("west", RESERVED + 50, store_id="anomalies")
        assert len(receipts(made.hear(*anomalies, at_once=True))) == RESERVED
        assert len(receipts(made.hear(*anomalies[RESERVED - 5 : RESERVED], at_once=True))) == 5  # these are known
        assert len(receipts(made.hear(*changes("north", 10)))) == 10  # it has not raised any
        waiting = anomalies[RESERVED:]
        for _ in range(5):
            said = made.hear(*waiting, at_once=True, after_s=10.0 * CHANGE_S)
            assert all(one.accepted for one in receipts(said)) and len(receipts(said)) >= 10
            waiting = waiting[len(receipts(said)) :]
        assert not waiting and len(made.service.store.read_rows("alarms", "id")) == CHANGES + 10 + 50


def test_alarms_of_many_long_texts_are_refused_before_they_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgate.cloud_aggregator.alarms.register.TEXTS_MAX", 100_000)
    with cloud(tmp_path, mean_of(2)) as made:
        said = made.hear(
            *(heard("west", "alarm", largest_alarm(f"{number}", id=f"{number}").to_bytes()) for number in range(30))
        )
        found = receipts(said)
        assert [one.accepted for one in found] == [True] * 11 + [False] * 19 and "characters" in found[-1].reason
        assert receipts(made.hear(*changes("west", 1))) == [found[0]]  # an anomaly is never one too many


@pytest.mark.soak
def test_a_flood_of_alarms_crowds_nobody_else_out_at_the_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post_queue, "WAITING_BYTES_MAX", 1_000_000)
    with cloud(tmp_path, mean_of(2), **HOOK) as made:
        flood = [heard("west", "alarm", largest_alarm(id=f"{number}").to_bytes()) for number in range(40)]
        made.hear(heard("west", "status", largest_status().to_bytes()), *flood[:20], at_once=True)
        made.hear(*changes("north", 2), at_once=True)
        made.hear(*flood[20:], at_once=True)
        held = made.service.state.alarms.queues[WEBHOOK]
        posts = list(held.items.values())
        assert sum(len(one.body) for one in posts) <= 1_000_000 and held.dropped > 20
        assert [one.gateway for one in posts].index("north") == 1  # what is under way stays
        assert [one.gateway for one in posts[:4]].count("north") == 2
        assert len(made.service.store.read_rows("posts")) == len(posts)
        said = made.hear(Posted(posts[0].id))
        assert [one.post.gateway for one in said if isinstance(one, Send)] == ["north"]
        made.restart()
        assert [one.gateway for one in made.service.state.alarms.queues[WEBHOOK].items.values()][:2] == [
            "north",
            "west",
        ]


def largest_batch() -> Scores:
    """Return a batch of scores that is nearly as large as the broker takes."""
    rules = {f"{number:0{NAME_MAX}d}": [0] for number in range(900)}
    batch: Scores = as_said(Scores, {**json.loads(BATCH.to_bytes()), "rules": rules})
    return batch


@pytest.mark.soak
def test_scores_of_a_gateway_are_bounded_in_bytes_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_table, "BATCHES_BYTES_BETWEEN", 1)
    monkeypatch.setattr(history_table, "BATCHES_BYTES", 1_000_000)
    with cloud(tmp_path, mean_of(2)) as made:
        for number, gateway in enumerate(["north", *["west"] * 20]):
            payload = largest_batch().model_copy(update={"t_ns": number}).to_bytes()
            assert 200_000 < len(payload) < PACKET_BYTES_MAX
            item = hashlib.sha256(payload).hexdigest()
            (receipt,) = receipts(made.hear(heard(gateway, "telemetry", payload, item)))
            assert receipt.accepted
        rows = made.service.store.read_rows("scores", "gateway", "t_ns", "body")
        assert [row["gateway"] for row in rows] == ["north", *["west"] * 4] and rows[-1]["t_ns"] == 20
        assert sum(len(row["body"]) for row in rows[1:]) <= 1_000_000


def held(number: int) -> HoldUpdate:
    return HoldUpdate("west", "run", number, "digest", b"body")


def test_what_a_gateway_says_ends_no_command_and_writes_nothing_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Counts of 4,300 digits ended `status`, an escape cleared the terminal, and a line break forged one of the log."""
    forged = "x\n2026-11-22 07:00:00,000 INFO fedgate.identity: gateway-7 is revoked"
    with cloud(tmp_path, mean_of(2)) as made:
        many = b'{"state":"online","dropped":{"a":%s}}' % (b"9" * 4_300)
        refusal = json.dumps({"state": "online", "refusal": "\x1b[2J\x1b]0;owned\x07\nall is well"}).encode()
        alarm = json.dumps({**ALARM.model_dump(), "text": forged}).encode()
        said = made.hear(
            *(heard("west", "status", payload) for payload in (many, refusal)), heard("west", "alarm", alarm)
        )
        update = made.body(1.0, run=forged)
        said += made.hear(*chunks_of("west", update))
    for log in (Log("warning", forged), *(one for one in said if isinstance(one, Log))):
        write_log(LOG, log)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) >= 4 and not any(map(CONTROL.search, told))
    assert main(["status", "-c", str(settings_file(tmp_path))]) == 0
    shown = capsys.readouterr().out
    assert "all is well" in shown and not any(map(CONTROL.search, shown.splitlines()))


def admitted(number: int) -> list[Durable]:
    return [
        RecordRegistry((), (Token(f"{number}", "west", number, False),), old_passes=frozenset({f"{number - KEPT}"}))
    ]


def certified(number: int) -> list[Durable]:
    """Return what is stored of a renewal, as `admission` has it."""
    made = Certificate(f"{number}", "west", "key", number, number + 2)
    return [RecordRegistry((made,), old_certificates=frozenset({f"{number - KEPT}"}))]


def model(number: int) -> RecordModel:
    manifest = FIRST[0].model_copy(update={"version": number + 1})
    return RecordModel(Manifest.model_validate(manifest.model_dump()), b"body")


def alarm(number: int) -> list[Durable]:
    told = [ALARM.model_copy(update={"id": f"{number}", "state": said}) for said in ("raised", "cleared")]
    return [RecordAlarm("west", one, number, number) for one in told]


# For each table what stores its row number so much. `CLOUD_MOST` says how many rows are left of a flood.
CLOUD: dict[str, Callable[[int], Sequence[Durable]]] = {
    "training": lambda number: [SaveTraining({"number": np.array(number)})],
    "training_arrays": lambda number: [SaveTraining({f"{number}": np.array(number)})],
    "backup": lambda number: [],  # by a method of its own, see below
    "rounds": lambda number: [RecordRound("run", number, "fedavg", ("a",), 0, number)],
    "models": lambda number: [model(number)],
    "rollout": lambda number: [SaveRollout(dump(Releases(before=number)), number)],
    "alarms": alarm,
    "alarm_events": lambda number: [AlarmEvent("west", f"{number}", "", number, "ann", "note", {"text": "seen"})],
    "service": lambda number: [RecordService(number, number, True, number)],
    "gateways": lambda number: [RecordGateway("west", READY, number)],
    "availability": lambda number: [RecordPresence("west", "online", number, number)],
    "denied": lambda number: [RecordDenied(frozenset({f"{number}"}))],
    "held": lambda number: [held(number)],
    "losses": lambda number: [RecordLoss("west", STONE.model_copy(update={"id": f"{number}"}), number)],
    "evidence": lambda number: [
        RecordEvidence("west", make_evidence().model_copy(update={"alarm": f"{number}"}), number)
    ],
    "samples": lambda number: [
        RecordFetch("west", f"{number}", number),
        RecordFetched("west", f"{number}", number, body=b"\0\xff", bounds=(1_024, 1_024)),
    ],
    "scores": lambda number: [RecordScores("west", f"{number}", BATCH, number)],
    "summaries": lambda number: [RecordSummary("west", f"{number}", SUMMARY, number)],
    "posts": lambda number: [],  # by the queue in front of it, see below
    "discovered": lambda number: [RecordDiscovery(f"{number}")],
    "counts": lambda number: [RecordCount("name", number)],
    "orders": lambda number: [Answered(number + 1, "done")],
    "certificates": certified,
    "passes": admitted,
}
ONE = {"training", "training_arrays", "backup", "rollout", "service", "gateways", "denied", "held", "counts"}
LOOKED_THROUGH = 5  # alarms, and their events


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bounds that a flood reaches soon."""
    for name in ("ROUNDS_KEPT", "ORDERS_KEPT", "DISCOVERED_KEPT"):
        monkeypatch.setattr(store, name, KEPT)
    monkeypatch.setattr(models_table, "MODELS_KEPT", 3)
    monkeypatch.setattr(models_table, "MANIFESTS_KEPT", KEPT)
    for name in ("LOSSES_KEPT", "ALARMS_KEPT", "EVENTS_KEPT"):
        monkeypatch.setattr(history_table, name, KEPT)
    for name in ("ALARMS_BETWEEN", "EVENTS_BETWEEN"):
        monkeypatch.setattr(history_table, name, LOOKED_THROUGH)
    for table in (availability_table, evidence_table):
        monkeypatch.setattr(table, "KEPT", KEPT)
        monkeypatch.setattr(table, "BETWEEN", 1)
    monkeypatch.setattr(samples_table, "KEPT", KEPT)
    monkeypatch.setattr(history_table, "BATCHES_BYTES_BETWEEN", 1)
    yield


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("table", [name for name in CLOUD if name != "posts"])
def test_a_flood_leaves_a_table_of_the_aggregator_in_its_bound(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = SUMMARY if table == "summaries" else BATCH
    monkeypatch.setattr(history_table, "BATCHES_BYTES", KEPT * (len(batch.to_bytes()) + history_table.ROW_BYTES))
    made = Store(tmp_path / "a.db")
    for number in range(FLOOD):
        if table == "orders":
            assert made.order("token", {"gateway": "west"}) == number + 1
        if table == "backup":
            made.note_backup(store.BackupNote(number, "file", True))
        made.commit(CLOUD[table](number))
    rows = len(made.read_rows(table))
    assert rows == 1 if table in ONE else KEPT <= rows <= KEPT + (LOOKED_THROUGH if table.startswith("alarm") else 0)
    if table == "models":
        assert [bool(row["body"]) for row in made.read_rows(table)] == [False] * (KEPT - 3) + [True] * 3
    if table == "held":
        made.commit([DropHeld()])
        assert not made.read_rows(table)
    made.close()


@pytest.mark.soak
def test_a_flood_leaves_the_alarms_of_a_gateway_in_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_table, "ALARMS_BYTES", 500_000)
    monkeypatch.setattr(history_table, "ALARMS_BETWEEN", LOOKED_THROUGH)
    made = Store(tmp_path / "a.db")
    made.commit(alarm(0))
    for number in range(FLOOD):
        for said in ("raised", "cleared"):
            told = largest_alarm(id=f"{number}" + WIDE * 200, state=said)
            made.commit([RecordAlarm("north", told, number, number)])
    rows = made.read_rows("alarms", "gateway", "text", "id", "feature")
    sizes = [sum(len(row[name].encode()) for name in ("text", "id", "feature")) for row in rows]
    assert rows[0]["gateway"] == "west" and sum(sizes) <= 500_000 + LOOKED_THROUGH * max(sizes)
    assert rows[-1]["id"].startswith(f"{FLOOD - 1}")
    made.close()


def tables(path: Path) -> set[str]:
    with sqlite3.connect(path) as db:
        return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


GATEWAY = {"baseline", "blob", "outbox", "payload", "reserve"}


def test_every_table_of_both_stores_has_a_bound_that_is_written_down(tmp_path: Path) -> None:
    Store(tmp_path / "cloud.db").close()
    GatewayStore(tmp_path / "gateway.db").close()
    assert tables(tmp_path / "cloud.db") == set(CLOUD) and tables(tmp_path / "gateway.db") == GATEWAY
    told = re.findall(r"^\| (aggregator|gateway) \| `(\w+)` \| (.+) \| (.+) \|$", documented(), re.MULTILINE)
    assert sorted((where, name) for where, name, _, _ in told) == sorted(
        [*(("aggregator", name) for name in CLOUD), *(("gateway", name) for name in GATEWAY)]
    )


def documented() -> str:
    return (ROOT / "docs" / "reference" / "operations.md").read_text()


def test_a_flood_leaves_the_tables_of_a_gateway_in_their_bounds(tmp_path: Path) -> None:
    """What is written over is one row, what is sent goes with its messages, and a whole baseline grows no more."""
    state = commissioned()
    _, effects = after(state, heard_by_agent("sample", "deck", frame(samples(2, 100), 60.0)))
    assert not [one for one in effects if isinstance(one, Keep)] and state.monitor.pipeline.commissioned
    made = GatewayStore(tmp_path / "gateway.db")
    where = topic_of(Topic("bridge", "north", "update", "x"))
    for number in range(FLOOD):
        item = Item(where, (b"first", b"second")[: 1 + number % 2], retain=False, priority=3)
        made.commit([Save("own", b"body"), Enqueue("update", item), Enqueue(f"{number}", item), Dequeue(f"{number}")])
        made.regain()
    with sqlite3.connect(tmp_path / "gateway.db") as db:
        rows = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in GATEWAY}  # noqa: S608 - names of our own
    assert rows == {"baseline": 0, "blob": 1, "outbox": 1, "payload": 2, "reserve": 1}
    made.close()


def test_pieces_that_cost_more_than_they_hold_are_no_chunks(tmp_path: Path) -> None:
    """A transfer in 100,000 pieces of nothing: each would be as dear as one that holds something."""
    with cloud(tmp_path, mean_of(2)) as made:
        for index in range(64):
            header = ChunkHeader(digest="a" * 64, index=index, chunks=100_000, size_bytes=900)
            made.hear(heard("west", "update", header.to_bytes() + b"\n", "x"))
        assert not made.service.state.rounds.uploads.incoming
        told = [one.text for one in made.said if isinstance(one, Log) and "bytes in 100000 chunks" in one.text]
        assert [text.rpartition("number ")[2] for text in told] == [f"{2**power})" for power in range(7)]


def test_who_asks_for_a_model_without_end_leaves_the_line_to_others() -> None:
    """Method: the machine and the backlog of its link, and a line that carries 2 MB a second, for half a minute."""
    body = bytes(range(256)) * 2_400
    manifest = signed(CALM[0], version=3, model=describe(body, 65_536))
    stored = Stored(releases=Releases(ModelRelease(manifest, body)))
    state = start_cloud(aggregator_settings(rounds={"quorum": 9}), stored, T0_NS)
    for name in ("west", "north"):
        state, _ = machine.step(state, T0_NS, heard(name, "status", READY.to_bytes()))
    line, numbers = SendQueue(), count()
    line.open()
    carried = dict.fromkeys(("west", "north"), 0)
    for tenth in range(300):
        for name in ("west", "north") if tenth % 50 == 7 else ("west",):
            want = Want(missing=tuple(range(3)) if name == "north" else ())
            asked = heard(name, "want", want.to_bytes(), manifest.model.digest)
            state, effects = machine.step(state, T0_NS + tenth * NS // 10, asked)
            for one in publishes(effects):
                assert line.add(Outgoing(one.topic, one.payload, False, 1), urgency(one.topic))
        room = 200_000
        while room > 0 and (message := line.take()) is not None:
            line.note_handed_over(number := next(numbers), message, 0.0)
            line.acknowledge(number, 0.1)
            room -= message.size
            carried[party(message.topic)] += message.size
    assert carried["north"] > 6 * 3 * 60_000 and carried["west"] < 5 * (len(body) + 65_536)


@pytest.mark.soak
def test_who_says_what_is_logged_without_end_fills_no_log(tmp_path: Path) -> None:
    """Goal: nobody washes out of the log what it says of others."""
    with cloud(tmp_path, mean_of(2)) as here:

        def lines(count_: int) -> list[str]:
            kind: dict[str, Any] = {"kind": "telemetry", "first_ns": 0, "last_ns": 1, "why": ("outbox-full",)}
            lost = [Tombstone(id=f"{at}", items=1, size_bytes=1, **kind) for at in range(count_)]
            said = here.hear(*[heard("east", "tombstone", one.to_bytes()) for one in lost], at_once=True)
            assert len(receipts(said)) == count_
            return [one.text for one in said if isinstance(one, Log)]

        told = lines(600)
        assert len(told) == machine.LINES_MAX + 2 and told[-1].endswith("(line 512 of east within an hour)")
        other = here.hear(heard("west", "telemetry", b"x", hashlib.sha256(b"x").hexdigest()))
        assert any("west: telemetry refused" in one.text for one in other if isinstance(one, Log))
        here.now_ns += 3_600 * NS
        assert len(lines(10)) == 10
