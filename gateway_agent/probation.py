"""What becomes of a model after its swap: watched beside the one before it until it is proven, or gone back from.

A model that breaks the promise on windows that the one before is calm about, gives no finite scores where that one
does, cannot be run or is too slow goes, by itself; the one before goes on where it is, for it has judged every window
meanwhile. The version that went is never taken again.
"""

from __future__ import annotations

from dataclasses import replace

from gateway_agent import pipeline as walk
from gateway_agent.events import Effect, Log
from gateway_agent.memory import BLANK, Seen
from gateway_agent.model_check import BLIND_MAX, block_promise, broken_text
from gateway_agent.pipeline import Reading, alarms, beside, judged_beside
from gateway_agent.scorer import ModelRefusedError
from gateway_agent.state import State, tell
from gateway_agent.versions import Rejected, Trial, save
from models.promise import is_broken, level_at
from models.signal import Block

SLOW_STEPS = 10  # in a row that took longer than the windows in them: one may have waited for the disk
STORED_S = 240.0  # of watching: a gateway whose power fails every ten minutes comes to the end of a probation too
STEADY_S = 60.0  # after a load without an end of the process the model is not what ends it
NS = 1_000_000_000


def probation_left_s(state: State) -> float:
    """Return for how long the model in force will still be watched, in time that it has watched."""
    if state.trial is None:
        return 0.0
    return max(state.settings.models.probation_s - state.models.windows * state.settings.features.hop_s, 0.0)


def begun(state: State) -> State:
    """Return the state in which the model in force is the one before; where that is itself on probation, it is the
    proven one that stays. No model is watched beside a borrowed level, or where no time is given to watch.
    """
    judge, pipeline = state.pipeline.judge, state.pipeline
    if state.manifest is None or judge is None or judge.watch.is_borrowed or state.settings.models.probation_s == 0:
        return replace(state, trial=None)
    if state.trial is not None:
        return replace(state, trial=Trial(state.trial.manifest, state.trial.pipeline))
    return replace(state, trial=Trial(state.manifest, beside(pipeline, judge, pipeline.watching, pipeline.memory)))


def pushed(state: State, block: Block) -> tuple[State, list[Reading], list[Effect]]:
    """Take in a block of samples; where the model in force cannot be run on it, go back from that first."""
    try:
        pipeline, readings = walk.push(state.pipeline, block)
    except ModelRefusedError as error:
        state, effects = gone_back(state, str(error))
        pipeline, readings = walk.push(state.pipeline, block)
        return replace(state, pipeline=pipeline), readings, effects
    return replace(state, pipeline=pipeline), readings, []


def watched(state: State, readings: list[Reading], elapsed_ns: int) -> tuple[State, list[Effect]]:
    """Count what the model in force said of windows, and go back from it where that is more than a model may do."""
    said = sum(reading.height is not None for reading in readings)
    raised = sum(reading.transition is not None and reading.transition.kind == "raised" for reading in readings)
    if said:
        models = replace(state.models, windows=state.models.windows + said, alarms=state.models.alarms + raised)
        state = replace(state, models=models)
    is_stored = raised or (state.trial is not None and _is_time(state, said))
    effects: list[Effect] = [save(state.models)] if is_stored and state.models.current.version else []
    for reading in readings:
        if state.trial is not None:
            state, more = _compared(state, state.trial, reading)
            effects += more
    if state.trial is not None and said:
        is_slow = elapsed_ns > len(readings) * state.settings.features.hop_s * NS
        trial = replace(state.trial, slow=state.trial.slow + 1 if is_slow else 0)
        state = replace(state, trial=trial)
        if trial.slow >= SLOW_STEPS:
            state, more = gone_back(state, f"{SLOW_STEPS} times in a row it took longer than from window to window")
            effects += more
        elif probation_left_s(state) == 0:
            state, more = _proven(state)
            effects += more
    return state, effects


def _is_time(state: State, said: int) -> bool:
    """Tell whether the windows just counted are the last of a stretch after which the count is stored."""
    stretch = max(round(STORED_S / state.settings.features.hop_s), 1)
    return state.models.windows // stretch > (state.models.windows - said) // stretch


def _compared(state: State, trial: Trial, reading: Reading) -> tuple[State, list[Effect]]:
    row = reading.row if reading.unscored is None else reading.unscored
    if row is None:
        return state, []
    try:
        before, said = judged_beside(trial.pipeline, Seen(row, reading.t_ns))
    except ModelRefusedError as error:  # then there is nothing to go back to
        text = f"model {trial.manifest.version}, the one before, cannot be run any more: {error}"
        return replace(state, trial=None), [Log("warning", text)]
    blind = trial.blind + (reading.unscored is not None and said.unscored is None)
    alarmed, was_alarmed = trial.alarmed or alarms(state.pipeline, reading), trial.was_alarmed or alarms(before, said)
    trial = Trial(trial.manifest, before, trial.windows + 1, alarmed, was_alarmed, blind, trial.slow)
    state = replace(state, trial=trial)
    if blind > BLIND_MAX:
        return gone_back(state, f"it gave no finite score for {blind} windows that the model before it can score")
    return (state, []) if trial.windows < block_promise(state)[0] else _block(state, trial)


def _block(state: State, trial: Trial) -> tuple[State, list[Effect]]:
    """Judge a block that is whole; one that the model before alarms in says nothing of the one in force."""
    state = replace(state, trial=Trial(trial.manifest, trial.pipeline, blind=trial.blind, slow=trial.slow))
    if trial.was_alarmed:
        return state, []
    models = state.models
    models = replace(models, blocks=models.blocks + 1, alarmed=models.alarmed + trial.alarmed)
    state = replace(state, models=models)
    if is_broken(models.alarmed, models.blocks, block_promise(state)[1], level_at(models.blocks)):
        return gone_back(state, broken_text(state, models.alarmed, models.blocks))
    return state, []


def _proven(state: State) -> tuple[State, list[Effect]]:
    models = state.models
    version = models.current.version
    text = f"model {version} is proven: {models.alarmed} of {models.blocks} blocks of its probation alarmed"
    state, tells = tell(replace(state, trial=None))
    return state, [save(models), Log("info", text), *tells]


def gone_back(state: State, why: str) -> tuple[State, list[Effect]]:
    """Go back to the model before, or to none where there is none, and never take this one again.

    An active alarm stays, on the scale of the scores that are back. Outside of its probation the model before is in
    the store alone, and is loaded at the next start.
    """
    trial, models = state.trial, state.models
    version = state.manifest.version if state.manifest else 0
    text = f"model {version} rolled back: {why}"
    pipeline = replace(state.pipeline, judge=None, memory=BLANK, watching=walk.UNSEEN)
    if trial is not None and trial.pipeline.judge is not None:
        before, judge = trial.pipeline, trial.pipeline.judge
        alarm = replace(state.pipeline.alarm, run_ns=None, peak=judge.levels.median)
        pipeline = replace(pipeline, judge=judge, memory=before.memory, watching=before.watching, alarm=alarm)
        text += f"; model {trial.manifest.version} is in force again"
    models = models.back().rejecting(Rejected(version, models.current.name, text)).finished()
    manifest = None if trial is None else trial.manifest
    state = replace(state, pipeline=pipeline, manifest=manifest, models=models, trial=None, refusal=text)
    state, tells = tell(state)
    return state, [save(models), Log("warning", text), *tells]


def ticked(state: State) -> tuple[State, list[Effect]]:
    """Forget that models were being tried when the agent has shown that it outlives them."""
    models, since_ns = state.models, state.now_ns - state.tried[1]
    is_loaded = state.candidate in (None, state.manifest)
    if not models.trying or not is_loaded or (models.windows == 0 and since_ns < STEADY_S * NS):
        return state, []
    state = replace(state, models=models.finished())
    return state, [save(state.models)]


def stopped(state: State) -> list[Effect]:
    """Return what is stored at a stop that is no crash."""
    return [save(state.models.finished())] if state.models.current.version else []
