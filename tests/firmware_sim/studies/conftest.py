"""The tiny data, written once for all tests of studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgate.firmware_sim.studies.datasets.tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny"))
