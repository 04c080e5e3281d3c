"""Whether the aggregator of a simulated world knows of each gateway the latest of what came to it.

A status comes late or twice by mischance, or long afterwards because a broker that lies says it again. None of them may
set back what is known already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedgate.config.protocol.messages import Status


class Latest:
    """When each status was said, and from when the one is that the aggregator goes by."""

    def __init__(self, violate: Callable[[str], None], elapsed_s: Callable[[], float]) -> None:
        self._violate, self._elapsed_s = violate, elapsed_s
        self._sent_s: dict[tuple[str, str, int | None], float] = {}  # by gateway, boot and its monotonic clock
        self._known: dict[str, Status] = {}
        self._from_s: dict[str, float] = {}

    def note_sent(self, gateway: str, status: Status) -> None:
        """Take note of a status that leaves a gateway."""
        self._sent_s.setdefault((gateway, status.boot_id, status.monotonic_ns), self._elapsed_s())

    def known(self, statuses: Mapping[str, Status], handled: Mapping[str, object]) -> None:
        """See that what the aggregator knows is not older than before; of one that was handled nobody can tell."""
        for gateway, status in statuses.items():
            if status is self._known.get(gateway):
                continue
            self._known[gateway] = status
            sent_s = self._sent_s.get((gateway, status.boot_id, status.monotonic_ns))
            if sent_s is None:  # of a last will alone
                continue
            back_s = self._from_s.get(gateway, sent_s) - sent_s
            if back_s > 0.0 and not handled.get(gateway):
                self._violate(f"what is known of {gateway} was set back by {back_s:.0f} s, to an old status")
            self._from_s[gateway] = max(sent_s, self._from_s.get(gateway, sent_s))
