"""What becomes of a model after its swap: watched beside the one before it until it is proven, or gone back from.

A model that breaks the promise on windows that the one before is calm about, gives no finite scores where that one
does, cannot be run or is too slow goes, by itself; the one before goes on where it is, for it has judged every window
meanwhile. The version that went is never taken again.
"""

from __future__ import annotations

from fedgate.gateway_agent.deployment.session import ModelRefusedError
from fedgate.gateway_agent.deployment.slots import Rejected, Trial, save
from fedgate.gateway_agent.deployment.validation import BLIND_MAX, block_promise, broken_text
from fedgate.gateway_agent.events import Effect, Log
from fedgate.gateway_agent.monitor import pipeline as walk
from fedgate.gateway_agent.monitor.pipeline import Reading, alarms, beside, judged_beside
from fedgate.gateway_agent.monitor.recurrence import BLANK, Seen
from fedgate.gateway_agent.state import State, save_memory, tell
from fedgate.models.promise import is_broken, level_at
from fedgate.models.records import replace
from fedgate.models.signal import Block

AGAIN_S = 3_600.0  # a model that could not be run twice within this time is left alone for as long
SLOW_STEPS = 10  # in a row that took longer than the windows in them: one may have waited for the disk
STORED_S = 240.0  # of watching: a gateway whose power fails every ten minutes comes to the end of a probation too
STEADY_S = 60.0  # after a load without an end of the process the model is not what ends it
NS = 1_000_000_000


def probation_left_s(state: State) -> float:
    """Return for how long the model in force will still be watched, in time that it has watched."""
    if state.deployment.trial is None:
        return 0.0
    return max(
        state.context.settings.models.probation_s
        - state.deployment.models.windows * state.context.settings.features.hop_s,
        0.0,
    )


def begun(state: State) -> State:
    """Return the state in which the model in force is the one before; where that is itself on probation, it is the
    proven one that stays. No model is watched beside a borrowed level, or where no time is given to watch.
    """
    judge, pipeline = state.monitor.pipeline.judge, state.monitor.pipeline
    if (
        state.deployment.manifest is None
        or judge is None
        or judge.watch.is_borrowed
        or state.context.settings.models.probation_s == 0
    ):
        return replace(state, deployment=replace(state.deployment, trial=None))
    if state.deployment.trial is not None:
        return replace(
            state,
            deployment=replace(
                state.deployment, trial=Trial(state.deployment.trial.manifest, state.deployment.trial.pipeline)
            ),
        )
    return replace(
        state,
        deployment=replace(
            state.deployment,
            trial=Trial(state.deployment.manifest, beside(pipeline, judge, pipeline.watching, pipeline.memory)),
        ),
    )


def pushed(state: State, block: Block) -> tuple[State, list[Reading], list[Effect]]:
    """Take in a block of samples; where the model in force cannot be run on it, go back from that first, or go on
    without until the stored one is loaded again.
    """
    try:
        pipeline, readings = walk.push(state.monitor.pipeline, block)
    except ModelRefusedError as error:
        leave = _left if state.deployment.trial is None else gone_back
        state, effects = leave(state, str(error))
        pipeline, readings = walk.push(state.monitor.pipeline, block)
        return replace(state, monitor=replace(state.monitor, pipeline=pipeline)), readings, effects
    return replace(state, monitor=replace(state.monitor, pipeline=pipeline)), readings, []


def watched(state: State, readings: list[Reading], elapsed_ns: int) -> tuple[State, list[Effect]]:
    """Count what the model in force said of windows, and go back from it where that is more than a model may do."""
    said = sum(reading.height is not None for reading in readings)
    raised = sum(reading.transition is not None and reading.transition.kind == "raised" for reading in readings)
    if said and not state.deployment.is_stood_in_for:
        models = replace(
            state.deployment.models,
            windows=state.deployment.models.windows + said,
            alarms=state.deployment.models.alarms + raised,
        )
        state = replace(state, deployment=replace(state.deployment, models=models))
    is_stored = raised or (state.deployment.trial is not None and _is_time(state, said))
    effects: list[Effect] = (
        [save(state.deployment.models)] if is_stored and state.deployment.models.current.version else []
    )
    for reading in readings:
        if state.deployment.trial is not None:
            state, more = _compared(state, state.deployment.trial, reading)
            effects += more
    if state.deployment.trial is not None and said:
        is_slow = elapsed_ns > len(readings) * state.context.settings.features.hop_s * NS
        trial = replace(state.deployment.trial, slow=state.deployment.trial.slow + 1 if is_slow else 0)
        state = replace(state, deployment=replace(state.deployment, trial=trial))
        if trial.slow >= SLOW_STEPS:
            state, more = gone_back(state, f"{SLOW_STEPS} times in a row it took longer than from window to window")
            effects += more
        elif probation_left_s(state) == 0:
            state, more = _proven(state)
            effects += more
    return state, effects


def _is_time(state: State, said: int) -> bool:
    """Tell whether the windows just counted are the last of a stretch after which the count is stored."""
    stretch = max(round(STORED_S / state.context.settings.features.hop_s), 1)
    return state.deployment.models.windows // stretch > (state.deployment.models.windows - said) // stretch


def _compared(state: State, trial: Trial, reading: Reading) -> tuple[State, list[Effect]]:
    row = reading.row if reading.unscored is None else reading.unscored
    if row is None:
        return state, []
    try:
        before, said = judged_beside(trial.pipeline, Seen(row, reading.t_ns))
    except ModelRefusedError as error:  # then there is nothing to go back to
        text = f"model {trial.manifest.version}, the one before, cannot be run any more: {error}"
        return replace(state, deployment=replace(state.deployment, trial=None)), [Log("warning", text)]
    blind = trial.blind + (reading.unscored is not None and said.unscored is None)
    alarmed, was_alarmed = (
        trial.alarmed or alarms(state.monitor.pipeline, reading),
        trial.was_alarmed or alarms(before, said),
    )
    trial = Trial(trial.manifest, before, trial.windows + 1, alarmed, was_alarmed, blind, trial.slow)
    state = replace(state, deployment=replace(state.deployment, trial=trial))
    if blind > BLIND_MAX:
        return gone_back(state, f"it gave no finite score for {blind} windows that the model before it can score")
    return (state, []) if trial.windows < block_promise(state)[0] else _block(state, trial)


def _block(state: State, trial: Trial) -> tuple[State, list[Effect]]:
    """Judge a block that is whole; one that the model before alarms in says nothing of the one in force."""
    state = replace(
        state,
        deployment=replace(
            state.deployment, trial=Trial(trial.manifest, trial.pipeline, blind=trial.blind, slow=trial.slow)
        ),
    )
    if trial.was_alarmed:
        return state, []
    models = state.deployment.models
    models = replace(models, blocks=models.blocks + 1, alarmed=models.alarmed + trial.alarmed)
    state = replace(state, deployment=replace(state.deployment, models=models))
    if is_broken(models.alarmed, models.blocks, block_promise(state)[1], level_at(models.blocks)):
        return gone_back(state, broken_text(state, models.alarmed, models.blocks))
    return state, []


def _proven(state: State) -> tuple[State, list[Effect]]:
    models = state.deployment.models
    version = models.current.version
    text = f"model {version} is proven: {models.alarmed} of {models.blocks} blocks of its probation alarmed"
    if models.blocks == 0:
        text = f"model {version} stays, and was not judged: the model before alarmed in each block of its probation"
    state, tells = tell(replace(state, deployment=replace(state.deployment, trial=None)))
    return state, [save(models), Log("info", text), *tells]


def _left(state: State, why: str) -> tuple[State, list[Effect]]:
    """Go on without a model that was proven and cannot be run now, and ask for it again, in a new session.

    Where that was so lately too it is the one before that is asked for, and where that is what cannot be run, none.
    """
    version = state.deployment.manifest.version if state.deployment.manifest else 0
    text = f"model {version} left: {why}"
    is_new = (
        state.deployment.unrun_ns is None or not 0 <= state.context.now_ns - state.deployment.unrun_ns < AGAIN_S * NS
    )
    before = None if state.deployment.is_stood_in_for else f"left: {why}"
    kept = save_memory(state)
    pipeline = replace(state.monitor.pipeline, judge=None, memory=BLANK, watching=walk.UNSEEN)
    state = replace(
        state,
        refusal=text,
        monitor=replace(state.monitor, pipeline=pipeline),
        deployment=replace(state.deployment, manifest=None, unrun_ns=state.context.now_ns),
    )
    return replace(state, deployment=replace(state.deployment, reload_due="" if is_new else before)), [
        *kept,
        Log("warning", text),
    ]


def gone_back(state: State, why: str) -> tuple[State, list[Effect]]:
    """Go back to the model before, which has judged every window meanwhile, and never take this one again.

    An active alarm stays, on the scale of the scores that are back.
    """
    trial, models = state.deployment.trial, state.deployment.models
    version = state.deployment.manifest.version if state.deployment.manifest else 0
    text = f"model {version} rolled back: {why}"
    pipeline = replace(state.monitor.pipeline, judge=None, memory=BLANK, watching=walk.UNSEEN)
    if trial is not None and trial.pipeline.judge is not None:
        before, judge = trial.pipeline, trial.pipeline.judge
        alarm = replace(state.monitor.pipeline.alarm, run_ns=None, peak=judge.levels.median)
        pipeline = replace(pipeline, judge=judge, memory=before.memory, watching=before.watching, alarm=alarm)
        text += f"; model {trial.manifest.version} is in force again"
    models = models.back().rejecting(Rejected(version, models.current.name, text)).finished()
    manifest = None if trial is None else trial.manifest
    state = replace(
        state,
        refusal=text,
        monitor=replace(state.monitor, pipeline=pipeline),
        deployment=replace(state.deployment, manifest=manifest, models=models, trial=None),
    )
    state, tells = tell(state)
    return state, [save(models), Log("warning", text), *tells]


def ticked(state: State) -> tuple[State, list[Effect]]:
    """Forget that models were being tried when the agent has shown that it outlives them."""
    state, asked = _asked_again(state)
    models, manifest = state.deployment.models, state.deployment.manifest
    if manifest is None or not models.trying:
        return state, asked
    is_other_awaited = state.deployment.candidate not in (
        None,
        manifest,
    )  # it may be marked, and not loaded yet: its mark stays
    is_steady = state.context.now_ns - state.deployment.tried[1] >= STEADY_S * NS
    has_judged = models.windows > 0 and state.counts.get("windows", 0) > 0  # since the start
    if is_steady and not state.deployment.is_stood_in_for and not is_other_awaited:
        models = models.finished()
    elif is_steady or has_judged:
        models = models.finished(manifest.model.digest)
    if models == state.deployment.models:
        return state, []
    return replace(state, deployment=replace(state.deployment, models=models)), [save(models)]


def _asked_again(state: State) -> tuple[State, list[Effect]]:
    """Ask for a model again that could not be run long ago, or rests, where there is none: a gateway must watch. One
    that rests is marked first, as at a start.
    """
    is_due = state.deployment.unrun_ns is not None and state.context.now_ns - state.deployment.unrun_ns >= AGAIN_S * NS
    if state.deployment.manifest is not None or not is_due:
        return state, []
    state, digest = (
        replace(state, deployment=replace(state.deployment, reload_due="", unrun_ns=state.context.now_ns)),
        state.deployment.models.current.digest,
    )
    if not state.deployment.models.tries(digest).rests:
        return state, []
    models = state.deployment.models.begun(digest, state.context.boot_id)
    return replace(
        state, deployment=replace(state.deployment, models=models, marked=state.deployment.marked | {digest})
    ), [save(models)]


def stopped(state: State) -> list[Effect]:
    """Return what is stored at a stop that is no crash; a candidate is marked also where no model is in force."""
    models = state.deployment.models
    return [save(models.finished())] if models.current.version or models.trying else []
