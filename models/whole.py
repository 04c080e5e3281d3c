"""Whole numbers from a product, such as a share of a count, in one place.

0.29 * 100 is 28.999999999999996 and means 29; 0.07 * 100 is 7.000000000000001 and means 7.
"""

from __future__ import annotations

import math

ROUNDED = 1e-12  # of a product: far above what its rounding is, far below any difference that is meant


def round_down(product: float) -> int:
    """Return the largest whole number that is no larger than a product but for its rounding."""
    return math.floor(settled(product))


def round_up(product: float) -> int:
    """Return the smallest whole number that is no smaller than a product but for its rounding."""
    return math.ceil(settled(product))


def settled(product: float) -> float:
    """Return a product, or the whole number that it is but for its rounding."""
    whole = round(product)
    return whole if math.isclose(product, whole, rel_tol=ROUNDED) else product
