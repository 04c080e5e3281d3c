"""What changes with the keys that the site goes by: what those before could not vouch for may be taken now."""

from __future__ import annotations

import hashlib

from fedgate.config.protocol.messages import Keys
from fedgate.gateway_agent.deployment import slots
from fedgate.gateway_agent.events import Effect, Log, Save
from fedgate.gateway_agent.state import NEWEST, SIGNER, State, tell
from fedgate.gateway_agent.training.participation import refuse
from fedgate.gateway_agent.training.training import save_invited
from fedgate.models.records import replace

REFUSED = "keys of the site refused:"


def heard(state: State, payload: bytes) -> tuple[State, list[Effect]]:
    """Take in a statement of the site's keys; one that was refused is refused again without another look.

    Raises `MessageError`.
    """
    message = Keys.from_bytes(payload)  # so that no child is started for what is none
    name = hashlib.sha256(payload).hexdigest()
    if name == state.trust.refused_keys:
        return state, []
    taken = state.trust.take_keys(payload)
    if taken.problem:
        return refuse(replace(state, trust=replace(state.trust, refused_keys=name)), f"{REFUSED} {taken.problem}")
    if state.refusal.startswith(REFUSED):
        state = replace(state, refusal="")
    signer = hashlib.sha256(message.release_key.encode()).hexdigest()
    is_other = signer != state.trust.signer and (taken.is_new or state.trust.signer != "")
    # The files may have them already: of a renewal, or of a start before the power was cut.
    state, saved = _forgetful(state) if is_other else (state, [])
    if signer != state.trust.signer:
        state, saved = (
            replace(state, trust=replace(state.trust, signer=signer)),
            [*saved, Save(SIGNER, signer.encode())],
        )
    if not (taken.is_new or is_other):
        return state, saved
    # A model that is refused here for good stays so (`Models.why_not`); of any other the aggregator is to know that it
    # may announce it again.
    refusal = "" if state.refusal == state.deployment.refused[1] else state.refusal
    state, told = tell(replace(state, refusal=refusal, deployment=replace(state.deployment, refused=("", ""))))
    return state, [*saved, Log("info", "the site has changed its keys; they are taken"), *told]


def _forgetful(state: State) -> tuple[State, list[Effect]]:
    """Return the state without any number that the release key before signed: whoever had it may have signed the
    highest there are, and then nothing of the site would ever be new again. Nothing old can come back by that, for what
    that key signed is taken no more; and what counts is announced anew with the new one.
    """
    state = replace(
        state,
        trust=replace(state.trust, newest=None),
        training=replace(state.training, newest_training=0, round=None),
        deployment=replace(state.deployment, announced=0, candidate=None),
    )
    state = replace(state, deployment=replace(state.deployment, models=replace(state.deployment.models, newest=0)))
    return state, [Save(NEWEST, b""), save_invited(state.training), slots.save(state.deployment.models)]
