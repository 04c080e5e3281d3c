"""Goal: who gives a command the wrong thing reads, in one line, what it is and what to do; and nothing is harmed.

Method: the commands in this process, on folders that `init` made.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.events import Answered
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.runtime import cli
from fedgate.firmware_sim.__main__ import main as firmware_sim
from fedgate.gateway_agent.__main__ import main as gateway_agent
from tests.end_to_end.test_commands import Command, failed

Capture = pytest.CaptureFixture[str]
PROGRAMS: dict[str, Command] = {"cloud-aggregator": cloud_aggregator, "gateway-agent": gateway_agent}


def made(folder: Path, capsys: Capture, *words: str) -> Path:
    assert cloud_aggregator(["init", str(folder), *words]) == 0
    capsys.readouterr()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("words", [(), ("--loopback",)])
def test_init_makes_no_other_release_key_for_a_site_that_has_lost_its_own(
    words: tuple[str, ...], tmp_path: Path, capsys: Capture
) -> None:
    folder = made(tmp_path / "site", capsys, *words)
    (folder / "release.key").unlink()
    before = contents(folder)
    said = failed(cloud_aggregator, capsys, "init", str(folder), *words)
    assert "all its gateways would refuse every model: restore release.key from the backup" in said
    assert contents(folder) == before
    for path in folder.iterdir():  # the folder that the text speaks of
        path.unlink()
    made(folder, capsys, *words)


def test_init_makes_lost_settings_again_and_nothing_else(tmp_path: Path, capsys: Capture) -> None:
    folder = made(tmp_path / "site", capsys, "--site", "north")
    before = contents(folder)
    (folder / "aggregator.toml").unlink()
    assert "it is of site 'north', and 'bridge' is given" in failed(cloud_aggregator, capsys, "init", str(folder))
    said = failed(cloud_aggregator, capsys, "init", str(folder), "--loopback")
    assert "a site with certificates is here; leave --loopback out" in said
    made(folder, capsys, "--site", "north")
    assert contents(folder) == before


def test_init_mixes_no_two_kinds_of_sites(tmp_path: Path, capsys: Capture) -> None:
    folder = made(tmp_path / "site", capsys, "--loopback")
    assert "a site without certificates is here" in failed(cloud_aggregator, capsys, "init", str(folder))
    whole = made(tmp_path / "whole", capsys)
    (whole / "ca.key").unlink()
    assert "ca.pem without ca.key" in failed(cloud_aggregator, capsys, "init", str(whole))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "0"], "--port: expected 1 to 65534, got 0"),
        (["--loopback", "--host", "a.example"], "--host: with --loopback nobody reaches the broker from elsewhere"),
    ],
)
def test_init_takes_no_option_that_means_nothing(words: list[str], said: str, tmp_path: Path, capsys: Capture) -> None:
    assert said in failed(cloud_aggregator, capsys, "init", str(tmp_path / "site"), *words)
    assert not (tmp_path / "site").exists()


def test_init_speaks_of_files_as_a_person_would(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_bytes(b"")
    said = failed(cloud_aggregator, capsys, "init", str(tmp_path / "file"))
    assert said.endswith("expected a folder, or none yet; it is a file")
    said = failed(cloud_aggregator, capsys, "init", str(tmp_path / "file" / "site"), "--loopback")
    assert "Errno" not in said and said.endswith("file/site: not a directory")


def test_the_next_steps_can_be_pasted(tmp_path: Path, capsys: Capture) -> None:
    assert cloud_aggregator(["init", str(tmp_path / "our site")]) == 0
    out = capsys.readouterr().out
    assert f"mosquitto -c '{tmp_path}/our site/mosquitto.conf'" in out
    assert f"cloud-aggregator run -c '{tmp_path}/our site/aggregator.toml'" in out


def test_the_settings_of_the_other_program_are_known_as_such(tmp_path: Path, capsys: Capture) -> None:
    folder = made(tmp_path / "site", capsys, "--loopback")
    for name, other, what in (
        ("cloud-aggregator", "gateway.toml", "a gateway.toml, of the other program; expected an aggregator.toml"),
        ("gateway-agent", "aggregator.toml", "an aggregator.toml, of the other program; expected a gateway.toml"),
    ):
        said = failed(PROGRAMS[name], capsys, "check", "-c", str(folder / other))
        assert said == f"{name}: {folder / other}:1: this is {what}"
    said = failed(cloud_aggregator, capsys, "gateways", "list", "-c", str(folder / "gateway.toml"))
    assert "this is a gateway.toml" in said


@pytest.mark.parametrize(
    ("old", "new", "meant"),
    [
        ('host = "127.0.0.1"', 'hots = "127.0.0.1"', "host"),
        ("[alarm]", "[alarms]", "alarm"),
        ('role = "load"', 'rolle = "load"', "role"),
        ('kind = "deviation"', 'kind = "bands", edgs_hz = [1.0, 2.0]', "edges_hz"),
        ("window_s = 10.0", "zzz = 10.0", ""),
    ],
)
def test_a_key_that_is_not_known_is_told_with_the_one_that_was_meant(
    old: str, new: str, meant: str, tmp_path: Path, capsys: Capture
) -> None:
    path = made(tmp_path / "site", capsys, "--loopback") / "gateway.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert gateway_agent(["check", "-c", str(path)]) == 2
    said = next(line for line in capsys.readouterr().err.splitlines() if "is not a known key" in line)
    assert said.endswith(f"; did you mean {meant}?") if meant else "did you mean" not in said


def test_a_token_needs_nothing_of_what_is_trained(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path / "site", capsys)
    path = folder / "aggregator.toml"
    path.write_text(path.read_text().replace('"support-vector-election"', '"not-installed-here"'))
    assert "not-installed-here" in failed(cloud_aggregator, capsys, "check", "-c", str(path))
    with closing(Store(folder / "aggregator.db")):
        pass
    monkeypatch.setattr("fedgate.cloud_aggregator.commands.store.WAIT_S", 0.0)
    assert cloud_aggregator(["gateways", "token", "north", "-c", str(path)]) == 0
    assert "--token fedgate1." in capsys.readouterr().out


def test_orders_are_shown_with_what_became_of_them(tmp_path: Path, capsys: Capture) -> None:
    folder = made(tmp_path / "site", capsys, "--loopback")
    look = ["orders", "-c", str(folder / "aggregator.toml")]
    with closing(Store(folder / "aggregator.db")) as store:
        for number in range(24):
            store.order("revoke", {"gateway": f"north-{number}", "digest": "5ec4e7"})
        store.commit([Answered(1, "north-0 is revoked"), Answered(22, "refused", "no gateway"), Answered(23, "")])
    assert cloud_aggregator(look) == 0
    out = capsys.readouterr().out
    assert "5ec4e7" not in out and len(out.splitlines()) == 21 and "north-0 " not in out
    assert cloud_aggregator([*look, "--all", "--json"]) == 0
    shown = {row["number"]: (row["state"], row["answer"]) for row in json.loads(capsys.readouterr().out)}
    assert shown[1] == ("done", "north-0 is revoked") and shown[22] == ("refused", "no gateway")
    assert shown[23] == ("at the broker", "") and shown[24] == ("waits", "")


def test_a_store_that_is_a_folder_is_said_to_be_one(tmp_path: Path, capsys: Capture) -> None:
    folder = made(tmp_path / "site", capsys, "--loopback")
    for name, kind in (("cloud-aggregator", "aggregator"), ("gateway-agent", "gateway")):
        (folder / f"{kind}.db").mkdir()
        said = failed(PROGRAMS[name], capsys, "status", "-c", str(folder / f"{kind}.toml"))
        assert said.endswith(f"{kind}.db: it is a folder; expected the path of a file, such as one in it")


@pytest.mark.parametrize("seed", ["-1", "1.5", "x"])
def test_a_world_of_no_seed_is_a_wrong_call(seed: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        firmware_sim(["world", f"--seed={seed}"])
    assert ended.value.code == cli.USAGE_ERROR and "expected a number of 0 or above" in capsys.readouterr().err


def test_a_faults_file_that_is_not_there_is_named_in_words(tmp_path: Path, capsys: Capture) -> None:
    said = failed(firmware_sim, capsys, "world", "--seed", "1", "--faults", str(tmp_path / "none.toml"))
    assert said == f"firmware-sim: {tmp_path / 'none.toml'}: cannot be read (No such file or directory)"


def test_every_error_of_the_system_is_told_in_words() -> None:
    assert cli.describe(FileNotFoundError(2, "No such file or directory", "x")) == "x: no such file or directory"
    assert cli.describe(OSError("no broker")) == "no broker"
