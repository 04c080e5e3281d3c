"""What is known of the gateways: who belongs to the site, what each said of itself, and which device speaks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.availability import Changes
from fedgate.config.protocol.messages import MessageError, Status


@dataclass(frozen=True)
class Access:
    """The gateways between two events."""

    gateways: dict[str, Status] = field(default_factory=dict)  # what each said last of itself
    sessions: dict[str, DeviceSessions] = field(default_factory=dict)  # gateway -> who speaks under its name
    spent: dict[str, float] = field(default_factory=dict)  # gateway -> the most it said of its privacy, also if revoked
    seen: dict[str, int] = field(default_factory=dict)  # gateway -> when it was last received live, see `presence`
    signs: dict[tuple[str, str], int] = field(default_factory=dict)  # gateway, conflict -> uptime of its latest sign
    changes: dict[str, Changes] = field(default_factory=dict)  # gateway -> what was stored last, see `availability`
    registry: Registry | None = None  # who belongs to the site; None: everybody whom the broker lets in
    uncertified: int = 0  # how often a device asked for a certificate and got none, since the start

    @property
    def twins(self) -> set[str]:
        """The gateways under whose id two devices speak."""
        return {gateway for gateway, sessions in self.sessions.items() if sessions.is_twin}

    def find_cards(self, gateway: str) -> dict[str, str]:
        """Return the cards that were told apart under a name, by boot."""
        return self.sessions[gateway].cards if gateway in self.sessions else {}

    def check(self, gateway: str) -> None:
        """Raise `MessageError` where what this gateway says does not count."""
        if self.registry is not None and gateway not in self.registry.admitted:
            raise MessageError(f"{gateway} is not enrolled; 'cloud-aggregator gateways token {gateway}' lets it in")

    def without(self, gateway: str) -> Access:
        """Return the same without what a gateway said of itself; a conflict of its name ends by itself. That it is gone
        is kept where it has no date yet, see `attendance.follow_clock`.
        """
        return replace(
            self,
            gateways={name: one for name, one in self.gateways.items() if name != gateway},
            sessions={name: one for name, one in self.sessions.items() if name != gateway},
            seen={name: one for name, one in self.seen.items() if name != gateway},
            changes={name: one for name, one in self.changes.items() if name != gateway or not one.is_dated},
        )


def restore(
    gateways: dict[str, Status],
    sessions: dict[str, DeviceSessions],
    seen: dict[str, int],
    signs: dict[tuple[str, str], int],
) -> Access:
    """Return the record of a service that starts with what its store held."""
    spent = {name: one.privacy_epsilon for name, one in gateways.items() if one.privacy_epsilon is not None}
    return Access(gateways, sessions, spent, seen, signs)
