"""Connections that end as soon as they begin, again and again: a state that nobody would notice from the outside.

A broker that is asked for a second connection under an id ends the first; two clients of one id so throw each other off
for ever. With MQTT 5 it says why. Without, each believes in a bad line: all a client can see is that its connections
last for seconds. It then leaves long pauses, which lets one of the two work, and says what it is, or looks like.
"""

from __future__ import annotations

from fedgate.config.protocol.backoff import compute_pause_s

RECONNECT_S_MIN = 1
RECONNECT_S_MAX = 60
SHORT_S = 10.0  # a connection that lasted no longer was ended by something else than the line
ENOUGH = 4  # short ones in a row
PAUSE_S_MAX = 900
TAKEN_OVER = "Session taken over"  # as the broker calls it, whenever that is
REASONED = "{count} connections in a row were ended by the broker, which says: {reason}"
TEXT = (
    "{count} connections in a row ended within {short:g} s each: it looks as if another client used the same id, or as "
    "if the broker refused what is sent to it (size, rights); see the broker's log"
)


class SessionConflict:
    """What the ends of a client's connections say; the network's thread tells it, others may read."""

    def __init__(self) -> None:
        self._since_s: float | None = None  # of the connection at hand
        self._short = 0
        self.text = ""

    def begin(self, now_s: float) -> None:
        """A connection begins."""
        self._since_s = now_s

    def end(self, now_s: float, reason: str = "") -> bool:
        """A connection, if there was one, ended, for a reason where the broker gave one; True where that is worth a
        word now: at 4, 8, 16, ... in a row.
        """
        if self._since_s is None:
            return False
        is_short, self._since_s = reason == TAKEN_OVER or now_s - self._since_s < SHORT_S, None
        self._short = self._short + 1 if is_short else 0
        text = REASONED if reason else TEXT
        self.text = text.format(count=self._short, short=SHORT_S, reason=reason) if self._short >= ENOUGH else ""
        return self.text != "" and self._short.bit_count() == 1

    def pauses_s(self, longest_s: int) -> tuple[int, int]:
        """Return the shortest and the longest pause before the next connection, `longest_s` where nothing is wrong."""
        if not self.text:
            return RECONNECT_S_MIN, longest_s
        shortest_s = round(compute_pause_s(RECONNECT_S_MIN, self._short - ENOUGH + 3, PAUSE_S_MAX))
        return shortest_s, max(longest_s, shortest_s)
