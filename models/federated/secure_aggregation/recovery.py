"""How the cloud takes the masks off a sum: it puts secrets together from the shares that survivors revealed
(Bonawitz et al. 2017).

What it puts together it compares with what their owner said when the round began, so a wrong share is found, its holder
named, and the secret taken from the shares of others where there are enough.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import numpy as np

from fedgate.models.arrays import Array, Arrays
from fedgate.models.federated.protocol.algorithm import RoundFailedError
from fedgate.models.federated.secure_aggregation.client import (
    COMMITMENT,
    HANDED,
    POSTED,
    PRESENT,
    SHARES,
    mask_key,
    self_mask_key,
)
from fedgate.models.federated.secure_aggregation.keys import derived, loaded, public_key, to_bytes, to_number
from fedgate.models.federated.secure_aggregation.options import Roster
from fedgate.models.federated.secure_aggregation.shamir import interpolated, wrong_shares

SENDER = "sender"  # (1,) the place of who sent an update, put in where its token is checked

Points = dict[int, int]  # a share by the point of its holder


class ShareWarning(UserWarning):
    """A gateway gave a wrong share; the round went on with those of others."""


def check_one_each(senders: Array, what: str) -> list[int]:
    """Return the places (m,) that answered, in rising order; raises `RoundFailedError` where one did so twice."""
    found = sorted(map(int, senders))
    if len(set(found)) < len(found):
        raise RoundFailedError(f"{what}: expected one answer from each place of the roster, got {found}")
    return found


def masks_left(roster: Roster, mine: Arrays, total: Arrays) -> Iterator[tuple[bytes, bool]]:
    """Yield the key of every mask that is left in the sum, and whether it is to be taken off or added."""
    present, suspects = {int(place) for place in mine[PRESENT]}, set[int]()
    handed = mine[HANDED].tobytes()
    reveals = dict(zip(map(int, total[SENDER]), total[SHARES], strict=True))
    check_one_each(total[SENDER], "unmasking")
    for place in map(int, mine[POSTED]):
        points = _points(roster, reveals, place)
        if place in present:
            commitment = mine[COMMITMENT][place].tobytes()
            seed = _recovered(roster, points, place, suspects, lambda raw: derived(raw, "commitment"), commitment)
            yield self_mask_key(seed, roster, handed), True
            continue
        public = roster.agreement[place].tobytes()
        private = loaded(_recovered(roster, points, place, suspects, public_key, public))
        for other in present.intersection(roster.neighbours_of(place)):
            yield mask_key(private, roster, place, other, handed), other < place


def _points(roster: Roster, reveals: dict[int, Array], place: int) -> Points:
    """Return the shares of a place by the points of their holders, without those who had none."""
    points = {}
    for holder in map(int, roster.holders[place]):
        if holder in reveals:
            slot = int(np.searchsorted(roster.holders[holder], place))
            if (raw := reveals[holder][slot]).any():
                points[holder + 1] = to_number(raw.tobytes())
    return points


def _recovered(
    roster: Roster,
    points: Points,
    place: int,
    suspects: set[int],
    public_of: Callable[[bytes], bytes],
    public: bytes,
) -> bytes:
    """Return the secret of a place whose public part is known, from shares of which some may be wrong.

    Where the first shares do not give it, others are tried; those that do not fit the secret are then known to be
    wrong, and their holders become suspects (points). Raises `RoundFailedError`.
    """
    threshold = roster.threshold
    trusted = [point for point in points if point not in suspects]
    order = trusted if len(trusted) >= threshold else list(points)
    for tried, chosen in enumerate(_choices({point: points[point] for point in order}, threshold)):
        window = {point: points[point] for point in chosen}
        secret = interpolated(window)
        if public_of(to_bytes(secret)) != public:
            continue
        if tried:
            wrong = {point for point in order if points[point] != interpolated(window, at=point)}
            places = ", ".join(
                f"{point - 1} ({roster.agreement[point - 1][:4].tobytes().hex()}...)" for point in sorted(wrong)
            )
            warnings.warn(f"wrong shares of place {place} from {places}; left out", ShareWarning, stacklevel=2)
            suspects.update(wrong)
        return to_bytes(secret)
    raise RoundFailedError(
        f"unmasking: expected {threshold} shares that give the secret of place {place} "
        f"({roster.agreement[place][:4].tobytes().hex()}...), got {len(points)}, of which too many are wrong"
    )


def _choices(points: Points, threshold: int) -> Iterator[list[int]]:
    """Yield so many points whose shares may all be right: in a row, each row one further, which finds a few wrong ones
    wherever they lie side by side; then those that are left when all that spoil the code are gone, wherever they lie.
    """
    order = list(points)
    if len(order) < threshold:
        return
    for first in range(len(order)):
        yield (order + order)[first : first + threshold]
    wrong = wrong_shares(points, threshold)
    if wrong is not None:
        yield [point for point in order if point not in wrong][:threshold]
