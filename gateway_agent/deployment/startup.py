"""The stored model back in force after a restart, and the one before it beside it while it is on probation."""

from __future__ import annotations

from collections.abc import Mapping

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Manifest
from fedgate.config.protocol.transfer import digest_of
from fedgate.gateway_agent.deployment.session import ModelRefusedError
from fedgate.gateway_agent.deployment.slots import UNREADABLE, Trial, is_proven, named, read
from fedgate.gateway_agent.deployment.validation import UNFIT, examined, mismatch, out_of_reach
from fedgate.gateway_agent.events import Effect, Log
from fedgate.gateway_agent.monitor import recurrence as recall
from fedgate.gateway_agent.monitor.decision import Watching, restored
from fedgate.gateway_agent.monitor.pipeline import Judge, beside
from fedgate.gateway_agent.runtime.model_trial import take_any
from fedgate.gateway_agent.state import MEMORY, State, owner, tell
from fedgate.gateway_agent.training.participation import refuse
from fedgate.gateway_agent.training.training import own_in
from fedgate.models.records import replace


def reload(state: State, blobs: Mapping[str, bytes], failed: str = "") -> tuple[State, list[Effect]]:
    """Put the stored model back in force, examined like a new one, with what it remembered; where it is unfit now, or
    has just `failed`, the one before it, until the next start tries again.

    Its signature was checked before it was stored. Checking it again would leave a gateway without a model after an
    update that knows more of a manifest than the one that stored it.
    """
    models = state.deployment.models
    if models.current.version == 0:
        return state, []
    is_there = models.slot in blobs
    problem = failed or _why_not(state, is_there)
    if not problem:
        try:
            state, judge = _put(state, blobs, models.slot)
        except (*UNFIT, *UNREADABLE) as error:
            problem, is_there = f"refused: {error}", not isinstance(error, UNREADABLE)  # then its bytes come anew
        else:
            return _in_force(state, blobs, judge)
    text = f"stored model {models.current.version} {problem}"
    state, effects = refuse(
        replace(
            state,
            deployment=replace(
                state.deployment, refused=(models.current.name, text) if is_there else state.deployment.refused
            ),
        ),
        text,
    )
    if not models.previous.version or models.other not in blobs or models.tries(models.previous.digest).rests:
        # The next start may be months away.
        is_resting = models.tries(models.current.digest).rests
        return replace(
            state, deployment=replace(state.deployment, unrun_ns=state.context.now_ns)
        ) if is_resting else state, effects
    try:
        state, judge = _put(state, blobs, models.other)
    except (*UNFIT, *UNREADABLE) as error:
        return state, [*effects, Log("warning", f"stored model {models.previous.version}, the one before: {error}")]
    told = f"model {models.previous.version}, the one before, is in force until the next start"
    return state, [*effects, Log("warning", told)]


def again(state: State, blobs: Mapping[str, bytes]) -> tuple[State, list[Effect]]:
    """Load what was asked for, see `State.reload_due`."""
    failed = state.deployment.reload_due or ""
    state, effects = reload(replace(state, deployment=replace(state.deployment, reload_due=None)), blobs, failed)
    if state.deployment.manifest is None or failed or state.deployment.is_stood_in_for:
        return state, effects
    text = f"model {state.deployment.manifest.version} is in force again, in a new session"
    if not effects:
        state = replace(state, refusal="")
    state, told = tell(state)
    return state, [*effects, Log("info", text), *told]


def _why_not(state: State, is_there: bool) -> str:
    """Return why the stored model is not even tried, or an empty string."""
    tries = state.deployment.models.tries(state.deployment.models.current.digest)
    if not is_there:
        return "is lost with what the store lost; it is taken again"
    if tries.rests:
        return "rests: the agent ended several times in a row while it loaded it"
    if state.context.store.is_unstored and tries.in_boot > 1:
        return "not loaded: the agent ended while it loaded it, and the disk has no room to count how often"
    return ""


def _put(state: State, blobs: Mapping[str, bytes], slot: str) -> tuple[State, Judge]:
    """Put the model of a slot in force; raises one of `UNFIT` or `UNREADABLE`."""
    manifest, judge, watching = _loaded(state, blobs[slot])
    remembered = blobs.get(MEMORY)
    memory, watched = recall.from_bytes(remembered, owner(state, manifest)) if remembered else (recall.BLANK, "")
    watching = restored(watched) if watched else watching
    pipeline = replace(state.monitor.pipeline, judge=judge, memory=memory, watching=watching)
    return replace(
        state,
        deployment=replace(state.deployment, manifest=manifest, tried=(named(manifest), state.context.now_ns)),
        monitor=replace(state.monitor, pipeline=pipeline),
    ), judge


def _in_force(state: State, blobs: Mapping[str, bytes], judge: Judge) -> tuple[State, list[Effect]]:
    state, effects = _tried(state, blobs)
    if problem := out_of_reach(state, judge):
        state, more = refuse(state, problem)
        effects += more
    return state, effects


def _loaded(state: State, stored: bytes) -> tuple[Manifest, Judge, Watching]:
    """Raises one of `UNFIT` or `UNREADABLE`."""
    manifest, body, personal = read(stored)
    if personal is None:
        personal = {
            name: own for name, own in own_in(state.training, manifest.run).items() if name in manifest.personal
        }
    if problem := mismatch(manifest, state.context.settings):
        raise ModelRefusedError(problem)
    if digest_of(body) != manifest.model.digest:
        raise wire.WireError("its digest differs")
    # It was tried and measured when it was new: a processor that is busy or hot as it starts, or memory that lacks for
    # another process, is no fault of it.
    return manifest, *examined(
        replace(
            state, context=replace(state.context, stopwatch=int), deployment=replace(state.deployment, examine=take_any)
        ),
        manifest,
        body,
        personal,
    )


def _tried(state: State, blobs: Mapping[str, bytes]) -> tuple[State, list[Effect]]:
    """Return the state with the model before in the shadow of the one in force, where that is not yet proven."""
    models = state.deployment.models
    if is_proven(models, state.context.settings) or not models.previous.version or models.other not in blobs:
        return state, []
    try:
        manifest, judge, watching = _loaded(state, blobs[models.other])
    except (*UNFIT, *UNREADABLE) as error:
        return state, [Log("warning", f"stored model {models.previous.version}, the one before: {error}")]
    return replace(
        state,
        deployment=replace(state.deployment, trial=Trial(manifest, beside(state.monitor.pipeline, judge, watching))),
    ), []
