"""Lengths of time in nanoseconds, in which all times are kept, and in seconds; both and moments as text."""

from __future__ import annotations

from datetime import UTC, datetime

NS = 1_000_000_000  # in a second
HOUR_S, DAY_S = 3_600.0, 86_400.0
HOUR_NS, DAY_NS = 3_600 * NS, 86_400 * NS


def format_duration(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    for length, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def format_moment(t_ns: int) -> str:
    """Return a moment of Unix time in UTC, to the second."""
    try:
        return f"{datetime.fromtimestamp(t_ns // NS, UTC).isoformat(' ')[:19]} UTC"
    except (ValueError, OverflowError, OSError):  # a clock that was never set may say anything
        return f"at {t_ns} ns"
