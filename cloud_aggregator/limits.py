"""How often something may happen: counts within an hour, and allowances that fill up again."""

from __future__ import annotations

from dataclasses import dataclass, replace

NS = 1_000_000_000
HOUR_NS = 3_600 * NS


@dataclass(frozen=True)
class HourlyCount:
    """How often something happened within an hour, and when that hour began."""

    count: int = 0
    started_ns: int = 0

    def is_running(self, now_ns: int) -> bool:
        """Tell whether that hour is not over, and the clock was not set back since."""
        return 0 <= now_ns - self.started_ns < HOUR_NS


def one_more(known: HourlyCount | None, now_ns: int) -> HourlyCount:
    """Return a count with one more, which begins anew each hour and where the clock was set back."""
    if known is None or not known.is_running(now_ns):
        return HourlyCount(1, now_ns)
    return replace(known, count=known.count + 1)


@dataclass(frozen=True)
class Spent:
    """How much of what it may have a gateway has used, less what it had again by `at_ns`."""

    amount: float = 0.0
    at_ns: int = 0

    def after(self, now_ns: int, each_s: float) -> float:
        """Return how much is used at `now_ns`, where it has one more each `each_s`."""
        passed_s = (now_ns - self.at_ns) / NS
        return max(self.amount - passed_s / each_s, 0.0) if passed_s >= 0.0 else 0.0  # our clock was set back since
