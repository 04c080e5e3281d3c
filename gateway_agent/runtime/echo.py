"""Whether the broker passes on what this gateway says: it says one empty message to itself after each connection.

A broker that denies a name everything takes its connection, acknowledges what it says and drops it, so nothing else
shows it. That is so for a device that took the place of another, until the broker is restarted.
"""

from __future__ import annotations

ITEM = "echo"  # of the channel `doctor`, which the access list lets each gateway write and read
WAIT_S = 60.0  # for an answer over a slow line
TEXT = (
    "the broker lets this gateway in and passes on nothing that it says: nobody receives its alarms. Where it took the "
    "place of another device the broker is to be restarted; 'gateway-agent doctor' finds out"
)


class Echo:
    """What was said to itself over the connection at hand; `came_back` may be called from any thread."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.is_reported = False  # that it is missing
        self._sent_s: float | None = None
        self._is_back = False

    def begin(self, now_s: float | None) -> None:
        """Note that it is said now, over a new connection; None: there is no connection any more."""
        self._sent_s, self._is_back = now_s, False

    def note_return(self) -> None:
        """Note that it was received."""
        self._is_back, self.is_reported = True, False

    def is_missing(self, now_s: float) -> bool:
        """Tell whether it should have come back by now."""
        return self._sent_s is not None and not self._is_back and now_s - self._sent_s >= WAIT_S
