"""The keys that the site goes by have changed: gateways are told of them, and then of all that they sign."""

from __future__ import annotations

from fedgate.cloud_aggregator.access.registry import Stated
from fedgate.cloud_aggregator.events import Answered, Effect, Log
from fedgate.cloud_aggregator.releases import announce
from fedgate.cloud_aggregator.rounds import numbering
from fedgate.cloud_aggregator.state import NOTHING_NEWEST, State, save_training
from fedgate.config.identity import signing
from fedgate.models.records import replace

NEVER = -1


def take_keys(state: State, event: Stated) -> tuple[State, list[Effect]]:
    """Go by these keys from now on. What is retained is signed anew at the next tick, as in a new week."""
    text = f"statement {event.keys.number} of the site's keys is in force"
    answered: list[Effect] = [Answered(event.order, text, event.problem)] if event.order else []
    if event.body == state.keys:
        return state, answered
    saved: list[Effect] = []
    if signing.public_pem(event.release_key) != signing.public_pem(state.key):
        # Whoever had the key before may have signed any numbers, and had them learned here: also that of a training
        # later than now, above which the one at hand was numbered. Gateways know none of the new key.
        training = min(state.training, numbering.beginning(state.now_ns))
        state = replace(state, newest=NOTHING_NEWEST, training=training)
        saved = [save_training(state)]
    state = replace(state, keys=event.body, key=event.release_key, announced_week=NEVER)
    return state, [*saved, *answered, *announce.keys(state), Log("info", text)]
