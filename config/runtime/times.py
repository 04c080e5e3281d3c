"""Times as operators give them to commands."""

from __future__ import annotations

import argparse
import math
import re
import time
from datetime import datetime
from typing import NamedTuple

from fedgate.models.time_units import DAY_S, HOUR_S, NS

DURATION = re.compile(r"[\d.]+[smhd]")
UNITS_S = {"s": 1.0, "m": 60.0, "h": HOUR_S, "d": DAY_S}


def read_duration_s(text: str) -> float:
    """Return a duration given as 90s, 30m, 8h or 2d, in seconds; raises `argparse.ArgumentTypeError`."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smhd])", text)
    if not found or not math.isfinite(value := float(found[1]) * UNITS_S[found[2]]):
        raise argparse.ArgumentTypeError(f"{text!r} given; expected a duration such as 90s, 30m, 8h or 2d")
    return value


def read_moment_ns(text: str) -> int:
    """Return a moment that is over, given as ISO 8601 (of this machine's time zone where it names none) or as how long
    ago (8h), in ns of Unix time; raises `argparse.ArgumentTypeError`.
    """
    if DURATION.fullmatch(text):
        return time.time_ns() - int(read_duration_s(text) * NS)
    return _read_iso_ns(text, "8h for 8 hours ago")


class Coming(NamedTuple):
    """A moment to come: of Unix time in ns, or so long after another."""

    t_ns: int
    is_after: bool

    def find_ns(self, start_ns: int) -> int:
        """Return the moment in ns of Unix time, counted from `start_ns` where it is after another."""
        return start_ns + self.t_ns if self.is_after else self.t_ns


def read_coming(text: str) -> Coming:
    """Return a moment given as 'now', as ISO 8601 (of this machine's time zone where it names none), or as how long
    after another (8h); raises `argparse.ArgumentTypeError`.
    """
    if text == "now" or DURATION.fullmatch(text):
        return Coming(0 if text == "now" else int(read_duration_s(text) * NS), is_after=True)
    return Coming(_read_iso_ns(text, "now, or 8h for 8 hours later"), is_after=False)


def _read_iso_ns(text: str, other: str) -> int:
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * NS)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"{text!r} given; expected a time such as 2026-05-04T08:00, 2026-05-04T08:00+02:00, or {other}"
        ) from None
