"""A file of the data that a probe opens and does not name is refused, whatever else it opens."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedgate.firmware_sim.engine.reading import only
from fedgate.firmware_sim.engine.spec import StudyError


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data/set").mkdir(parents=True)
    for name in ("data/set/a.csv", "data/b.csv", "c.csv"):
        (tmp_path / name).write_text("x,y\n1,2\n", "utf-8")
    np.save(tmp_path / "data/b.npy", np.ones(2))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def read_low(path: Path) -> None:
    os.close(os.open(path, os.O_RDONLY))


@pytest.mark.parametrize("name", ["data/b.csv", "data/set/../b.csv"])
@pytest.mark.parametrize("read", [pd.read_csv, Path.read_text, read_low])
def test_a_file_that_is_not_named_is_refused(data: Path, name: str, read: object) -> None:
    assert callable(read)
    with pytest.raises(StudyError, match=r"b\.csv: read, but not in what `reads` of the probe returns"), only([], data):
        read(Path(name))
    with only([data / "b.csv"], data):
        read(Path(name))


def test_an_array_that_is_not_named_is_refused(data: Path) -> None:
    with pytest.raises(StudyError, match=r"b\.npy"), only([data / "set"], Path("data")):
        np.load(data / "b.npy")


def test_what_is_named_written_code_or_beside_the_data_is_no_reading_of_it(data: Path) -> None:
    (data / "probe.py").write_text("", "utf-8")
    with only([data / "set"], data):
        (data / "set/a.csv").read_text("utf-8")
        (data.parent / "c.csv").read_text("utf-8")
        (data / "probe.py").read_text("utf-8")
        (data / "log").write_text("x", "utf-8")
    (data / "b.csv").read_text("utf-8")
