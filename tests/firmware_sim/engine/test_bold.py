"""Which figures of a table stand out."""

from __future__ import annotations

from typing import Literal

import pytest

from fedgate.firmware_sim.engine.report import tabulated
from fedgate.firmware_sim.engine.spec import Section

RESULTS = [({"method": m, "set": s}, {"auc": a}) for m, s, a in [("A", "x", 0.9), ("B", "x", 0.2), ("A", "y", 0.5)]]


@pytest.mark.parametrize(
    ("bold", "expected"),
    [
        ("highest in row", [["x", "**0.9**", "0.2"], ["y", "**0.5**", "-"]]),
        ("lowest in row", [["x", "0.9", "**0.2**"], ["y", "**0.5**", "-"]]),
        ("highest in column", [["x", "**0.9**", "**0.2**"], ["y", "0.5", "-"]]),
        ("lowest in column", [["x", "0.9", "**0.2**"], ["y", "**0.5**", "-"]]),
    ],
)
def test_the_best_of_a_row_or_column_is_bold(
    bold: Literal["highest in row", "lowest in row", "highest in column", "lowest in column"], expected: list[list[str]]
) -> None:
    figures = {"AUC": {"of": "auc", "digits": 1}}
    section = Section.model_validate({"figures": figures, "rows": ["set"], "columns": ["method"], "bold": bold})
    assert tabulated(section, RESULTS).rows == expected
