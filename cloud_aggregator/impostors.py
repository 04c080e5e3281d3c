"""What the aggregator does about a gateway's name that is not what it seems: see `lives` for how it is known.

An operator sees it where they see all else that is wrong, as an alarm of that gateway. It stands in the registry, goes
to the webhook and the building, and clears by itself when there was no sign of it for a while.
"""

from __future__ import annotations

from dataclasses import replace

from cloud_aggregator import alarms, lives
from cloud_aggregator.events import Effect, RecordGateway
from cloud_aggregator.lives import Lives
from cloud_aggregator.state import State
from config.messages import Status

Result = tuple[State, list[Effect]]


def heard(state: State, gateway: str, status: Status) -> tuple[State, list[Effect], bool]:
    """Take in who says a status, and whether it tells how the gateway is now: a late one does not."""
    before = state.lives.get(gateway, Lives())
    after, is_news = lives.told(before, status, state.now_ns)
    if after is before:
        return state, [], is_news
    state = replace(state, lives={**state.lives, gateway: after})
    if after.trouble is None:
        return state, [], is_news
    return *_changed(state, gateway, before, after), is_news


def ticked(state: State) -> Result:
    """End the troubles that have given no sign for long enough."""
    effects: list[Effect] = []
    for gateway, one in state.lives.items():
        if lives.over(one, state.now_ns):
            state, more = _over(state, gateway, one)
            status = state.gateways[gateway]
            effects += [*more, RecordGateway(gateway, status, state.now_ns, stored(state, gateway))]
    return state, effects


def stored(state: State, gateway: str) -> str:
    """Return what is stored of who speaks under a gateway's name."""
    return lives.to_text(state.lives[gateway]) if gateway in state.lives else ""


def _changed(state: State, gateway: str, before: Lives, after: Lives) -> Result:
    effects: list[Effect] = []
    if before.trouble is not None and (before.trouble, before.since_ns) != (after.trouble, after.since_ns):
        state, effects = _told(state, gateway, replace(before, until_ns=state.now_ns))
    if (before.trouble, before.since_ns) == (after.trouble, after.since_ns):
        return state, effects
    state, more = _told(state, gateway, after)
    return state, [*effects, *more]


def _over(state: State, gateway: str, known: Lives) -> Result:
    state, effects = _told(state, gateway, known)
    quiet = replace(known, trouble=None, since_ns=0, until_ns=0)
    return replace(state, lives={**state.lives, gateway: quiet}), effects


def _told(state: State, gateway: str, known: Lives) -> Result:
    alarm = lives.alarm_of(gateway, known, state.now_ns)
    return (state, []) if alarm is None else alarms.taken(state, gateway, alarm)
