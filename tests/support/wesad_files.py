"""Subjects in the layout of the WESAD features, which are not part of the project: channels that rise under stress, by
an amount and in a unit of each subject's own, and one that falls under amusement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

FOLDER = "streams/wesad_features"
SUBJECTS = tuple(f"S{number}" for number in range(2, 12))
CHANNELS, ROWS = 4, 120


def write_wesad(data: Path, names: Sequence[str] = SUBJECTS, rows: int = ROWS) -> Path:
    """Write subjects of some rows below a folder of data, and return that."""
    folder = data / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        rng = np.random.default_rng(int(name[1:]))
        y = np.repeat([1, 2, 3, 1], rows // 4)
        means = rng.normal(size=(rows, CHANNELS))
        means += (y == 2)[:, None] * rng.uniform(1.0, 3.0, CHANNELS)
        means[:, -1] -= (y == 3) * 2.0
        x = np.stack([means, rng.normal(size=means.shape)], axis=2).reshape(rows, -1) * rng.uniform(0.1, 9.0) + 5.0
        kinds = np.array([f"channel{channel}_{kind}" for channel in range(CHANNELS) for kind in ("mean", "std")])
        np.savez(folder / f"{name}.npz", X=x.astype(np.float32), y=y.astype(np.int8), feature_names=kinds)
    return data
