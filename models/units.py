"""A gateway's own units: each feature as deviations from what it was while all was well.

A feature that stood still all through commissioning has no deviation to be measured in, and a fixed number in its place
would be a matter of its unit: the same event would be fifty of micrometres and nothing of metres. What stood still and
moves is news. So no scale is below a share of its level, above the flicker of float32 and far below what anybody
measures, nor, where it stood at zero, below the smallest that can be: any movement then lies `FARTHEST` away. There
every other feature ends too: a wild value must not overflow float32, nor drown all others for good.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Floats

ROUNDING = float(np.finfo(np.float32).eps)  # features are kept in float32
STILL = 2.0**5  # roundings: the least scale, of which a flicker is a thirtieth
LEAST = float(np.finfo(np.float32).tiny)  # of a scale
COMMON = "common_unit"  # the name of the unit () of features that are not normalised, where they have one
FARTHEST = 1e3  # deviations; of n rows none is farther than √n from their mean
TO_DEVIATION = 1.4826  # of a normal distribution's median absolute deviation


def scales(center: Array, deviation: Array) -> Floats:
    """Return the scales (F,) of features with these means and deviations (F,) over what was healthy."""
    return np.maximum(np.maximum(deviation, STILL * ROUNDING * np.abs(center)), LEAST)


def median_spread(x: Array, middle: Array | float) -> Floats:
    """Return the median absolute deviation (F,) of values (n, F), or () of (n,), about a middle, times what makes it
    the standard deviation of normally distributed ones (Rousseeuw and Croux 1993): a few wild values do not widen it.
    """
    return np.asarray(TO_DEVIATION * np.median(np.abs(x - middle), axis=0))


def in_own_units(units: Mapping[str, Array], x: Array) -> Floats:
    """Return features (..., F) in deviations from `center` (F,), each `scale` (F,) long, at most `FARTHEST`; NaN where
    one is not finite.
    """
    x = np.asarray(x, dtype=np.float64)
    z = np.clip((x - units["center"]) / units["scale"], -FARTHEST, FARTHEST)
    return np.where(np.isfinite(x), z, np.nan)
