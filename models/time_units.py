"""Lengths of time in nanoseconds, in which all times are kept, and in seconds."""

from __future__ import annotations

NS = 1_000_000_000  # in a second
HOUR_S, DAY_S = 3_600.0, 86_400.0
HOUR_NS, DAY_NS = 3_600 * NS, 86_400 * NS
