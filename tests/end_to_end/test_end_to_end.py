"""The whole system as an operator runs it: real processes, a real broker, a real recording, held against its ground
truth.

Goal: every gateway whose sensor shows the damage detects it, none cries before it, every alarm and model can be traced
in the aggregator's registry, and the service ends in the very model that the loop over data sets defines.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.config.settings.settings import AggregatorSettings, GatewaySettings, load
from fedgate.firmware_sim import children
from fedgate.firmware_sim.broker import mosquitto_program
from fedgate.firmware_sim.demo.scenarios import STORIES
from fedgate.gateway_agent.pipeline import pipeline
from fedgate.gateway_agent.state import SECRET
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.detectors import DETECTORS
from fedgate.models.features.spec import feature_names
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run
from tests.support.some_packages import only
from tests.support.waiting import PATIENCE_S

SPEED = "100"  # times real time: fast enough for a test, slow enough for agents and nodes to share two cores
DELAY_S_MAX = 30.0  # the window, the minimum duration and a hop, with room


def play(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run the demo as a user would after `make demo`, which installs no more than it needs, and return its report."""
    command = [sys.executable, "-P", "-m", "fedgate.firmware_sim", "demo", "--out", str(folder), *arguments]
    done = children.run(command, PATIENCE_S, text=True, env=only(folder.parent / "hides", "demo"))
    assert done.returncode == 0, done.stderr + done.stdout
    for name in ("report.html", "report.png"):
        assert (folder / name).stat().st_size > 10_000
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def listed(folder: Path, what: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return what `cloud-aggregator WHAT --json` prints."""
    assert cloud_aggregator([what, "-c", str(folder / "aggregator.toml"), "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def loop_model(folder: Path, names: list[str]) -> bytes:
    """Return the ONNX bytes that `federated.run` ends in, on the baselines that the gateways really stored."""
    settings = load(folder / "aggregator.toml", AggregatorSettings)
    choice = settings.algorithm
    algorithm = build(choice.name, len(feature_names(settings.features)), choice.settings)
    data, secrets = {}, {}
    for name in names:
        own = load(folder / f"{name}.toml", GatewaySettings)
        store = Store(own.gateway.store, read_only=True)
        stored = store.read()
        store.close()
        data[name] = pipeline.collect_data(stored.baseline, own.features.hop_s, own.baseline.calibration_windows)
        secrets[name] = stored.blobs[SECRET]
    outcome = run(algorithm, data, seed=choice.seed, secrets=secrets)
    return DETECTORS[algorithm.detector].graph(outcome.server.global_state, algorithm.personal)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(mosquitto_program() is None, reason="Mosquitto is not installed (Debian: apt install mosquitto)")
def test_the_lowered_support_is_detected_on_every_gateway(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = play(tmp_path / "demo", "--broker", "mosquitto", "--speed", SPEED)
    results = report["gateways"]
    assert [result["gateway"] for result in results] == ["gateway-1", "gateway-2", "gateway-3"]
    for result in results:
        assert result["detected"]
        assert result["false_alarms"] == 0
        assert 0.0 < result["detection_delay_s"] <= DELAY_S_MAX
        assert result["recall"] > 0.95
        assert result["precision"] > 0.95
        assert result["auc"] > 0.99
        assert result["bytes_sent"] > 0
        assert result["model_version"] == 1

    models = listed(tmp_path / "demo", "models", capsys)
    assert [model["version"] for model in models] == [1]
    told = listed(tmp_path / "demo", "alarms", capsys)
    assert [alarm["cause"] for alarm in told if alarm["gateway"] == "all"] == ["fleet"]  # all three within a minute
    alarms = [alarm for alarm in told if alarm["gateway"] != "all"]
    assert [alarm["gateway"] for alarm in sorted(alarms, key=lambda row: row["gateway"])] == [
        result["gateway"] for result in results
    ]
    for alarm in alarms:
        assert alarm["raised"]
        assert alarm["cleared"]
        assert alarm["model_digest"] == models[0]["digest"]
        settings, name = str(tmp_path / "demo" / "aggregator.toml"), f"{alarm['gateway']}/{alarm['id']}"
        assert cloud_aggregator(["alarms", "show", name, "-c", settings, "--json"]) == 0
        evidence = json.loads(capsys.readouterr().out)["evidence"]
        assert evidence["text"] == alarm["text"]
        assert evidence["contributions"][0]["feature"] == "load.level" and evidence["spectrum"]["channel"] == "load"
    closed = listed(tmp_path / "demo", "rounds", capsys)
    assert sorted(closed[0]["gateways"].split()) == ["gateway-1", "gateway-2", "gateway-3"]

    names = [result["gateway"] for result in results]
    assert hashlib.sha256(loop_model(tmp_path / "demo", names)).hexdigest() == models[0]["digest"]


@pytest.mark.slow
@pytest.mark.soak
def test_the_same_is_detected_where_the_cloud_sees_sums_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over the broker that comes with us, which has the most to carry in five exchanges."""
    masked = ("--algorithm", "federated-subspace", "--set", "masking.fewest=3")
    report = play(tmp_path / "demo", *masked, "--broker", "embedded", "--speed", SPEED)
    for result in report["gateways"]:
        assert result["detected"] and result["false_alarms"] == 0 and result["model_version"] == 1
    closed = listed(tmp_path / "demo", "rounds", capsys)
    everyone = ["gateway-1", "gateway-2", "gateway-3"]
    assert [sorted(row["gateways"].split()) for row in closed] == [everyone] * 5  # all five exchanges


@pytest.mark.slow
@pytest.mark.soak
def test_the_injected_stiffness_loss_is_detected_on_every_gateway(tmp_path: Path) -> None:
    report = play(tmp_path / "demo", "--scenario", "footbridge", "--speed", "4")
    for result in report["gateways"]:
        assert result["detected"]
        assert result["false_alarms"] == 0
        assert result["auc"] > 0.99


def test_every_story_says_what_is_true_when() -> None:
    for story in (make() for make in STORIES.values()):
        assert story.scenario.damage_start_s > story.scenario.commissioning[1]
        assert len({len(sensor.values) for sensor in story.sensors}) == 1
        assert abs(story.sensors[0].length_s - story.length_s) < 0.02
        starts, ends = [span.start_s for span in story.spans], [span.end_s for span in story.spans]
        assert starts == [0.0, *ends[:-1]]
        assert story.label(0.0, 1.0) == 0
        assert story.label(story.scenario.damage_start_s - 0.5, story.scenario.damage_start_s + 0.5) == -1


@pytest.mark.soak
def test_a_demo_that_cannot_start_says_why_and_fails(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    command = [sys.executable, "-P", "-m", "fedgate.firmware_sim", "demo", "--out", str(tmp_path / "taken")]
    done = children.run(command, PATIENCE_S, text=True)
    assert done.returncode != 0
    assert "taken" in done.stderr
