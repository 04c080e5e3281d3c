"""A difference to cells that were not measured is no empty picture, but nothing shown, which a short run leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgate.firmware_sim.engine.report import parts_of
from fedgate.firmware_sim.engine.spec import Spec, StudyError

SECTION = {
    "kind": "points",
    "rows": ["clients"],
    "figures": {"difference": {"of": "auc", "minus": {"split": "biased"}}},
}
SPEC = Spec.model_validate({"title": "t", "about": "a", "probe": "p", "cells": {"clients": [2]}, "section": [SECTION]})
RESULTS = [({"clients": 2, "split": "iid"}, {"auc": 0.9})]


def test_what_has_no_counterpart_is_left_out_of_a_short_run_and_refused_in_a_whole_one(tmp_path: Path) -> None:
    assert list(parts_of(SPEC, RESULTS, tmp_path / "p", short=True)) == []
    with pytest.raises(StudyError, match="auc: no cell differs from one with split=biased in nothing else"):
        list(parts_of(SPEC, RESULTS, tmp_path / "p"))
    assert not list(tmp_path.iterdir())
