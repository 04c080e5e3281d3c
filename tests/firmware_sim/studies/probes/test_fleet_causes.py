"""Causes of fleet alarms: that the probe can tell a rule that looks away from one that measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgate.firmware_sim.engine.spec import Figures, load_spec
from fedgate.firmware_sim.studies.probes.fleet_causes import LABELS, Case, measure
from fedgate.models.alarms.attribution import SHIPPED
from tests.support.syntax import ROOT

TABLE = ROOT / "firmware_sim" / "studies" / "tables" / "fleet-causes.toml"


def figures_of(**given: Any) -> Figures:
    return measure(
        Case.model_validate({**load_spec(TABLE).settings, "beside": [1.3], "left_over": [1.05], **given}), Path()
    )


def label_of(figures: Figures, rule: str) -> str:
    (label,) = (name.rpartition("|")[2] for name, value in figures.items() if name.startswith(f"{rule}|") and value)
    return label


def test_what_is_in_force_is_among_what_was_tried() -> None:
    tried = load_spec(TABLE).settings
    assert SHIPPED.left_over in tried["left_over"] and SHIPPED.beside in tried["beside"]


@pytest.mark.parametrize("draw", range(2))
def test_a_change_that_all_sensors_show_has_no_name(draw: int) -> None:
    assert label_of(figures_of(cause="change", half="reports", draw=draw), "in force") in ("undetermined", "no alarm")


def test_a_change_during_a_power_cut_is_open_now_and_was_power_before() -> None:
    figures = figures_of(cause="change during a power cut", half="reports", draw=0)
    assert label_of(figures, "before") == "power" and label_of(figures, "in force") == "undetermined"
    assert figures["named.before.structure"] == 1.0 and figures["named.in force.structure"] == 0.0


def test_what_chooses_reports_nothing_and_what_reports_chooses_nothing() -> None:
    chooses, reports = (figures_of(cause="change", half=half, draw=1) for half in ("chooses", "reports"))
    assert set(chooses) <= {"structure|1.05|1.3"}
    assert {f"in force|structure|{label}" for label in LABELS} <= set(reports) and "structure|1.05|1.3" not in reports


def test_the_dip_of_a_steady_supply_counts_in_no_share() -> None:
    figures = figures_of(cause="steady supply dips", half="reports", draw=0)
    assert {name.partition("|")[0] for name in figures} == {"in force", "before"}
    assert figures_of(cause="steady supply dips", half="chooses", draw=0) == {}
