"""The keys that the site goes by have changed: what was announced is announced anew, signed with the new ones."""

from __future__ import annotations

from cloud_aggregator import announcing, rounds
from cloud_aggregator.events import Answered, Effect, Log
from cloud_aggregator.registry import Stated
from cloud_aggregator.state import State
from models.records import replace


def taken(state: State, event: Stated) -> tuple[State, list[Effect]]:
    """Go by these keys from now on: gateways are told of them first, and then of what they sign."""
    text = f"statement {event.keys.number} of the site's keys is in force"
    answered: list[Effect] = [Answered(event.order, text, event.problem)] if event.order else []
    if event.body == state.keys:
        return state, answered
    state = replace(state, keys=event.body, key=event.release_key)
    invited: list[Effect] = [rounds.invitation(state)] if state.opened else []
    return state, [*answered, *announcing.known(state), *invited, Log("info", text)]
