"""Tombstones and scores: stored once, acknowledged after that, bounded, and shown."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.events import RecordAlarm, RecordLoss, RecordScores
from fedgate.cloud_aggregator.storage import history_table
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Receipt, Score
from fedgate.config.protocol.scores import gather
from fedgate.config.protocol.topics import parse
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.support.batches import make_summary, spread
from tests.support.cloud_service import Cloud, cloud, heard, mean_of, receipts, said_under
from tests.support.sites import FEATURES, T0_NS

STONE = Tombstone(
    id="first", kind="telemetry", items=3, size_bytes=900, first_ns=T0_NS, last_ns=T0_NS + 5, why=("outbox-full",)
)
SCORE = Score(t_ns=T0_NS, score=1.5, level=2.0, alarm=False, model_version=1)


def settings_file(folder: Path) -> Path:
    features = "\n".join(f"{key} = {json.dumps(FEATURES[key])}" for key in ("rate_hz", "window_s", "channels"))
    (path := folder / "aggregator.toml").write_text(
        '[aggregator]\nsite = "bridge"\nstore = "aggregator.db"\n'
        f'[features]\n{features}\nsteps = [{{ kind = "level" }}]\n'
    )
    return path


def lost(made: Cloud, stone: Tombstone) -> list[str]:
    said = made.hear(heard("north", "tombstone", stone.to_bytes(), stone.kind))
    assert receipts(said) == [Receipt(accepted=True)]
    return [parse(one.topic).item for one in said_under("receipt", said)]


def test_a_tombstone_that_grows_is_one_row_and_each_of_its_sizes_has_its_receipt(tmp_path: Path) -> None:
    grown = STONE.model_copy(update={"items": 7, "size_bytes": 2_000, "why": ("outbox-full", "flash-budget")})
    with cloud(tmp_path, mean_of(2)) as made:
        for stone in (STONE, grown, STONE, grown):  # repeated and in any order
            assert lost(made, stone) == [stone.item]
        lost(made, STONE.model_copy(update={"kind": "alarm"}))
        rows = made.service.store.read_rows("losses", "gateway", "kind", "items", "size_bytes", "why")
    assert [tuple(row.values()) for row in rows] == [
        ("north", "telemetry", 7, 2_000, "outbox-full flash-budget"),
        ("north", "alarm", 3, 900, "outbox-full"),
    ]


def test_scores_of_an_outage_are_stored_once_and_acknowledged(tmp_path: Path) -> None:
    scores = [SCORE.model_copy(update={"t_ns": T0_NS + number * 10**9}) for number in range(4)]
    batch = gather(scores, "synchronised", "boot")
    payload = batch.to_bytes()
    item = hashlib.sha256(payload).hexdigest()
    with cloud(tmp_path, mean_of(2)) as made:
        for _ in range(2):
            assert receipts(made.hear(heard("north", "telemetry", payload, item))) == [Receipt(accepted=True)]
        ((t_ns, windows, body),) = (
            row.values() for row in made.service.store.read_rows("scores", "t_ns", "windows", "body")
        )
        assert (t_ns, windows) == (T0_NS, 4) and spread(type(batch).from_bytes(body.encode())) == scores
        assert not made.hear(heard("north", "telemetry", payload, "0" * 64)) or not receipts(made.said[-1:])
        bad = b'{"t_ns": 1}'
        (receipt,) = receipts(made.hear(heard("north", "telemetry", bad, hashlib.sha256(bad).hexdigest())))
        assert not receipt.accepted and "after_ms" in receipt.reason
        for channel in ("telemetry", "tombstone"):  # of a stranger, who could fill the disk
            assert not receipts(made.hear(heard("stranger", channel, payload, item)))


def test_a_summary_of_features_is_stored_once_and_acknowledged(tmp_path: Path) -> None:
    payload = make_summary(T0_NS).to_bytes()
    item = hashlib.sha256(payload).hexdigest()
    with cloud(tmp_path, mean_of(2)) as made:
        for _ in range(2):
            assert receipts(made.hear(heard("north", "summary", payload, item))) == [Receipt(accepted=True)]
        (row,) = made.service.store.read_rows("summaries", "gateway", "item", "t_ns", "body")
        assert tuple(row.values()) == ("north", item, T0_NS, payload.decode())
        bad = b'{"t_ns": 1}'
        (receipt,) = receipts(made.hear(heard("north", "summary", bad, hashlib.sha256(bad).hexdigest())))
        assert not receipt.accepted and "last_ns" in receipt.reason
        assert not receipts(made.hear(heard("stranger", "summary", payload, item)))


def test_the_newest_of_each_gateway_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_table, "LOSSES_KEPT", 3)
    batch = gather([SCORE], "synchronised", "boot")
    row_bytes = len(batch.to_bytes()) + history_table.ROW_BYTES
    monkeypatch.setattr(history_table, "BATCHES_BYTES_BETWEEN", 1)
    monkeypatch.setattr(history_table, "BATCHES_BYTES", 3 * row_bytes)
    with cloud(tmp_path, mean_of(2)) as made:
        store = made.service.store
        store.commit([RecordLoss("west", STONE, 1), RecordScores("west", "first", batch, 1)])
        for number in range(6):
            stone = STONE.model_copy(update={"id": f"{number}"})
            store.commit([RecordLoss("north", stone, 1), RecordScores("north", f"{number}", batch, 1)])
        for table, column in (("losses", "id"), ("scores", "item")):
            kept = [tuple(row.values()) for row in store.read_rows(table, "gateway", column)]
            assert kept == [("west", "first"), ("north", "3"), ("north", "4"), ("north", "5")]


@pytest.mark.soak
def test_alarms_that_are_over_are_kept_in_bounds_and_those_that_stand_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_table, "ALARMS_KEPT", 30)
    monkeypatch.setattr(history_table, "ALARMS_BETWEEN", 10)
    with cloud(tmp_path, mean_of(2)) as made:
        store = made.service.store
        for gateway, name in (("north", "stands"), ("west", "other")):
            store.commit([RecordAlarm(gateway, ALARM.model_copy(update={"id": name}), 1, 1)])
        for number in range(100):
            for said in ("raised", "cleared"):
                alarm = ALARM.model_copy(update={"id": f"{number}", "state": said})
                store.commit([RecordAlarm("north", alarm, number, number)])
        kept = {row["id"] for row in store.read_rows("alarms", "id")}
        assert {"stands", "other", "99", "75"} <= kept and "50" not in kept and len(kept) <= 2 + 30 + 10


def test_the_command_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        lost(made, STONE)
    path = settings_file(tmp_path)
    assert main(["losses", "-c", str(path)]) == 0
    assert "outbox-full" in capsys.readouterr().out
    for gateway, count in (("north", 1), ("east", 0)):
        assert main(["losses", "-c", str(path), "--json", "--gateway", gateway]) == 0
        rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        assert [row["items"] for row in rows] == [3] * count
