"""A window as its features: what the pipeline measures, models are shown and the store keeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]


class FeatureRow(NamedTuple):
    """A window that a model was or will be shown; an unknown time is that of a window right behind the one before."""

    row: Row  # (F,)
    end_ns: int | None
