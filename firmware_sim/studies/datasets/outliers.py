"""The sets of Goldstein and Uchida (2016) for finding outliers: tables with a column `label`, dealt out to clients."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.evaluate.datasets import Labelled, load_table
from fedgate.firmware_sim.evaluate.splits import partition
from fedgate.firmware_sim.studies.datasets.unit_range import to_unit_range
from fedgate.models.arrays import FEATURES, Arrays

FOLDER = "tabular"  # below the folder of data
Split = Literal["iid", "biased"]
Places = NDArray[np.int64]  # of rows in their table


@lru_cache(maxsize=8)
def load(path: Path) -> Labelled:
    """Return the rows of one set; raises `DataError` or `RecordingError` where there is no such table."""
    return load_table(path).rows


def deal(path: Path, rows: Places, clients: int, split: Split, seed: int) -> dict[str, Arrays]:
    """Return the rows of each client, in the unit range of all that are dealt: at random, or a cluster to each."""
    x = load(path).x[rows]
    z, owners = to_unit_range(x, x), _owners(path, rows.tobytes(), clients, split, seed)
    return {f"client-{index + 1:02d}": {FEATURES: z[owners == index]} for index in range(clients)}


@lru_cache(maxsize=512)
def _owners(path: Path, rows: bytes, clients: int, split: Split, seed: int) -> Places:
    """Return the owner of each row; the rows come as bytes, by which they are remembered."""
    x = load(path).x[np.frombuffer(rows, dtype=np.int64)]
    return partition(to_unit_range(x, x), clients, split, seed)
