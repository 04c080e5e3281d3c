"""What an update holds: for each exchange the names of its arrays, their shapes, what they mean and how large they are
(ours).

Nothing is guessed from the name of an array. From its role follows what may be done to it on its way:

    delta      n times the step that a gateway asks for; what is left out of one is made good by the next
    full       n times all that a gateway has to say, anew in every update, so that it bears rounding and no more
    sum        adds up to what a system of equations is solved from, or has its meaning beside others: bears nothing
    weight     n, how much the gateway counts
    count      one, for the gateway itself
    metric     n times a mean over its rows, of how the model does
    identity   bytes that must be those of the cloud, and are taken off before anything is added
    bytes      keys, shares and signatures
    ring       numbers under a mask
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays

Role = Literal["delta", "full", "sum", "weight", "count", "metric", "identity", "bytes", "ring"]
Side = int | range  # so many, or any of these
Shape = tuple[Side, ...]

# What a number may be where nothing is known of its unit: below it sums, squares and the float32 of the exported model
# stay finite. Moments of rows in large units are larger and pass a bound of their own.
LARGEST = 1e15
WIDEST = 8  # bytes of a number
BESIDE = 3  # numbers beside a narrowed array: its scale, and what is rounded up of its entries and of its bitmap

# Roles whose arrays are no numbers to add up as they are: of this type, and as they came.
EXACT: Mapping[Role, type[np.unsignedinteger[Any]]] = {"identity": np.uint8, "bytes": np.uint8, "ring": np.uint64}


class UpdateError(ValueError):
    """An update that must not be counted; the message says what was wrong with it."""


class Field(NamedTuple):
    """One array of an update.

    `shape` has a range where a length is open, names the array of `global_state` whose shape it is, or is what follows
    from `global_state`; what `moves` is n times a difference from that array, and its mean is added to it. Numbers are
    at least `least`, and at most of size `largest`. An identity is what `of` finds in `global_state`.
    """

    shape: Shape | str | Callable[[Mapping[str, Array]], Shape]
    role: Role
    least: float = -math.inf
    largest: float = LARGEST
    moves: bool = False
    of: Callable[[Arrays], Array] | None = None

    def shape_in(self, global_state: Mapping[str, Array]) -> Shape:
        """Return the shape that an array must have beside this state of the cloud."""
        if callable(self.shape):
            return self.shape(global_state)
        return global_state[self.shape].shape if isinstance(self.shape, str) else self.shape

    def largest_in(self, global_state: Mapping[str, Array]) -> tuple[int, ...]:
        """Return the largest shape that an array may have beside this state of the cloud."""
        return tuple(side[-1] if isinstance(side, range) else side for side in self.shape_in(global_state))


Schema = Mapping[str, Field]

ONE = Field((), "count", least=1.0, largest=1.0)  # every gateway is one


def counting(max_samples: float) -> Field:
    """Return by how many rows a gateway may say that it counts."""
    return Field((), "weight", least=1.0, largest=max_samples)


def named(schema: Schema, *roles: Role) -> list[str]:
    """Return the names of the arrays of these roles, in their order."""
    return sorted(name for name, field in schema.items() if field.role in roles)


def has_any_length(schema: Schema) -> bool:
    """Tell whether the length of an array is open."""
    shapes = [field.shape for field in schema.values() if isinstance(field.shape, tuple)]
    return any(isinstance(side, range) for shape in shapes for side in shape)


def moving(schema: Schema) -> list[str]:
    """Return the names of what moves the model by a mean, in their order."""
    return sorted(name for name, field in schema.items() if field.moves)


def judged(schema: Schema) -> list[str]:
    """Return the names of the arrays by which one update can be judged: what it asks for, else its sums over rows."""
    return named(schema, "delta", "full") or [name for name in named(schema, "sum") if schema[name].shape != ()]


def weight_of(schema: Schema, update: Mapping[str, Array]) -> float:
    """Return how much an update counts, one where it does not say."""
    return next((float(update[name]) for name in named(schema, "weight")), 1.0)


def layout_of(schema: Schema, global_state: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what an exchange adds up beside this state of the cloud, in the order of names; where a
    length is open the largest.
    """
    fields = {name: schema[name] for name in sorted(schema) if schema[name].role != "identity"}
    return {name: field.largest_in(global_state) for name, field in fields.items()}


def numbers_in(shapes: Iterable[tuple[int, ...]]) -> int:
    """Return how many numbers arrays of these shapes hold."""
    return sum(map(math.prod, shapes))


def largest_body(schema: Schema, global_state: Arrays) -> int | None:
    """Return the most bytes that the arrays of an update take beside this state of the cloud, plain, masked or
    compressed; None where that follows from what an exchange before makes.

    Numbers are taken as float64. Narrowed ones (`fedgate.models.packing`) take no more, with the scale, the shape and
    the bitmap beside them.
    """
    known = [field.shape for field in schema.values() if isinstance(field.shape, str)]
    if not global_state.keys() >= set(known):
        return None
    return sum(_largest_array(field, global_state) for field in schema.values())


def _largest_array(field: Field, global_state: Arrays) -> int:
    if field.of is not None:
        return field.of(global_state).nbytes
    shape = field.largest_in(global_state)
    kind = EXACT.get(field.role)
    if kind is not None:
        return math.prod(shape) * np.dtype(kind).itemsize
    return WIDEST * (math.prod(shape) + len(shape) + BESIDE)


def fitted(schema: Schema, global_state: Arrays, update: Mapping[str, Array]) -> Arrays:
    """Return an update that has the form of its schema, numbers as float64 and without identities.

    Narrower numbers are widened, so that no sum can overflow or depend on its order, whatever type a gateway chose to
    send. Raises `UpdateError` with the name, what was expected and what was found.
    """
    if update.keys() != schema.keys():
        raise UpdateError(f"expected arrays {sorted(schema)}, got {sorted(update)}")
    for name, field in schema.items():
        _check_form(name, field, global_state, update[name])
    numbers = {name: array for name, array in update.items() if schema[name].role not in EXACT}
    for name, array in numbers.items():
        _check_size(name, schema[name], array)
    wide = {name: np.asarray(array, dtype=np.float64) for name, array in numbers.items()}
    return {name: wide.get(name, array) for name, array in update.items() if schema[name].role != "identity"}


def _check_form(name: str, field: Field, global_state: Arrays, array: Array) -> None:
    shape, found = field.shape_in(global_state), array.shape
    if len(found) != len(shape) or not all(map(_allows, shape, found)):
        wanted = ", ".join(map(_described, shape)) + ("," if len(shape) == 1 else "")
        raise UpdateError(f"{name}: expected shape ({wanted}), got {found}")
    kind = EXACT.get(field.role)
    if kind is None and array.dtype.kind not in "fiu":
        raise UpdateError(f"{name}: expected numbers, got {array.dtype}")
    if kind is not None and array.dtype != kind:
        raise UpdateError(f"{name}: expected {np.dtype(kind)}, got {array.dtype}")
    if field.of is not None and not np.array_equal(array, expected := field.of(global_state)):
        raise UpdateError(
            f"{name}: expected {expected.tobytes().hex()}, got {array.tobytes().hex()}: sums over another one have no "
            "meaning here"
        )


def _allows(side: Side, found: int) -> bool:
    return found in side if isinstance(side, range) else found == side


def _described(side: Side) -> str:
    return f"{side[0]} to {side[-1]}" if isinstance(side, range) else str(side)


def _check_size(name: str, field: Field, array: Array) -> None:
    """Look at an array once for its least and its largest number, as wide as it came: both tell of any that is none."""
    if array.size == 0:
        return
    low, high = float(array.min()), float(array.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UpdateError("expected finite values, got NaN or infinity")
    if math.isfinite(field.least):
        if low < field.least or high > field.largest:
            expected = f"{field.least:g}" + (f" to {field.largest:g}" if field.largest > field.least else "")
            raise UpdateError(f"{name}: expected {expected}, got {low if low < field.least else high:g}")
    elif (found := max(-low, high)) > field.largest:
        raise UpdateError(f"{name}: expected values up to {field.largest:g}, got {found:g}")
