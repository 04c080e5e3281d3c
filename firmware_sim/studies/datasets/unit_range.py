"""Features brought to [0, 1] by their extremes among the rows that train, as both papers on support vectors do."""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Floats


def to_unit_range(x: Array, reference: Array) -> Floats:
    """Return x (n, F) with the extremes of each column of the reference (m, F) at 0 and 1; a constant column at 0."""
    low, high = reference.min(axis=0), reference.max(axis=0)
    return np.asarray((x - low) / np.where(high > low, high - low, 1.0))
