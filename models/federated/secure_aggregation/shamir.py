"""A secret in shares of which any `threshold` give it back and fewer tell nothing (Shamir 1979, "How to Share a
Secret").

The secret is the value at zero of a polynomial of degree threshold - 1 over a prime field, a share its value at one
other point. The coefficients are an argument: they must be uniform over the field, and nobody may know them. Why these
lines are ours: docs/decisions/11.

Shares are a Reed-Solomon code, so wrong ones among them can be found: Gao 2003, "A New Algorithm for Decoding
Reed-Solomon Codes", Algorithm 1. Polynomials are lists of coefficients, the lowest first, without zeros at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest

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


def interpolated(shares: Mapping[int, int], at: int = 0) -> int:
    """Return the value at a point, by default the secret, of the polynomial through exactly `threshold` shares by
    their points; of fewer it is any number.
    """
    weights = _weights(tuple(shares), at)
    return sum(weight * value for weight, value in zip(weights, shares.values(), strict=True)) % PRIME


def wrong_shares(shares: Mapping[int, int], threshold: int) -> set[int] | None:
    """Return the points of wrong shares, where they are at most half of those beyond the threshold, else None."""
    whole = [1]
    for point in shares:
        whole = _product(whole, [-point % PRIME, 1])
    above, below = whole, _through(shares, whole)
    factor_above, factor = list[int](), [1]
    while 2 * len(below) > len(shares) + threshold + 1:  # degree of at least (n + k) / 2
        quotient, rest = _divided(above, below)
        above, below = below, rest
        less = _product([-1], _product(quotient, factor))
        factor_above, factor = factor, _sum(factor_above, less)
    polynomial, rest = _divided(below, factor)
    if rest or len(polynomial) > threshold:
        return None
    return {point for point, value in shares.items() if _value(polynomial, point) != value}


def _through(shares: Mapping[int, int], whole: list[int]) -> list[int]:
    """Return the polynomial through all shares; `whole` is the product of (x - point)."""
    found = list[int]()
    for point, value in shares.items():
        others, _ = _divided(whole, [-point % PRIME, 1])
        scale = value * pow(_value(others, point), -1, PRIME)
        found = _sum(found, _product([scale], others))
    return found


def _value(polynomial: Sequence[int], point: int) -> int:
    (value,) = shares_of(polynomial[0] if polynomial else 0, polynomial[1:], [point])
    return value


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return _trimmed([(a + b) % PRIME for a, b in zip_longest(one, other, fillvalue=0)])


def _product(one: Sequence[int], other: Sequence[int]) -> list[int]:
    found = [0] * (len(one) + len(other))
    for place, a in enumerate(one):
        for offset, b in enumerate(other, place):
            found[offset] = (found[offset] + a * b) % PRIME
    return _trimmed(found)


def _divided(above: Sequence[int], below: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return quotient and rest."""
    rest, last = list(above), pow(below[-1], -1, PRIME)
    quotient = [0] * max(len(above) - len(below) + 1, 0)
    for place in reversed(range(len(quotient))):
        quotient[place] = factor = rest[place + len(below) - 1] * last % PRIME
        for offset, b in enumerate(below, place):
            rest[offset] = (rest[offset] - factor * b) % PRIME
    return _trimmed(quotient), _trimmed(rest)


def _trimmed(polynomial: list[int]) -> list[int]:
    while polynomial and polynomial[-1] == 0:
        polynomial.pop()
    return polynomial


@lru_cache(maxsize=256)  # where all survivors hold shares of everybody, the points are the same for all
def _weights(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Return Lagrange's weight of each point: Π (at - x_j) / (x_i - x_j) over j ≠ i."""
    weights = []
    for one in points:
        above = below = 1
        for other in points:
            if other != one:
                above, below = above * (at - other) % PRIME, below * (one - other) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)
