"""Goal: a recording is played to a gateway of a site that `init` made, and who cannot play it reads why.

Method: a real Mosquitto with the configuration of that site, and the command as an operator calls it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.config.protocol.frames import Frame
from fedgate.firmware_sim.__main__ import main as firmware_sim
from fedgate.firmware_sim.broker import mosquitto_program
from fedgate.firmware_sim.replay import node
from tests.support.site_folders import Folder, broker_of, client, founded, until
from tests.support.sites import SITE, topic

needs_mosquitto = pytest.mark.skipif(mosquitto_program() is None, reason="no mosquitto program here")
Capture = pytest.CaptureFixture[str]


def recording(folder: Path) -> Path:
    path = folder / "load.csv"
    rows = (f"{value:.3f}" for value in np.sin(np.arange(300) / 7))
    path.write_text("\n".join(["load", *rows]) + "\n")
    return path


def settings_of(site: Folder, name: str) -> Path:
    """Write the gateway.toml of an enrolled gateway."""
    certificate, key = site.certified(name)
    text = (site.path / "gateway.toml").read_text()
    for old, new in (("gateway-1", name), ("gateway.pem", certificate.name), ("gateway.key", key.name)):
        text = text.replace(f'"{old}"', f'"{new}"')
    path = site.path / f"{name}.toml"
    path.write_text(text)
    return path


@pytest.mark.soak
@needs_mosquitto
def test_a_node_of_a_site_with_certificates_plays_to_its_gateway(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "CONNECT_S", 2.0)
    site = founded(tmp_path / "site")
    words = ["replay", str(recording(tmp_path)), "--read", "rate_hz=100", "--stream", "deck", "--speed", "50", "-q"]
    with broker_of(site):
        settings = settings_of(site, "north")
        own = (site.path / "north.1.0.pem", site.path / "north.1.0.key")
        with client(site, "north", own, topic("north", "sample", "deck")) as (_, heard, ups):
            until(lambda: ups == [True])
            assert firmware_sim([*words, "--gateway-config", str(settings)]) == 0, capsys.readouterr().err
            until(lambda: len(heard) == 3)
        assert [len(Frame.from_bytes(payload).values) for _, payload in heard] == [100] * 3
        assert firmware_sim([*words, "--gateway", "north", "--broker", f"127.0.0.1:{site.port}", "--site", SITE]) == 2
        assert "it may want certificates, see --gateway-config" in capsys.readouterr().err
    assert firmware_sim([*words, "--gateway-config", str(settings)]) == 2
    said = capsys.readouterr().err
    assert f"no broker at localhost:{site.port} within 2 s\n" in said


def test_a_recording_begins_when_it_is_asked_to(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_ns: list[int] = []

    def played(*_: object, t0_ns: int, **__: object) -> int:
        begun_ns.append(t0_ns)
        return 0

    monkeypatch.setattr(node, "replay", played)
    words = ["replay", str(recording(tmp_path)), "--read", "rate_hz=100", "--gateway", "north", "-q"]
    assert firmware_sim([*words, "--t0", "1500000000", "--start", "2.5"]) == 0
    assert begun_ns == [1_500_000_002_500_000_000]
    for wrong, why in (("soon", "expected now, recorded or Unix seconds"), ("recorded", "does not say when it began")):
        assert firmware_sim([*words, "--t0", wrong]) == 2
        assert f"--t0 {wrong}: " in (said := capsys.readouterr().err) and why in said


@pytest.mark.parametrize("wrong", ["localhost", ":1883", "localhost:", "localhost:mqtt"])
def test_a_broker_is_given_as_host_and_port(wrong: str, tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        firmware_sim(["replay", str(recording(tmp_path)), "--gateway", "north", "--broker", wrong])
    assert f"argument --broker: expected HOST:PORT, got {wrong!r}" in capsys.readouterr().err


def test_what_the_gateways_settings_say_is_not_said_twice(tmp_path: Path, capsys: Capture) -> None:
    site = founded(tmp_path / "site")
    capsys.readouterr()
    settings = settings_of(site, "north")
    words = ["replay", str(recording(tmp_path)), "--read", "rate_hz=100", "--gateway-config", str(settings)]
    for more in (["--broker", "127.0.0.1:1"], ["--site", SITE]):
        assert firmware_sim([*words, *more]) == 2
        assert f"{more[0]}: {settings} says it" in capsys.readouterr().err
