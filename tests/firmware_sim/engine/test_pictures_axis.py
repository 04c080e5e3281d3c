"""Places along the axis of a picture."""

from __future__ import annotations

import pytest

from fedgate.firmware_sim.engine.pictures import _is_number


@pytest.mark.parametrize("place", [1, 2.5, "10", "0.001", "1e-05"])
def test_numbers_are_places_on_a_scale_though_they_come_from_names(place: object) -> None:
    assert _is_number(place)


@pytest.mark.parametrize("place", ["gateway 1", "none", "inf", float("nan"), ""])
def test_words_are_none(place: object) -> None:
    assert not _is_number(place)
