"""Adam (Kingma and Ba 2015, Algorithm 1): steps whose size does not depend on the units of the loss."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from fedgate.models.arrays import Array, Floats

FIRST_DECAY, SECOND_DECAY, SMALLEST = 0.9, 0.999, 1e-7


class Adam:
    """Turns the slopes of one array into directions of the precision given; both moments begin at zero."""

    def __init__(self, shape: tuple[int, ...], precision: DTypeLike = np.float64) -> None:
        self._first, self._second, self._count = np.zeros(shape, precision), np.zeros(shape, precision), 0

    def direction(self, slope: Array) -> Floats:
        """Return the step for the next slope, of one shape with it, to be taken times the learning rate against its
        sign.
        """
        self._count += 1
        self._first *= FIRST_DECAY
        self._first += (1.0 - FIRST_DECAY) * slope
        self._second *= SECOND_DECAY
        self._second += (1.0 - SECOND_DECAY) * np.square(slope)
        size = np.sqrt(self._second / (1.0 - SECOND_DECAY**self._count))
        size += SMALLEST
        step = self._first / size
        step /= 1.0 - FIRST_DECAY**self._count
        return step
