"""Whether each duty that recurs is done in its time, whatever else happens meanwhile.

What a machine does "every so often" hangs on a clock, and an event that sets that clock anew may starve it. The end of
a world shows that only where nothing else covers for it. So each duty is looked at on its own: while a machine that is
connected owes something, it does it within a bound. What it owes follows from what it knows; when it did it is seen on
the line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

from cloud_aggregator import rounds, staging
from cloud_aggregator import state as cloud
from cloud_aggregator.events import Publish
from cloud_aggregator.incoming import RESEND_S
from config.topics import ALL
from firmware_sim.world_time import TICK_S
from gateway_agent import state as agent
from gateway_agent.line import JITTER, WAIT_S_MAX

SLACK_S = 3 * TICK_S  # machines look at their clocks when they tick, and so does this
ANSWER_S = WAIT_S_MAX * (1.0 + JITTER)  # the longest pause before something is sent once more


class Due(NamedTuple):
    """What is to be seen on the line, and within what time; that it goes on is as good as that."""

    within_s: float
    seen: str | bytes = ""  # a topic or a payload
    progress: int = 0


Owed = dict[str, Due]


@dataclass
class Process:
    """The duties of one process of a machine."""

    number: int
    owed: Owed = field(default_factory=dict)
    since_s: dict[str, float] = field(default_factory=dict)


class Liveness:
    """Watches all machines of a world."""

    def __init__(self, violate: Callable[[str], None], elapsed_s: Callable[[], float]) -> None:
        self._violate, self._elapsed_s = violate, elapsed_s
        self._processes: dict[str, Process] = {}

    def owes(self, machine: str, process: int, owed: Owed) -> None:
        """Take note of what a process of a machine owes now, and complain of what is overdue."""
        now_s, known = self._elapsed_s(), self._processes.get(machine)
        if known is None or known.number != process:
            known = Process(process)
        since_s = {duty: known.since_s[duty] if known.owed.get(duty) == due else now_s for duty, due in owed.items()}
        for duty, due in owed.items():
            if now_s - since_s[duty] > due.within_s + SLACK_S:
                self._violate(f"{machine} owes {duty}, and did not see to it for {now_s - since_s[duty]:.0f} s")
                since_s[duty] = math.inf  # said once
        self._processes[machine] = Process(process, owed, since_s)

    def sent(self, machine: str, topic: str, payload: bytes) -> None:
        """Take note of what a machine sends."""
        known = self._processes.get(machine)
        if known is None:
            return
        for duty, due in known.owed.items():
            if due.seen in (topic, payload):
                known.since_s[duty] = self._elapsed_s()


def of_cloud(state: cloud.State) -> Owed:
    """Return what the aggregator owes: reminders, questions for what is missing, and the end of a round."""
    if not state.connected:
        return {}
    repeated = [one.topic for one in staging.reminders(state) if isinstance(one, Publish)]
    if state.opened and rounds.waited_for(state):
        repeated.append(cloud.topic(state, ALL, "round", "open"))
    owed = {topic: Due(rounds.REMIND_S, topic) for topic in repeated}
    if state.opened and len(state.counted) >= state.settings.rounds.quorum:
        owed[f"the end of round {state.server.round_index}"] = Due(state.settings.rounds.deadline_s)
    for gateway, one in state.incoming.items():
        if not one.parked:
            asked = cloud.topic(state, gateway, "resend", one.assembly.transfer.digest)
            owed[asked] = Due(RESEND_S, asked, len(one.assembly.pieces))
    return owed


def of_gateway(state: agent.State, stored: Container[str]) -> Owed:
    """Return what an agent owes: its status, what it holds for the aggregator, questions for bodies on their way."""
    if not state.connected:
        return {}
    status = agent.topic(state, "status", "agent")
    owed = {status: Due(state.settings.exchange.status_s, status)}
    for name, item in state.outbox.items():
        if name in stored:  # of what comes in pieces any piece shows that it is on its way
            owed[name] = Due(ANSWER_S, item.topic if len(item.payloads) > 1 else item.payloads[0])
    for digest in state.fetches:
        asked = agent.topic(state, "want", digest)
        owed[asked] = Due(ANSWER_S, asked)
    return owed
