"""How much was written to the flash in the last day or so: what wears it out, and what a budget is kept by."""

from __future__ import annotations

import json
from typing import NamedTuple

from fedgate.models.time_units import DAY_NS


class WriteBudget(NamedTuple):
    """The bytes written since a moment, at most a day ago."""

    started_ns: int = 0  # since the boot; before it, too
    written_bytes: int = 0

    def move_to(self, uptime_ns: int) -> WriteBudget:
        """Return the account at a moment: a day that is over begins anew."""
        return self if uptime_ns - self.started_ns < DAY_NS else WriteBudget(uptime_ns)

    def dump(self, anchor_ns: int) -> bytes:
        """Return the account as it is stored, by the wall clock: another boot has another uptime."""
        return json.dumps((self.started_ns + anchor_ns, self.written_bytes)).encode()

    def add(self, size_bytes: int) -> WriteBudget:
        """Return the account with more written."""
        return WriteBudget(self.started_ns, self.written_bytes + size_bytes)


def restore_day(body: bytes | None, uptime_ns: int, anchor_ns: int) -> WriteBudget:
    """Return the account that was stored.

    Where the clock went back what was written still counts, for another whole day: a gateway that boots in the past
    must not write a budget at every boot.
    """
    if body is None:
        return WriteBudget(uptime_ns)
    started_ns, written_bytes = json.loads(body)
    return WriteBudget(min(started_ns - anchor_ns, uptime_ns), written_bytes).move_to(uptime_ns)
