"""How often something may happen: counts within an hour, and allowances that fill up again; all by the uptime."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedgate.models.time_units import HOUR_NS, NS


@dataclass(frozen=True)
class HourlyCount:
    """How often something happened within an hour, and when that hour began."""

    count: int = 0
    started_ns: int = 0

    def is_running(self, uptime_ns: int) -> bool:
        """Tell whether that hour is not over."""
        return uptime_ns - self.started_ns < HOUR_NS


def count_one_more(known: HourlyCount | None, uptime_ns: int) -> HourlyCount:
    """Return a count with one more, which begins anew each hour."""
    if known is None or not known.is_running(uptime_ns):
        return HourlyCount(1, uptime_ns)
    return replace(known, count=known.count + 1)


@dataclass(frozen=True)
class Allowance:
    """How much of what it may have a gateway has used, less what it had again by `at_ns`."""

    amount: float = 0.0
    at_ns: int = 0

    def compute_used(self, uptime_ns: int, each_s: float) -> float:
        """Return how much is used at `uptime_ns`, where it has one more each `each_s`."""
        return max(self.amount - (uptime_ns - self.at_ns) / NS / each_s, 0.0)
