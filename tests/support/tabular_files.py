"""Small labelled tables in the layout of `studies/datasets/tabular.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_table(data: Path, name: str, rows: int = 60, gap: bool = False) -> None:
    """Write a table of three features that tell two classes apart, in turn, the second row without its first cell."""
    folder, rng = data / "tabular", np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    y = np.arange(rows) % 2
    x = rng.normal(size=(rows, 3)) + 2.0 * y[:, None]
    lines = [",".join(f"{v:.4f}" for v in row) + f",{2 * label - 1}" for row, label in zip(x, y, strict=True)]
    if gap:
        lines[1] = f",{lines[1].split(',', 1)[1]}"
    write_lines(data, name, ["a,b,c,label", *lines])


def write_lines(data: Path, name: str, lines: list[str]) -> None:
    (data / "tabular" / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
