"""Whether the service works, and which gateways were heard live: what `cloud-aggregator status` rests on.

A store knows nothing of the time in which nobody writes to it. So the service writes every `BEAT_S` that it still
works, from the loop that does the work, and at once when the broker's connection comes or goes: one small commit a
minute. Who reads it compares that with the clock, and looks whether the store is held by a process.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.events import Effect, RecordService
from fedgate.cloud_aggregator.state import State
from fedgate.config.protocol.messages import Status
from fedgate.models.records import replace

NS = 1_000_000_000
BEAT_S = 60.0
QUEUED_S = 30.0  # after a connection began, in which what comes may have waited at the broker
Result = tuple[State, list[Effect]]


def start_presence(state: State, seen: dict[str, int], before: RecordService | None) -> State:
    """Return the state of a service that begins, without a connection: since the last sign of the one before it, where
    that had one. `seen` and `before` are what the store holds.
    """
    since_ns = state.now_ns
    if before is not None:
        since_ns = min(before.beat_ns if before.is_connected else before.link_ns, state.now_ns)
    first = RecordService(state.now_ns, 0, False, since_ns)
    return replace(state, seen=seen, connected_ns=since_ns, heartbeat=first)


def connection_changed(state: State, up: bool) -> Result:
    """Note that the broker's connection came or went."""
    return _write_heartbeat(replace(state, connected=up, connected_ns=state.now_ns))


def write_heartbeat_if_due(state: State) -> Result:
    """Write that the service works, where that was last written long enough ago."""
    last = state.heartbeat
    if last is None or 0 <= state.now_ns - last.beat_ns < BEAT_S * NS:
        return state, []
    return _write_heartbeat(state)


def _write_heartbeat(state: State) -> Result:
    last = state.heartbeat
    if last is None:
        return state, []
    now = RecordService(last.began_ns, state.now_ns, state.connected, state.connected_ns)
    return replace(state, heartbeat=now), [now]


def note_seen(state: State, gateway: str, status: Status, *, is_retained: bool) -> State:
    """Return the state with when a gateway was last heard, where a status shows that it was there then.

    What the broker had kept does not, nor does an offline status: a last will is the broker's word, and comes late to
    who was away. What waited at the broker for us counts from when it was said, where the gateway's clock is right.
    """
    if is_retained or status.state == "offline":
        return state
    if status.clock == "synchronised" and status.t_ns is not None:
        stated_ns = min(status.t_ns, state.now_ns)
    elif state.now_ns - state.connected_ns < QUEUED_S * NS:
        return state
    else:
        stated_ns = state.now_ns
    return replace(state, seen={**state.seen, gateway: max(stated_ns, min(state.seen.get(gateway, 0), state.now_ns))})
