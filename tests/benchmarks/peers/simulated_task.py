"""The task that both simulations run, with numpy alone: three arrays, and a step along the mean of a map of 50 rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS, FEATURES, COMPONENTS = 50, 16, 256
STEP = 0.01

Array = NDArray[np.float64]


def first_model() -> list[Array]:
    """Return the frequencies (F, M), the phases (M,) and the rest (F + 1,) of a model before any training."""
    return [np.zeros((FEATURES, COMPONENTS)), np.zeros(COMPONENTS), np.zeros(FEATURES + 1)]


def rows_of(number: int) -> Array:
    """Return the rows (50, F) of a node."""
    return np.random.default_rng(number).normal(size=(ROWS, FEATURES))


def improved(model: list[Any], rows: Array) -> list[Array]:
    """Return what a node makes of a model: the phases move along the mean of the map over its rows."""
    frequencies, phases, rest = model
    return [frequencies, phases + STEP * np.cos(rows @ frequencies + phases).mean(axis=0), rest]
