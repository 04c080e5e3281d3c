"""Simulated sites: drawn alike twice, and a change shows where it should."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.firmware_sim.studies.datasets.fleet_causes import CAUSES, FEATURES, Truth, draw_site
from fedgate.models.arrays import generator

TRUTHS: tuple[Truth, Truth] = ("power", "structure")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_site_is_drawn_alike_twice(cause: str) -> None:
    one, other = (draw_site(CAUSES[cause], generator(0, 1, cause)) for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(one.watched, other.watched, strict=True))


def test_all_gateways_show_a_change_and_nobody_else_does() -> None:
    still, changed = (draw_site(CAUSES["change"]._replace(truth=truth), generator(0, 1, "")) for truth in TRUTHS)
    for before, after in zip(still.watched, changed.watched, strict=True):
        moved = np.abs(after - before)
        assert not moved[: still.begin].any() and not moved[:, FEATURES:].any()
        assert np.linalg.norm(moved[-1]) >= 5.0
