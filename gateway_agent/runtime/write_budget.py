"""How much was written to the flash in the last day or so: what wears it out, and what a budget is kept by."""

from __future__ import annotations

from typing import NamedTuple

from fedgate.models.time_units import DAY_NS


class Day(NamedTuple):
    """The bytes written since a moment, at most a day ago."""

    started_ns: int = 0
    written_bytes: int = 0

    def at(self, now_ns: int) -> Day:
        """Return the account at a moment: a day that is over begins anew.

        Where the clock went back what was written still counts, for another whole day: a gateway that boots in the
        past must not write a budget at every boot.
        """
        if now_ns < self.started_ns:
            return Day(now_ns, self.written_bytes)
        return self if now_ns - self.started_ns < DAY_NS else Day(now_ns, 0)

    def moved(self, by_ns: int) -> Day:
        """Return the account on a timeline that was moved by so much."""
        return Day(self.started_ns + by_ns, self.written_bytes)

    def plus(self, size_bytes: int) -> Day:
        """Return the account with more written."""
        return Day(self.started_ns, self.written_bytes + size_bytes)
