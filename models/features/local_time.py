"""Local hour and weekday of a time: people, heating and light keep the clock on the wall, summer time included."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from fedgate.models.arrays import Array, Floats, Integers
from fedgate.models.time_units import DAY_NS, HOUR_S, NS

QUARTER_NS = 900 * NS  # where an offset changes, it does so on the quarter of an hour
MONDAY = 3  # the weekday of the first of January 1970, a Thursday, Monday being 0


def zone(name: str) -> ZoneInfo:
    """Return a time zone by its name in the IANA database. Raises ValueError where there is none of that name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"time zone {name!r} is unknown here; expected a name such as 'Europe/Berlin' or 'UTC' (and the package"
            " tzdata where the system has no time zones)"
        ) from None


def local_hours(name: str, t_ns: Array) -> tuple[Floats, Integers]:
    """Return hour of the day, 0 to 24 exclusive, and weekday, Monday 0, both (n,), of times (n,) in nanoseconds since
    1970 UTC.
    """
    walls_ns = local_ns(name, t_ns)
    return walls_ns % DAY_NS / (HOUR_S * NS), (walls_ns // DAY_NS + MONDAY) % 7


def local_ns(name: str, t_ns: Array) -> Integers:
    """Return times in nanoseconds since 1970 UTC, of any shape, as nanoseconds since the local beginning of 1970 by the
    clock on the wall.
    """
    t_ns = np.asarray(t_ns, dtype=np.int64)
    here = zone(name)
    quarters, index = np.unique(t_ns // QUARTER_NS, return_inverse=True)
    offsets_ns = [_offset_ns(here, int(quarter) * QUARTER_NS) for quarter in quarters]
    return t_ns + np.array(offsets_ns, dtype=np.int64)[index].reshape(t_ns.shape)


def _offset_ns(here: ZoneInfo, t_ns: int) -> int:
    offset = datetime.fromtimestamp(t_ns // NS, UTC).astimezone(here).utcoffset()
    if offset is None:  # a ZoneInfo always has one for a full date
        raise AssertionError(f"{here.key} has no offset from UTC")
    return round(offset.total_seconds() * NS)
