"""What one component asks of another, answered in its place among the effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedgate.cloud_aggregator.alarms import handling
from fedgate.cloud_aggregator.events import (
    BuildModel,
    ClearAlarm,
    DropUploads,
    Effect,
    ForgetDevice,
    Log,
    NoteDropped,
    RaiseAlarm,
    StatusChanged,
    Wanted,
)
from fedgate.cloud_aggregator.limits import count_one_more
from fedgate.cloud_aggregator.releases import deploy
from fedgate.cloud_aggregator.state import State

Result = tuple[State, list[Effect]]
SENDERS_MAX = 10_000  # whose messages that make no sense are counted


def apply(state: State, wanted: Sequence[Wanted]) -> Result:
    """Return the state after the requests among what a component wants, and all effects in their order."""
    effects: list[Effect] = []
    for one in wanted:
        context, statuses, alarms = state.context, state.access.gateways, state.alarms
        more = list[Effect]()
        match one:
            case BuildModel():
                releases, more = deploy.build_model(state.releases, context, statuses, one)
                state = replace(state, releases=releases)
            case RaiseAlarm() | ClearAlarm():
                alarms, more = handling.change_ours(
                    alarms, context, statuses, one, state.access.find_cards(one.gateway)
                )
            case StatusChanged(gateway=gateway, before=before):
                alarms, more = handling.follow_status(alarms, context, statuses, gateway, before)
            case ForgetDevice(gateway=gateway, how=how):
                alarms, more = handling.end_alarms_of_device(alarms, context, statuses, gateway, how)
                state = replace(state, rounds=state.rounds.without(gateway))
            case DropUploads(gateway=gateway):
                state = replace(state, rounds=state.rounds.without(gateway))
            case NoteDropped(sender=sender, text=text):
                state, more = note_dropped(state, sender, text)
            case _:
                more = [one]
        if alarms is not state.alarms:
            state = replace(state, alarms=alarms)
        effects += more
    return state, effects


def note_dropped(state: State, sender: tuple[str, str], text: str) -> Result:
    """Log a message that makes no sense, or says what cannot be: the 1st, 2nd, 4th, 8th, ... on a channel of a gateway
    in an hour.
    """
    tally = count_one_more(state.dropped.get(sender), state.context.uptime_ns)
    others = state.dropped if len(state.dropped) < SENDERS_MAX or sender in state.dropped else {}
    state = replace(state, dropped={**others, sender: tally})
    is_logged = tally.count.bit_count() == 1  # all of them would fill the log
    return state, [Log("warning", f"{text} (number {tally.count})")] if is_logged else []
