"""Whether each duty that recurs is done in its time, whatever else happens meanwhile.

What a machine does "every so often" hangs on a time, and an event that takes that time anew may starve it. The end of
a world shows that only where nothing else covers for it. So each duty is looked at on its own: while a machine that is
connected owes something, it does it within a bound. What it owes follows from plain facts: what it was told and what it
has stored, never from what it takes for its duty. When it did it is seen on the line, or in its store.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from fedgate.cloud_aggregator import state as cloud
from fedgate.cloud_aggregator.rounds.round import DOUBLINGS_MAX, LOST_S, REMIND_S
from fedgate.cloud_aggregator.rounds.rounds import PATIENCE
from fedgate.config.protocol.backoff import JITTER, WAIT_S_MAX
from fedgate.config.protocol.messages import Status, round_number
from fedgate.config.protocol.topics import ALL
from fedgate.firmware_sim.world.environment.time import TICK_S
from fedgate.firmware_sim.world.promises.releases import Releases
from fedgate.gateway_agent import state as agent
from fedgate.gateway_agent.deployment.probation import STEADY_S
from fedgate.gateway_agent.outbox.outbox import ITEMS_MAX

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
        known = self._processes.get(machine)
        if known is None or known.number != process:
            known = Process(process)
        now_s = self._elapsed_s()
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


def of_cloud(state: cloud.State, releases: Releases, twins: Set[str], hostile: str = "") -> Owed:
    """Return what the aggregator owes: invitations and manifests to whoever seems to have missed them, questions for
    what is missing, and the end of a round and of a release. Of `twins` there are two, of which it may count neither;
    nothing is owed to one that is `hostile`.
    """
    owed: Owed = {}
    if releases.watched:
        owed[f"a word on model {releases.watched}"] = Due(state.context.settings.release.patience_s)
    if not state.context.is_connected:
        return owed
    honest = {name: one for name, one in state.access.gateways.items() if name != hostile}
    here = {name: one for name, one in honest.items() if one.state == "online" and _is_commissioned(one)}
    repeated = [state.context.topic(ALL, "round", "open")] if _invited(state, here) - twins else []
    for name, one in here.items():
        wanted, is_alone = releases.wanted(name)
        if one.model_version < wanted and not one.refusal.startswith(f"model {wanted} "):
            repeated.append(state.context.topic(name if is_alone else ALL, "manifest", "current"))
    owed |= {topic: Due(REMIND_S, topic) for topic in repeated}
    rounds = state.context.settings.rounds
    if state.rounds.opened and len(state.rounds.counted) >= rounds.quorum:
        owed[f"the end of round {state.rounds.server.round_index}"] = Due(rounds.deadline_s)
    elif state.rounds.opened and _is_lost(state):
        patience_s = max(rounds.deadline_s, LOST_S) * 2 ** min(state.rounds.given_up, DOUBLINGS_MAX)
        owed[f"the end of round {state.rounds.server.round_index}, which can have no quorum"] = Due(patience_s)
    for gateway, coming in state.rounds.uploads.incoming.items():
        if not coming.is_parked and gateway != hostile:
            asked = state.context.topic(gateway, "resend", coming.assembly.transfer.digest)
            owed[asked] = Due(PATIENCE.longest_s * (1.0 + JITTER), asked, len(coming.assembly.pieces))
    return owed


def _is_commissioned(status: Status) -> bool:
    return status.baseline_windows >= status.baseline_needed > 0


def _invited(state: cloud.State, here: Mapping[str, Status]) -> set[str]:
    """Return who of those that are here could answer the open round, and neither has nor was told not to."""
    number = round_number(state.rounds.run, state.rounds.server.round_index)
    able = {name for name, one in here.items() if one.can_train and one.refused_round != number}
    able &= able if state.rounds.asked is None else set(state.rounds.asked)
    return able - state.rounds.counted.keys() - state.rounds.turned_away if state.rounds.opened else set()


def _is_lost(state: cloud.State) -> bool:
    """Tell whether too few can still answer the open round, since answers were refused or lost with a store."""
    if state.rounds.algorithm.remembers:  # then it waits for what was lost
        return False
    number = round_number(state.rounds.run, state.rounds.server.round_index)
    lost = {name for name, one in state.access.gateways.items() if one.answered == number and not one.outbox}
    lost -= state.rounds.counted.keys()
    may_answer = (
        _invited(state, {name: one for name, one in state.access.gateways.items() if _is_commissioned(one)}) - lost
    )
    is_known = bool(lost | state.rounds.turned_away)
    return is_known and len(state.rounds.counted) + len(may_answer) < state.context.settings.rounds.quorum


def of_gateway(state: agent.State, stored: Set[str]) -> Owed:
    """Return what an agent owes: an end of the mark of a model that it has outlived, its status, what it holds for the
    aggregator, questions for bodies on their way.
    """
    owed: Owed = {}
    if (
        state.deployment.manifest is not None
        and state.deployment.manifest.model.digest in state.deployment.models.trying
    ):
        owed[f"an end of the mark of model {state.deployment.manifest.version}"] = Due(
            STEADY_S, progress=state.deployment.tried[1]
        )
    if not state.context.is_connected:
        return owed
    status = state.context.topic("status", "agent")
    owed[status] = Due(state.context.settings.exchange.status_s, status)
    waiting = Counter(item.priority for item in state.outbox.items.values())
    for name, item in state.outbox.items.items():
        # What finds no room beside alarms that nobody answers waits; what shares the room with its like takes turns.
        room = ITEMS_MAX - sum(count for priority, count in waiting.items() if priority < item.priority)
        if name in stored and room > 0:
            turns = math.ceil(waiting[item.priority] / room)
            # Of what comes in pieces any shows it on its way.
            owed[name] = Due(turns * ANSWER_S, item.topic if len(item.payloads) > 1 else item.payloads[0])
    for digest in state.downloads.receiver.incoming:
        asked = state.context.topic("want", digest)
        owed[asked] = Due(ANSWER_S, asked)
    return owed
