"""The study of fleet alarms: its short profile, and that it can tell a rule that looks away from one that measures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.studies.engine.study import load_options
from fedgate.firmware_sim.studies.fleet_causes.data import CAUSES, FEATURES, Truth, drawn
from fedgate.firmware_sim.studies.fleet_causes.study import BEFORE, LABELS, Options, cells, measure
from fedgate.firmware_sim.studies.registry import STUDIES
from fedgate.firmware_sim.studies.runner import measured
from fedgate.models.alarms.attribution import SHIPPED
from fedgate.models.arrays import generator
from tests.support.syntax import ROOT

EXPERIMENT = ROOT / "firmware_sim" / "experiments" / "fleet-causes.toml"
TRUTHS: tuple[Truth, Truth] = ("power", "structure")
COVERED = "change during a power cut, sensors warm up"  # which the report says is taken for power at times
IN_FORCE = f"{SHIPPED.left_over:g}|{SHIPPED.beside:g}"


def options(profile: str) -> Options:
    found = load_options(EXPERIMENT, STUDIES["fleet-causes"], "short" if profile == "short" else "full")
    assert isinstance(found, Options)
    return found


def test_the_short_profile_says_what_was_named(tmp_path: Path) -> None:
    done = measured(
        "fleet-causes",
        options("short"),
        tmp_path,
        results=tmp_path,
        profile="short",
        command="measure",
        jobs=1,
        say=print,
    )
    assert len(done.measured) == len(cells(options("short"))) == 2 * len(CAUSES)
    assert all(figure in range(len(LABELS)) for each in done.measured for figure in each.figures.values())
    for words in ("| front (weather) |", "| change during a power cut (structure) |", "The rule before", "The choice"):
        assert words in done.text
    for each in done.measured:
        cause, label = each.cell["cause"], LABELS[int(each.figures[IN_FORCE])]
        if CAUSES[cause].truth == "structure":
            assert label in ("undetermined", "no alarm") or (cause, label) == (COVERED, "power")
    assert any(LABELS[int(each.figures[BEFORE])] in ("weather", "power") for each in done.measured)


def test_what_is_in_force_is_among_what_was_tried() -> None:
    assert SHIPPED.left_over in options("full").left_over and SHIPPED.beside in options("full").beside


@pytest.mark.parametrize("cause", CAUSES)
def test_a_site_is_drawn_alike_twice(cause: str) -> None:
    one, other = (drawn(CAUSES[cause], generator(0, 1, cause)) for _ in range(2))
    assert all(np.array_equal(x, y) for x, y in zip(one.watched, other.watched, strict=True))


def test_all_gateways_show_a_change_and_nobody_else_does() -> None:
    still, changed = (drawn(CAUSES["change"]._replace(truth=truth), generator(0, 1, "")) for truth in TRUTHS)
    for before, after in zip(still.watched, changed.watched, strict=True):
        moved = np.abs(after - before)
        assert not moved[: still.begin].any() and not moved[:, FEATURES:].any()
        assert np.linalg.norm(moved[-1]) >= 5.0


def test_a_change_that_all_sensors_show_has_no_name() -> None:
    found = [measure(options("short"), Path(), {"cause": "change", "seed": seed}) for seed in range(3)]
    assert {LABELS[int(each[IN_FORCE])] for each in found} <= {"undetermined", "no alarm"}
