"""A stored model back into force: after a start, or in a new session.

It is marked on the disk and loaded as a new one is (`activation`). Where it is unfit now the one before it stands in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Manifest
from fedgate.config.protocol.transfer import digest_of
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.deployment.deployment import (
    UNREADABLE,
    Deployment,
    Probation,
    Swap,
    is_proven,
    name_manifest,
    read,
    take_any,
)
from fedgate.gateway_agent.deployment.validation import (
    UNFIT,
    describe_out_of_reach,
    examine_model,
    mismatch,
)
from fedgate.gateway_agent.events import Log, PublishStatus, SetRefusal, Wanted, refuse
from fedgate.gateway_agent.pipeline.decision import DecisionState, ScoringModel
from fedgate.gateway_agent.pipeline.memory import restore_memory
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, make_beside
from fedgate.models.arrays import Arrays
from fedgate.models.onnx_policy import ModelRefusedError


def reload(
    deployment: Deployment,
    context: Context,
    pipeline: Pipeline,
    own: Arrays,
    blobs: Mapping[str, bytes],
    failed: str = "",
) -> Swap:
    """Put the stored model back in force, examined like a new one, with what it remembered; where it is unfit now, or
    has just `failed`, the one before it, until the next start tries again. `own` has the gateway's normalisation.

    Its signature was checked before it was stored. Checking it again would leave a gateway without a model after an
    update that knows more of a manifest than the one that stored it.
    """
    models = deployment.models
    if models.current.version == 0:
        return deployment, pipeline, []
    is_there = models.slot in blobs
    problem = failed or _find_obstacle(deployment, context, is_there)
    if not problem:
        try:
            deployment, pipeline, judge = _restore(deployment, context, pipeline, own, blobs, models.slot)
        except (*UNFIT, *UNREADABLE) as error:
            problem, is_there = f"refused: {error}", not isinstance(error, UNREADABLE)  # then its bytes come anew
        else:
            trial, effects = _restore_trial(deployment, context, pipeline, own, blobs)
            unreachable = describe_out_of_reach(pipeline, judge)
            effects += refuse(unreachable) if unreachable else []
            return replace(deployment, trial=trial), pipeline, effects
    text = f"stored model {models.current.version} {problem}"
    effects = refuse(text)
    if is_there:
        deployment = replace(deployment, refused=(models.current.name, text))
    if not models.previous.version or models.other not in blobs or models.find_attempts(models.previous.digest).rests:
        if models.find_attempts(models.current.digest).rests:  # the next start may be months away
            deployment = replace(deployment, unrun_ns=context.uptime_ns)
        return deployment, pipeline, effects
    try:
        deployment, pipeline, _ = _restore(deployment, context, pipeline, own, blobs, models.other)
    except (*UNFIT, *UNREADABLE) as error:
        effects.append(Log("warning", f"stored model {models.previous.version}, the one before: {error}"))
        return deployment, pipeline, effects
    text = f"model {models.previous.version}, the one before, is in force until the next start"
    return deployment, pipeline, [*effects, Log("warning", text)]


def load_due(
    deployment: Deployment, context: Context, pipeline: Pipeline, own: Arrays, blobs: Mapping[str, bytes]
) -> Swap:
    """Load what was asked for, see `Deployment.reload_due`."""
    failed = deployment.reload_due or ""
    deployment = replace(deployment, reload_due=None)
    deployment, pipeline, effects = reload(deployment, context, pipeline, own, blobs, failed)
    if deployment.manifest is None or failed or deployment.is_stood_in_for:
        return deployment, pipeline, effects
    text = f"model {deployment.version} is in force again, in a new session"
    if not effects:
        effects = [SetRefusal("")]
    return deployment, pipeline, [*effects, Log("info", text), PublishStatus()]


def _find_obstacle(deployment: Deployment, context: Context, is_there: bool) -> str:
    """Return why the stored model is not even tried, or an empty string."""
    tries = deployment.models.find_attempts(deployment.models.current.digest)
    if not is_there:
        return "is lost with what the store lost; it is taken again"
    if tries.rests:
        return "rests: the agent ended several times in a row while it loaded it"
    if context.store.is_unstored and tries.in_boot > 1:
        return "not loaded: the agent ended while it loaded it, and the disk has no room to count how often"
    return ""


def _restore(
    deployment: Deployment,
    context: Context,
    pipeline: Pipeline,
    own: Arrays,
    blobs: Mapping[str, bytes],
    slot: str,
) -> tuple[Deployment, Pipeline, ScoringModel]:
    """Put the model of a slot in force; raises one of `UNFIT` or `UNREADABLE`."""
    manifest, judge, watching = _load_stored(context, pipeline, own, blobs[slot])
    memory, watched = restore_memory(blobs, context, manifest)
    deployment = replace(deployment, manifest=manifest, tried=(name_manifest(manifest), context.uptime_ns))
    return deployment, replace(pipeline, judge=judge, memory=memory, watching=watched or watching), judge


def _load_stored(
    context: Context, pipeline: Pipeline, own: Arrays, stored: bytes
) -> tuple[Manifest, ScoringModel, DecisionState]:
    """Raises one of `UNFIT` or `UNREADABLE`."""
    bundle = read(stored)
    if problem := mismatch(bundle.manifest, context.settings):
        raise ModelRefusedError(problem)
    if digest_of(bundle.body) != bundle.manifest.model.digest:
        raise wire.WireError("its digest differs")
    # It was tried and measured when it was new: a processor that is busy or hot as it starts, or memory that lacks for
    # another process, is no fault of it.
    unmeasured = replace(context, stopwatch=int)
    return bundle.manifest, *examine_model(take_any, unmeasured, pipeline, bundle, own)


def _restore_trial(
    deployment: Deployment, context: Context, pipeline: Pipeline, own: Arrays, blobs: Mapping[str, bytes]
) -> tuple[Probation | None, list[Wanted]]:
    """Return the model before in the shadow of the one in force, where that is not yet proven."""
    models = deployment.models
    if is_proven(models, context.settings) or not models.previous.version or models.other not in blobs:
        return deployment.trial, []
    try:
        manifest, judge, watching = _load_stored(context, pipeline, own, blobs[models.other])
    except (*UNFIT, *UNREADABLE) as error:
        return deployment.trial, [Log("warning", f"stored model {models.previous.version}, the one before: {error}")]
    return Probation(manifest, make_beside(pipeline, judge, watching)), []
