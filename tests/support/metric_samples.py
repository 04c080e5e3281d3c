"""A site whose store has something for every metric, and the process that serves them."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedgate.cloud_aggregator.__main__ import main
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    RecordAlarm,
    RecordFleet,
    RecordGateway,
    RecordRound,
    RecordService,
    SaveTraining,
)
from fedgate.cloud_aggregator.storage.store import BackupNote, Store
from fedgate.config.protocol.messages import Alarm, FleetAlarm, Status
from fedgate.firmware_sim import children
from fedgate.models.time_units import DAY_NS, NS
from tests.support.waiting import PATIENCE_S, until

NAMES = ("north", "south", "west")  # enrolled gateways; the last was revoked
CHANNEL = '\n[[notify]]\nname = "on-call"\nurl_file = "on-call.urls"\n'
SERVES = re.compile(r"metrics at http://(\S+)/metrics")
TRAINING: dict[str, Any] = {"run": "run", "round_index": 4, "counted": {"north": "digest"}}


def make_status(**said: Any) -> Status:
    """Return the status of a gateway at work, which knows everything that there is to know."""
    figures = {
        **{"version": "0.6.0", "clock": "synchronised", "windows": 900, "windows_lost": 7, "starts": 2},
        **{"baseline_windows": 60, "baseline_needed": 60, "model_version": 3, "outbox": 1, "outbox_bytes": 500},
        **{"bytes_sent": 70_000, "bytes_received": 9_000, "privacy_epsilon": 1.5, "score_over_level": 0.25},
        **{"dropped": {"telemetry": 4, "made-up": 2}},
    }
    return Status.model_validate({"state": "online", **figures, **said})


def make_alarm(name: str, age_s: float, **more: Any) -> Alarm:
    """Return an anomaly that was raised so long ago."""
    onset_ns = time.time_ns() - round(age_s * NS)
    said = {"id": name, "cause": "anomaly", "kind": "anomaly", "state": "raised", "severity": "major", "text": "high"}
    return Alarm.model_validate({**said, "onset_ns": onset_ns, "t_ns": onset_ns, **more})


def record_alarm(gateway: str, alarm: Alarm) -> RecordAlarm:
    """Return what stores an alarm."""
    return RecordAlarm(gateway, alarm, alarm.t_ns, alarm.onset_ns)


def make_round(number: int, *gateways: str, refused: int = 0) -> RecordRound:
    """Return what stores a round that was open for a minute."""
    return RecordRound("run", number, "fedavg", gateways, refused, time.time_ns(), 4_096, open_ms=60_000)


def make_site(folder: Path) -> Path:
    """Make a site with gateways, alarms, rounds, a channel and a backup; return its settings."""
    assert main(["init", str(folder), "--site", "bridge", "--host", "localhost"]) == 0
    settings, now_ns = folder / "aggregator.toml", time.time_ns()
    settings.write_text(settings.read_text(encoding="utf-8") + CHANNEL, encoding="utf-8")
    (folder / "on-call.urls").write_text("json://localhost\n", encoding="utf-8")
    reasons = ("", "", "revoked")
    certificates = [
        Certificate(f"{serial}", name, f"{serial}", 1, now_ns + 60 * DAY_NS, reason, now_ns)  # type: ignore[arg-type]  # of the words that there are
        for serial, (name, reason) in enumerate(zip(NAMES, reasons, strict=True))
    ]
    fleet = FleetAlarm(**make_alarm("f", 30, cause="fleet").model_dump(), common="weather", gateways=NAMES[:2])
    old = make_alarm("old", 3_600, cause="silent-load", kind="sensor")
    with closing(Store(folder / "aggregator.db")) as store:
        store.commit(
            [
                RecordService(now_ns - DAY_NS, now_ns, True, now_ns - DAY_NS),
                RecordRegistry(tuple(certificates)),
                *(RecordGateway(name, make_status(), now_ns) for name in NAMES),
                record_alarm("north", make_alarm("a", 60)),
                record_alarm("north", make_alarm("b", 60, cause="faulty-load", kind="sensor")),
                AlarmEvent("north", "b", "", now_ns, "ann", "acknowledge", {}),
                record_alarm("south", old),
                record_alarm("south", old.clear(old.t_ns + NS, "over")),
                RecordFleet(fleet, now_ns),
                make_round(0, "north", "south", refused=1),
                SaveTraining({}, TRAINING),
            ]
        )
        store.note_backup(BackupNote(now_ns - DAY_NS, "site.fedgate", True))
    return settings


@contextmanager
def serving_metrics(settings: Path) -> Iterator[str]:
    """Serve the metrics of a site from a process of its own until the end; yield its address."""
    log = settings.parent / "metrics.log"
    module = [sys.executable, "-P", "-m", "fedgate.cloud_aggregator", "metrics"]
    with log.open("wb") as words:
        process = children.start([*module, "--listen", "127.0.0.1:0", "-c", settings], stdout=words, stderr=words)
    try:
        until(lambda: process.poll() is not None or SERVES.search(log.read_text()), log.read_text)
        found = SERVES.search(log.read_text())
        assert found, log.read_text()
        yield found[1]
        process.send_signal(signal.SIGTERM)
        assert children.wait_for_end(process, PATIENCE_S) == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
