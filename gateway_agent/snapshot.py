"""What an agent knows at a moment, for who looks at the gateway itself: more than leaves it, and as of now."""

from __future__ import annotations

from pydantic import BaseModel

from fedgate.config.protocol.evidence import AlarmEvidence, make_trail
from fedgate.config.protocol.messages import Alarm, Message, SourceReport, Status, Trail
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import describe_sources, status


class Snapshot(BaseModel):
    """What the gateway's page shows of its agent."""

    model_config = Message.model_config

    status: Status
    is_connected: bool
    sources: dict[str, SourceReport]  # with their last values, whether or not these are published
    alarms: tuple[Alarm, ...]  # that stand
    trail: Trail | None  # scores and levels of the latest windows
    evidence: AlarmEvidence | None  # of the latest anomaly since the start


def describe_now(state: State) -> bytes:
    """Return what an agent knows as the JSON of a `Snapshot`; any thread may ask, for a state is never changed."""
    return take_snapshot(state).model_dump_json().encode()


def take_snapshot(state: State) -> Snapshot:
    """Return what an agent knows."""
    monitor = state.monitor
    return Snapshot(
        status=status(state),
        is_connected=state.context.is_connected,
        sources=describe_sources(state, with_values=True),
        alarms=tuple(monitor.alarms.active.values()),
        trail=make_trail(monitor.trail),
        evidence=monitor.evidence,
    )
