"""Whether the service works, by the sign of it in the store: what everybody asks before the rest is believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedgate.models.time_units import NS

HANGS_S = 180.0  # without a sign of its work, of which it writes one a minute
SILENT_S = 900.0  # of a gateway that counts as online; as gateways are shipped they speak once a minute
Work = Literal["running", "hangs", "stopped", "never ran"]
GatewayState = Literal["online", "offline", "revoked", "unknown"]


@dataclass(frozen=True)
class Health:
    """Whether the service works, and how old what it stored is; times in ns of Unix time, None where unknown."""

    work: Work
    began_ns: int | None = None
    beat_ns: int | None = None  # its last sign
    is_connected: bool = False
    link_ns: int | None = None  # since when that is so
    as_of_ns: int | None = None  # the moment that the states of gateways are of

    @property
    def is_live(self) -> bool:
        """True where what is stored says how things are now."""
        return self.work == "running" and self.is_connected


def describe_health(row: Mapping[str, Any] | None, held_ns: int | None, now_ns: int) -> Health:
    """Return what the stored sign of the service tells, where its store was taken at `held_ns`; None: nobody has it.

    A sign from before that is not of the process that has the store now, such as of one that begins. One that is said
    to have begun in the future had its clock set back since: then all signs are its own.
    """
    if row is None:
        return Health("never ran")
    held_ns = row["began_ns"] if held_ns is not None and held_ns > now_ns else held_ns
    as_of_ns = row["beat_ns"] if row["is_connected"] else row["link_ns"]
    if held_ns is None:
        return Health("stopped", row["began_ns"], row["beat_ns"], False, None, as_of_ns)
    work: Work = "hangs" if now_ns - max(row["beat_ns"], held_ns) > HANGS_S * NS else "running"
    is_its_own = row["beat_ns"] >= held_ns
    link_ns = row["link_ns"] if is_its_own else as_of_ns
    return Health(work, held_ns, row["beat_ns"], is_its_own and row["is_connected"], link_ns, as_of_ns)


def find_gateway_state(stated: GatewayState, found: Health, *, is_barred: bool) -> GatewayState:
    """Return how a gateway is now, whose last status stated this."""
    if is_barred:
        return "revoked"
    return stated if found.is_live else "unknown"


def is_silent(state: str, seen_ns: int | None, link_ns: int | None, now_ns: int) -> bool:
    """Tell whether a gateway that counts as online has not spoken for long, where it could: since the connection."""
    return state == "online" and now_ns - max(seen_ns or 0, link_ns or 0) > SILENT_S * NS
