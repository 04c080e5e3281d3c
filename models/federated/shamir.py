"""A secret in shares of which any `threshold` give it back and fewer tell nothing (Shamir 1979, "How to Share a
Secret").

The secret is the value at zero of a polynomial of degree threshold - 1 over a prime field, a share its value at one
other point. The coefficients are an argument: they must be uniform over the field, and nobody may know them. Why these
lines are ours: docs/decisions/0032.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

PRIME = 2**255 - 19  # so that a key of 32 bytes is one number of the field


def shares_of(secret: int, coefficients: Sequence[int], points: Iterable[int], prime: int = PRIME) -> list[int]:
    """Return the share at each of the points, which are not 0, under a threshold of `len(coefficients) + 1`."""
    falling = [*reversed(coefficients), secret]  # Horner's scheme
    shares = []
    for point in points:
        value = 0
        for coefficient in falling:
            value = (value * point + coefficient) % prime
        shares.append(value)
    return shares


def interpolated(shares: Mapping[int, int], at: int = 0, prime: int = PRIME) -> int:
    """Return the value at a point, by default the secret, of the polynomial through exactly `threshold` shares by
    their points; of fewer it is any number.
    """
    weights = _weights(tuple(shares), at, prime)
    return sum(weight * value for weight, value in zip(weights, shares.values(), strict=True)) % prime


@lru_cache(maxsize=256)  # where all survivors hold shares of everybody, the points are the same for all
def _weights(points: tuple[int, ...], at: int, prime: int) -> tuple[int, ...]:
    """Return Lagrange's weight of each point: Π (at - x_j) / (x_i - x_j) over j ≠ i."""
    weights = []
    for one in points:
        above = below = 1
        for other in points:
            if other != one:
                above, below = above * (at - other) % prime, below * (one - other) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return tuple(weights)
