"""Small tables with outliers, under the names of the real ones, which are not part of the project."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FEATURES_OF_A_ROW, NORMAL, OUTLIERS = 4, 80, 8
ROWS = NORMAL + OUTLIERS


def write_outliers(folder: Path, names: tuple[str, ...]) -> Path:
    """Write the tables below a folder and return it: normal rows around zero, a tenth of outliers around four."""
    (folder / "tabular").mkdir()
    rng = np.random.default_rng(0)
    for name in names:
        y = np.repeat([0, 1], [NORMAL, OUTLIERS])
        x = rng.normal(size=(ROWS, FEATURES_OF_A_ROW)) + 4.0 * y[:, None]
        head = ",".join([*(f"f{index}" for index in range(FEATURES_OF_A_ROW)), "label"])
        lines = [",".join([*map(repr, row), str(label)]) for row, label in zip(x.tolist(), y, strict=True)]
        (folder / "tabular" / name).write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return folder
