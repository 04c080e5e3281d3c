"""Faults of one channel: what each does to its rows, and that it does nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.firmware_sim.demo.faults import SENSOR_FAULTS, SensorFault, sensor_fault
from fedgate.models.arrays import Floats, generator

ROWS = slice(40, 60)


def recording() -> Floats:
    return np.asarray(generator(0, 0, "recording").normal(size=(200, 3)))


@pytest.mark.parametrize("kind", SENSOR_FAULTS)
def test_a_fault_changes_its_rows_of_its_channel_alone(kind: SensorFault) -> None:
    values = recording()
    before = values.copy()
    faulty = sensor_fault(values, 1, ROWS, kind, 2.0, generator(1, 0, "fault"), away=100)
    touched = np.zeros(values.shape, dtype=bool)
    touched[ROWS, 1] = True
    assert np.array_equal(values, before)
    assert np.array_equal(faulty[~touched], values[~touched])
    assert not np.allclose(faulty[touched], values[touched])


def test_each_fault_is_what_it_says() -> None:
    values, rng = recording(), generator(1, 0, "fault")
    added = {
        kind: sensor_fault(values, 0, ROWS, kind, 2.0, rng, away=100)[ROWS, 0] - values[ROWS, 0]
        for kind in SENSOR_FAULTS
    }
    assert np.allclose(added["spike"], 12.0)
    assert np.allclose(added["offset"], 4.0)
    assert np.allclose(added["drift"], np.linspace(0.0, 6.0, 20))
    assert np.allclose(added["stuck"] + values[ROWS, 0], values[40, 0])
    assert np.allclose(added["other time"] + values[ROWS, 0], values[140:160, 0])
    assert 0.5 * 1.4 < added["noise"].std() < 2.0 * 1.4


def test_the_other_time_is_earlier_where_there_is_none_later() -> None:
    values = recording()
    faulty = sensor_fault(values, 0, slice(170, 190), "other time", 1.0, generator(1, 0, "fault"), away=100)
    assert np.array_equal(faulty[170:190, 0], values[70:90, 0])


def test_rows_that_there_are_not_are_refused() -> None:
    rng = generator(1, 0, "fault")
    with pytest.raises(ValueError, match=r"rows 200 to 210 of 200 given; expected at least one row"):
        sensor_fault(recording(), 0, slice(200, 210), "spike", 1.0, rng)
    with pytest.raises(ValueError, match=r"20 rows lie nowhere 190 rows from row 40 of 200"):
        sensor_fault(recording(), 0, ROWS, "other time", 1.0, rng, away=190)
