"""Sums under a mask: numbers as multiples of a quantum in the integers modulo 2^64, where adding loses nothing.

A mask that is uniform over the ring hides whatever it is added to, which noise on floating numbers never does (Bonawitz
et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", Section 3). Negative numbers are
two's complements, so a sum comes back right as long as it lies within half the ring: `most_of` says how large the
numbers of one gateway may be for that, and `encoded` lets no larger one pass; `check_units` none so small that the
quantum would eat them. All arrays of an update travel as one vector beside their `layout`, their names and shapes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import Array, Arrays
from fedgate.models.federated.protocol.reducer import Reducer
from fedgate.models.federated.protocol.schema import UpdateError

Ring = NDArray[np.uint64]

ROOM = 0.999 * 2.0**63  # quanta within half the ring, less what rounding to quanta and to float64 may add
PLANNED = 1_000  # gateways that fit where no range is stated, so that it does not depend on who is there
LAYOUT_BYTES_MAX = 65_536
LAYOUT = "layout"
SIZE_MAX = 1 << 40  # numbers of one array, and its sides together where one of them is zero
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
    telling = {name: size for name, size in sizes.items() if update[name].ndim > 0 and size > noise}
    small = {name: size for name, size in telling.items() if size < FEWEST_QUANTA * quantum}
    if small and (each or len(small) == len(telling)):
        name = min(small, key=lambda name: (small[name], name))
        fits = 2.0 ** math.floor(math.log2(small[name] / FEWEST_QUANTA**2))
        raise RingError(
            f"{name}: values of size {small[name]:g} given, expected at least {FEWEST_QUANTA} times masking.quantum "
            f"({quantum:g}), or rounding would leave next to nothing of them; set masking.quantum = {fits:g}, or "
            "features in units in which they vary by about one (normalisation 'own')"
        )


def _size(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def encoded(update: Mapping[str, Array], quantum: float, most: float) -> tuple[Ring, Array]:
    """Return the arrays of an update as one vector (P,) of the ring, and their layout (L,) uint8.

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
    text = json.dumps([[name, list(np.shape(update[name]))] for name in names], separators=(",", ":"))
    return np.concatenate(parts).view(np.uint64), np.frombuffer(text.encode(), dtype=np.uint8)


def decoded(vector: Ring, layout: Array, quantum: float) -> Arrays:
    """Return the arrays of a vector (P,) of the ring as float64, the inverse of `encoded` within half a quantum."""
    values, arrays, offset = vector.view(np.int64) * quantum, Arrays(), 0
    for name, shape in _entries(layout).items():
        size = math.prod(shape)
        arrays[name] = np.asarray(values[offset : offset + size].reshape(shape))
        offset += size
    return arrays


def check_layout(layout: Array, count: int) -> None:
    """Raise `UpdateError` for what is no layout (L,) of `count` numbers."""
    if layout.dtype != np.uint8 or layout.ndim != 1 or len(layout) > LAYOUT_BYTES_MAX:
        raise UpdateError(f"{LAYOUT}: expected up to {LAYOUT_BYTES_MAX} bytes, got {layout.dtype} {layout.shape}")
    try:
        found = sum(map(math.prod, _entries(layout).values()))
    except (ValueError, RecursionError) as error:
        raise UpdateError(f"{LAYOUT}: expected a list of [name, shape] in JSON, got {str(error)[:80]}") from None
    if found != count:
        raise UpdateError(f"{LAYOUT}: expected shapes of {count} numbers in all, got {found}")


def _entries(layout: Array) -> dict[str, tuple[int, ...]]:
    listed, entries = json.loads(layout.tobytes()), dict[str, tuple[int, ...]]()
    for entry in listed if isinstance(listed, list) else [listed]:
        match entry:
            case [str(name), [*sides]] if name not in entries and _is_shape(sides):
                entries[name] = tuple(sides)
            case _:
                raise ValueError(f"the entry {str(entry)[:40]}")
    return entries


def _is_shape(sides: list[Any]) -> bool:
    is_whole = all(type(side) is int and side >= 0 for side in sides)
    return is_whole and math.prod(max(side, 1) for side in sides) <= SIZE_MAX  # what is empty has sides, too


def by_layout(update: Arrays) -> Arrays:
    """Return an update under names that say its layout, so that only vectors of one layout add up."""
    digest = hashlib.sha256(update[LAYOUT].tobytes()).hexdigest()[:32]
    return {f"{name}.{digest}": array for name, array in update.items()}


def of_most(total: Arrays, votes: str) -> tuple[Arrays, list[Arrays]]:
    """Return the sum of the layout that most sent, told by how many of `votes` (n,) are not zero, and the others.

    The cloud cannot know a layout before, and whoever comes first must not say it for all.
    """
    layouts: dict[str, Arrays] = {}
    for key, array in total.items():
        name, _, digest = key.rpartition(".")
        layouts.setdefault(digest, {})[name] = array
    ranked = sorted(layouts, key=lambda digest: (-int(np.count_nonzero(layouts[digest][votes])), digest))
    return layouts[ranked[0]], [layouts[digest] for digest in ranked[1:]]


def _merge(total: Arrays, update: Arrays) -> Arrays:
    both = total.keys() & update.keys()
    sums = {name: np.asarray(total[name] + update[name]) for name in both if not name.startswith(f"{LAYOUT}.")}
    return {**total, **update, **sums}


RING_SUM = Reducer("ring sum", _merge, additive=True, bounded=True)
