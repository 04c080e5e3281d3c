"""Goal: a backtest says what the gateway would have said. Method: the command on shipped recordings, its table held
against the detector's own scores, and what it must refuse.
"""

from __future__ import annotations

import csv
import json
from html import escape
from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.config.settings.settings import GatewaySettings, load
from fedgate.firmware_sim.__main__ import main as firmware_sim
from fedgate.firmware_sim.backtest.backtest import backtest
from fedgate.firmware_sim.backtest.inputs import join, label_of
from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.evaluate.folders import in_roles
from fedgate.firmware_sim.evaluate.loading import extract_features, load_recording
from fedgate.firmware_sim.evaluate.training import train_fleet
from fedgate.firmware_sim.recordings import Recording
from fedgate.firmware_sim.recordings.gaps import Gaps
from fedgate.firmware_sim.recordings.recording import DAMAGED, HEALTHY, UNKNOWN, State
from fedgate.models.arrays import CALIBRATION, FEATURES
from fedgate.models.detectors import DETECTORS
from fedgate.models.features.spec import feature_names
from fedgate.models.federated import build

BASELINE, TRAINED, PAUSE_S, SUPPORT = 60, 40, 10.0, 730.0
HEALTHY_FILE, DAMAGED_FILE = "munich_bridge/ref_load_01", "munich_bridge/lowered_load_01"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    assert cloud_aggregator(["init", str(folder), "--loopback"]) == 0
    return folder / "gateway.toml"


def call(config: Path, out: Path, *words: str) -> int:
    common = ["-c", str(config), "--channels", "FRC-01", "--baseline", str(BASELINE), "--out", str(out)]
    return firmware_sim(["backtest", *words, *common])


def settings_of(config: Path) -> GatewaySettings:
    settings = load(config, GatewaySettings)
    baseline = settings.baseline.model_copy(update={"windows": BASELINE})
    return settings.model_copy(update={"baseline": baseline})


def recorded(settings: GatewaySettings, *names: str) -> Recording:
    roles = dict.fromkeys(settings.features.channels, "FRC-01")
    spec = settings.features
    return join([in_roles(name, load_recording(name), spec, roles) for name in names], spec.window_s)


@pytest.mark.soak
def test_damage_is_found_where_it_was_recorded(config: Path, tmp_path: Path, capsys: Capture) -> None:
    assert call(config, tmp_path, HEALTHY_FILE, DAMAGED_FILE, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    (gateway,) = facts["gateways"]
    assert gateway["detected"] and gateway["false_alarms"] == 0 and gateway["bytes_sent"] is None
    assert facts["damage"][0]["start_s"] == SUPPORT
    places = {HEALTHY_FILE: 0.0, DAMAGED_FILE: SUPPORT}
    assert facts["recordings"] == [{"recording": name, "begin_s": begin_s} for name, begin_s in places.items()]
    with (tmp_path / "windows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == facts["run"]["windows scored"]
    assert {row["recording"]: float(row["begin_s"]) for row in rows} == places
    assert all((row["recording"] == DAMAGED_FILE) == (float(row["end_s"]) > SUPPORT) for row in rows)
    assert all(float(row["end_s"]) > facts["commissioning_s"][1] for row in rows)
    assert {int(row["label"]) for row in rows if float(row["end_s"]) < SUPPORT} == {HEALTHY}
    assert {int(row["label"]) for row in rows if float(row["end_s"]) >= SUPPORT + 10.0} == {DAMAGED}
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "report.html").read_text()
    assert "FRC-01" in page and f"{DAMAGED_FILE} at 730 s" in page
    (evidence,) = facts["evidence"]
    assert evidence["contributions"][0]["feature"] == "load.level" and escape(evidence["text"]) in page
    assert [one["outside"] > 0 for one in evidence["health"]] == [True]
    assert page.count("data:image/png;base64") == 2 and "What the alarms rest on" in page


@pytest.mark.soak
def test_scores_are_those_of_the_detector_on_the_same_features(config: Path) -> None:
    settings = settings_of(config)
    whole = recorded(settings, HEALTHY_FILE, DAMAGED_FILE)
    algorithm = build("federated-subspace", len(feature_names(settings.features)), {})
    found = backtest(settings, whole, algorithm, seed=3)
    x = extract_features(whole, settings.features, [channel.name for channel in whole.channels])
    fit = train_fleet(algorithm, {"g": {FEATURES: x[:TRAINED], CALIBRATION: x[TRAINED:BASELINE]}}, seed=3)
    expected = DETECTORS[algorithm.detector].score({**fit.shared, **fit.own["g"]}, x[BASELINE:])
    scores = np.array([window.score for window in found.windows])
    np.testing.assert_allclose(scores, expected[: len(scores)], rtol=2e-3, atol=2e-3)
    assert len(expected) - len(scores) in (0, 1)  # the last window ends with a sample that never comes
    np.testing.assert_allclose([window.row for window in found.windows], x[BASELINE:][: len(scores)], rtol=1e-5)


def test_a_long_gap_begins_the_windows_anew_and_loses_no_other(config: Path) -> None:
    settings = settings_of(config)
    gapless = recorded(settings, HEALTHY_FILE)
    rows = np.array([50_000], dtype=np.int64)
    lost_ns = np.array([3_600_000_000_000], dtype=np.int64)
    gapped = Recording("x", gapless.channels, gapless.rate_hz, gapless.values, gaps=Gaps(rows, lost_ns))
    algorithm = build("federated-subspace", len(feature_names(settings.features)), {})
    found = backtest(settings, gapped, algorithm, seed=0)
    assert found.lost == 1  # stands for all that the gap passes over
    behind = [window.end_s for window in found.windows if window.end_s > 500.0]
    assert behind[0] == pytest.approx(500.0 + 3_600.0 + settings.features.window_s, abs=1e-6)
    np.testing.assert_allclose(np.diff(behind), settings.features.hop_s, atol=1e-6)


@pytest.mark.soak
def test_what_the_user_says_of_damage_counts(config: Path, tmp_path: Path, capsys: Capture) -> None:
    assert call(config, tmp_path, HEALTHY_FILE, "--damaged", "500:600:hammer", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["damage"] == [{"start_s": 500.0, "end_s": 600.0, "what": "hammer"}]
    assert facts["gateways"][0]["windows_damaged"] == 19  # of 10 s each 5 s, wholly within


@pytest.mark.soak
def test_a_recording_of_which_nothing_is_known_counts_as_healthy(config: Path, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "load.csv"
    values = np.random.default_rng(0).normal(size=90_000)
    path.write_text("\n".join(["FRC-01", *(f"{value:.4f}" for value in values)]) + "\n")
    assert call(config, tmp_path / "out", str(path), "--read", "rate_hz=100", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gateways"][0]["windows_healthy"] == facts["run"]["windows scored"] > 100
    assert any("Nothing says that the structure was damaged" in limit for limit in facts["limits"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--damaged", "500:600", "--damaged", "550:650"], "expected spans that do not overlap"),
        (["--damaged", "700:800"], "within the 720 s of the recordings"),
        (["--damaged", "100:200"], "the structure was damaged within the 305 s of the baseline"),
        (["--baseline", "59"], "--baseline: windows"),
        (["--baseline", "200"], "expected more than the 200 of the baseline"),
        (["--algorithm", "esn-fedavg"], "learns from labels here"),
        (["--algorithm", "nonsense"], "'nonsense' is unknown"),
        (["--set", "nonsense=1"], "nonsense"),
        (["--channels", "FRC-01,FRC-02"], "--channels: 2 given; expected one for each of load"),
        (["usc_footbridges/bridge_A_ambient"], "expected features.rate_hz, 100 Hz"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_in_one_line(
    config: Path, tmp_path: Path, capsys: Capture, words: list[str], said: str
) -> None:
    common = ["-c", str(config), "--channels", "FRC-01", "--baseline", str(BASELINE), "--out", str(tmp_path)]
    assert firmware_sim(["backtest", *common, *words, HEALTHY_FILE]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_joined_recordings_keep_states_and_gaps_in_their_places(config: Path) -> None:
    settings = settings_of(config)
    one, two = recorded(settings, HEALTHY_FILE), recorded(settings, DAMAGED_FILE)
    whole = join([one, two], PAUSE_S)
    assert [(state.start_s, state.label) for state in whole.states] == [(0.0, HEALTHY), (SUPPORT, DAMAGED)]
    gapped = Recording("x", one.channels, one.rate_hz, one.values, gaps=Gaps(np.array([5]), np.array([10**9])))
    assert join([one, gapped], PAUSE_S).gaps.rows.tolist() == [len(one.values), len(one.values) + 5]
    assert join([one, gapped], PAUSE_S).states[-1].label == UNKNOWN
    with pytest.raises(DataError, match="expected FRC-01"):
        join([one, load_recording(HEALTHY_FILE)], PAUSE_S)


def test_a_window_across_a_change_is_of_neither_state() -> None:
    states = (State(0.0, 10.0, HEALTHY, ""), State(10.0, 20.0, DAMAGED, ""))
    starts_s = {5.0: HEALTHY, 8.0: UNKNOWN, 10.0: DAMAGED, 17.0: UNKNOWN, 30.0: UNKNOWN}
    assert {start: label_of(states, start, start + 5.0) for start in starts_s} == starts_s
