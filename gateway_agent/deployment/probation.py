"""What becomes of a model after its swap: watched beside the one before it until it is proven, or gone back from.

A model that breaks the promise on windows that the one before is calm about, gives no finite scores where that one
does, cannot be run or is too slow goes, by itself; the one before goes on where it is, for it has judged every window
meanwhile. The version that went is never taken again.
"""

from __future__ import annotations

from dataclasses import replace

from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.deployment.deployment import (
    Deployment,
    Models,
    Probation,
    Rejected,
    Result,
    Swap,
    count_judged,
    is_proven,
    save,
)
from fedgate.gateway_agent.deployment.validation import BLIND_MAX, block_promise, describe_broken_promise
from fedgate.gateway_agent.events import Log, PublishStatus, SetRefusal, Wanted
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.pipeline.memory import save_memory
from fedgate.gateway_agent.pipeline.pipeline import UNSEEN, Pipeline, WindowResult, is_alarming, is_at_level, judge_row
from fedgate.gateway_agent.pipeline.recurrence import BLANK
from fedgate.models.alarms.false_alarm_test import is_broken, level_at
from fedgate.models.onnx_policy import ModelRefusedError
from fedgate.models.time_units import NS

AGAIN_S = 3_600.0  # a model that could not be run twice within this time is left alone for as long
SLOW_STEPS = 10  # in a row that took longer than the windows in them: one may have waited for the disk
STORED_S = 240.0  # of watching: a gateway whose power fails every ten minutes comes to the end of a probation too
STEADY_S = 60.0  # after a load without an end of the process the model is not what ends it


def leave(deployment: Deployment, context: Context, pipeline: Pipeline, why: str) -> Swap:
    """Go on without a model that cannot be run: back to the one before it where it is on probation, else without any,
    and ask for the stored one again, in a new session.

    Where that was so lately too it is the one before that is asked for, and where that is what cannot be run, none.
    """
    if deployment.trial is not None:
        return roll_back(deployment, pipeline, why)
    text = f"model {deployment.version} left: {why}"
    is_new = deployment.unrun_ns is None or context.uptime_ns - deployment.unrun_ns >= AGAIN_S * NS
    before = None if deployment.is_stood_in_for else f"left: {why}"
    kept = save_memory(pipeline, context, deployment.manifest)
    pipeline = replace(pipeline, judge=None, memory=BLANK, watching=UNSEEN)
    reload_due = "" if is_new else before
    deployment = replace(deployment, manifest=None, unrun_ns=context.uptime_ns, reload_due=reload_due)
    return deployment, pipeline, [*kept, Log("warning", text), SetRefusal(text)]


def watch_model(
    deployment: Deployment, context: Context, pipeline: Pipeline, readings: list[WindowResult], elapsed_ns: int
) -> Swap:
    """Hold what the model in force said of windows, which are counted already, against what the one before says of
    them, and go back from it where that is more than a model may do.
    """
    judged = count_judged(readings)
    effects: list[Wanted] = [save(deployment.models)] if _is_time(deployment, context, judged) else []
    for reading in readings:
        if deployment.trial is not None:
            deployment, pipeline, more = _compare(deployment, context, pipeline, deployment.trial, reading)
            effects += more
    if deployment.trial is None or not judged:
        return deployment, pipeline, effects
    is_slow = elapsed_ns > len(readings) * context.settings.features.hop_s * NS
    slow = deployment.trial.slow + 1 if is_slow else 0
    deployment, more = replace(deployment, trial=replace(deployment.trial, slow=slow)), []
    if slow >= SLOW_STEPS:
        text = f"{SLOW_STEPS} times in a row it took longer than from window to window"
        deployment, pipeline, more = roll_back(deployment, pipeline, text)
    elif is_proven(deployment.models, context.settings):
        deployment, more = _end_probation(deployment)
    return deployment, pipeline, [*effects, *more]


def _is_time(deployment: Deployment, context: Context, judged: int) -> bool:
    """Tell whether the windows just counted are the last of a stretch after which the count is stored."""
    stretch = max(round(STORED_S / context.settings.features.hop_s), 1)
    return deployment.models.windows // stretch > (deployment.models.windows - judged) // stretch


def _compare(
    deployment: Deployment, context: Context, pipeline: Pipeline, trial: Probation, reading: WindowResult
) -> Swap:
    row = reading.row if reading.unscored is None else reading.unscored
    if row is None:
        return deployment, pipeline, []
    try:
        known = replace(trial.pipeline, maintenance=pipeline.maintenance)  # they may have been announced meanwhile
        before, judged = judge_row(known, FeatureRow(row, reading.t_ns))
    except ModelRefusedError as error:  # then there is nothing to go back to
        text = f"model {trial.manifest.version}, the one before, cannot be run any more: {error}"
        return replace(deployment, trial=None), pipeline, [Log("warning", text)]
    blind = trial.blind + (reading.unscored is not None and judged.unscored is None)
    alarmed = trial.alarmed or is_alarming(pipeline, reading)
    was_alarmed = trial.was_alarmed or is_alarming(before, judged)
    trial = Probation(trial.manifest, before, trial.windows + 1, alarmed, was_alarmed, blind, trial.slow)
    models = _count_difference(deployment.models, is_at_level(pipeline, reading), is_at_level(before, judged))
    deployment = replace(deployment, trial=trial, models=models)
    if blind > BLIND_MAX:
        text = f"it gave no finite score for {blind} windows that the model before it can score"
        return roll_back(deployment, pipeline, text)
    if trial.windows < block_promise(context)[0]:
        return deployment, pipeline, []
    return _judge_block(deployment, context, pipeline, trial)


def _count_difference(models: Models, is_at: bool | None, was_at: bool | None) -> Models:
    """Count a window that both models judged, by whether the one in force and the one before find it at their level."""
    if is_at is None or was_at is None:
        return models
    return replace(models, compared=models.compared + 1, differing=models.differing + (is_at != was_at))


def _judge_block(deployment: Deployment, context: Context, pipeline: Pipeline, trial: Probation) -> Swap:
    """Judge a block that is whole; one that the model before alarms in says nothing of the one in force."""
    next_block = Probation(trial.manifest, trial.pipeline, blind=trial.blind, slow=trial.slow)
    deployment = replace(deployment, trial=next_block)
    if trial.was_alarmed:
        return deployment, pipeline, []
    models = deployment.models
    models = replace(models, blocks=models.blocks + 1, alarmed=models.alarmed + trial.alarmed)
    deployment = replace(deployment, models=models)
    if is_broken(models.alarmed, models.blocks, block_promise(context)[1], level_at(models.blocks)):
        return roll_back(deployment, pipeline, describe_broken_promise(context, models.alarmed, models.blocks))
    return deployment, pipeline, []


def _end_probation(deployment: Deployment) -> Result:
    models = deployment.models
    version = models.current.version
    text = f"model {version} is proven: {models.alarmed} of {models.blocks} blocks of its probation alarmed"
    if models.blocks == 0:
        text = f"model {version} stays, and was not judged: the model before alarmed in each block of its probation"
    return replace(deployment, trial=None), [save(models), Log("info", text), PublishStatus()]


def roll_back(deployment: Deployment, pipeline: Pipeline, why: str) -> Swap:
    """Go back to the model before, which has judged every window meanwhile, and never take this one again.

    An active alarm stays, on the scale of the scores that are back.
    """
    trial, models, version = deployment.trial, deployment.models, deployment.version
    text = f"model {version} rolled back: {why}"
    pipeline = replace(pipeline, judge=None, memory=BLANK, watching=UNSEEN)
    if trial is not None and trial.pipeline.judge is not None:
        before, judge = trial.pipeline, trial.pipeline.judge
        alarm = replace(pipeline.alarm, run_ns=None, peak=judge.levels.median)
        pipeline = replace(pipeline, judge=judge, memory=before.memory, watching=before.watching, alarm=alarm)
        text += f"; model {trial.manifest.version} is in force again"
    models = models.back().rejecting(Rejected(version, models.current.name, text)).finished()
    manifest = None if trial is None else trial.manifest
    deployment = replace(deployment, manifest=manifest, models=models, trial=None)
    return deployment, pipeline, [save(models), Log("warning", text), SetRefusal(text), PublishStatus()]


def clear_marks(deployment: Deployment, context: Context, windows: int) -> Result:
    """Forget that models were being tried when the agent has shown that it outlives them; `windows` were judged since
    the start.
    """
    deployment, asked = _request_reload(deployment, context)
    models, manifest = deployment.models, deployment.manifest
    if manifest is None or not models.trying:
        return deployment, asked
    is_other_awaited = deployment.candidate not in (None, manifest)  # it may be marked, and not loaded yet
    is_steady = context.uptime_ns - deployment.tried[1] >= STEADY_S * NS
    has_judged = models.windows > 0 and windows > 0
    if is_steady and not deployment.is_stood_in_for and not is_other_awaited:
        models = models.finished()
    elif is_steady or has_judged:
        models = models.finished(manifest.model.digest)
    if models == deployment.models:
        return deployment, []
    return replace(deployment, models=models), [save(models)]


def _request_reload(deployment: Deployment, context: Context) -> Result:
    """Ask for a model again that could not be run long ago, or rests, where there is none: a gateway must watch. One
    that rests is marked first, as at a start.
    """
    is_due = deployment.unrun_ns is not None and context.uptime_ns - deployment.unrun_ns >= AGAIN_S * NS
    if deployment.manifest is not None or not is_due:
        return deployment, []
    digest = deployment.models.current.digest
    deployment = replace(deployment, reload_due="", unrun_ns=context.uptime_ns)
    if not deployment.models.find_attempts(digest).rests:
        return deployment, []
    models = deployment.models.with_load(digest, context.boot_id)
    return replace(deployment, models=models, marked=deployment.marked | {digest}), [save(models)]
