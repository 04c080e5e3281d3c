"""Goal: what a researcher reads and measures is what the commands read and a gateway measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.evaluate.folders import load_folder
from fedgate.firmware_sim.recordings import UnknownFormatError, read, shipped
from fedgate.models import FeatureSpec, extract_features, load_recording
from fedgate.models.features.spec import extract

SPEC = FeatureSpec(rate_hz=100, window_s=10, channels=("a", "b"), steps=[{"kind": "level"}, {"kind": "deviation"}])


def test_a_shipped_recording_is_read_by_its_name() -> None:
    np.testing.assert_array_equal(
        load_recording("munich_bridge/ref_load_01").values, read(shipped("munich_bridge/ref_load_01")).values
    )


def test_a_file_is_read_with_what_it_does_not_say(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "own.csv", np.arange(6).reshape(3, 2), delimiter=",", header="a,b", comments="")
    recording = load_recording(str(tmp_path / "own.csv"), rate_hz=2)
    assert recording.rate_hz == 2
    assert recording.channel_names == ("a", "b")
    np.testing.assert_array_equal(recording.values, [[0, 1], [2, 3], [4, 5]])


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "own.doc").touch()
    with pytest.raises(UnknownFormatError, match=r"ending '\.doc'"):
        load_recording(tmp_path / "own.doc")
    with pytest.raises(ValueError, match="rate"):
        load_recording("munich_bridge/ref_load_01", rate=2)


def test_features_are_those_of_each_window() -> None:
    recording = load_recording("munich_bridge/ref_load_01")
    x = extract_features(recording, SPEC, ("FRC-02", "DMS_CN"))
    windows = recording.select(("FRC-02", "DMS_CN")).values.reshape(72, 1000, 2)
    np.testing.assert_array_equal(x, [extract(SPEC, window) for window in windows])


@pytest.mark.soak
def test_features_are_those_of_an_evaluation() -> None:
    folder = shipped("munich_bridge/ref_load_01").parent
    spec = FeatureSpec(
        rate_hz=100,
        window_s=10,
        hop_s=5,
        channels=("sensor",),
        steps=[
            {"kind": "level"},
            {"kind": "deviation"},
            {"kind": "bands", "edges_hz": [0.5, 2.0, 5.0, 10.0, 20.0, 35.0, 49.0]},
        ],
    )
    early = load_folder(folder).gateways["strain"]
    recording = load_recording("munich_bridge/ref_load_01")
    x = extract_features(recording.cut(0.0, 0.6 * recording.length_s), spec, ["DMS_CN"])
    np.testing.assert_array_equal(x, early.rows.x[: len(x)])


def test_channels_play_the_roles() -> None:
    recording = load_recording("munich_bridge/ref_load_01")
    with pytest.raises(ValueError, match="channels: 1 given, expected one for each of the roles"):
        extract_features(recording, SPEC, ["FRC-01"])
    with pytest.raises(ValueError, match="no channel 'a'; expected one of 'FRC-01'"):
        extract_features(recording, SPEC)
