"""`gateway-agent models` as an operator uses it, beside a running agent and without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedgate.gateway_agent.__main__ import main
from fedgate.gateway_agent.deployment.deployment import restore_models
from fedgate.gateway_agent.events import Keep, Save
from fedgate.gateway_agent.storage.store import Store
from tests.support.agents import chunks, heard
from tests.support.kept import Small, service, ticked
from tests.support.sites import FEATURES, SITE, WINDOWS
from tests.support.watchers import BLOCK, CALM, SENSITIVE, THIRD, Gateway

Capture = pytest.CaptureFixture[str]
SETTINGS = f"""
[gateway]
id = "north"
site = "{SITE}"
[[source]]
name = "deck"
kind = "frames"
channels = [{{ role = "load" }}]
[features]
rate_hz = {FEATURES["rate_hz"]}
window_s = {FEATURES["window_s"]}
channels = ["load"]
steps = [{", ".join(f'{{ kind = "{step["kind"]}" }}' for step in FEATURES["steps"])}]
[baseline]
windows = {WINDOWS}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(SETTINGS)
    return path


def kept(folder: Path, gateway: Gateway) -> Store:
    store = Small(folder / "gateway.db")
    store.commit([*map(Keep, gateway.shelf.baseline), *(Save(key, body) for key, body in gateway.shelf.blobs.items())])
    return store


def shown(settings: Path, capsys: Capture) -> tuple[dict[str, Any], str]:
    """Return what the command shows as JSON and as text."""
    assert main(["models", "-c", str(settings), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert main(["models", "-c", str(settings)]) == 0
    return summary, capsys.readouterr().out


def test_without_a_store_it_says_so_and_makes_none(settings: Path, capsys: Capture) -> None:
    assert main(["models", "-c", str(settings)]) == 2
    assert "there is no store yet" in capsys.readouterr().err
    assert [file.name for file in settings.parent.iterdir()] == ["gateway.toml"]


def test_a_gateway_without_a_model_has_none_to_show(settings: Path, capsys: Capture) -> None:
    Small(settings.parent / "gateway.db").close()
    summary, text = shown(settings, capsys)
    assert summary["current"] is summary["previous"] is summary["candidate"] is None and summary["rejected"] == []
    assert "in force" in text and "none to go back to" in text


@pytest.mark.soak
def test_it_shows_the_model_in_force_the_one_before_and_what_was_gone_back_from(
    settings: Path, capsys: Capture
) -> None:
    gateway = Gateway(CALM, SENSITIVE)
    gateway.watch(20 * BLOCK, shift=4.0, until=lambda: gateway.version == 1)
    gateway.offer(THIRD)
    kept(settings.parent, gateway).close()
    summary, text = shown(settings, capsys)
    assert (summary["current"]["version"], summary["previous"]["version"], summary["newest_version"]) == (3, 1, 3)
    assert summary["current"]["digest"] == THIRD[0].model.digest and summary["probation_s"] == 86_400.0
    assert summary["loads_not_finished"] == {THIRD[0].model.digest: 1}
    (rejected,) = summary["rejected"]
    assert (rejected["version"], rejected["final"]) == (2, True) and "rolled back" in rejected["why"]
    for words in ("version 3 (", "version 1 (", "24.0 h of watching left", "not taken: 2", "rolled back: it alarms in"):
        assert words in text


def test_beside_a_running_agent_it_shows_what_that_has_stored_last(settings: Path, capsys: Capture) -> None:
    agent = service(kept(settings.parent, Gateway(CALM)))
    assert shown(settings, capsys)[0]["current"]["version"] == 1
    manifest, body = SENSITIVE
    for event in (heard("manifest", "current", manifest.to_bytes(), "all"), *chunks(body)):
        ticked(agent, 0.0, event)
    summary, text = shown(settings, capsys)
    assert (summary["current"]["version"], summary["candidate"]) == (1, manifest.model.digest)
    assert f"digest {manifest.model.digest[:12]}, being tried" in text
    ticked(agent)
    summary, _ = shown(settings, capsys)
    assert (summary["current"]["version"], summary["previous"]["version"], summary["candidate"]) == (2, 1, None)
    agent.close()
    assert shown(settings, capsys)[0] == {**summary, "loads_not_finished": {}}


def test_a_slot_that_cannot_be_read_is_shown_as_none(settings: Path, capsys: Capture) -> None:
    gateway = Gateway(CALM, SENSITIVE)
    slot = restore_models(gateway.shelf.blobs).slot
    gateway.shelf.blobs[slot] = gateway.shelf.blobs[slot][:-3]
    kept(settings.parent, gateway).close()
    summary, _ = shown(settings, capsys)
    assert summary["current"] is None and summary["previous"]["version"] == 1
