"""Labelled tables: what learns and what is scored, filled and scaled by the former alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.studies.datasets.tabular import (
    Rows,
    Split,
    make_clouds,
    read_rows,
    split_classes,
    split_groups,
)
from tests.support.tabular_files import write_lines, write_table


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_table(root, "sonar", gap=True)
    write_lines(root, "sonar.groups", ["subject", *(f"S{k // 6:02d}" for k in range(60))])
    write_lines(root, "sonar.classes", ["code", *(str((0, 1, 10, 11)[k % 4]) for k in range(60))])
    return root


def test_scaling_comes_from_what_learns() -> None:
    x = np.array([[0.0, 1.0], [10.0, 0.0], [1e9, 1e9]])
    scaled = Split(x[:2], np.array([0, 1]), np.arange(2), x[2:], np.array([0])).scaled()
    assert (scaled.x.min(), scaled.x.max(), scaled.test_x[0, 0]) == (0.0, 1.0, 1e8)


@pytest.mark.parametrize("seed", range(4))
def test_gaps_are_filled_by_the_median_of_what_learns(data: Path, seed: int) -> None:
    rows = read_rows(data, "sonar")
    assert np.isnan(rows.x[1, 0])
    split = split_groups(rows, np.random.default_rng(seed))
    every = np.concatenate([split.x, split.test_x])
    is_filled = (every[:, 1:] == rows.x[1, 1:]).all(axis=1)
    known = split.x[~is_filled[: len(split.x)], 0]
    assert every[is_filled, 0] == pytest.approx([np.median(known)])


def test_no_person_learns_and_is_scored(data: Path) -> None:
    rows = read_rows(data, "sonar", grouped=True)
    owner = {tuple(row[1:]): group for row, group in zip(rows.x, rows.groups, strict=True)}
    split = split_groups(rows, np.random.default_rng(3))
    inner = split.inner(np.random.default_rng(4))
    assert len(inner.y) + len(inner.test_y) == len(split.y)
    for each in (split, inner):
        learns, scored = ({owner[tuple(row[1:])] for row in part} for part in (each.x, each.test_x))
        assert learns and scored and not learns & scored


def test_finer_classes_keep_their_order(data: Path) -> None:
    assert read_rows(data, "sonar", coded=True).y[:8].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_so_many_rows_of_each_class_are_drawn_once() -> None:
    rows = Rows(np.arange(40.0)[:, None], np.arange(40) % 2, np.arange(40))
    split = split_classes(rows, (12, 3), 5, np.random.default_rng(0))
    assert (split.y.tolist().count(0), split.y.tolist().count(1)) == (12, 3)
    assert split.test_y.tolist().count(0) == split.test_y.tolist().count(1) == 5
    assert len(set(np.concatenate([split.x, split.test_x])[:, 0].tolist())) == 25
    with pytest.raises(DataError, match=r"class 0 has 20 rows, expected at least 800 \+ 100"):
        split_classes(make_clouds(2, 40, 1.0, 0), (800, 2), 100, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b", "1,2"], "last column 'label', got 'b'"),
        (["a,label", "one,1"], "expected numbers or empty cells"),
        (["a,b,label", "1,2,1", "1,2"], "row 2 has no label"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(data: Path, lines: list[str], message: str) -> None:
    name = f"wrong{len(lines)}{lines[0].count(',')}{lines[1][0]}"
    write_lines(data, name, lines)
    with pytest.raises(DataError, match=message):
        read_rows(data, name)


def test_groups_of_other_rows_are_refused(data: Path) -> None:
    write_table(data, "short", rows=20)
    write_lines(data, "short.groups", ["g", "1", "2"])
    with pytest.raises(DataError, match="2 rows, expected the 20 of the table beside it"):
        read_rows(data, "short", grouped=True)
