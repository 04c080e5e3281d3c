"""Goal: what is watched trains nothing, sets no level and chooses nothing, in files of the same names and layouts."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.series.streams import (
    CALIBRATE,
    TRAIN,
    WATCHED,
    DataSet,
    Part,
    Source,
    Stretch,
    load,
    training_data,
)
from fedgate.firmware_sim.studies.datasets.tiny import ROOM_LOST
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES

FOLDERS = {
    "skab": "streams/skab_pump",
    "keti": "streams/keti_rooms",
    "z24 sensors": "streams/z24_bridge",
    "z24 setups": "streams/z24_bridge",
}
PARTS: tuple[Part, ...] = get_args(Part)


def source(name: DataSet, **given: object) -> Source:
    return Source.model_validate({"data_set": name, "folder": FOLDERS.get(name, ""), **given})


@pytest.mark.soak
@pytest.mark.parametrize("name", get_args(DataSet))
def test_no_row_that_is_watched_trains_or_sets_a_level(name: DataSet, tiny: Path) -> None:
    for part in PARTS:
        for stretches in load(source(name), tiny, part).gateways.values():
            healthy = [each.values[np.isin(each.role, (TRAIN, CALIBRATE))] for each in stretches]
            used = {row.tobytes() for rows in healthy for row in rows}
            seen = [row.tobytes() for each in stretches for row in each.values[each.role == WATCHED]]
            assert used and seen and used.isdisjoint(seen)
            assert not any(each.label[np.isin(each.role, (TRAIN, CALIBRATE))].any() for each in stretches)


@pytest.mark.parametrize("name", ["skab", "keti"])
def test_what_is_reported_was_not_seen_in_development(name: DataSet, tiny: Path) -> None:
    halves = [load(source(name), tiny, part).gateways for part in PARTS]
    assert not halves[0].keys() & halves[1].keys()
    rows = [{row.tobytes() for each in half.values() for part in each for row in part.values} for half in halves]
    assert rows[0] and rows[0].isdisjoint(rows[1])


@pytest.mark.soak
def test_setups_that_are_reported_were_not_seen_in_development(tiny: Path) -> None:
    first, second = (load(source("z24 setups"), tiny, part).gateways for part in PARTS)
    tried = {row.tobytes() for stretches in first.values() for part in stretches for row in part.values}
    for stretches in second.values():
        assert not any(row.tobytes() in tried for part in stretches for row in part.values[part.role == WATCHED])
    assert {name: len(stretches) for name, stretches in second.items()} == dict.fromkeys(
        ("setup 1", "setup 2", "setup 3"), 2 + 2 * 4
    )  # two healthy states train, and they and the damaged ones are watched in setups 4 and 5


def test_a_gap_is_counted_and_a_copy_begins_a_series(tiny: Path) -> None:
    pump = load(source("skab"), tiny, "reported").gateways["valve1/8"][0]
    assert pump.missing[0] == NEW_SERIES and np.flatnonzero(pump.missing > 0).tolist() == [300]
    room = next(iter(load(source("keti", channels=[3], columns=[3]), tiny, "reported").gateways.values()))
    clean, *copies = room
    assert clean.missing.max() == ROOM_LOST and not clean.label.any() and len(copies) == 6
    for copy in copies:
        assert copy.copy and copy.missing[0] == NEW_SERIES and copy.values.shape[1] == 1
        assert np.flatnonzero(copy.label).tolist() == list(range(288, len(copy.label)))  # a day before each


@pytest.mark.soak
def test_faults_are_put_into_the_rows_that_are_watched_and_nowhere_else(tiny: Path) -> None:
    given = source("keti", channels=[3], faults=2)
    for name, (clean, *copies) in load(given, tiny, "reported").gateways.items():
        assert len(copies) == 12, name
        for copy in copies:
            healthy, at = copy.values[copy.label == 0], np.arange(len(clean.values) - len(copy.values) + 1)
            (start,) = [first for first in at if np.array_equal(clean.values[first : first + len(healthy)], healthy)]
            same = clean.values[start : start + len(copy.values)]
            assert np.array_equal(copy.values[:, :3], same[:, :3])
            assert not np.array_equal(copy.values[:, 3], same[:, 3])
            assert (clean.role[start : start + len(copy.values)][copy.label == 1] == WATCHED).all()


def test_windows_of_a_moving_bridge_are_in_units_of_their_own(tiny: Path) -> None:
    streams = load(source("z24 sensors"), tiny, "reported")
    assert streams.window_s == pytest.approx(20.48)
    for stretch in streams.gateways["ref1"]:
        windows = stretch.values.reshape(-1, streams.window_rows)
        assert np.allclose(windows.mean(axis=1), 0.0) and np.allclose(windows.std(axis=1), 1.0)
        assert np.flatnonzero(stretch.missing == NEW_SERIES).tolist() == list(range(0, windows.size, 1_024))


def test_rows_that_train_are_joined_gateway_by_gateway() -> None:
    role = np.array([TRAIN, TRAIN, CALIBRATE, WATCHED])
    missing = np.array([NEW_SERIES, 1, 0, 0])
    stretch = Stretch(np.arange(4.0)[:, None], missing, role * 0, role)
    found = training_data((stretch, stretch._replace(role=role * 0 + WATCHED), stretch))
    assert found[FEATURES][:, 0].tolist() == [0.0, 1.0] * 2
    assert found[MISSING].tolist() == [NEW_SERIES, 1] * 2


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"0\.csv\.gz"):
        load(source("skab"), tmp_path, "development")
    with pytest.raises(StudyError, match="0 rooms of 1800 steps"):
        load(source("keti"), tmp_path, "development")
    with pytest.raises(StudyError, match="expected the Z24 recordings"):
        load(source("z24 setups"), tmp_path, "development")
