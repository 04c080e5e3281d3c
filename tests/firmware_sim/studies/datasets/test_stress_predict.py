"""Recordings of a wrist as rows: windows and units are those that a gateway has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError, load_spec
from fedgate.firmware_sim.studies.datasets.stress_predict import (
    FOLDER,
    STREAMS,
    Subject,
    Units,
    from_late,
    load,
    normalised,
    with_averages,
)
from fedgate.firmware_sim.studies.datasets.tiny import SESSION_S, wrist
from fedgate.models.features.spec import FeatureSpec, extract, feature_names
from tests.support.syntax import ROOT

FILE = ROOT / "firmware_sim" / "studies" / "tables" / "stress-predict.toml"
SPEC = FeatureSpec.model_validate(load_spec(FILE).settings["recorded"])


@pytest.fixture(scope="module")
def subjects(tiny: Path) -> tuple[Subject, ...]:
    return load(tiny / FOLDER, SPEC)


@pytest.mark.soak
def test_windows_are_those_of_a_gateway_with_the_label_of_their_last_second(subjects: tuple[Subject, ...]) -> None:
    subject, arrays = subjects[1], wrist(1)
    assert subject.name == "S03"
    assert subject.elapsed_s[0] == 40.0  # the slowest stream begins after 10 s
    assert set(np.diff(subject.elapsed_s)) == {5.0}
    ends = subject.elapsed_s.astype(int)
    np.testing.assert_array_equal(subject.y, arrays["label_1hz"][ends - 1])
    t = 10.0 + np.arange(1920) / 64.0
    window = np.zeros((1920, len(SPEC.channels)))
    window[:, 0] = np.interp(t, np.arange(SESSION_S * 4) / 4.0, arrays["eda"])
    window[:, 1] = arrays["bvp"][640 : 640 + 1920] * 0.05
    names = feature_names(SPEC)
    expected = dict(zip(names, extract(SPEC, window), strict=True))
    for name in ("eda.tonic", "eda.phasic", "bvp.heart_rate", "bvp.rmssd"):
        assert subject.x[0, names.index(name)] == pytest.approx(expected[name], rel=1e-6), name
    assert sorted(c for s in STREAMS.values() for c in s.channels) == sorted(SPEC.channels)


@pytest.mark.soak
def test_units_of_the_first_minutes_know_nothing_of_later(subjects: tuple[Subject, ...]) -> None:
    subject = subjects[0]
    later = subject.elapsed_s > 300.0
    other = subject._replace(x=np.where(later[:, None], 10.0 * subject.x, subject.x))
    ways: tuple[Units, ...] = ("commissioning", "moving")
    for units in ways:
        before, after = (normalised(each, units, 300.0, 60.0).x for each in (subject, other))
        np.testing.assert_array_equal(before[~later], after[~later])
        assert np.abs(after).max() <= 8.0
    assert normalised(subject, "recording", 300.0, 60.0).x.mean(axis=0) == pytest.approx(0.0, abs=0.05)
    with pytest.raises(StudyError, match="S02: 0 windows within 30 s; expected at least 2"):
        normalised(subject, "commissioning", 30.0, 60.0)


def test_moving_averages_follow_a_step() -> None:
    step = Subject("S", np.arange(100.0), np.repeat([[0.0], [1.0]], 50, axis=0), np.zeros(100, dtype=np.int64))
    slow = with_averages(step, 5.0, [5.0, 50.0]).x
    assert slow.shape == (100, 3)
    expected = 1.0 - np.exp(-5.0 * np.arange(1, 51) / 50.0)
    np.testing.assert_allclose(slow[50:, 2], expected)
    assert not slow[:50].any()


@pytest.mark.soak
def test_a_late_start_knows_nothing_of_before(subjects: tuple[Subject, ...]) -> None:
    late = from_late(subjects[0], 700.0)
    assert late.elapsed_s[0] == 5.0
    assert len(late.x) == len(late.y) == int((subjects[0].elapsed_s > 700.0).sum())
    np.testing.assert_array_equal(late.x[-1], subjects[0].x[-1])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"temp_fs": None}, "array 'temp_fs' is missing; expected label_1hz"),
        ({"eda": np.append(np.zeros(400), np.full(400, np.nan))}, "stream 'eda' .*; expected no gaps"),
        ({"label_1hz": np.zeros(SESSION_S, dtype=np.int8)}, r"labels \[0\] of its windows; expected rest, 0, and"),
    ],
)
def test_a_recording_that_is_none_is_named(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    arrays = {name: value for name, value in {**wrist(0), **change}.items() if value is not None}
    np.savez(tmp_path / "S02.npz", **arrays)
    with pytest.raises(StudyError, match=reason):
        load(tmp_path, SPEC)


def test_a_folder_without_recordings_and_one_of_short_ones_are_named(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="expected the Stress-Predict recordings"):
        load(tmp_path, SPEC)
    long = FeatureSpec.model_validate({**SPEC.model_dump(), "window_s": 2000.0, "hop_s": 2000.0})
    with pytest.raises(StudyError, match="shorter than one window of 2000 s"):
        load(tiny / FOLDER, long)
