"""Goal: a feature that tells healthy from damaged is named first, and a frequency that moves inside a band is seen.

Method: signals made for the purpose, through the command, and the shipped bridge.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.firmware_sim.__main__ import main as firmware_sim

RATE_HZ, LENGTH_S, PAUSE_S = 100, 200, 10  # a window lies between two recordings
HEALTHY_HZ, DAMAGED_HZ = 4.0, 3.3  # both in the band of 2 to 5 Hz of the settings that `init` writes
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("features")
    assert cloud_aggregator(["init", str(made / "site"), "--loopback"]) == 0
    rng = np.random.default_rng(1)
    for name, hz, noise in (
        ("healthy", HEALTHY_HZ, 0.3),
        ("shifted", DAMAGED_HZ, 0.3),
        ("noisy", HEALTHY_HZ, 0.9),
    ):
        t_s = np.arange(RATE_HZ * LENGTH_S) / RATE_HZ
        values = np.sin(2 * np.pi * hz * t_s) * (1 + 0.2 * rng.normal(size=t_s.size)) + noise * rng.normal(
            size=t_s.size
        )
        (made / f"{name}.csv").write_text("\n".join(["load", *(f"{value:.5f}" for value in values)]) + "\n")
    return made


def call(folder: Path, *words: str) -> int:
    paths = [str(folder / f"{name}.csv") for name in words if not name.startswith("--")]
    config = str(folder / "site" / "gateway.toml")
    return firmware_sim(["features", *paths, "-c", config, "--read", f"rate_hz={RATE_HZ}", "--json"])


def damaged(folder: Path, capsys: Capture, name: str) -> dict[str, object]:
    """Return what is said of a healthy recording and one of damage behind it."""
    paths = [str(folder / f"{each}.csv") for each in ("healthy", name)]
    words = ["-c", str(folder / "site" / "gateway.toml"), "--read", f"rate_hz={RATE_HZ}", "--json"]
    assert (
        firmware_sim(["features", *paths, *words, "--damaged", f"{LENGTH_S + PAUSE_S}:{2 * LENGTH_S + PAUSE_S}"]) == 0
    )
    facts: dict[str, object] = json.loads(capsys.readouterr().out)
    return facts


@pytest.mark.soak
def test_a_frequency_that_moves_inside_a_band_is_named(folder: Path, capsys: Capture) -> None:
    facts = damaged(folder, capsys, "shifted")
    shifts = facts["shifts"]
    assert isinstance(shifts, list)
    (shift,) = shifts
    assert (shift["channel"], shift["low_hz"], shift["high_hz"]) == ("load", 2.0, 5.0)
    assert shift["healthy_hz"] == pytest.approx(HEALTHY_HZ, abs=0.1)
    assert shift["damaged_hz"] == pytest.approx(DAMAGED_HZ, abs=0.1)
    assert shift["auc"] > 0.95


def test_what_tells_the_states_apart_comes_first_and_is_no_shift(folder: Path, capsys: Capture) -> None:
    facts = damaged(folder, capsys, "noisy")
    features = facts["features"]
    assert isinstance(features, list)
    assert features[0]["auc"] > 0.99 and features[0]["damaged"] > features[0]["healthy"] + 3 * features[0]["spread"]
    aucs = [one["auc"] for one in features]
    assert aucs == sorted(aucs, reverse=True) and min(aucs) >= 0.5
    assert not facts["shifts"]


def test_without_damage_features_are_described_alone(folder: Path, capsys: Capture) -> None:
    assert call(folder, "healthy") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["windows_damaged"] == 0 and facts["windows_healthy"] > 30 and not facts["shifts"]
    assert {one["auc"] for one in facts["features"]} == {None}


@pytest.mark.soak
def test_the_picture_shows_spectra_and_features_and_is_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    words = ["munich_bridge/ref_load_01", "munich_bridge/lowered_load_01", "--channels", "FRC-01"]
    config = ["-c", str(folder / "site" / "gateway.toml")]
    for name in ("a.png", "b.png"):
        assert firmware_sim(["features", *words, *config, "--plot", str(tmp_path / "made" / name)]) == 0
    first, second = ((tmp_path / "made" / name).read_bytes() for name in ("a.png", "b.png"))
    assert first.startswith(b"\x89PNG") and first == second


def test_too_few_windows_of_a_state_are_refused(folder: Path, capsys: Capture) -> None:
    words = [str(folder / "healthy.csv"), "-c", str(folder / "site" / "gateway.toml"), "--read", f"rate_hz={RATE_HZ}"]
    assert firmware_sim(["features", *words, "--damaged", "100:112"]) == 2
    assert "expected 5 or more of each" in capsys.readouterr().err


def test_windows_of_a_stuck_sensor_are_left_out_as_on_the_gateway(folder: Path, capsys: Capture) -> None:
    lines = (folder / "healthy.csv").read_text().splitlines()
    half = len(lines) // 2
    (folder / "stuck.csv").write_text("\n".join([*lines[:half], *[lines[half]] * (len(lines) - half)]) + "\n")
    assert call(folder, "stuck") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["windows_left_out"] > 15 and facts["windows_healthy"] < 25


def test_a_picture_of_another_kind_is_refused(folder: Path, capsys: Capture) -> None:
    words = [str(folder / "healthy.csv"), "-c", str(folder / "site" / "gateway.toml"), "--read", f"rate_hz={RATE_HZ}"]
    assert firmware_sim(["features", *words, "--plot", "x.jpg"]) == 2
    assert "expected a name that ends in .png" in capsys.readouterr().err
