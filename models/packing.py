"""Fewer bytes for the same arrays: narrower numbers, and of each array only the entries that are largest.

    float32, float64   as they are
    float16, int8      in units of the array's largest entry, which travels beside them in `scales`; else float16 would
                       overflow above 65504 and lose what lies below 6e-8, and int8 would mean nothing
    share < 1          a bitmap of which entries travel, the shape, and their values: a bit an entry, where a list of
                       places costs 32 bits for each that is sent

Rounding is to the nearest, not at random: what it leaves out is not lost to whoever keeps it for the next time
(`fedgate.models.federated.wrappers.error_feedback`), and of a random choice twice as much is left. Arrays that are not
named travel as they are. What arrives is checked against the bytes at hand before anything is made of it, and against
how many entries it may have: a bitmap of zeros that is really there is worth 64 times its bytes in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.whole import round_up

Number = Literal["float64", "float32", "float16", "int8"]

SCALES, MASK, SHAPE = "scales", "mask.", "shape."
STEPS: dict[Number, float] = {"float16": 1.0, "int8": 127.0}  # from zero to the largest entry
DIMENSIONS_MAX, SIDE_MAX = 8, 2**32
ENTRIES_MAX = 2**24  # of a message, 128 MiB once it is spread out


class PackingError(ValueError):
    """A message that `packed` did not make; says what was expected and what was found."""


def packed(arrays: Mapping[str, Array], names: Iterable[str], number: Number, share: float) -> Arrays:
    """Return arrays as a message in which those of `names` have narrower numbers, and the largest `share` alone.

    Raises `ValueError` where a name is one that the message needs.
    """
    if taken := sorted(name for name in arrays if _is_ours(name)):
        raise ValueError(
            f"{taken[0]}: expected a name other than {SCALES!r}, {MASK}... and {SHAPE}..., which are taken"
        )
    message, scales = dict(arrays), []
    for name in sorted(names):
        values = np.asarray(arrays[name], dtype=np.float64)
        if share < 1.0:
            chosen = _largest(values, share)
            message |= {MASK + name: np.packbits(chosen), SHAPE + name: np.array(values.shape, dtype=np.int64)}
            values = values.ravel()[chosen]
        message[name], scale = _narrowed(values, number)
        scales.append(scale)
    return message | ({SCALES: np.array(scales)} if number in STEPS else {})


def unpacked(
    message: Mapping[str, Array], names: Iterable[str], number: Number, share: float, entries_max: int = ENTRIES_MAX
) -> Arrays:
    """Return the arrays of a message, those of `names` as float64.

    Raises `PackingError` for a message of other options, or one that contradicts itself, or whose narrowed arrays would
    have more than `entries_max` entries in all.
    """
    arrays = {name: array for name, array in message.items() if not _is_ours(name)}
    names = sorted(arrays.keys() & set(names))
    expected = {part + name for part in (MASK, SHAPE) for name in names if share < 1.0}
    expected |= {SCALES} if number in STEPS else set()
    if (found := {name for name in message if _is_ours(name)}) != expected:
        raise PackingError(f"expected beside values of {number} arrays {sorted(expected)}, got {sorted(found)}")
    if odd := [name for name in names if arrays[name].dtype != np.dtype(number)]:
        raise PackingError(f"{odd[0]}: expected values of {number}, got {arrays[odd[0]].dtype}")
    scales = _of_type(message, SCALES, np.float64, (len(names),)) if number in STEPS else np.ones(len(names))
    shapes = {name: message[name].shape if share == 1.0 else _claimed(message, name) for name in names}
    if (claimed := sum(math.prod(shape) for shape in shapes.values())) > entries_max:
        raise PackingError(f"expected up to {entries_max} entries in all, got {claimed} in {len(names)} arrays")
    for name, scale in zip(names, scales, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):  # who admits them refuses what is not finite
            wide: Floats = np.multiply(message[name], scale, dtype=np.float64)
        arrays[name] = wide if share == 1.0 else _spread(message, name, wide, shapes[name], share)
    return arrays


def entries_sent(size: int, share: float) -> int:
    """Return how many entries of so many travel: a share of them, and one at least."""
    return min(max(round_up(share * size), 1), size)


def _is_ours(name: str) -> bool:
    return name == SCALES or name.startswith((MASK, SHAPE))


def _largest(values: Floats, share: float) -> Array:
    """Return which entries (size,) are the largest; of equal ones the first, on every machine alike."""
    chosen = np.zeros(values.size, dtype=np.bool_)
    order = np.argsort(-np.abs(values).ravel(), kind="stable")
    chosen[order[: entries_sent(values.size, share)]] = True
    return chosen


def _narrowed(values: Floats, number: Number) -> tuple[Array, float]:
    """Return the numbers that travel, and in which unit they are."""
    if number not in STEPS:
        return values.astype(number), 1.0
    scale = float(np.abs(values).max(initial=0.0)) / STEPS[number]
    if scale == 0.0:
        return np.zeros(values.shape, dtype=number), 0.0
    steps = np.clip(values / scale, -STEPS[number], STEPS[number])  # a scale of few bits may be too small by some
    return (np.rint(steps) if number == "int8" else steps).astype(number), scale


def _of_type(message: Mapping[str, Array], name: str, kind: type[np.generic], shape: tuple[int, ...]) -> Array:
    array = message[name]
    if array.dtype != kind or array.shape != shape:
        raise PackingError(f"{name}: expected {np.dtype(kind)} of {shape}, got {array.dtype} of {array.shape}")
    return array


def _claimed(message: Mapping[str, Array], name: str) -> tuple[int, ...]:
    """Return the shape that a message gives to an array of which a part travels."""
    sides = message[SHAPE + name]
    if sides.dtype != np.int64 or sides.ndim != 1 or not 1 <= len(sides) <= DIMENSIONS_MAX:
        raise PackingError(f"{SHAPE}{name}: expected 1 to {DIMENSIONS_MAX} sides, got {sides.dtype} of {sides.shape}")
    shape = tuple(int(side) for side in sides)
    if min(shape) < 0 or max(shape) > SIDE_MAX:
        raise PackingError(f"{SHAPE}{name}: expected sides of 0 to {SIDE_MAX}, got {shape}")
    return shape


def _spread(message: Mapping[str, Array], name: str, values: Floats, shape: tuple[int, ...], share: float) -> Floats:
    """Return values in the places that the bitmap gives them, zeros in all others."""
    size, mask = math.prod(shape), message[MASK + name]
    _of_type(message, MASK + name, np.uint8, (-(-size // 8),))
    wanted = entries_sent(size, share)
    if values.shape != (wanted,):
        raise PackingError(f"{name}: expected {wanted} values of {size} entries, got shape {values.shape}")
    bits = np.unpackbits(mask)
    if int(bits[:size].sum()) != wanted or bits[size:].any():
        raise PackingError(f"{MASK}{name}: expected {wanted} of {size} places, got {int(bits.sum())}")
    spread = np.zeros(size)
    spread[bits[:size].astype(np.bool_)] = values
    return spread.reshape(shape)
