"""Sums under a mask: numbers as multiples of a quantum in the integers modulo 2^64, where adding loses nothing.

A mask that is uniform over the ring hides whatever it is added to, which noise on floating numbers never does (Bonawitz
et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", Section 3). Negative numbers are
two's complements, so a sum comes back right as long as it lies within half the ring: `most_of` says how large the
numbers of one gateway may be for that, and `encoded` lets no larger one pass; `check_units` none so small that the
quantum would eat them. All arrays of an update travel as one vector; its layout, their names and shapes, is that of the
schema, which both ends know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import Array, Arrays

Ring = NDArray[np.uint64]

ROOM = 0.999 * 2.0**63  # quanta within half the ring, less what rounding to quanta and to float64 may add
PLANNED = 1_000  # gateways that fit where no range is stated, so that it does not depend on who is there
FEWEST_QUANTA = 100  # of the largest entry of an array: two digits
NOISE = 1e-11  # of the largest number beside it: what is left of sums that cancel


class RingError(ValueError):
    """Numbers that would not survive their sum modulo 2^64; the message says what to set."""


def most_of(count: int, quantum: float, stated: float | None) -> float:
    """Return the largest size of a number that each of `count` gateways may send.

    Raises `RingError` where the `stated` one is too large for so many.
    """
    if stated is None:
        return ROOM * quantum / max(count, PLANNED)
    fits = ROOM * quantum / count
    if stated > fits:
        raise RingError(
            f"masking.range: {stated:g} given for {count} gateways, expected up to {fits:g} at quantum {quantum:g}, or "
            "their sum may wrap; set a smaller masking.range or a larger masking.quantum"
        )
    return stated


def check_units(update: Arrays, reference: Mapping[str, Array], quantum: float, *, each: bool) -> None:
    """Raise `RingError` where rounding to quanta would leave too little of an update.

    An array is as large as its largest entry, or that of what it changes (`reference`): a change may well come to an
    end. With `each`, as of sums that are solved, none may be too small; else not all of them together.
    """
    sizes = {
        name: max(_size(array), _size(reference.get(name, np.zeros(1))))
        for name, array in update.items()
        if array.any()
    }
    noise = NOISE * max(sizes.values(), default=0.0)
    above_noise = {name: size for name, size in sizes.items() if update[name].ndim > 0 and size > noise}
    small = {name: size for name, size in above_noise.items() if size < FEWEST_QUANTA * quantum}
    if small and (each or len(small) == len(above_noise)):
        name = min(small, key=lambda name: (small[name], name))
        fits = 2.0 ** math.floor(math.log2(small[name] / FEWEST_QUANTA**2))
        raise RingError(
            f"{name}: values of size {small[name]:g} given, expected at least {FEWEST_QUANTA} times masking.quantum "
            f"({quantum:g}), or rounding would leave next to nothing of them; set masking.quantum = {fits:g}, or "
            "features in units in which they vary by about one (normalisation 'own')"
        )


def _size(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def encoded(update: Mapping[str, Array], quantum: float, most: float) -> Ring:
    """Return the arrays of an update as one vector (P,) of the ring, in the order of their names.

    Raises `RingError` for a value that is not finite or larger than `most`.
    """
    names = sorted(update)
    for name in names:
        size = _size(update[name])
        if not size <= most:
            raise RingError(
                f"{name}: a value of size {size:g} given, expected up to {most:g}, which is what one gateway may send "
                f"at a quantum of {quantum:g}; set a larger masking.quantum, or masking.range where fewer take part"
            )
    parts = [np.rint(np.ravel(update[name]) / quantum).astype(np.int64) for name in names]
    return np.concatenate(parts).view(np.uint64)


def decoded(vector: Ring, layout: Mapping[str, tuple[int, ...]], quantum: float) -> Arrays:
    """Return the arrays of a vector (P,) of the ring as float64, the inverse of `encoded` within half a quantum."""
    values, sizes = vector.view(np.int64) * quantum, [math.prod(shape) for shape in layout.values()]
    parts = np.split(values, np.cumsum(sizes)[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(layout.items(), parts, strict=True)}
