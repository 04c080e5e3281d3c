"""The wall clock was set: the timeline of the gateway goes on from there.

A board without a clock of its own boots years ago, and learns the time when the network comes, weeks later perhaps.
Pauses and patiences go on as if nothing had happened. Windows begin anew: what lies on both sides of the step has no
common time. What was told before keeps its id and its times, for the aggregator holds them; with the boot's id and the
time since the boot, which every message carries, it can correct them.
"""

from __future__ import annotations

from fedgate.gateway_agent import downloads
from fedgate.gateway_agent.events import Anchored, Effect, Log
from fedgate.gateway_agent.state import State, tell
from fedgate.models.records import replace


def set_clock(state: State, event: Anchored) -> tuple[State, list[Effect]]:
    """Take over the step of the clock; `context.now_ns` is on the new timeline already."""
    by_ns = event.by_ns
    state = replace(
        state,
        context=replace(state.context, anchor_ns=event.anchor_ns, clock=event.clock),
        monitor=state.monitor.move_times(by_ns),
        outbox=state.outbox.move_times(by_ns),
        downloads=downloads.move_times(state.downloads, by_ns),
        training=replace(state.training, retry_ns=state.training.retry_ns + by_ns),
        deployment=state.deployment.move_times(by_ns),
    )
    text = f"the wall clock was set by {by_ns / 1e9:+.0f} s: windows begin anew at the new time"
    state, told = tell(state)
    return state, [Log("warning", text), *told]
