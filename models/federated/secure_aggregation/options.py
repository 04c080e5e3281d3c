"""What both ends know of a masked round: its options, its roster, and who is whose neighbour in it.

The roster is the sorted list of the public keys of those who began the round. A gateway has no name in it but its
place. Up to `neighbours` + 1 gateways everyone shares a mask with everyone; beyond, with `neighbours` others (Bell et
al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", Section 3): a Harary graph over an order
that the keys themselves decide, so that nobody chooses his neighbours and no fewer than `neighbours` can cut the graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedgate.models.arrays import Array, Arrays, Integers
from fedgate.models.federated.protocol import namespace
from fedgate.models.federated.protocol.algorithm import Positive
from fedgate.models.federated.secure_aggregation.keys import KEY_BYTES
from fedgate.models.options import Options
from fedgate.models.whole import round_up

PREFIX = "masking."  # before names of ours, in `global_state`, in `server_state` and in `local_state`
AGREEMENT, CHANNEL, SIGNER = "agreement", "channel", "signer"  # (n, 32) public keys
PUBLIC_KEYS = (AGREEMENT, CHANNEL, SIGNER)
HERE = b"is here"


class LeftOutWarning(UserWarning):
    """Somebody was left out of a round for what he sent; it went on with the others."""


class RosterError(ValueError):
    """What the cloud says of a round cannot be: a gateway does not answer it."""


class Masking(Options):
    """How updates are masked.

    :param quantum: to whose multiples numbers are rounded before they are added; each adds an error of up to half.
    :param range: largest size of a number that one gateway may send; not given, what 1,000 gateways may (8.8e9 with the
        default quantum), or as many as there are.
    :param fewest: gateways that must have something new before a sum is opened, since of few the others can guess one;
        and that must be left in a sum which others leave. Until so many are together, what is new waits.
    :param neighbours: with how many others a gateway shares masks, where there are more.
    :param threshold: share of its neighbours and itself without which no secret of a gateway can be put together: fewer
        colluding ones learn nothing, and fewer survivors end no round. Above one half, so that a cloud that tells half
        of them one thing and half another learns nothing either.
    """

    quantum: Annotated[float, Field(gt=0, le=1)] = 2.0**-20
    range: Positive | None = None
    fewest: Annotated[int, Field(ge=3)] = 5
    neighbours: Annotated[int, Field(ge=2, multiple_of=2)] = 60
    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.6

    @model_validator(mode="after")
    def _unmasks_no_few(self) -> Self:
        fewest = self.threshold_of(self.neighbours + 1)
        if fewest < self.fewest:
            raise ValueError(
                f"threshold {self.threshold:g} of {self.neighbours} neighbours and itself given, which is {fewest} "
                f"gateways, expected at least the {self.fewest} of 'fewest': where others drop out, so few could "
                "be cut off in the graph of masks, and their sum be read; set more neighbours or a larger threshold"
            )
        return self

    def check(self, count: int) -> None:
        """Raise `ValueError` where of so many gateways no sum is opened."""
        if count < self.fewest:
            raise ValueError(
                f"masked sums: expected {self.fewest} gateways or more (masking.fewest), got {count}; ask more "
                "gateways, or set a smaller masking.fewest, 3 at least"
            )

    def threshold_of(self, holders: int) -> int:
        """Return how many of the holders of a gateway's shares can put its secrets together."""
        return max(2, round_up(self.threshold * holders))

    def holders_of(self, count: int) -> int:
        """Return how many of `count` gateways hold shares of each, itself among them."""
        return min(count, self.neighbours + 1)


class Roster(NamedTuple):
    """Those who began a round: `digest` names the round, `holders` (n, k + 1) are for each place, in rising order, the
    places that hold its shares, its neighbours and itself; `threshold` of them can put its secrets together.
    """

    agreement: Array
    channel: Array
    signer: Array
    digest: bytes
    holders: Integers
    threshold: int

    @classmethod
    def of(cls, keys: Arrays, masking: Masking) -> Roster:
        """Return the roster of public keys (n, 32); raises `RosterError` for what is none."""
        for name in PUBLIC_KEYS:
            array = keys.get(name)
            if array is None or array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != KEY_BYTES:
                raise RosterError(f"roster: expected {name} keys (n, {KEY_BYTES}) of bytes, got {sorted(keys)}")
        found = [keys[name] for name in PUBLIC_KEYS]
        count = len(found[0])
        if {len(each) for each in found} != {count} or count < masking.fewest:
            raise RosterError(
                f"roster: expected {len(found)} keys of each of at least {masking.fewest} gateways (masking.fewest), "
                f"got {' and '.join(str(len(each)) for each in found)}"
            )
        if len({key.tobytes() for keys_of in found for key in keys_of}) < len(found) * count:
            raise RosterError("roster: expected each key once, got one twice")
        digest = hashlib.sha256(b"".join(each.tobytes() for each in found)).digest()
        holders = _holders(digest, count, masking.neighbours)
        threshold = masking.threshold_of(holders.shape[1])
        return cls(found[0], found[1], found[2], digest, holders, threshold)

    def pair(self, sender: int, receiver: int) -> bytes:
        """Return what binds a key to this round and to a direction in it."""
        return self.digest + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")

    def held_by(self, here: list[int]) -> Integers:
        """Return how many holders of each place (n,) are among those who are here."""
        return np.asarray(np.isin(self.holders, here).sum(axis=1))

    def group_of(self, place: int, here: Collection[int]) -> set[int]:
        """Return who of those who are here shares masks with a place, directly or through others: their masks cancel
        without anybody else, so that the cloud can read the sum of these alone.
        """
        group, front, others = set[int](), {place}, set(here)
        while front:
            group |= front
            front = others.intersection(self.holders[sorted(front)].ravel().tolist()) - group
        return group

    def groups_of(self, here: Collection[int]) -> list[set[int]]:
        """Return the groups into which those who are here fall."""
        groups, left = list[set[int]](), set(here)
        while left:
            groups.append(self.group_of(min(left), left))
            left -= groups[-1]
        return groups

    def smallest_group(self, here: Collection[int]) -> int:
        """Return how many are in the smallest of these groups, 0 where nobody is here."""
        return min(map(len, self.groups_of(here)), default=0)

    def survivors(self, present: list[int]) -> bytes:
        """Return the bytes that say whose inputs are in the sum, which each who reveals shares signs before."""
        return self.digest + np.array(present, dtype="<i8").tobytes()

    def here(self, part: int) -> bytes:
        """Return the bytes that say that somebody goes along in this round, and what part of its own is in the running
        total: keys of no other round can sign them.
        """
        return self.digest + HERE + bytes([part])

    def neighbours_of(self, place: int) -> list[int]:
        """Return the places of its neighbours in rising order."""
        return [int(other) for other in self.holders[place] if other != place]


def _holders(digest: bytes, count: int, most: int) -> Integers:
    """Return for each place its neighbours and itself (count, k + 1), in rising order."""
    if count <= most + 1:
        return np.tile(np.arange(count), (count, 1))
    # By digests, not by a generator, whose numbers may change with the library: both ends of a mask must agree.
    ranked = sorted(range(count), key=lambda place: hashlib.sha256(digest + place.to_bytes(4, "little")).digest())
    order, offsets = np.array(ranked), np.arange(-(most // 2), most // 2 + 1)
    holders = np.empty((count, most + 1), dtype=np.int64)
    holders[order] = order[(np.arange(count)[:, None] + offsets) % count]
    return np.sort(holders, axis=1)


def digest_of(global_state: Arrays) -> bytes:
    """Return what stands for all that the cloud hands out in one exchange: masks follow from it, so that those of
    gateways that were handed different models do not cancel.
    """
    digest = hashlib.sha256()
    for name, array in sorted(global_state.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def vouched_text(keys: Arrays) -> bytes:
    """Return what the owner of the public keys (32,) of a round vouches for with its own key."""
    return b"fedgate masking 1 voucher\0" + b"".join(keys[name].tobytes() for name in PUBLIC_KEYS)


def split(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """Return what belongs to the inner algorithm, and what is ours, without the prefix."""
    return namespace.split(arrays, PREFIX)


def prefixed(arrays: Arrays) -> Arrays:
    """Return arrays of ours under the names by which they stand beside others."""
    return namespace.prefixed(PREFIX, arrays)


def bytes_of(raw: bytes) -> Array:
    """Return bytes as an array (n,) uint8."""
    return np.frombuffer(raw, dtype=np.uint8)
