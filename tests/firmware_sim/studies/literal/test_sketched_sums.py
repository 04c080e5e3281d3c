"""Sketches of sums: with all coordinates each is the whole solution, with fewer it sends less."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.firmware_sim.studies.literal.sketched_sums import RIDGE, SKETCHES, Sketched, total
from fedgate.models.arrays import Arrays
from fedgate.models.detectors.base.moments import symmetric
from fedgate.models.detectors.esn import ridge_readout
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM

UNITS, CLASSES = 12, 3


def parts() -> list[Arrays]:
    rng = np.random.default_rng(0)
    states = [np.column_stack([rng.normal(size=(40, UNITS)), np.ones(40)]) for _ in range(3)]
    return [ridge_readout.sums(each, np.eye(CLASSES)[rng.integers(CLASSES, size=40)]) for each in states]


def sketched(name: str, count: int) -> Sketched:
    return SKETCHES[name](parts(), count, np.random.default_rng(1))


@pytest.mark.parametrize(("name", "count"), [(name, UNITS + (name == "own-eigenvectors")) for name in SKETCHES])
def test_with_every_coordinate_it_is_the_readout_of_all_sums(name: str, count: int) -> None:
    sums = total(parts())
    gram = symmetric(sums[GRAM], UNITS + 1)
    ridge = RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    expected = np.linalg.solve(gram + ridge, sums[CROSS].T).T
    np.testing.assert_allclose(sketched(name, count).readout, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", SKETCHES)
def test_fewer_coordinates_send_less_and_lead_elsewhere(name: str) -> None:
    few, many = sketched(name, 3), sketched(name, 9)
    assert few.sent < many.sent and few.received <= many.received
    assert few.readout.shape == (CLASSES, UNITS + 1)
    assert np.abs(few.readout - many.readout).max() > 1e-3


def test_numbers_are_those_that_travel() -> None:
    along = 4 * 5 // 2 + CLASSES * 4  # a triangle and the classes over 3 coordinates and a constant
    whole = CLASSES * (UNITS + 1)
    assert [sketched(name, 3)[1:] for name in SKETCHES] == [
        (along, whole),
        (along + 3 * UNITS, whole + 3 * UNITS),
        (3 * (UNITS + 2) + whole, whole),
    ]
