"""Faults put into a recording on purpose, at a known time; whoever shows the result must say that they were
injected.
"""

from __future__ import annotations

import numpy as np

from models.arrays import Floats


def stiffness_loss(values: Floats, rate_hz: float, start_s: float, duration_s: float, loss: float) -> Floats:
    """Return samples (T', C) in which the structure loses the share `loss` of its stiffness for a while.

    A natural frequency goes with the square root of stiffness, so for `duration_s` the recording is played slower by
    sqrt(1 - loss), which moves every line of the spectrum down by that factor: the lines of the structure and, unlike
    in real damage, those of the mains and of machines too. After it the recording goes on where it was; nothing is
    used twice.
    """
    if not 0.0 < loss < 1.0:
        raise ValueError(f"loss {loss}: expected a share of the stiffness between 0 and 1")
    slowed = np.sqrt(1.0 - loss)
    first, count = round(start_s * rate_hz), round(duration_s * rate_hz)
    positions = first + slowed * np.arange(count)  # in samples of the recording
    if first < 0 or positions[-1] > len(values) - 1:
        raise ValueError(
            f"{start_s:g} s + {duration_s:g} s: reaches outside the recording of {len(values) / rate_hz:g} s"
        )
    whole = np.arange(len(values))
    warped = np.stack([np.interp(positions, whole, column) for column in values.T], axis=1)
    resumed = int(np.ceil(positions[-1] + slowed))
    return np.concatenate([values[:first], warped, values[resumed:]])
