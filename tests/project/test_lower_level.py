"""The level below the processor's: a setting that changes nothing is no second run."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.lower_level import main


@pytest.mark.parametrize(
    ("found", "value", "code", "said"),
    [
        (["X86_V2", "X86_V3"], "", 1, "NPY_DISABLE_CPU_FEATURES= changes no bit"),
        (["ASIMDHP"], "X86_V3", 0, "numpy knows no level below this processor's"),
    ],
)
def test_a_level_that_changes_nothing_is_told(
    found: list[str],
    value: str,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(np, "show_config", lambda mode: {"SIMD Extensions": {"found": found}})
    monkeypatch.setattr("tests.support.lower_level.LEVELS", {"X86_V3": {"NPY_DISABLE_CPU_FEATURES": value}})
    assert main() == code
    assert said in capsys.readouterr().err
