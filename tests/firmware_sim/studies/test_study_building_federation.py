"""The study of the costs of federation on the tiny rooms, and its parts against what is plain to see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.studies.building_federation.data import INPUTS, Windows, fleet, load, windows
from fedgate.firmware_sim.studies.building_federation.options import Options
from fedgate.firmware_sim.studies.building_federation.study import STUDY, cells
from fedgate.firmware_sim.studies.datasets.tiny import ROOMS, write_tiny
from fedgate.firmware_sim.studies.engine.study import StudyError, load_options
from fedgate.firmware_sim.studies.runner import measured
from fedgate.models.arrays import FEATURES, Floats
from tests.support.syntax import ROOT

EXPERIMENT = ROOT / "firmware_sim" / "experiments" / "building-federation.toml"
CUT = Windows(heard=12, horizon=6, every=3, trains=0.75)
FOLDER = "streams/keti_rooms"
SENSORS = 4 * ROOMS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"), FOLDER)


@pytest.mark.soak
def test_the_study_runs_in_small(data: Path, tmp_path: Path) -> None:
    options = load_options(EXPERIMENT, STUDY, "short")
    outcome = measured(
        "costs", options, data, results=tmp_path, profile="short", command="test", jobs=1, say=lambda _: None
    )
    found = {(each.cell["method"], each.cell["sensors"]): each.figures for each in outcome.measured}
    plain, small = found["float32", 8], found["int8", 8]
    assert small["up"] < 0.4 * plain["up"] and found["a hundredth, int8, no momentum", 8]["up"] < 0.3 * plain["up"]
    assert abs(small["loss.2"] - plain["loss.2"]) < 0.005 and found["float16", 8]["parameters"] == plain["parameters"]
    assert small["down"] == plain["down"] and plain["up"] > 4 * plain["parameters"]
    noisy = found["private, noise of the cloud", 8]
    assert noisy["up"] == pytest.approx(plain["up"], rel=0.01)
    masked, alone = found["masked, 20 sensors", 20], found["float32, 20 sensors", 20]
    assert masked["loss.2"] == pytest.approx(alone["loss.2"], rel=1e-3) and masked["up"] > alone["up"]
    for (name, _), figures in found.items():
        assert ("epsilon" in figures) == name.startswith(("private", "bounded"))
    assert found["private, noise of the cloud", 8]["epsilon"] == found["private, noise of each gateway", 8]["epsilon"]
    assert "| float32 | 8 |" in outcome.text and "Target, int8 takes" in outcome.text and "GB up" in outcome.text
    assert "12.5 GB up" in outcome.text  # 347,438 parameters of 4 bytes, 180 sensors, 50 rounds
    assert (tmp_path / "costs-short-costs.png").read_bytes().startswith(b"\x89PNG")


def triples(rows: Floats) -> Floats:
    """Every three values of a sensor that follow each other (n, 3); a single one may well come again."""
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(rows[:, :18], 3, axis=1).reshape(-1, 3))


def test_what_is_told_was_not_trained_on(data: Path) -> None:
    sensors = load(data / FOLDER, CUT)
    assert len(sensors) == SENSORS and {each.name for each in sensors} >= {"room413/CO2", "room416/temperature"}
    for sensor in sensors:
        train, later = ({three.tobytes() for three in triples(rows)} for rows in (sensor.train, sensor.later))
        assert sensor.train.shape[1] == INPUTS * 18 and train and later and train.isdisjoint(later)


def test_no_window_reaches_over_a_missing_step() -> None:
    steps = np.delete(np.arange(60), 30)
    rows = windows(np.stack([steps * 1.0, -steps], axis=1), steps, CUT)
    assert np.array_equal(np.diff(rows[:, :18], axis=1), np.ones((len(rows), 17)))
    assert np.array_equal(rows[:, 18:], -rows[:, :18])
    assert len(rows) == len([start for start in range(0, 42, 3) if start + 17 < 30 or start >= 30])


def test_a_larger_fleet_is_made_of_parts(data: Path) -> None:
    sensors = load(data / FOLDER, CUT)
    few, all_of_them, many = (fleet(sensors, count, 3) for count in (5, SENSORS, 60))
    assert [len(each) for each in (few, all_of_them, many)] == [5, SENSORS, 60]
    assert fleet(sensors, 5, 3).keys() == few.keys() != fleet(sensors, 5, 4).keys()
    whole = {row.tobytes() for each in all_of_them.values() for row in each[FEATURES]}
    parts = [row.tobytes() for each in many.values() for row in each[FEATURES]]
    assert set(parts) <= whole and len(parts) == len(set(parts))


def test_what_draws_nothing_is_measured_once() -> None:
    options = load_options(EXPERIMENT, STUDY, "full")
    assert isinstance(options, Options)
    found = cells(options)
    assert len(found) == len({str(cell) for cell in found})
    assert sum(cell["method"] == "ridge on the values heard" for cell in found) == 1
    assert {cell["seed"] for cell in found if cell["method"] == "central"} == {0, 1}


def test_wrong_options_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="0 sensors of 288 steps"):
        load(tmp_path, CUT)
    raw = load_options(EXPERIMENT, STUDY, "full").model_dump()
    with pytest.raises(ValueError, match=r"plain: expected one of .*got 'float8'"):
        Options.model_validate({**raw, "plain": "float8"})
