"""What changes with the keys that the site goes by: what those before could not vouch for may be taken now."""

from __future__ import annotations

import hashlib

from config.messages import Keys
from gateway_agent.events import Effect, Log
from gateway_agent.learning import refuse
from gateway_agent.state import State, tell
from models.records import replace

REFUSED = "keys of the site refused:"


def heard(state: State, payload: bytes) -> tuple[State, list[Effect]]:
    """Take in a statement of the site's keys; one that was refused is refused again without another look.

    Raises `MessageError`.
    """
    Keys.from_bytes(payload)  # so that no child is started for what is none
    name = hashlib.sha256(payload).hexdigest()
    if name == state.refused_keys:
        return state, []
    taken = state.take_keys(payload)
    if taken.problem:
        return refuse(replace(state, refused_keys=name), f"{REFUSED} {taken.problem}")
    if state.refusal.startswith(REFUSED):
        state = replace(state, refusal="")
    if not taken.is_new:
        return state, []
    # A model that is refused here for good stays so (`Models.why_not`); of any other the aggregator is to know that it
    # may announce it again.
    refusal = "" if state.refusal == state.refused[1] else state.refusal
    # The aggregator believes no numbers that the key before signed: the same are to be kept for it with the new one's.
    newest = None if state.newest is None else state.newest.changed(expires_ns=0)
    state, told = tell(replace(state, refused=("", ""), refusal=refusal, newest=newest))
    return state, [Log("info", "the site has changed its keys; they are taken"), *told]
