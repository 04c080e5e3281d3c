"""Subjects of WESAD are in units of what a gateway has seen, and what is no such file is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.wesad import FIRST_ROWS, load_subject
from fedgate.models.arrays import FEATURES, LABELS
from tests.support.wesad_files import CHANNELS, FOLDER, write_wesad


def test_units_are_those_of_what_a_gateway_has_seen(tmp_path: Path) -> None:
    folder = write_wesad(tmp_path, ["S2"], rows=240) / FOLDER
    whole, first = (load_subject(folder, "S2", units) for units in ("whole recording", "first rows"))
    assert whole[FEATURES].shape == first[FEATURES].shape == (240, CHANNELS)
    assert whole[LABELS].tolist() == first[LABELS].tolist() == [0] * 60 + [1] * 60 + [2] * 60 + [0] * 60
    seen = whole[FEATURES], first[FEATURES][:FIRST_ROWS]
    for rows in seen:
        np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=1e-9)
        np.testing.assert_allclose(rows.std(axis=0), 1.0)
    assert np.abs(first[FEATURES].mean(axis=0)).max() > 0.5


@pytest.mark.parametrize("y", [np.ones(3), np.full(2, 4), np.zeros(2)])
def test_a_file_of_another_layout_is_named(y: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "S3.npz", X=np.zeros((2, 2)), y=y, feature_names=np.array(["a_mean", "b"]))
    with pytest.raises(StudyError, match=r"S3\.npz: expected columns named"):
        load_subject(tmp_path, "S3")
    with pytest.raises(StudyError, match=r"S4\.npz: expected an npz file with X"):
        load_subject(tmp_path, "S4")
