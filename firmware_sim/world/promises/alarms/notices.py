"""Whether those who are to be called for alarms of a simulated world are called: for each change once, and for none
that is masked.

What the workflow wants is worked out anew, from what was committed; what was queued must be that, in the same commit.
What was queued leaves the queue when the receiver has taken it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fedgate.cloud_aggregator import events
from fedgate.cloud_aggregator.alarms.handling import LOOK_S
from fedgate.config.protocol.topics import ALL
from fedgate.firmware_sim.world.environment.setup import ESCALATED, ESCALATED_S
from fedgate.firmware_sim.world.environment.time import TICK_S
from fedgate.firmware_sim.world.promises.alarms.states import Key, States

SEVERITIES = ("warning", "major", "critical")
SLACK_S = 2 * TICK_S + LOOK_S  # machines look at their clocks when they tick
Notice = tuple[Key, str, str]  # of which alarm, raised or cleared, and why it is told again: empty for a change


class Notices:
    """What is told of alarms, where there is somebody to tell."""

    def __init__(self, violate: Callable[[str], None], elapsed_s: Callable[[], float], states: States) -> None:
        self._violate, self._elapsed_s, self._states = violate, elapsed_s, states
        self.is_on = False
        self.hostile = ""
        self._wanted = Counter[Notice]()  # by the commit at hand
        self._hushed = Counter[Key]()  # alarms that it must find masked as they are raised
        self._waiting: dict[str, str] = {}  # id -> gateway
        self._taken: set[str] = set()  # ids
        self.counts = {"notices": 0, "escalated": 0}

    def begin(self) -> None:
        """Take note that a commit begins."""
        self._wanted, self._hushed = Counter(), Counter()

    def note_change(self, effect: events.RecordAlarm | events.RecordFleet, rest: Sequence[Any], now_ns: int) -> None:
        """Take note of a new change of an alarm, which the states know of already; `rest` is what the commit holds
        beside it.
        """
        key = Key(effect.gateway if isinstance(effect, events.RecordAlarm) else ALL, effect.alarm.id)
        one = self._states.alarms[key]
        is_over = not one.is_active or any(_ends(other, key) for other in rest)  # one that came late, behind a later
        if not is_over and self._states.mask(key, now_ns) in ("suppressed", "out-of-service"):
            self._hushed[key] += 1
        elif one.was_called:
            self._wanted[key, effect.alarm.state, ""] += 1

    def note_event(self, event: events.AlarmEvent, now_ns: int) -> None:
        """See that what the service does by itself about an alarm is due; the states do not know of it yet."""
        key = Key(event.gateway, event.alarm)
        if key.gateway == self.hostile:  # of which an old alarm that is told again may be taken for a new one
            return
        one, mask = self._states.alarms[key], self._states.mask(key, now_ns)
        if not one.is_active or bool(mask) != (event.kind == "suppress"):
            self._violate(f"{event.alarm}: {event.kind}, and it is {self._states.state(key, now_ns)}")
        if event.kind == "suppress":
            is_notified = event.body["is_notified"]
            if is_notified != one.was_called and not self._hushed[key]:
                self._violate(f"{event.alarm} is suppressed as if {'somebody' if is_notified else 'nobody'} knew of it")
            self._hushed[key] -= one.was_called and not is_notified
            return
        is_asking = one.acknowledged_by is None
        if event.kind == "escalate" and (not is_asking or one.is_escalated or not self._may_escalate(key)):
            self._violate(f"{event.alarm} was told once more, which was not due")
        self.counts["escalated"] += event.kind == "escalate"
        if is_asking:
            self._wanted[key, "raised", event.kind] += 1

    def _may_escalate(self, key: Key) -> bool:
        return SEVERITIES.index(self._states.alarms[key].severity) >= SEVERITIES.index(ESCALATED)

    def end(self, effects: Sequence[Any]) -> None:
        """See that a commit has queued what is to be told, and nothing else."""
        found = Counter[Notice]()
        given_up = sum(isinstance(one, events.RecordCount) for one in effects)
        for effect in effects:
            match effect:
                case events.Enqueue(name=name, item=post):
                    self.counts["notices"] += name not in self._waiting
                    self._waiting[name] = post.gateway
                    found[_read(post)] += 1
                case events.Dequeue(name=name):
                    if name not in self._taken and not given_up:
                        self._violate(f"a notice of {self._waiting[name]} left the queue, and nobody took it")
                    self._waiting.pop(name, None)
        if not self.is_on:
            return
        for what, notices in (("is not told", self._wanted - found), ("is told", found - self._wanted)):
            for key, state, why in notices:
                if key.gateway != self.hostile:
                    self._violate(f"{key.alarm} {state} {why or 'as a change'} {what}")
        for key in +self._hushed:
            if key.gateway != self.hostile:
                self._violate(f"{key.alarm} was raised while it was masked, and no event says so")

    def took(self, post: events.Post) -> None:
        """Take note that the receiver has taken a notice."""
        if post.id not in self._waiting and post.id not in self._taken:
            self._violate(f"{post.gateway}: the receiver was told what was never queued")
        self._taken.add(post.id)

    def opened(self, posts: Sequence[dict[str, Any]]) -> None:
        """See that a restart goes on with what waits."""
        if sorted(row["id"] for row in posts) != sorted(self._waiting):
            self._violate("a restart went on with other notices than waited")

    @property
    def missing(self) -> int:
        """How many the receiver has yet to get, of those that are owed."""
        return sum(gateway != self.hostile for gateway in self._waiting.values())

    def ticked(self, now_ns: int, started_s: float) -> None:
        """See, after the service has looked, that each mask was noticed, and whoever waited too long was told of."""
        for key, one in self._states.alarms.items():
            if not one.is_active or key.gateway == self.hostile:
                continue
            mask = self._states.mask(key, now_ns)
            if one.is_masked != bool(mask):
                self._violate(f"{key.alarm} is {mask or 'not masked'}, and nobody noticed")
            late_s = self._elapsed_s() - max(one.called_s, started_s) - ESCALATED_S
            is_waiting = one.acknowledged_by is None and not mask and not one.is_escalated
            if self.is_on and is_waiting and late_s > SLACK_S and self._may_escalate(key):
                self._violate(f"{key.alarm} waits for somebody for {late_s:.0f} s too long")


def _ends(effect: object, key: Key) -> bool:
    """Tell whether the aggregator ended an alarm by this."""
    return isinstance(effect, events.RecordAlarm) and effect.ended != "" and (effect.gateway, effect.alarm.id) == key


def _read(post: events.Post) -> Notice:
    body = json.loads(post.body)
    why = ("escalate" if body["escalated"] else "resume") if "escalated" in body else ""
    return Key(body["gateway"], body["alarm"]["id"]), "raised" if why else body["alarm"]["state"], why
