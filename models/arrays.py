"""The one data structure: a flat mapping from dotted names to numpy arrays.

Model parameters, updates, gateway state, server state and training data are all `Arrays`, so one codec, one checkpoint,
one sum and one equality check serve them all (docs/decisions/01).
"""

from __future__ import annotations

import hmac
import json
import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.models.whole import round_down

Array = NDArray[Any]
Arrays = dict[str, Array]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

# The types that arrays may have which are stored or sent, little-endian.
DTYPES = frozenset({"<f2", "<f4", "<f8", "<i4", "<i8", "<u8", "|i1", "|u1", "|b1"})

# Names that training data may hold; an algorithm that needs more (series boundaries, context) adds a name, not a class.
FEATURES = "x"  # (n, F) one row per window
LABELS = "y"  # (n,) 0 normal, 1 anomaly (where faults are told apart 1, 2 ...); absent where nobody gave any
MISSING = "missing"  # (n,) rows missing before each row, NEW_SERIES where none is before it; absent: a gapless series
COUNTED = "counted"  # () whether the last update this gateway sent was counted; absent: it was
BEFORE_COUNTED = "before_counted"  # () whether the one before it was, as far as it was pending; absent: it was
PENDING = "pending"  # () whether the last that was counted came late, and is not if this one is; absent: it stays
END_NS = "end_ns"  # (n,) int64, ns of Unix time: the end of each row's window, NEVER where nobody knows it
CALIBRATION = "calibration"  # (m, F) the rows behind them, which train no model and give the gateway its own level
SECRET = "secret"  # noqa: S105 - a name. (32,) uint8 nobody else can know, new in every exchange: `ratchet`
IDENTITY = "identity"  # (32,) uint8 the private number of this gateway's own P-256 key; absent where it has none
MEMBERS = "members"  # (m, 16) uint8 whose keys may take part in a masked sum; absent: anybody whom the cloud lets in

# What one gateway may have of its own, each one number (); absent where the setting of the algorithm holds.
WEIGHT = "weight"  # how much it counts
EPOCHS = "epochs"  # how many passes over its rows it has time for in a round; no more than the setting's
RADIUS = "radius"  # of its ambiguity set
KAPPA = "kappa"  # cost of a changed label in its ambiguity set; infinite: its labels are certain
NU = "nu"  # share of rows outside its sphere
GAMMA = "gamma"  # width of its kernel
OF_ONE_GATEWAY = (WEIGHT, EPOCHS, RADIUS, KAPPA, NU, GAMMA)

# Of the largest value of one unit: 16 units in the last place of float32, in which models travel and states are kept.
# The same numbers added in another order, as another processor or library adds them, differ by less.
ROUNDING = 2.0**-20

NEVER = np.iinfo(np.int64).min  # in END_NS
NEW_SERIES = -1  # in MISSING: the row before, where there is one, belongs to another recording


def generator(seed: int, round_index: int, who: str, secret: bytes = b"") -> np.random.Generator:
    """Return the random generator of one party in one round.

    Seed, round and name are known to all. A gateway adds a secret of its own, so that nobody can take the noise off
    what it sends by drawing the same numbers.

    It depends on nothing but its arguments, so a gateway that lost power in mid-training repeats the same bytes and the
    order in which gateways are visited cannot matter.
    """
    return np.random.default_rng([seed, round_index, zlib.crc32(who.encode()), *secret])


def exchange_secret(secret: bytes, run: str, round_index: int, who: str) -> Array:
    """Return the bytes (32,) from which one party draws its keys and its secret noise in one exchange.

    HMAC-SHA-256 of the party's own secret over the exchange: for simulations, which repeat, and for what is keyed by
    its values besides. A gateway in the field takes `ratchet`, which repeats nothing.
    """
    place = json.dumps([run, round_index, who]).encode()
    return np.frombuffer(hmac.digest(secret, place, "sha256"), dtype=np.uint8)


def ratchet(chain: bytes) -> tuple[bytes, bytes]:
    """Return the secret (32 bytes) of one exchange, and the chain from which the next one follows.

    HMAC-SHA-256 under two labels: neither tells the chain before, nor so the secret of any exchange that is over.
    """
    return hmac.digest(chain, b"exchange", "sha256"), hmac.digest(chain, b"chain", "sha256")


def number_of(data: Mapping[str, Array], name: str, default: float) -> float:
    """Return the one number that data hold under a name, the default where they hold none; raises `ValueError` for
    what is no number.
    """
    array = np.asarray(data.get(name, default))
    if array.shape != () or array.dtype.kind not in "fiu":
        raise ValueError(f"{name}: expected one number, got {array.dtype} of shape {array.shape}")
    return float(array)


def is_fleeting(name: str) -> bool:
    """Tell whether what a gateway keeps under this name may never be stored: it ends with the process, so that neither
    an image of the store nor a thief of the device has a secret of an exchange.
    """
    return name.rpartition(".")[2] == SECRET


def select(seed: int, round_index: int, names: Iterable[str], fraction: float) -> list[str]:
    """Draw `max(fraction * K, 1)` of K parties without replacement, the same ones in simulation and in service.

    Parties are ranked by one uniform number each from their own generator, so adding a gateway never reorders the
    others.
    """
    ranked = sorted(names, key=lambda name: (generator(seed, round_index, f"select/{name}").random(), name))
    return sorted(ranked[: max(round_down(fraction * len(ranked)), 1)])


def at_most(rows: Array, most: int, rng: np.random.Generator) -> Array:
    """Return no more than so many rows (n, ...), a random choice in their old order; nothing is drawn for fewer."""
    return rows if len(rows) <= most else rows[np.sort(rng.permutation(len(rows))[:most])]


def equal(first: Mapping[str, Array], second: Mapping[str, Array], tolerance: float = 0.0) -> bool:
    """Tell whether two sets of arrays hold the same names, shapes and, within a relative tolerance, values."""
    return first.keys() == second.keys() and all(
        first[name].shape == second[name].shape
        and np.allclose(first[name], second[name], rtol=tolerance, atol=tolerance, equal_nan=True)
        for name in first
    )


def alike(
    first: Mapping[str, Array], second: Mapping[str, Array], sizes: Mapping[str, Array] = MappingProxyType({})
) -> bool:
    """Tell whether two sets of arrays are the same but for rounding: the same names and shapes, whole numbers that are
    equal, and others that differ by at most 2^-20 of the largest value of their array.

    Where an array holds numbers of several units, `sizes` has one of its shape, of what counts as large beside each
    number: it may then differ by 2^-20 of that or of itself.
    """
    return first.keys() == second.keys() and all(
        _alike(np.asarray(first[name]), np.asarray(second[name]), sizes.get(name)) for name in first
    )


def _alike(one: Array, other: Array, size: Array | None) -> bool:
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return False
    if one.dtype.kind != "f" or np.array_equal(one, other):
        return np.array_equal(one, other)
    larger = np.maximum(np.abs(one), np.abs(other))
    largest = larger.max() if size is None else np.maximum(larger, size)
    return bool(np.isfinite(larger).all() and (np.abs(one - other) <= ROUNDING * largest).all())


def finite(arrays: Mapping[str, Array]) -> bool:
    """Tell whether every value of every floating array is finite."""
    return all(bool(np.isfinite(array).all()) for array in arrays.values())


def joined(parts: Mapping[str, Mapping[str, Array]]) -> Arrays:
    """Return several sets of arrays as one, each name with that of its part before it: `part.name`."""
    return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def under(prefix: str, arrays: Mapping[str, Array]) -> Arrays:
    """Return the arrays whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def parted(arrays: Mapping[str, Array]) -> dict[str, Arrays]:
    """Return the parts of `joined`; a part without arrays leaves no trace."""
    parts: dict[str, Arrays] = {}
    for name, array in arrays.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = array
    return parts
