"""What the doctors say of a machine: each thing that can be wrong is found, named, and has an advice."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.commands import doctor as of_cloud
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import RecordGateway
from fedgate.cloud_aggregator.storage.store import BackupNote
from fedgate.cloud_aggregator.storage.store import Store as CloudStore
from fedgate.config.doctor import host, network, report
from fedgate.config.doctor.imports import TRIALS, check_imports
from fedgate.config.doctor.network import Validity, age
from fedgate.config.doctor.report import Finding, Level
from fedgate.config.protocol.messages import Status
from fedgate.config.protocol.wire import HEADER_BYTES_MAX
from fedgate.config.runtime import store_lock
from fedgate.config.settings.settings import Broker, Limits
from fedgate.firmware_sim import children
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.gateway_agent.commands import doctor as of_gateway
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.federated import build
from tests.project.test_tidy import loaded_by
from tests.support.sites import SITE, aggregator_settings, gateway_settings

NOW_S = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
DAY_S = 86_400.0
PATIENCE_S = 60.0
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"


def levels(findings: Iterable[Finding]) -> dict[str, Level]:
    found = list(findings)
    assert all(bool(one.advice) == (one.level != "ok") for one in found), "what is not well needs an advice"
    assert all("\n" not in str(one) for one in found)
    return {one.name: one.level for one in found}


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder for a broker on this machine, to which nobody listens."""
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback", "--port", "1"]) == 0
    capsys.readouterr()
    return tmp_path / "site"


def test_one_line_each_and_the_exit_code_tells(capsys: pytest.CaptureFixture[str]) -> None:
    well, so_so, bad = report.ok("a", "fine"), report.warning("b", "old", "renew"), report.failure("c", "gone", "fetch")
    plain, as_json = argparse.Namespace(json=False), argparse.Namespace(json=True)
    assert [report.report(plain, found) for found in ([well], [well, so_so], [well, so_so, bad])] == [0, 0, 1]
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split()[0] for line in lines] == ["ok", "warning", "failure", "1"]
    assert lines[2].endswith("gone; fetch")
    assert report.report(as_json, [well, bad]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["counts"]) == (False, {"failure": 1, "warning": 0, "ok": 1})
    assert said["findings"][1] == {"name": "c", "level": "failure", "text": "gone", "advice": "fetch"}


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize(("program", "file"), [(gateway_agent, "gateway.toml"), (cloud_aggregator, "aggregator.toml")])
def test_without_a_broker_it_ends_and_says_what_is_missing(
    site: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    program: Callable[[list[str]], int],
    file: str,
) -> None:
    monkeypatch.setattr("fedgate.config.doctor.imports.TRIALS", dict.fromkeys(TRIALS, "v = 1"))  # tried below
    assert program(["doctor", "-c", str(site / file), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)["findings"]
    failures = [(one["name"], one["text"]) for one in said if one["level"] == "failure"]
    assert (
        len(failures) == 1 and failures[0][0] == "broker port" and "127.0.0.1:1 takes no connection" in failures[0][1]
    )
    assert {"clock", "disk", "release key", "store", "import numpy"} <= {one["name"] for one in said}


@pytest.mark.soak
def test_each_fault_of_the_settings_is_a_line(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = site / "gateway.toml"
    file.write_text(
        file.read_text().replace("rate_hz = 100.0", "rate_hz = -1.0").replace("windows = 2000", "windows = 1")
    )
    assert gateway_agent(["doctor", "-c", str(file)]) == 1
    failures = [line for line in capsys.readouterr().out.splitlines() if line.startswith("failure")]
    assert len(failures) >= 2 and all(f"{file}:" in line for line in failures)


# --- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_library_that_ends_its_process_is_named_by_the_command_itself(site: Path, tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "numpy.py").write_text(DIES)
    command = [sys.executable, "-P", "-m", "fedgate.gateway_agent", "doctor", "-c", str(site / "gateway.toml")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "fake")}
    done = children.run(command, PATIENCE_S, text=True, env=environment)
    assert done.returncode == 1, done.stderr
    assert (
        "failure  import numpy           numpy ends its process with an illegal instruction; its wheel" in done.stdout
    )
    assert "failure  settings               not read" in done.stdout


@pytest.mark.soak
def test_what_is_missing_or_broken_otherwise_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')\n")
    (tmp_path / "sklearn.py").write_text("raise ModuleNotFoundError(\"No module named 'sklearn'\", name='sklearn')\n")
    (tmp_path / "scipy.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = {one.name: one for one in check_imports(("sklearn", "torch", "scipy"), {}, time.monotonic() + 2.0)}
    assert {one.level for one in found.values()} == {"failure", "warning"}
    assert "scikit-learn is not installed; pip install scikit-learn" in str(found["import sklearn"])
    assert "libgomp" in found["import torch"].text
    assert (found["import scipy"].level, found["import scipy"].text) == ("warning", "not done in time")
    optional = list(check_imports((), {"sklearn": "no training"}, time.monotonic() + PATIENCE_S))
    assert [(one.level, one.text) for one in optional] == [("ok", "scikit-learn is not installed: no training")]


@pytest.mark.soak
@pytest.mark.slow
def test_every_library_here_passes_its_trial() -> None:
    names = tuple(name for name in TRIALS if name != "torch")
    assert set(levels(check_imports(names, {}, time.monotonic() + PATIENCE_S)).values()) == {"ok"}


def test_the_command_loads_nothing_that_may_end_its_process() -> None:
    assert not loaded_by("fedgate.gateway_agent.__main__") & {
        "numpy",
        "onnxruntime",
        "pydantic",
        "cryptography",
        "paho",
    }


# --- the machine ------------------------------------------------------------------------------------------------------


def test_a_clock_in_the_past_is_a_failure_and_one_that_nothing_keeps_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "written"
    file.touch()
    os.utime(file, (NOW_S, NOW_S))
    now = host.clock([file], stated="synchronised", now_s=NOW_S + DAY_S, has_rtc=False)
    assert levels(now) == {"clock": "ok", "clock source": "ok"}
    before = host.clock([file], stated="unsynchronised", now_s=NOW_S - 30 * DAY_S, has_rtc=True)
    assert levels(before) == {"clock": "warning", "clock source": "warning"}
    assert levels(host.clock([], stated="unknown", now_s=3_600.0, has_rtc=False))["clock"] == "failure"


def test_the_disk_is_looked_at_where_the_store_will_be(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"

    def said(options: str, needed: int = 0) -> dict[str, Level]:
        place = str(tmp_path).replace(" ", "\\040")
        mounts.write_text(f"proc / ext4 rw 0 0\n/dev/x1 {place} {options} 0 0\n")
        return levels(host.disk(tmp_path / "gateway.db", needed, mounts))

    assert said("ext4 rw,noatime") == {"disk": "ok", "file system": "ok", "disk writes": "ok"}
    assert said("tmpfs rw")["file system"] == said("vfat rw")["file system"] == "warning"
    assert said("nfs4 rw")["file system"] == said("ext4 ro")["file system"] == "failure"
    assert said("ext4 rw", 2**60)["disk"] == "warning"
    assert levels(host.disk(tmp_path / "none" / "gateway.db", 0)) == {"disk": "failure"}
    assert [path.name for path in tmp_path.iterdir()] == ["mounts"], "the trial leaves something behind"


@pytest.mark.parametrize(
    ("device", "told", "level", "text"),
    [
        ("/dev/mmcblk0p2", {"life_time": "0x01 0x02", "pre_eol_info": "0x01", "type": "MMC"}, "ok", "10 to 20 %"),
        ("/dev/mmcblk0p2", {"life_time": "0x09 0x02", "pre_eol_info": "0x01"}, "warning", "80 to 90 %"),
        ("/dev/mmcblk0p2", {"life_time": "0x01 0x01", "pre_eol_info": "0x03"}, "warning", "90 % of its reserve"),
        ("/dev/mmcblk0p2", {"type": "SD"}, "ok", "an SD card, which does not tell"),
        ("/dev/sda1", {}, "ok", "does not tell"),
    ],
)
def test_wear_is_told_where_the_device_tells_it(
    tmp_path: Path, device: str, told: dict[str, str], level: Level, text: str
) -> None:
    folder = tmp_path / "class" / "block" / "mmcblk0" / "device"
    folder.mkdir(parents=True)
    for name, value in told.items():
        (folder / name).write_text(f"{value}\n")
    (found,) = host.wear(device, tmp_path)
    assert found.level == level and text in found.text


@pytest.mark.parametrize(("mode", "level"), [(0o600, "ok"), (0o640, "warning"), (0o644, "failure"), (0o620, "failure")])
def test_who_may_read_a_key(tmp_path: Path, mode: int, level: Level) -> None:
    key = tmp_path / "gateway.key"
    key.touch()
    key.chmod(mode)
    assert levels(host.check_secrets([key, None, tmp_path / "absent"])) == {"secrets": level}


@pytest.mark.parametrize(
    ("begins_days", "ends_days", "level"),
    [
        *((-10, 80, "ok"), (-62, 28, "warning"), (-300, 65, "warning"), (-91, -1, "failure"), (1, 91, "failure")),
        *(
            (-3300, 350, "warning"),
            (-5, 2, "warning"),
            (-1, 6, "ok"),
            (-NOW_S / DAY_S, 700, "ok"),
            (-NOW_S / DAY_S, 20, "warning"),
        ),
    ],
)
def test_the_age_of_a_certificate(begins_days: float, ends_days: float, level: Level) -> None:
    life = Validity(NOW_S + begins_days * DAY_S, NOW_S + ends_days * DAY_S, "north.pem")
    assert levels([age("certificate", life, NOW_S, "enrol")]) == {"certificate": level}


def test_a_running_agent_is_seen_without_taking_its_lock(tmp_path: Path) -> None:
    settings = gateway_settings(gateway={"id": "north", "site": "bridge", "store": tmp_path / "gateway.db"})
    with closing(Store(tmp_path / "gateway.db")):
        assert store_lock.find_holder(tmp_path / "gateway.db") == os.getpid()
        (found,) = of_gateway.store(settings)
        assert found.level == "ok" and "of a running agent" in found.text
    assert store_lock.find_holder(tmp_path / "gateway.db") is None
    (tmp_path / "gateway.db").write_bytes(b"no database at all" * 100)
    assert levels(of_gateway.store(settings))["store"] == "failure"


@pytest.mark.parametrize(
    ("age_days", "level", "words"),
    [
        (None, "warning", "none was made"),
        (0.1, "ok", "with the keys: "),
        (7.9, "ok", "with the keys: "),
        (8.1, "warning", "8 days old"),
        (400, "warning", "400 days old"),
        (-1, "warning", "that is to come"),
    ],
)
def test_an_old_backup_is_told(age_days: float | None, level: Level, words: str) -> None:
    made_ns = round((NOW_S - (age_days or 0.0) * DAY_S) * 1e9)
    note = None if age_days is None else BackupNote(made_ns, "/mnt/site.fedgate", True)
    found = of_cloud.last_backup(note, round(NOW_S * 1e9))
    assert found.level == level and words in found.text and bool(found.advice) == (level == "warning")


def test_the_share_of_a_core_decides() -> None:
    shares = {cpu_s: of_gateway.judge_speed(cpu_s, 10.0, "").level for cpu_s in (0.001, 0.06, 0.2)}
    assert shares == {0.001: "ok", 0.06: "warning", 0.2: "failure"}
    found = of_gateway.measure_throughput(gateway_settings(), None)
    assert found.level == "ok" and "as none is in force" in found.text


@pytest.mark.parametrize(
    ("lines", "level"),
    [
        ("listener 8883\npersistence true\nmax_packet_size 262144\n", "ok"),
        ("listener 8883\npersistence false\n", "warning"),
        ("listener 8883\n", "warning"),
        ("listener 8883\npersistence true\nmax_packet_size 100000\n", "failure"),
        ("listener 8883\npersistence true\nallow_anonymous true\n", "warning"),
        ("listener 1883 127.0.0.1\npersistence true\nallow_anonymous true\n", "ok"),
        ("listener 8883\nlistener 1883 localhost\npersistence true\nallow_anonymous true\n", "warning"),
        ("listener 8883\nlistener 1883 127.0.0.1\npersistence false\n", "warning"),
        ("port 1883\nallow_anonymous true\n", "warning"),
        ("persistence true\nallow_anonymous true\n", "warning"),
        ("listener 1883 127.0.0.1\nmax_packet_size 1000\n", "failure"),
    ],
)
def test_what_no_client_sees_is_read_in_the_broker_file(tmp_path: Path, lines: str, level: Level) -> None:
    file = tmp_path / "mosquitto.conf"
    assert not list(of_cloud.broker_file(file, 122_880))
    file.write_text(lines)
    assert levels(of_cloud.broker_file(file, 122_880)) == {"broker file": level}


def test_nothing_is_wrong_with_the_broker_file_that_init_makes(tmp_path: Path) -> None:
    for name, words in (("site", []), ("trial", ["--loopback"])):
        assert cloud_aggregator(["init", str(tmp_path / name), *words]) == 0
        found = of_cloud.broker_file(tmp_path / name / "mosquitto.conf", 122_880)
        assert levels(found) == {"broker file": "ok"}


def test_the_way_to_a_broker_ends_at_the_step_that_fails(tmp_path: Path) -> None:
    found, is_there = network.reach(Broker(host="no-such-host.invalid"))
    assert not is_there and found[-1].name == "broker name" and found[-1].level == "failure"
    found, is_there = network.reach(Broker(ca_file=tmp_path / "ca.pem"))
    assert not is_there and levels(found) == {"broker files": "failure"}


@pytest.mark.parametrize(("count", "level"), [(4, "warning"), (5, "ok")])
def test_the_aggregators_doctor_says_where_too_few_are_there_for_a_masked_sum(
    tmp_path: Path, count: int, level: str
) -> None:
    masked = {"name": "fedavg", "settings": {"components": 4, "masking": {}}}
    settings = aggregator_settings(
        rounds={"quorum": 5}, algorithm=masked, aggregator={"site": SITE, "store": tmp_path / "cloud.db"}
    )
    path = tmp_path / "cloud.db"
    assert of_cloud.cohort(settings, of_cloud.read_stored(path), ()).level == "warning"  # there is no store yet
    with closing(CloudStore(tmp_path / "cloud.db")) as store:
        store.commit([RecordGateway(f"gateway-{index}", Status(state="online"), 1) for index in range(count)])
    found = of_cloud.cohort(settings, of_cloud.read_stored(path), ())
    assert found.level == level and f"{count} gateways are" in found.text and "only if 5 have" in found.text


def test_of_members_that_the_root_key_names_the_doctor_counts_those_alone(tmp_path: Path) -> None:
    masked = {"name": "fedavg", "settings": {"components": 4, "masking": {}}}
    settings = aggregator_settings(
        rounds={"quorum": 5}, algorithm=masked, aggregator={"site": SITE, "store": tmp_path / "cloud.db"}
    )
    held = [Certificate(str(index), f"gateway-{index}", f"{index:032x}" * 2, 0, 2**62) for index in range(1, 8)]
    with closing(CloudStore(tmp_path / "cloud.db")) as store:
        store.commit([RecordRegistry(tuple(held))])
    stored, members = of_cloud.read_stored(tmp_path / "cloud.db"), [one.key[:32] for one in held[:5]]
    assert of_cloud.cohort(settings, stored, ()).level == "ok"
    assert "7 gateways are enrolled, 5 of them members" in of_cloud.cohort(settings, stored, members).text
    assert of_cloud.cohort(settings, stored, members[:1]).level == "warning"


@pytest.mark.parametrize(
    ("name", "settings", "numbers"),
    [
        ("fedavg", {}, 256 + 1 + 1),
        ("fedavg", {"masking": {}, "components": 4096}, 4096 + 1 + 1),
        ("support-vector-election", {"max_vectors": 500}, 500 * 4),
        ("ensemble-svdd", {"max_vectors": 500}, 500 * (4 + 1 + 3)),
    ],
)
def test_the_size_of_an_update_is_that_of_its_schema_however_it_travels(
    name: str, settings: dict[str, Any], numbers: int
) -> None:
    algorithm, limits = build(name, 4, {"gamma": 0.5, **settings}), Limits(max_update_bytes=2**20)
    server = algorithm.start(np.random.default_rng(0))
    size = of_cloud.find_largest_update(algorithm, server, limits) - HEADER_BYTES_MAX
    assert 8 * numbers <= size <= 8 * numbers + 200
    assert of_cloud.find_largest_update(algorithm, server, Limits(max_update_bytes=2**14)) == 2**14
