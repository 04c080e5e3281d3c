"""The wall clock was set: the timeline of the gateway goes on from there.

A board without a clock of its own boots years ago, and learns the time when the network comes, weeks later perhaps.
Pauses and patiences go on as if nothing had happened. Windows begin anew: what lies on both sides of the step has no
common time. What was told before keeps its id and its times, for the aggregator holds them; with the boot's id and the
time since the boot, which every message carries, it can correct them.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.gateway_agent.events import Anchored, Effect, Log
from fedgate.gateway_agent.state import State, tell
from fedgate.models.records import replace


def anchored(state: State, event: Anchored) -> tuple[State, list[Effect]]:
    """Take over the step of the clock; `state.now_ns` is on the new timeline already."""
    by_ns = event.by_ns
    line, pipeline = state.line, state.pipeline
    alarm = replace(pipeline.alarm, run_ns=None, last_ns=None)  # its onset stays: it is in the alarm's id
    state = replace(
        state,
        life=replace(state.life, anchor_ns=event.anchor_ns),
        line=replace(line, urgent_ns=line.urgent_ns + by_ns, bulk_ns=line.bulk_ns + by_ns, heard_ns=None),
        pipeline=replace(pipeline, alarm=alarm),
        sent_ns=_moved(state.sent_ns, by_ns),
        heard_ns=_moved(state.heard_ns, by_ns),
        lost_ns=_moved(state.lost_ns, by_ns),
        faulty_ns=_moved(state.faulty_ns, by_ns),
        offsets={key: offset + by_ns for key, offset in state.offsets.items()},
        fetches={name: replace(one, ask_at_ns=one.ask_at_ns + by_ns) for name, one in state.fetches.items()},
        retry_ns=state.retry_ns + by_ns,
        unrun_ns=None if state.unrun_ns is None else state.unrun_ns + by_ns,
        untried_ns=None if state.untried_ns is None else state.untried_ns + by_ns,
        remembered_ns=state.remembered_ns + by_ns,
        tried=(state.tried[0], state.tried[1] + by_ns),
        clock=event.clock,
    )
    text = f"the wall clock was set by {by_ns / 1e9:+.0f} s: windows begin anew at the new time"
    state, told = tell(state)
    return state, [Log("warning", text), *told]


def _moved(times_ns: Mapping[str, int], by_ns: int) -> dict[str, int]:
    return {key: at_ns + by_ns for key, at_ns in times_ns.items()}
