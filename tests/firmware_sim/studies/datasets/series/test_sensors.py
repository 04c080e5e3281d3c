"""Sensors under watch: parts share nothing, and faults lie behind the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.series.files import missing_before
from fedgate.firmware_sim.studies.datasets.series.sensors import Part, SensorSet, find_runs, load_sensors
from fedgate.firmware_sim.studies.datasets.tiny import write_tiny
from tests.support.building_files import FAILURE, write_nab, write_watched_air

FOLDERS = {"keti": "keti_rooms", "skab": "skab_pump", "nab": "nab", "hvac": "hvac_fdd"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny(tmp_path_factory.mktemp("data"), "streams/keti_rooms", "streams/skab_pump") / "streams"
    write_nab(folder / "nab")
    write_watched_air(folder / "hvac_fdd")
    return folder


def chosen(name: str, **more: Any) -> SensorSet:
    return SensorSet.model_validate({"data": name, "folder": FOLDERS[name], "merge_s": 3_600.0, **more})


@pytest.mark.soak
def test_parts_share_nothing_and_faults_lie_behind_the_baseline(data: Path) -> None:
    for name in ("keti", "skab", "nab"):
        halves = [{each.name for each in load_sensors(chosen(name), data, part, 0)} for part in get_args(Part)]
        assert halves[0] and halves[1] and not halves[0] & halves[1]
    for sensor in load_sensors(chosen("keti", watched=("CO2",), faults=3), data, "reported", 0):
        assert sensor.watched == ("CO2",) and len(sensor.events) == 18
        for event in sensor.events:
            assert sensor.trained < sensor.begin < event.start < event.stop <= len(sensor.x)
            assert event.x is not None and event.x.shape == (event.stop - event.start, len(sensor.names))
            healthy = sensor.x[event.start : event.stop]
            assert np.array_equal(event.x[:, 1:], healthy[:, 1:]) and not np.array_equal(event.x[:, 0], healthy[:, 0])


def test_the_air_handler_begins_healthy_and_leaves_out_what_is_disputed(data: Path) -> None:
    (sensor,) = load_sensors(chosen("hvac"), data, "reported", 0)
    hours = ("sin 1", "cos 1", "sin 2", "cos 2")
    assert sensor.names == ("AHU: Supply Air Temperature", "AHU: Mixed Air Temperature", *hours)
    assert (sensor.begin, sensor.trained, len(sensor.x)) == (6 * 288, 4 * 288, 9 * 288)
    assert [(each.kind, each.start, each.stop) for each in sensor.events] == [("leak", 8 * 288, 9 * 288)]
    assert sensor.days == 2.0


def test_a_failure_is_where_it_is_documented(data: Path) -> None:
    (sensor,) = load_sensors(chosen("nab"), data, "reported", 0)
    assert [(each.start, each.stop) for each in sensor.events] == [FAILURE] and sensor.hop_s == 3_600.0
    day = sensor.names.index("sin 1")
    assert sensor.x[6, day] == pytest.approx(1.0) and sensor.x[30, day] == pytest.approx(1.0)
    assert len(sensor.names) == 1 + 2 * 3  # two harmonics of a day and one of a week


def test_missing_rows_are_counted_and_time_that_goes_back_begins_a_series() -> None:
    assert missing_before(np.array([0, 60, 240, 0, 60]), 60.0).tolist() == [-1, 0, 2, -1, 0]
    assert find_runs(np.array([True, False, True, True])) == [(0, 1), (2, 4)]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="0 rooms of 1800 steps"):
        load_sensors(chosen("keti"), tmp_path, "reported", 0)
    for name, file in (("nab", "realKnownCause_ambient"), ("hvac", "mzvav_2_1"), ("skab", "8")):
        with pytest.raises(FileNotFoundError, match=file):
            load_sensors(chosen(name), tmp_path, "reported", 0)
