"""What the aggregator does about a gateway's name that is not what it seems: see `device_sessions` for how it is known.

An operator sees it where they see all else that is wrong, as an alarm of that gateway. It stands in the registry, goes
to the webhook and the building, and clears by itself when there was no sign of it for a while.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.access import device_sessions
from fedgate.cloud_aggregator.access.device_sessions import DeviceSessions
from fedgate.cloud_aggregator.alarms import handling
from fedgate.cloud_aggregator.events import Effect, RecordGateway
from fedgate.cloud_aggregator.state import State
from fedgate.config.protocol.messages import Status
from fedgate.models.records import replace

REFUSED = "identity-refused"
REFUSED_STANDS_S = 3_600.0
Result = tuple[State, list[Effect]]


def note_status(state: State, gateway: str, status: Status) -> tuple[State, list[Effect], bool]:
    """Take in who says a status, and whether it tells how the gateway is now: a late one does not."""
    before = state.sessions.get(gateway, DeviceSessions())
    after, is_news = device_sessions.note_status(before, status, state.now_ns)
    if after is before:
        return state, [], is_news
    state = replace(state, sessions={**state.sessions, gateway: after})
    if after.trouble is None:
        return state, [], is_news
    state, effects = _changed(state, gateway, before, after)
    if effects and not is_news:  # else it is stored with its status
        effects.append(record(state, gateway))
    return state, effects, is_news


def turned_away(state: State, gateway: str) -> Result:
    """Raise an alarm where another device came for the name of a gateway, and got no certificate."""
    text = (
        "another device came with a token for this id and was turned away. Where it is to take the place, make a token "
        "with --replace; where nobody meant it, revoke the gateway, which voids its tokens"
    )
    return handling.raise_ours(state, gateway, REFUSED, "warning", text)


def _passed(state: State) -> Result:
    """End the alarms about devices that were turned away, an hour after."""
    effects: list[Effect] = []
    for gateway in state.outward.alarms:
        for alarm in handling.of_ours(state, gateway, REFUSED):
            if not 0 <= state.now_ns - alarm.t_ns < REFUSED_STANDS_S * device_sessions.NS:
                state, more = handling.end_ours(state, gateway, alarm, f"it was turned away {REFUSED_STANDS_S:g} s ago")
                effects += more
    return state, effects


def end_conflicts(state: State) -> Result:
    """End the troubles that have given no sign for long enough."""
    state, effects = _passed(state)
    for gateway, one in state.sessions.items():
        if device_sessions.over(one, state.now_ns) and gateway in state.gateways:
            state, more = _over(state, gateway, one)
            effects += [*more, record(state, gateway)]
    return state, effects


def record(state: State, gateway: str) -> RecordGateway:
    """Return the effect that stores what is known of a gateway."""
    speaks = device_sessions.to_text(state.sessions[gateway]) if gateway in state.sessions else ""
    return RecordGateway(gateway, state.gateways[gateway], state.seen.get(gateway, 0), speaks)


def _changed(state: State, gateway: str, before: DeviceSessions, after: DeviceSessions) -> Result:
    effects: list[Effect] = []
    if before.trouble is not None and (before.trouble, before.since_ns) != (after.trouble, after.since_ns):
        state, effects = _record_alarm(state, gateway, replace(before, until_ns=state.now_ns))
    if (before.trouble, before.since_ns) == (after.trouble, after.since_ns):
        return state, effects
    state, more = _record_alarm(state, gateway, after)
    return state, [*effects, *more]


def _over(state: State, gateway: str, known: DeviceSessions) -> Result:
    state, effects = _record_alarm(state, gateway, known)
    quiet = replace(known, trouble=None, since_ns=0, until_ns=0)
    return replace(state, sessions={**state.sessions, gateway: quiet}), effects


def _record_alarm(state: State, gateway: str, known: DeviceSessions) -> Result:
    alarm = device_sessions.alarm_of(gateway, known, state.now_ns)
    return (state, []) if alarm is None else handling.apply_change(state, gateway, alarm)
