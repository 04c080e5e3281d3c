"""Goal: what docs/architecture.md says of the two walks is what happens (`python -m tests.support.walks`)."""

from __future__ import annotations

import os
import sys

import pytest

from fedgate.firmware_sim import children
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S
from tests.support.walks import PAGE


@pytest.mark.soak
def test_the_page_shows_both_walks_as_they_are() -> None:
    """In a process of its own: where tests ran before, caches have taken part of a walk."""
    said = children.run(
        [sys.executable, "-m", "tests.support.walks"], PATIENCE_S, text=True, cwd=ROOT, env={**os.environ}
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip() in PAGE.read_text(encoding="utf-8"), (
        "print the walks anew with python -m tests.support.walks"
    )
