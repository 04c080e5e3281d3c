"""The two commands as an operator uses them: what they print, how they fail, and that they end well when told to.

The commands are called in this process where nothing needs another one; what runs for long is in `test_processes`.
"""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.events import RecordAlarm, RecordGateway, RecordModel, RecordRound, SaveRollout
from fedgate.cloud_aggregator.releases.releases import ModelRelease, Releases, dump
from fedgate.cloud_aggregator.rounds.rounds import save_training
from fedgate.cloud_aggregator.storage import store as registry
from fedgate.config.protocol.messages import Status
from fedgate.config.runtime.version import VERSION
from fedgate.firmware_sim import children
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.gateway_agent.context import STARTS, Context
from fedgate.gateway_agent.deployment.deployment import Bundle, Models, SlotEntry, save, save_model
from fedgate.gateway_agent.events import Enqueue, Item, Keep, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.monitor.monitor import ALARMS
from fedgate.gateway_agent.state import save_link
from fedgate.gateway_agent.storage.store import Store
from tests.cloud_aggregator.storage.test_aggregator_store import CLEARED, RAISED
from tests.cloud_aggregator.test_aggregator_machine import OPEN
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.sites import gateway_settings
from tests.support.waiting import PATIENCE_S

Command = Callable[[list[str]], int]
COMMANDS: dict[str, Command] = {"gateway-agent": gateway_agent, "cloud-aggregator": cloud_aggregator}
BROKER = ("mosquitto.conf",)
FILES = {"gateway-agent": "gateway.toml", "cloud-aggregator": "aggregator.toml"}
PARTS = {"gateway-agent": ("run", "status", "check"), "cloud-aggregator": ("init", "run", "check", "status", "models")}
each_command = pytest.mark.parametrize("name", COMMANDS)
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, capsys: Capture) -> Path:
    """A folder as `cloud-aggregator init` leaves it."""
    assert cloud_aggregator(["init", str(tmp_path / "site"), "--loopback"]) == 0
    capsys.readouterr()
    return tmp_path / "site"


def failed(command: Command, capsys: Capture, *arguments: str, code: int = 2) -> str:
    """Return the one line with which a command fails."""
    assert command(list(arguments)) == code
    out, complaint = capsys.readouterr()
    assert out == "" and complaint.count("\n") == 1 and complaint.endswith("\n")
    return complaint.strip()


@each_command
def test_help_says_what_there_is_with_an_example(name: str, capsys: Capture) -> None:
    for arguments in (["--help"], *([part, "--help"] for part in PARTS[name])):
        with pytest.raises(SystemExit) as ended:
            COMMANDS[name](arguments)
        out = capsys.readouterr().out
        assert ended.value.code == 0 and f"usage: {name}" in out
        if arguments == ["--help"]:
            assert all(f"\n    {part} " in out for part in PARTS[name]) and f"  {name} check -c {FILES[name]}" in out


@each_command
@pytest.mark.parametrize("arguments", [[], ["dance"], ["run"], ["check", "--config"], ["status", "-c", "x", "--jason"]])
def test_a_wrong_call_ends_with_code_2_and_the_usage(name: str, arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMANDS[name](arguments)
    assert ended.value.code == 2 and f"usage: {name}" in capsys.readouterr().err


@pytest.mark.soak
@each_command
def test_each_command_is_one_that_a_shell_can_run(name: str) -> None:
    done = children.run_module(name.replace("-", "_"), "--version", idle_s=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} (fedgate) {VERSION}\n", "")


@pytest.mark.soak
def test_init_makes_what_is_good_and_overwrites_nothing(folder: Path, capsys: Capture) -> None:
    assert {path.name for path in folder.iterdir()} == {"release.key", "release.pub", *FILES.values(), *BROKER}
    assert stat.S_IMODE((folder / "release.key").stat().st_mode) == 0o600
    for name, command in COMMANDS.items():
        path = folder / FILES[name]
        assert command(["check", "-c", str(path)]) == 0
        assert capsys.readouterr().out.startswith(f"{path}: good; ")
        assert command(["check", "-c", str(path), "--json"]) == 0
        assert {"ok": True, "file": str(path)}.items() <= json.loads(capsys.readouterr().out).items()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    said = failed(cloud_aggregator, capsys, "init", str(folder), "--loopback")
    assert "a site is here already, and nothing of it is overwritten" in said
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


TLS = 'port = 1883\nca_file = "ca.pem"'
BAD_FILES = {
    "key": ('host = "127.0.0.1"', 'hots = "127.0.0.1"', "broker.hots: is not a known key, got '127.0.0.1'"),
    "TOML": ("[broker]", "[broker", "not TOML: "),
    "password": ("port = 1883", 'port = 1883\npassword_file = "nowhere"', "broker.password_file: "),
    "certificate": ("port = 1883", TLS, "broker: TLS files cannot be used ("),
}


@pytest.mark.soak
@each_command
@pytest.mark.parametrize("fault", BAD_FILES)
def test_check_finds_what_run_would_stumble_over(name: str, fault: str, folder: Path, capsys: Capture) -> None:
    old, new, words = BAD_FILES[fault]
    path = folder / FILES[name]
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    before = sorted(folder.iterdir())
    for part in ("check", "run"):
        said = failed(COMMANDS[name], capsys, part, "-c", str(path))
        assert said.startswith(f"{name}: ") and words in said
        if fault in ("key", "TOML"):
            line = text[: text.index(old)].count("\n") + 1
            assert said.startswith(f"{name}: {path}:{line}: ")
            assert sorted(folder.iterdir()) == before


@pytest.mark.soak
@pytest.mark.parametrize("body", [None, b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", b"\xff"])
@each_command
def test_a_key_that_cannot_be_used_is_named(name: str, body: bytes | None, folder: Path, capsys: Capture) -> None:
    path = folder / ("release.pub" if name == "gateway-agent" else "release.key")
    path.unlink() if body is None else path.write_bytes(body)
    said = failed(COMMANDS[name], capsys, "check", "-c", str(folder / FILES[name]))
    assert f"{path}: no Ed25519 " in said


@each_command
def test_looking_before_the_first_run_says_so_and_makes_nothing(name: str, folder: Path, capsys: Capture) -> None:
    before = sorted(folder.iterdir())
    for part in ("status", *(("models", "alarms", "rounds") if name == "cloud-aggregator" else ())):
        assert "there is no store yet" in failed(COMMANDS[name], capsys, part, "-c", str(folder / FILES[name]))
    assert sorted(folder.iterdir()) == before


@each_command
def test_a_store_that_is_none_is_named_in_one_line(name: str, folder: Path, capsys: Capture) -> None:
    path = folder / ("gateway.db" if name == "gateway-agent" else "aggregator.db")
    path.write_bytes(b"this is no database" * 99)
    # A gateway must watch whatever its card has lost: its agent sets such a file aside, see test_store_damage.
    # The aggregator's service is started again: what keeps a store from opening may pass.
    for part, code in (("status", 2),) if name == "gateway-agent" else (("status", 2), ("run", 1)):
        said = failed(COMMANDS[name], capsys, part, "-c", str(folder / FILES[name]), code=code)
        assert f"{path}: cannot be opened as the a" in said and "file is not a database" in said


def shown(command: Command, capsys: Capture, *arguments: str) -> tuple[Any, str]:
    """Return what a command shows as JSON and as text."""
    assert command([*arguments, "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert command(list(arguments)) == 0
    return value, capsys.readouterr().out


def test_a_gateways_status_shows_what_is_stored(folder: Path, capsys: Capture) -> None:
    arguments = ("status", "-c", str(folder / "gateway.toml"))
    store = Store(folder / "gateway.db")
    value, text = shown(gateway_agent, capsys, *arguments)
    assert value["model"] is None and "none yet" in text
    assert text.startswith("The agent learns what is normal: 0 of 2000 windows.\n")
    manifest, body = FIRST
    fault = {"cause": "faulty-load", "kind": "sensor", "onset_ns": 5}
    alarms = json.dumps({"active": [{"cause": "anomaly", "kind": "anomaly"}, fault]}).encode()
    item = Item("topic", (b"four", b"five5"), False, 1)
    kept = (save_model(Bundle(manifest, body, {})), save(Models(current=SlotEntry.of(manifest))))
    store.commit([Keep(FeatureRow(np.zeros(3, np.float32), 1)), *kept, Save(ALARMS, alarms), Enqueue("u", item)])
    value, text = shown(gateway_agent, capsys, *arguments)
    assert value["running"] and value["sentence"] == "The agent watches with model 1: anomaly, faulty-load."
    store.close()
    assert shown(gateway_agent, capsys, *arguments)[1].startswith("The agent does not run; ")
    assert (value["gateway"], value["site"], value["baseline_windows"]) == ("gateway-1", "bridge", 1)
    assert value["model"]["version"] == 1 and value["model"]["digest"] == manifest.model.digest
    assert (value["anomaly_active"], value["sensor_alarms"], value["outbox"]) == (True, {"faulty-load": 5}, {"u": 9})
    shown_words = ("1 of 2000 windows", "version 1 (support-vector", "anomaly, faulty-load", "1 items, ")
    for words in (*shown_words, "sensor-alarm", "0.0 MiB of 32", "set aside"):
        assert words in text


def test_a_gateways_status_says_how_the_link_is_and_what_is_received(folder: Path, capsys: Capture) -> None:
    arguments, up_ns = ("status", "-c", str(folder / "gateway.toml")), time.monotonic_ns()
    store = Store(folder / "gateway.db")
    value, text = shown(gateway_agent, capsys, *arguments)
    assert value["link"]["state"] == "unknown" and "not up yet, or not stored yet" in text
    assert value["sources"]["deck"]["state"] == "received" and "within the last 60 s" in text
    context = Context(gateway_settings(), "boot", up_ns, verified=lambda *_: True, starts=2, is_connected=True)
    store.commit([Save(STARTS, b"2"), save_link(context)])
    value, text = shown(gateway_agent, capsys, *arguments)
    since = datetime.fromisoformat(value["link"]["since"])
    assert value["link"]["state"] == "up" and abs(since - datetime.now(UTC)) < timedelta(seconds=60)
    store.commit([save_link(replace(context, is_connected=False))])
    assert "down since 20" in shown(gateway_agent, capsys, *arguments)[1]
    silent = {"cause": "silent-deck", "kind": "sensor", "onset_ns": 120 * 10**9}
    store.commit([Save(STARTS, b"3"), Save(ALARMS, json.dumps({"active": [silent]}).encode())])
    value, text = shown(gateway_agent, capsys, *arguments)
    assert value["link"]["state"] == "unknown"  # of the start before
    assert value["sources"]["deck"]["state"] == "silent" and "nothing since 1970-01-01T00:01:00+00:00" in text
    store.close()
    value, text = shown(gateway_agent, capsys, *arguments)
    assert value["link"]["state"] == "unknown" and "unknown since the agent's last commit" in text


def nothing(value: Any, text: str) -> bool:
    """Tell whether a status is that of a store that no service has run on."""
    service: dict[str, Any] = {"state": "never ran", "broker": "not connected", "data_age_s": None, "is_live": False}
    rest = {"gateways", "fleet", "training", "rounds_closed", "model_version", "posts", "alarms_refused"}
    rest |= {"store_is_older"}
    assert value.pop("service") == service | dict.fromkeys(("since", "last_sign", "broker_since", "data_as_of"), "")
    assert value.keys() == rest and not any(value.values())
    return text.splitlines()[0] == "service: has never run on this store"


def test_the_registry_is_shown_as_it_is(folder: Path, capsys: Capture) -> None:
    def look(part: str) -> tuple[Any, str]:
        return shown(cloud_aggregator, capsys, part, "-c", str(folder / "aggregator.toml"))

    store = registry.Store(folder / "aggregator.db")
    assert [look(part)[0] for part in ("models", "alarms", "rounds")] == [[], [], []]
    assert nothing(*look("status"))
    second = 10**9
    said = {"refusal": "round 1: no memory", "training_remarks": "round 0: all rows lie outside"}
    status = Status(state="online", can_train=True, baseline_windows=5, baseline_needed=60, **said)
    store.commit(
        [
            RecordGateway("north", status, 2 * second),
            RecordModel(*FIRST),
            SaveRollout(dump(Releases(ModelRelease(*FIRST))), 7 * second),
            RecordRound("run", 0, "fedavg", ("east", "north"), 1, 3 * second, 4_096, ("east",)),
            RecordAlarm("north", RAISED, 4 * second, RAISED.onset_ns),
            RecordAlarm("south", CLEARED, 4 * second, CLEARED.onset_ns),
            save_training(
                replace(OPEN.rounds, server=OPEN.rounds.server._replace(server_state={"median": np.array(0.25)})), 0
            ),
        ]
    )
    store.close()
    value, text = look("status")
    assert (value["training"]["phase"], value["training"]["figures"]) == (0, {"median": 0.25})
    assert "round 0, phase 0, answers 0; median 0.25" in text
    assert value["model_version"] == value["rounds_closed"] == len(value["gateways"]) == 1
    assert value["gateways"][0] | {"gateway": "north", **said} == value["gateways"][0]
    assert "1970-01-01T00:00:02+00:00" in text and all(words in text for words in said.values())
    value, text = look("models")
    assert value[0]["digest"] == FIRST[0].model.digest and FIRST[0].model.digest in text
    assert (value[0]["state"], value[0]["released"], value[0]["canary"]) == (
        "everywhere",
        "1970-01-01T00:00:07+00:00",
        "",
    )
    value, text = look("rounds")
    assert (value[0]["bytes_received"], value[0]["empty"]) == (4_096, "east") and "4096" in text.splitlines()[1]
    assert (value[0]["gateways"], value[0]["refused"]) == ("east north", 1)
    assert value[0]["closed"] == "1970-01-01T00:00:03+00:00" and value[0]["update_bytes"] is None
    value, text = look("alarms")
    assert [(row["gateway"], row["raised_ns"], row["cleared_ns"]) for row in value] == [
        ("north", 6, None),
        ("south", None, 9),
    ]
    assert len(text.splitlines()) == 3 and "north/north.anomaly.5" in text and "lasted" in text
