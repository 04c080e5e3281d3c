"""Goal: series are the recursions that are printed, and no state or unit goes from rows that train into others."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.datasets.series.memory_tasks import (
    CHOOSE,
    REPORT,
    TRAIN,
    Recorded,
    load,
    mackey_glass,
    narma,
)
from fedgate.firmware_sim.studies.datasets.tiny import HEALTHY_DAYS
from fedgate.models.arrays import NEW_SERIES, generator

RNG = generator(0, 0, "nothing is drawn")


def test_narma_is_the_recursion_that_is_printed() -> None:
    u, y, last = narma(40, generator(0, 0, "narma"))
    known = dict.fromkeys(range(10), 0.0)
    for t in range(9, 40):
        tail = sum(known[t - i] for i in range(10))
        known[t + 1] = 0.3 * known[t] + 0.05 * known[t] * tail + 1.5 * u[t - 9] * u[t] + 0.1
    assert np.allclose(y[9:], [known[t] for t in range(10, 41)])
    assert np.array_equal(last[1:], y[:-1]) and u.min() >= 0.0 and u.max() <= 0.5


def test_mackey_glass_stays_on_its_attractor_and_follows_its_equation() -> None:
    x = mackey_glass(600, generator(0, 0, "glass"))
    assert 0.2 < x.min() < 0.5 and 1.2 < x.max() < 1.5 and x.shape == (600,)
    slope = 0.2 * x[:-18] / (1.0 + x[:-18] ** 10) - 0.1 * x[17:-1]  # at t - 17 and t
    # Over one unit of time the slope changes little: the mean of both its ends is the change, to a few percent.
    change, mean = np.diff(x)[17:-1], 0.5 * (slope[:-1] + slope[1:])
    assert np.corrcoef(change, mean)[0, 1] > 0.999
    assert not np.array_equal(x, mackey_glass(600, generator(1, 0, "glass")))


def test_the_target_of_mackey_glass_lies_84_steps_ahead(tiny: Path) -> None:
    given = load("Mackey-Glass, 84 steps ahead", tiny, 400, generator(0, 0, "glass"))
    assert given.last is not None and np.allclose(given.targets[:-84, 0], given.last[84:])


@pytest.mark.parametrize("name", get_args(Recorded))
def test_every_stream_is_cut_into_parts_that_are_series_of_their_own(name: Recorded, tiny: Path) -> None:
    given = load(name, tiny, 0, RNG)
    assert given.missing[0] == NEW_SERIES and set(given.part.tolist()) == {TRAIN, CHOOSE, REPORT}
    assert len(given.inputs) == len(given.targets) == len(given.part) == len(given.missing)
    if given.window is not None:
        for each in np.unique(given.window):
            assert len(np.unique(given.part[given.window == each])) == 1


def test_healthy_days_of_the_air_handling_unit_share_no_state(tiny: Path) -> None:
    given = load("supply air temperature", tiny, 0, RNG)
    changes = np.flatnonzero(np.diff(given.part)) + 1
    assert len(changes) and (given.missing[changes] == NEW_SERIES).all()
    assert len(given.inputs) == len(HEALTHY_DAYS) * 1_440  # those of faults are left out


def test_units_are_those_of_the_rows_that_train(tiny: Path) -> None:
    given = load("room occupied", tiny, 0, RNG)
    head = given.inputs[given.part == TRAIN]
    moves = head.std(axis=0) > 0.0
    assert np.allclose(head.mean(axis=0), 0.0) and np.allclose(head.std(axis=0)[moves], 1.0) and moves.sum() == 2


def test_missing_files_and_columns_are_named(tmp_path: Path, tiny: Path) -> None:
    missing: tuple[tuple[Recorded, str], ...] = (
        ("room occupied", r"datatraining\.csv\.gz"),
        ("bearing condition", "expected the CWRU recordings"),
    )
    for name, words in missing:
        with pytest.raises((OSError, StudyError), match=words):
            load(name, tmp_path, 0, RNG)
    (tmp_path / "streams/hvac_fdd").mkdir(parents=True)
    other = (tiny / "streams/uci_occupancy/datatest.csv.gz").read_bytes()
    (tmp_path / "streams/hvac_fdd/mzvav_2_1.csv.gz").write_bytes(other)
    with pytest.raises(StudyError, match="'Datetime' is missing"):
        load("supply air temperature", tmp_path, 0, RNG)
