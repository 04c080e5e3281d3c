"""A model's way from the training to all gateways: at once, or to a few first, whose word decides.

Rounds go on meanwhile: what they train on is the gateways' data, which no model changes. A model that is made while the
release of another is under way waits for its end, and only the newest of several does.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.events import Effect, Log, RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases import announce, build, newest, rollout
from fedgate.cloud_aggregator.releases.rollout import BuiltModel, Rollout, Staging, able, drawn
from fedgate.cloud_aggregator.state import State
from fedgate.models.detectors.graph import is_alike
from fedgate.models.records import replace

Result = tuple[State, list[Effect]]


def next_version(state: State) -> int:
    """Return a version above every one that this aggregator gave to a model, also where its record of that was lost and
    its own signed word of it came back. What gateways say of theirs counts for nothing.
    """
    return newest.of(state).highest_version + 1


def receive_model(state: State, new: BuiltModel) -> Result:
    """Take in a model that the training has made: to all, to canaries, or to wait, as the settings say."""
    waiting, mode, stage = state.staging.waiting, state.settings.release.mode, state.staging.rollout
    candidate = state.staging.candidate
    was_stopped = stage.stage == "stopped" and candidate is not None and is_same(candidate, new)
    if new.manifest.model.digest in stage.stopped or was_stopped:
        text = f"the model that the training made is one whose release was stopped ({new.manifest.model.digest[:12]})"
        return state, [Log("warning", f"{text}: released by order alone, cloud-aggregator release --version")]
    current = BuiltModel(state.manifest, state.model) if state.manifest else None
    latest = waiting or (candidate if stage.is_under_way else None) or current
    if latest is not None and _is_known(state, new, latest):
        # Of sums over rows that have not changed; a fleet on cellular links need not fetch it again.
        return state, [Log("info", f"model {latest.manifest.version} is as it was, nothing to release")]
    version = new.manifest.version
    state = replace(state, staging=replace(state.staging, waiting=new))
    log = Log("info", f"model {version} made: {len(new.body)} bytes, {new.manifest.model.digest[:12]}")
    effects: list[Effect] = [RecordModel(*new), log]
    if stage.is_under_way:
        why = f"the release of model {stage.version} is under way"
        return state, [*effects, _saved(state), Log("info", f"model {version} waits: {why}")]
    if mode == "manual":
        return state, [*effects, _saved(state), Log("info", f"model {version} waits for cloud-aggregator release")]
    state, more = _next(state)
    return state, [*effects, *more]


def is_same(one: BuiltModel, other: BuiltModel) -> bool:
    """Tell whether two models say the same. Of the same rows, updates that arrive in another order or are made on
    another processor make a model whose last bits differ, and so does its digest.
    """
    return one.manifest.model.digest == other.manifest.model.digest or is_alike(one.body, other.body)


def _is_known(state: State, new: BuiltModel, known: BuiltModel) -> bool:
    """Tell whether a model is one that gateways have or can have: they take none below the newest that was signed."""
    is_taken = known.manifest.version >= state.newest.version
    return is_taken and known.manifest.run == new.manifest.run and is_same(known, new)


def _saved(state: State) -> SaveRollout:
    return SaveRollout(
        rollout.dump_staging(state.staging, state.manifest.version if state.manifest else 0), state.now_ns
    )


def _next(state: State) -> Result:
    """Release the model that waits, where there is one and the settings do not leave that to the operator."""
    new, table = state.staging.waiting, state.settings.release
    if (
        new is not None
        and state.manifest is not None
        and _is_known(state, new, BuiltModel(state.manifest, state.model))
    ):
        state, new = emptied(state), None  # all have been given the same meanwhile
    if new is None or table.mode == "manual":
        return state, [_saved(state)]
    new, effects = renumbered(state, new)
    state = replace(state, staging=replace(state.staging, waiting=None))
    state, more = everywhere(state, new) if table.mode == "all" else begin_rollout(state, new, table.canary)
    return state, [*effects, *more]


def renumbered(state: State, new: BuiltModel) -> tuple[BuiltModel, list[Effect]]:
    """Return a model that has waited under a version that every gateway takes: some may have been given a higher one
    since it was made.
    """
    version = next_version(state)
    if new.manifest.version + 1 == version:
        return new, []
    new = BuiltModel(build.again(new.manifest, version, state.now_ns), new.body)
    return new, [RecordModel(*new)]


def everywhere(state: State, new: BuiltModel) -> Result:
    """Give a model to all; who was given one alone is told that what all are told holds for it too."""
    alone, stage = state.staging.recipients, state.staging.rollout
    if stage.stage != "none":
        left = stage.without(new.manifest.model.digest)
        stage = replace(stage, stage="everywhere", version=new.manifest.version, canaries=(), recalled=(), stopped=left)
    before, waiting = state.manifest.version if state.manifest else 0, state.staging.waiting
    state = replace(state, manifest=new.manifest, model=new.body)
    state = replace(state, staging=Staging(stage, waiting=waiting, before=before))
    log = Log("info", f"model {new.manifest.version} released to all gateways")
    back: list[Effect] = [announce.retract(state, name) for name in alone]
    return state, [_saved(state), *announce.announce(state, new), *back, log]


def begin_rollout(state: State, new: BuiltModel, share: float, names: tuple[str, ...] = ()) -> Result:
    """Give a model to some first: to those named, or to a share that is drawn. Who had one that was stopped and may not
    have left it yet, is still given back what all have.
    """
    before = state.staging.rollout
    left, recalled = before.without(new.manifest.model.digest), before.recalled
    begin = Rollout("watching", new.manifest.version, 0, share, names, bool(names), state.now_ns)
    begin = replace(begin, recalled=recalled, stopped=left)
    begin = drawn(begin, state.gateways, state.settings.algorithm.seed)
    state = replace(state, staging=replace(state.staging, rollout=begin, candidate=new))
    return state, [_saved(state), *_announce_to(state, new, begin.canaries)]


def _announce_to(state: State, new: BuiltModel, names: tuple[str, ...]) -> list[Effect]:
    if not names:
        return [Log("info", "no gateway with a whole baseline is online: the model waits for its canaries")]
    log = Log("info", f"model {new.manifest.version} released to {len(names)} canaries: {', '.join(names[:9])}")
    return [effect for name in names for effect in announce.announce(state, new, name)] + [log]


def watch_rollout(state: State) -> Result:
    """Decide what follows from what the canaries tell."""
    stage, table = state.staging.rollout, state.settings.release
    if stage.stage != "watching":
        return state, []
    candidate = state.staging.candidate
    if not stage.canaries and candidate is not None:
        stage = drawn(stage, state.gateways, state.settings.algorithm.seed)
        if not stage.canaries:
            return state, []
        stage = replace(stage, since_ns=state.now_ns)
        state = replace(state, staging=replace(state.staging, rollout=stage))
        return state, [_saved(state), *_announce_to(state, candidate, stage.canaries)]
    word, why = rollout.verdict(stage, report_canaries(state), table, state.now_ns)
    if word == "go on":
        return continue_rollout(state, why)
    if word == "stop":
        return stop_rollout(state, why)
    return pause_rollout(state, why) if word == "pause" else (state, [])


def report_canaries(state: State) -> rollout.Report:
    """Return what the canaries tell of the release at hand."""
    base, hop_s = state.manifest.version if state.manifest else 0, state.settings.features.hop_s
    return rollout.report(state.staging.rollout, state.gateways, base, state.settings.release, hop_s)


def continue_rollout(state: State, why: str) -> Result:
    """Give the model of the canaries to all."""
    candidate = state.staging.candidate
    if candidate is None:
        return state, []
    stage = replace(state.staging.rollout, why=why)
    state = replace(state, staging=replace(state.staging, rollout=stage))
    state, effects = everywhere(state, candidate)
    state, more = _next(state)
    return state, [Log("info", f"release of model {candidate.manifest.version} goes on: {why}"), *effects, *more]


def pause_rollout(state: State, why: str) -> Result:
    """Leave the model with the canaries, until the operator decides."""
    stage = replace(state.staging.rollout, stage="paused", why=why)
    state = replace(state, staging=replace(state.staging, rollout=stage))
    return state, [_saved(state), Log("warning", f"release of model {stage.version} is paused: {why}")]


def stop_rollout(state: State, why: str) -> Result:
    """Give the canaries back what all have, under a new version: gateways refuse a lower one."""
    stage, base = state.staging.rollout, state.manifest
    effects: list[Effect] = [Log("warning", f"release of model {stage.version} is stopped: {why}")]
    recall, recalled = None, state.staging.recipients
    if base is not None:
        again = build.again(base, next_version(state), state.now_ns)
        recall = BuiltModel(again, state.model)
        effects.append(RecordModel(*recall))
    candidate, waiting = state.staging.candidate, state.staging.waiting
    digests = stage.stopping(candidate.manifest.model.digest) if candidate else stage.stopped
    stage = replace(stage, stage="stopped", why=why, recall=recall.manifest.version if recall else 0, stopped=digests)
    stage = replace(stage, recalled=recalled if recall else ())
    if waiting is not None and candidate is not None and is_same(candidate, waiting):
        waiting = None  # the training has made the same again meanwhile
    # What was stopped is kept: the training goes on, and may make it again in other last bits.
    state = replace(state, staging=Staging(stage, candidate, recall, waiting, before=state.staging.before))
    if recall is not None and recalled:
        effects += [effect for name in recalled for effect in announce.announce(state, recall, name)]
        effects.append(Log("info", f"{', '.join(recalled[:9])} given back what all have, as model {stage.recall}"))
    elif recall is None:
        effects += [announce.retract(state, name) for name in stage.canaries]
        effects.append(Log("warning", "there is no model before it: canaries that have it keep it until the next"))
    saved = _saved(state)  # what the canaries are given back, before all are given what has waited
    state, more = _next(state) if state.staging.waiting is not None else (state, [])
    return state, [saved, *effects, *more]


def reminders(state: State) -> list[Effect]:
    """Return the announcements that some gateway seems not to have heard."""
    effects: list[Effect] = []
    if state.manifest is not None and any(one.lacks(state.manifest.version) for one in state.gateways.values()):
        effects.append(announce.manifest(state, state.manifest))
    for name in state.staging.recipients:
        new, status = state.staging.of(name), state.gateways.get(name)
        if new is not None and status is not None and status.lacks(new.manifest.version):
            effects.append(announce.manifest(state, new.manifest, name))
    return effects


def emptied(state: State) -> State:
    """Return the state in which no model waits any more: it is being released."""
    return replace(state, staging=replace(state.staging, waiting=None))


def unknown(state: State, names: tuple[str, ...]) -> list[str]:
    """Return which of these gateways cannot be canaries."""
    return [name for name in names if name not in able(state.gateways)]
