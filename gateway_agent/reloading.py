"""The stored model back in force after a restart, and the one before it beside it while it is on probation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from config.messages import Manifest
from gateway_agent import fetching
from gateway_agent import memory as recall
from gateway_agent.events import Effect, Log
from gateway_agent.learning import refuse
from gateway_agent.model_check import UNFIT, examined, mismatch, out_of_reach
from gateway_agent.pipeline import Judge, beside
from gateway_agent.scorer import ModelRefusedError
from gateway_agent.state import MEMORY, State, own_in, owner
from gateway_agent.versions import UNREADABLE, Rejected, Trial, read, save
from gateway_agent.watch import Watching, restored


def reload(state: State, blobs: Mapping[str, bytes]) -> tuple[State, list[Effect]]:
    """Put the stored model back in force, examined like a new one, with what it remembered; where it is unfit now, the
    one before it.

    Its signature was checked before it was stored. Checking it again would leave a gateway without a model after an
    update that knows more of a manifest than the one that stored it.
    """
    models = state.models
    if models.current.version == 0:
        return state, []
    if models.slot not in blobs:
        text = f"stored model {models.current.version} is lost with what the store lost; it is taken again"
        return refuse(state, text)
    if state.is_unstored and models.tries(models.current.digest).in_boot > 1:
        text = "not loaded: the agent ended while it loaded it, and the disk has no room to count how often"
        return refuse(state, f"stored model {models.current.version} {text}")
    try:
        manifest, judge, watching = _loaded(state, blobs[models.slot])
    except (*UNFIT, *UNREADABLE) as error:
        text = f"stored model {models.current.version} refused: {error}"
        if not (models.previous.version and models.other in blobs):
            return refuse(state, text)
        rejected = Rejected(models.current.version, models.current.name, text)
        state, effects = refuse(replace(state, models=models.back().rejecting(rejected)), text)
        state, more = reload(state, blobs)
        return state, [*effects, save(state.models), *more]
    remembered = blobs.get(MEMORY)
    memory, watched = recall.from_bytes(remembered, owner(state, manifest)) if remembered else (recall.BLANK, "")
    watching = restored(watched) if watched else watching
    pipeline = replace(state.pipeline, judge=judge, memory=memory, watching=watching)
    state = replace(state, manifest=manifest, pipeline=pipeline, tried=(state.models.current.name, state.now_ns))
    state, effects = _tried(state, blobs)
    if problem := out_of_reach(state, judge):
        state, more = refuse(state, problem)
        effects += more
    return state, effects


def _loaded(state: State, stored: bytes) -> tuple[Manifest, Judge, Watching]:
    """Raises one of `UNFIT` or `UNREADABLE`."""
    manifest, body, personal = read(stored)
    if personal is None:
        personal = {name: own for name, own in own_in(state, manifest.run).items() if name in manifest.personal}
    if problem := mismatch(manifest, state.settings):
        raise ModelRefusedError(problem)
    if fetching.digest_of(body) != manifest.model.digest:
        raise ModelRefusedError("its digest differs")
    return manifest, *examined(state, manifest, body, personal)


def _tried(state: State, blobs: Mapping[str, bytes]) -> tuple[State, list[Effect]]:
    """Return the state with the model before in the shadow of the one in force, where that is not yet proven."""
    models, hop_s = state.models, state.settings.features.hop_s
    is_proven = models.windows * hop_s >= state.settings.models.probation_s
    if is_proven or not models.previous.version or models.other not in blobs:
        return state, []
    try:
        manifest, judge, watching = _loaded(state, blobs[models.other])
    except (*UNFIT, *UNREADABLE) as error:
        return state, [Log("warning", f"stored model {models.previous.version}, the one before: {error}")]
    return replace(state, trial=Trial(manifest, beside(state.pipeline, judge, watching))), []
