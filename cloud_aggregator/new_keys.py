"""The keys that the site goes by have changed: gateways are notified of them, and then of all that they sign."""

from __future__ import annotations

from dataclasses import replace

from fedgate.cloud_aggregator.enrolment import Stated
from fedgate.cloud_aggregator.events import Answered, Effect, Log
from fedgate.cloud_aggregator.releases import announce
from fedgate.cloud_aggregator.releases.releases import NOTHING_NEWEST
from fedgate.cloud_aggregator.rounds.rounds import number_training, save_training
from fedgate.cloud_aggregator.state import State
from fedgate.config.identity import signing

NEVER = -1


def take_keys(state: State, event: Stated) -> tuple[State, list[Effect]]:
    """Go by these keys from now on. What is retained is signed anew at the next tick, as in a new week."""
    text = f"statement {event.keys.number} of the site's keys is in force"
    answered: list[Effect] = [Answered(event.order, text, event.problem)] if event.order else []
    context = state.context
    if event.body == context.keys:
        return state, answered
    saved: list[Effect] = []
    if signing.encode_public_key(event.release_key) != signing.encode_public_key(context.key):
        # Whoever had the key before may have signed any numbers, and had them learned here: also that of a training
        # later than now, above which the one at hand was numbered. Gateways know none of the new key.
        rounds = replace(state.rounds, training=min(state.rounds.training, number_training(context.now_ns)))
        state = replace(state, rounds=rounds, releases=replace(state.releases, newest=NOTHING_NEWEST))
        saved = [save_training(rounds, context.anchor_ns)]
    context = replace(context, keys=event.body, key=event.release_key)
    state = replace(state, context=context, releases=replace(state.releases, announced_week=NEVER))
    return state, [*saved, *answered, *announce.announce_keys(context), Log("info", text)]
