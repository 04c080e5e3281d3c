"""What is usual at this hour, on such a day, with so many people and such weather: a profile of context, and how far a
window is from it.

A room that is warm at noon is no anomaly at noon. A profile holds mean and deviation of every feature, in the gateway's
own units z, for each *cell* of context: block of the day, kind of day, and declared features such as occupancy or
outdoor temperature in bins. It is made of sums per cell, which add up over gateways: a site's profile is the sum of its
gateways', and stands in where a gateway has seen too little of a cell itself.

    columns = context_columns(spec, feature_names)          at configuration: refuses a name that is not there
    places = cells(spec, end_ns, rows[:, columns])          (n,), UNDATED where the clock was not set
    own = sums(spec, places, z)                             additive arrays, own or summed over a site
    profile = made(spec, own, site)                         says for how many cells it had to borrow
    statistic = deviation(profile, place, z_now)            None where a window cannot be placed
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedgate.models.alarms.profile_spec import ProfileSpec
from fedgate.models.arrays import Array, Arrays, Floats, Integers
from fedgate.models.features.local_time import local_hours

COUNT, SUM, SQUARE = "count", "sum", "square"  # (C,), (C, F), (C, F)
UNDATED = -1  # the cell of a window whose time is not known
WORKDAYS = 5  # Monday to Friday
EARLIEST_NS = 1_577_836_800 * 10**9  # 2020; a clock before that was never set, as a Pi boots in 1970

Origin = Literal["own", "site", "own whole", "site whole"]
ORIGINS: tuple[Origin, ...] = ("own", "site", "own whole", "site whole")


class ProfileError(ValueError):
    """Context or sums from which no profile can be made, or that do not fit the one there is."""


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """Mean and deviation of F features in each of C cells, and whose they are."""

    mean: Floats  # (C, F)
    deviation: Floats  # (C, F), never below the floor of the settings
    origin: Integers  # (C,) into ORIGINS

    @property
    def origins(self) -> dict[Origin, int]:
        """For how many cells the profile is the gateway's own, the site's, or that of all cells together."""
        return {name: int((self.origin == index).sum()) for index, name in enumerate(ORIGINS)}


def context_columns(spec: ProfileSpec, names: Sequence[str]) -> list[int]:
    """Return where the context of the settings stands among the features of a window, in the order of `spec.bins`.

    Raises:
        ProfileError: a feature is not measured; the message lists those that are.
    """
    missing = [name for name in spec.bins if name not in names]
    if missing:
        raise ProfileError(
            f"context {missing[0]!r} is not among the features; measured are {', '.join(names)}: name one of them, add"
            " a step that measures it, or leave it out"
        )
    return [names.index(name) for name in spec.bins]


def cell_count(spec: ProfileSpec) -> int:
    """Return how many cells C there are, those of unknown context included."""
    return math.prod(spec.sizes)


def cells(spec: ProfileSpec, end_ns: Array, context: Array) -> Integers:
    """Return the cells (n,) of windows that ended at `end_ns` (n,), nanoseconds since 1970 UTC, with the values (n, k)
    of the context in the order of `spec.bins`.

    A value at an edge lies in the bin above it. One that is not a number has a bin of its own, "unknown". A time before
    2020 is that of a clock that was never set: its cell is UNDATED, which no profile judges and no sum counts.

    Raises:
        ProfileError: the shapes do not fit.
    """
    end_ns, context = np.asarray(end_ns, dtype=np.int64), np.asarray(context, dtype=np.float64)
    if end_ns.ndim != 1 or context.shape != (len(end_ns), len(spec.bins)):
        raise ProfileError(
            f"times {end_ns.shape} and context {context.shape} given; expected (n,) and (n, {len(spec.bins)}):"
            f" {', '.join(spec.bins) or 'no context'}"
        )
    dated = end_ns >= EARLIEST_NS
    hours, weekdays = local_hours(spec.timezone, np.where(dated, end_ns, EARLIEST_NS))
    kind = {"same": 0 * weekdays, "workday": np.asarray(weekdays >= WORKDAYS, dtype=np.int64), "weekday": weekdays}[
        spec.day_kinds
    ]
    parts: list[Integers] = [np.asarray(hours // spec.hours, dtype=np.int64), kind]
    for column, edges in zip(context.T, spec.bins.values(), strict=True):
        known = np.searchsorted(np.array(edges), column, side="right")
        parts.append(np.where(np.isnan(column), len(edges) + 1, known))
    places = np.ravel_multi_index(tuple(parts), spec.sizes)
    return np.where(dated, places, UNDATED).astype(np.int64)


def sums(spec: ProfileSpec, places: Array, z: Array) -> Arrays:
    """Return the additive arrays of windows in cells (n,) with features (n, F) in the gateway's own units.

    Undated windows are left out. An empty set of windows gives zeros, the identity of the sum.

    Raises:
        ProfileError: shapes or cells that do not fit, or values that are not finite.
    """
    places, z = np.asarray(places, dtype=np.int64), np.asarray(z, dtype=np.float64)
    count = cell_count(spec)
    if (
        z.ndim != 2
        or places.shape != (len(z),)
        or (len(places) and not UNDATED <= places.min() <= places.max() < count)
    ):
        raise ProfileError(f"cells {places.shape} and features {z.shape} given; expected (n,) below {count} and (n, F)")
    if not np.isfinite(z).all():
        raise ProfileError(f"{np.count_nonzero(~np.isfinite(z))} of {z.size} features are not finite; expected none")
    dated = places != UNDATED
    places, z = places[dated], z[dated]
    total = {COUNT: np.zeros(count), SUM: np.zeros((count, z.shape[1])), SQUARE: np.zeros((count, z.shape[1]))}
    for name, rows in ((COUNT, np.ones(len(z))), (SUM, z), (SQUARE, np.square(z))):
        np.add.at(total[name], places, rows)
    return total


def build_profile(spec: ProfileSpec, own: Mapping[str, Array], site: Mapping[str, Array] | None = None) -> Profile:
    """Return the profile from a gateway's own sums and, where they are there, those of its site (its own among them).

    A cell with fewer than `least` windows of its own takes the site's, where that has as many; else all of the
    gateway's windows stand for it, and else all of the site's. `Profile.origins` says how often.

    Raises:
        ProfileError: sums of other cells or features, or neither gateway nor site has `least` windows in all.
    """
    features = np.shape(own.get(SUM, ()))[-1:]
    own = _checked(spec, own, features)
    site = (
        {name: np.zeros_like(array) for name, array in own.items()} if site is None else _checked(spec, site, features)
    )
    count = cell_count(spec)
    choices = [own, site, _whole(own, count), _whole(site, count)]  # as ORIGINS
    enough = np.stack([choice[COUNT] >= spec.least for choice in choices])  # (4, C)
    if not enough.any(axis=0).all():
        raise ProfileError(
            f"a profile of {own[COUNT].sum():.0f} windows of this gateway and {site[COUNT].sum():.0f} of its site was"
            f" asked for; expected at least {spec.least} of either: let the baseline run longer, or lower `least`"
        )
    origin = enough.argmax(axis=0)  # the first that has enough
    chosen = {name: np.stack([choice[name] for choice in choices])[origin, np.arange(count)] for name in own}
    weight = chosen[COUNT][:, None]
    mean = chosen[SUM] / weight
    variance = np.maximum(chosen[SQUARE] / weight - np.square(mean), 0.0)
    return Profile(mean, np.maximum(np.sqrt(variance), spec.floor), origin)


def _checked(spec: ProfileSpec, given: Mapping[str, Array], features: tuple[int, ...]) -> Arrays:
    count = cell_count(spec)
    expected = {COUNT: (count,), SUM: (count, *features), SQUARE: (count, *features)}
    shapes = {name: np.shape(array) for name, array in given.items()}
    if shapes != expected or not all(np.isfinite(array).all() for array in given.values()):
        raise ProfileError(
            f"sums of shapes {shapes} given; expected finite ones of {expected}: the gateways of a site need the same"
            " [alarm.contextual] and [features]"
        )
    return {name: np.asarray(array, dtype=np.float64) for name, array in given.items()}


def _whole(given: Arrays, count: int) -> Arrays:
    return {name: np.broadcast_to(array.sum(axis=0), (count, *array.shape[1:])) for name, array in given.items()}


def deviation(profile: Profile, place: int, z: Array) -> float | None:
    """Return how unusual a window's features (F,) are in its cell: the largest |z - mean| / deviation; None for an
    undated window, which is not judged.

    Raises:
        ProfileError: no such cell, or another number of features.
    """
    if place == UNDATED:
        return None
    z = np.asarray(z, dtype=np.float64)
    if not 0 <= place < len(profile.mean) or z.shape != profile.mean.shape[1:]:
        raise ProfileError(
            f"cell {place} and features {z.shape} given; expected one of {len(profile.mean)} cells and features"
            f" {profile.mean.shape[1:]}"
        )
    return float((np.abs(z - profile.mean[place]) / profile.deviation[place]).max())
