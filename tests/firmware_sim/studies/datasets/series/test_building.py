"""The streams of smart buildings: what is reported neither trains nor chooses, and nothing reaches over a gap."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.series.building import (
    FOLDS,
    IGNORED,
    LATER,
    REPORT,
    TRAINS,
    DataSet,
    Stream,
    cut_windows,
    load_streams,
    number_series,
    take_later,
)
from fedgate.models.arrays import NEW_SERIES
from tests.support.building_files import DAYS, DISPUTED, ROOMS, write_buildings

FOLDERS: dict[DataSet, str] = {"keti": "keti_rooms", "air handlers": "hvac_fdd", "air handlers by day": "hvac_fdd"}
STEPS, HORIZON = 6, 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_buildings(tmp_path_factory.mktemp("data"))


def streams_of(data: Path, name: DataSet) -> tuple[Stream, ...]:
    horizon = HORIZON if name == "keti" else 0
    return load_streams(name, data / FOLDERS.get(name, ""), horizon, "A" if name == "three rooms" else "")


@pytest.mark.parametrize("name", get_args(DataSet))
def test_what_is_reported_neither_trains_nor_chooses(name: DataSet, data: Path) -> None:
    streams = streams_of(data, name)
    assert sum(len(cut_windows(stream, (REPORT,), STEPS).at) for stream in streams) > 100
    for fold in range(FOLDS):
        later = LATER if name == "keti" else 0
        for part in (fold, fold + later):
            assert sum(len(cut_windows(stream, (part,), STEPS).at) for stream in streams if stream.seen)
    for stream in streams:
        learnt = cut_windows(stream, TRAINS, STEPS).at
        assert stream.seen or not len(learnt)
        assert not set(learnt) & set(cut_windows(stream, (REPORT,), STEPS).at)
        if name == "keti" and len(learnt):
            assert learnt.max() + HORIZON < np.flatnonzero(stream.part == REPORT).min()
    if name == "keti":
        assert len(streams) == ROOMS and sum(not stream.seen for stream in streams) == 2


@pytest.mark.parametrize("name", ["room climate", "three rooms", "air handlers"])
def test_no_window_that_trains_shares_a_step_with_one_that_is_reported(name: DataSet, data: Path) -> None:
    for stream in streams_of(data, name):
        ends = [cut_windows(stream, parts, STEPS).at for parts in (TRAINS, (REPORT,))]
        steps = [{int(end) - back for end in each for back in range(STEPS)} for each in ends]
        assert not steps[0] & steps[1]


def test_a_room_left_out_is_all_that_is_reported_and_has_no_other_part(data: Path) -> None:
    streams = load_streams("three rooms", data, left_out="C")
    assert {stream.place[0] for stream in streams if not stream.seen} == {"C"}
    for stream in streams:
        assert set(stream.part.tolist()) == ({0, IGNORED} if stream.place[0] == "A" else {1, IGNORED}) or (
            not stream.seen and set(stream.part.tolist()) == {REPORT, IGNORED}
        )


def test_both_classes_of_a_unit_train_and_are_reported(data: Path) -> None:
    streams = streams_of(data, "air handlers")
    for stream, days in zip(streams, DAYS.values(), strict=True):
        for parts in (TRAINS, (REPORT,)):
            assert set(cut_windows(stream, parts, STEPS).y) == {0.0, 1.0}
        assert len(stream.z) == 480 * sum(day != DISPUTED for day, _ in days)
    healthy = number_series(streams[1].missing)[streams[1].y == 0.0]
    assert np.bincount(healthy - healthy[0]).tolist() == [40] * 12  # the one healthy day in blocks of two hours
    by_day = streams_of(data, "air handlers by day")
    assert all(len(set(stream.y.tolist())) == 1 for stream in by_day)
    assert sum(len(stream.z) for stream in by_day) == sum(len(stream.z) for stream in streams)


def test_a_window_is_the_steps_up_to_its_end_channel_after_channel(data: Path) -> None:
    stream = streams_of(data, "keti")[0]
    some = cut_windows(stream, (0,), 4, every=7)
    channels = stream.z.shape[1]
    for at, row, longer, y in zip(some.at, some.rows(4), some.rows(4, HORIZON), some.y, strict=True):
        assert row.tolist() == [stream.z[at - 3 + t, c] for c in range(channels) for t in range(4)]
        cube = longer.reshape(channels, 6)
        assert np.array_equal(cube[:, :4].ravel(), row) and cube[0, -1] == y == stream.z[at + HORIZON, 0]


def test_nothing_reaches_over_a_gap(data: Path) -> None:
    missing = np.array([NEW_SERIES, 0, 0, 2, 0, 9, 0, 0, NEW_SERIES, 0])
    expected = [2.0, 3.0, 4.0, np.nan, np.nan, 7.0, np.nan, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(take_later(np.arange(10.0), missing, 2), expected)
    room = streams_of(data, "keti")[0]
    gap = np.flatnonzero(np.diff(number_series(room.missing)))[0] + 1
    found = cut_windows(room, TRAINS, STEPS).at
    assert not any(gap - 2 <= at < gap + 5 for at in found) and gap - 3 in found and gap + 5 in found


@pytest.mark.soak
def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="0 rooms of 400 steps there; expected at least 2"):
        load_streams("keti", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"location_A\.npz"):
        load_streams("room climate", tmp_path)
    write_buildings(tmp_path / "other")
    (tmp_path / "other/hvac_fdd/mzvav_2_1.csv.gz").write_bytes(
        (tmp_path / "other/uci_occupancy/datatest.csv.gz").read_bytes()
    )
    with pytest.raises(StudyError, match=r"mzvav_2_1\.csv\.gz: 'Datetime' is missing; found date, Temperature"):
        load_streams("air handlers", tmp_path / "other/hvac_fdd")
