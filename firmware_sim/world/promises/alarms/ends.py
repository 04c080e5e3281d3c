"""Whether the alarms of a simulated world that the aggregator ends on its own account may end.

An alarm ends when its gateway says so. Where it never will, for its store was lost, the aggregator ends it: with a
later alarm of the same cause, or when the gateway has said for long enough that it knows of none. Which alarm is later,
and which a gateway still has, is what its store committed; no time that a machine says is asked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Set
from typing import NamedTuple

from fedgate.config.protocol.messages import Alarm

Card = tuple[str, int]  # a device, and how often its store was handled: what holds for one may be gone on the next


class Raised(NamedTuple):
    """An alarm that was raised: which of all it was, its cause, and who holds it."""

    number: int
    cause: str
    card: Card


class Ends:
    """The alarms of all gateways, in the order in which they were committed."""

    def __init__(self, violate: Callable[[str], None]) -> None:
        self._violate = violate
        self._raised: dict[str, dict[str, Raised]] = defaultdict(dict)  # by gateway and id
        self._cleared: set[tuple[str, str]] = set()  # gateway and id
        self._came: dict[tuple[str, str], int] = {}  # gateway and id: where it is in the order in which they came
        self._count = 0
        self.counts = {"ended": 0}

    def note_alarm(self, gateway: str, alarm: Alarm, card: Card) -> None:
        """Take note of a change of an alarm that was committed by whoever raised it."""
        if alarm.state == "cleared":
            self._cleared.add((gateway, alarm.id))
        elif alarm.id not in self._raised[gateway]:
            self._count += 1
            self._raised[gateway][alarm.id] = Raised(self._count, alarm.cause, card)

    def came(self, gateway: str, alarm: Alarm) -> None:
        """Take note of an alarm that the aggregator has taken."""
        self._came.setdefault((gateway, alarm.id), len(self._came))

    def ended(self, gateway: str, alarm: Alarm, how: str, cards: Set[Card], *, is_mixed: bool, is_out: bool) -> None:
        """See that an alarm which the aggregator ends may end; `cards` are those of which nothing was ever lost and
        that alone speak for their gateways; `is_mixed`: old images or a copy of its store spoke for the gateway, too;
        `is_out`: it was revoked.
        """
        self.counts["ended"] += 1
        one = self._raised[gateway].get(alarm.id)
        if one is None:
            self._violate(f"alarm {alarm.id} of {gateway} was ended ({how}), and nobody raised it")
        elif how == "superseded":
            others = {key: other for key, other in self._raised[gateway].items() if other.cause == one.cause}
            later = {key for key, other in others.items() if other.number > one.number}
            # What the store before had still on its way nobody can tell from what is later, where a clock is wrong.
            of_another = {key for key, other in others.items() if other.card != one.card}
            if not later and not {key for key in of_another if is_mixed or self._is_late(gateway, key, alarm.id)}:
                self._violate(f"alarm {alarm.id} was ended as superseded, and {gateway} has committed no later one")
        elif how == "forgotten":
            if one.card in cards and (gateway, alarm.id) not in self._cleared:
                self._violate(f"alarm {alarm.id} was ended as forgotten, and {gateway} has it in its store")
        elif not is_out:
            self._violate(f"alarm {alarm.id} of {gateway}, which is still there, was ended: {how}")

    def _is_late(self, gateway: str, key: str, other: str) -> bool:
        """Tell whether an alarm came to the aggregator after another one."""
        came = self._came.get((gateway, key))
        return came is not None and came > self._came.get((gateway, other), math.inf)
