"""A model's way into force: manifest -> signature -> body -> marked -> examined -> run in shadow -> stored -> swapped.

Whatever fails on the way leaves the model in force untouched and says why, in the log and in the gateway's status. What
comes after the swap is in `probation`.
"""

from __future__ import annotations

from fedgate.config.protocol.messages import Manifest
from fedgate.config.protocol.survey import unpacked
from fedgate.config.protocol.topics import ALL
from fedgate.gateway_agent.deployment import probation
from fedgate.gateway_agent.deployment.session import ModelRefusedError
from fedgate.gateway_agent.deployment.slots import Models, Rejected, held, named, save, save_model
from fedgate.gateway_agent.deployment.validation import (
    UNFIT,
    BrokenPromiseError,
    examined,
    loaded,
    mismatch,
    out_of_reach,
    run_in_shadow,
)
from fedgate.gateway_agent.events import Effect, Log
from fedgate.gateway_agent.monitor.decision import DAY_S, Watch, Watching, spoken
from fedgate.gateway_agent.monitor.pipeline import Judge, judged_by, rows_of
from fedgate.gateway_agent.runtime.model_trial import UntriedError
from fedgate.gateway_agent.state import State, fetch, tell
from fedgate.gateway_agent.training.participation import refuse
from fedgate.gateway_agent.training.training import own_in
from fedgate.gateway_agent.trust import signatures
from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated.algorithm import normalise
from fedgate.models.records import replace
from fedgate.models.sketch import levels_of
from fedgate.models.threshold import MINIMUM_SCORES

NS = 1_000_000_000
UNTRIED_S = 60.0  # until a model is tried again that no process could try
BORROWING_WINDOWS = 200  # or half of a short baseline: of its own, for its units, to use the level of the site


def heard(state: State, payload: bytes, *, is_own: bool) -> tuple[State, list[Effect]]:
    """Take in what is announced to all, or to this gateway alone; an empty payload takes an announcement back.

    Raises `MessageError`.
    """
    if payload:
        return announced(state, Manifest.from_bytes(payload), is_own=is_own)
    is_taken_back = (
        is_own and state.deployment.candidate_is_own and state.deployment.candidate != state.deployment.manifest
    )
    return (replace(state, deployment=replace(state.deployment, candidate=None)) if is_taken_back else state), []


def announced(state: State, manifest: Manifest, *, is_own: bool = False) -> tuple[State, list[Effect]]:
    """Take in a manifest and fetch its model, if it may become the next one.

    One that was refused is refused again without another look: its model would be fetched for nothing each time.
    """
    known, reason = state.deployment.refused
    name, newest = named(manifest), state.deployment.models.newest
    is_known = known in (name, _as_announced(manifest, is_own=is_own))
    if final := state.deployment.models.why_not(name) or (reason if is_known else ""):
        return (state, []) if state.refusal == final else refuse(state, final)
    if manifest.version <= newest and not _is_lost(state, name):
        return _not_newer(state, manifest, newest, is_own=is_own)
    if state.deployment.candidate is not None and manifest.version < state.deployment.candidate.version:
        return state, []  # said before the one that is on its way, and heard after it
    if problem := signatures.problem(
        state.trust, state.context, manifest, state.context.settings.gateway.id if is_own else ALL
    ):
        return _refuse_announcement(state, manifest, f"refused: {problem}", is_own=is_own)
    state = replace(
        state, deployment=replace(state.deployment, announced=max(state.deployment.announced, manifest.version))
    )
    if name == state.deployment.models.current.name and not _is_lost(
        state, name
    ):  # in force, and vouched for by a new key
        models = replace(state.deployment.models, newest=manifest.version)
        return replace(state, deployment=replace(state.deployment, models=models, candidate=None)), [save(models)]
    if state.trust.newest is not None and manifest.version < state.trust.newest.version:
        why = f"is older than {state.trust.newest.version}, which the aggregator has signed to be the newest"
        return _refuse_announcement(state, manifest, why, is_own=is_own)
    if problem := mismatch(manifest, state.context.settings):
        return _refuse(state, manifest, f"refused: {problem}")
    return put_in_force(
        replace(state, deployment=replace(state.deployment, candidate=manifest, candidate_is_own=is_own))
    )


def _as_announced(manifest: Manifest, *, is_own: bool) -> str:
    """Return the name of an announcement: one that is forged or misplaced must not keep out what it imitates."""
    return f"{named(manifest)}.{manifest.signature}.{is_own}"


def _is_lost(state: State, name: str) -> bool:
    """Tell whether a manifest is that of the stored model, which is not in force: its bytes are damaged."""
    return (
        state.deployment.manifest is None or state.deployment.is_stood_in_for
    ) and state.deployment.models.current.name == name


def _not_newer(state: State, manifest: Manifest, newest: int, *, is_own: bool) -> tuple[State, list[Effect]]:
    """Refuse a model that is older than one that was in force; quietly where that is as it should be: it is the one in
    force, or this gateway was given a newer one before the others.
    """
    same = state.deployment.manifest is not None and manifest.model.digest == state.deployment.manifest.model.digest
    if same or (state.deployment.models.current.is_own and not is_own):
        return state, []
    held = state.deployment.manifest.version if state.deployment.manifest else 0
    where = f"{newest} in force" if newest == held else f"{newest}, which was in force"
    return _refuse_announcement(state, manifest, f"is not newer than {where}", is_own=is_own)


def _refuse_announcement(state: State, manifest: Manifest, why: str, *, is_own: bool) -> tuple[State, list[Effect]]:
    """Say why an announcement is not taken, and leave no trace of it in the store: anyone may have made it."""
    reason = f"model {manifest.version} {why}"
    return refuse(
        replace(state, deployment=replace(state.deployment, refused=(_as_announced(manifest, is_own=is_own), reason))),
        reason,
    )


def _refuse(state: State, manifest: Manifest, why: str, *, is_final: bool = False) -> tuple[State, list[Effect]]:
    """Say why a model is not taken, and remember it."""
    reason, name = f"model {manifest.version} {why}", named(manifest)
    state = replace(state, deployment=replace(state.deployment, refused=(name, reason)))
    models = state.deployment.models.rejecting(Rejected(manifest.version, name, reason, is_final))
    state, effects = refuse(replace(state, deployment=replace(state.deployment, models=models)), reason)
    return state, [save(models), *effects]


def put_in_force(state: State) -> tuple[State, list[Effect]]:
    """Swap to the candidate where its body and the baseline are here; otherwise go on waiting.

    That a model is tried is stored in a step of its own, before anything loads it: one that ends the process would end
    it at every start.
    """
    manifest = state.deployment.candidate
    if manifest is None or not (state.monitor.pipeline.commissioned or _can_borrow(state, manifest)):
        return state, []
    body = state.downloads.bodies.get(manifest.model.digest)
    if body is None:
        return fetch(state, manifest.model), []
    if (
        state.deployment.untried_ns is not None
        and 0 <= state.context.now_ns - state.deployment.untried_ns < UNTRIED_S * NS
    ):
        return state, []
    if state.deployment.tried[0] != named(manifest):
        return _marked(state, manifest)
    if state.context.store.is_unstored:
        return state, []  # the mark is not on the disk, and what is not there ends nothing
    if not state.monitor.pipeline.commissioned:
        return _borrow(state, manifest, body)
    personal = _personal(state, manifest)
    try:
        judge, watching = examined(state, manifest, body, personal)
        found = run_in_shadow(state, judge, watching)
        swapped = replace(state, deployment=replace(state.deployment, candidate=None))
        return _swapped(swapped, manifest, (body, personal), (judge, watching), found)
    except UntriedError as error:
        return _put_off(state, manifest, error)
    except UNFIT as error:  # the agent lives: a refusal is no load that did not end
        state = replace(
            state,
            deployment=replace(
                state.deployment, candidate=None, models=state.deployment.models.finished(manifest.model.digest)
            ),
        )
        return _refuse(state, manifest, f"refused: {error}", is_final=isinstance(error, BrokenPromiseError))


def _put_off(state: State, manifest: Manifest, why: UntriedError) -> tuple[State, list[Effect]]:
    """Keep a candidate of which nothing is known, as no process could try it, and try again in a while."""
    models = state.deployment.models.finished(manifest.model.digest)  # nothing loaded it
    state = replace(
        state,
        deployment=replace(
            state.deployment, models=models, tried=("", state.context.now_ns), untried_ns=state.context.now_ns
        ),
    )
    state, effects = refuse(state, f"model {manifest.version} waits: {why}")
    return state, [save(models), *effects]


def _marked(state: State, manifest: Manifest) -> tuple[State, list[Effect]]:
    """Return the state in which a load is marked. A mark of this process that is not finished stands for all loads of
    the same bytes, under whatever version and whatever was in force between: the process ends but once.
    """
    digest, unfinished = manifest.model.digest, state.deployment.marked & state.deployment.models.trying.keys()
    if digest in unfinished:
        return replace(state, deployment=replace(state.deployment, tried=(named(manifest), state.context.now_ns))), []
    if reason := state.deployment.models.tries(digest).why_no_more(state.context.boot_id):
        is_final = named(manifest) != state.deployment.models.current.name  # what was in force may be again
        return _refuse(
            replace(state, deployment=replace(state.deployment, candidate=None)),
            manifest,
            f"refused: {reason}",
            is_final=is_final,
        )
    models = state.deployment.models.begun(digest, state.context.boot_id)
    state = replace(
        state,
        deployment=replace(
            state.deployment, tried=(named(manifest), state.context.now_ns), marked=unfinished | {digest}, models=models
        ),
    )
    return state, [save(models)]


def _swapped(
    state: State, manifest: Manifest, stored: tuple[bytes, Arrays], judged: tuple[Judge, Watching], found: str
) -> tuple[State, list[Effect]]:
    """Put a model in force, `stored` as its bytes and the gateway's own tensors; the proven one before is kept."""
    (body, personal), (judge, watching) = stored, judged
    before = state.monitor.pipeline.judge
    if before is not None and before.watch.drift is not None:  # another model is no other baseline
        watching = watching._replace(drift=state.monitor.pipeline.watching.drift)
    models = state.deployment.models
    is_another = models.current.name != named(manifest)
    is_loaded = state.deployment.manifest is not None and not state.deployment.is_stood_in_for
    is_proven = is_loaded and state.deployment.trial is None and models.current.version > 0 and is_another
    models = Models(
        slot=models.other if is_proven else models.slot,
        newest=max(models.newest, manifest.version),
        current=held(manifest, is_own=state.deployment.candidate_is_own),
        previous=models.current if is_proven else models.previous,
        trying=models.trying,
        rejected=models.rejected,
    )
    state = probation.begun(state)
    pipeline = judged_by(state.monitor.pipeline, judge, watching)
    state = replace(
        state,
        refusal=out_of_reach(state, judge),
        deployment=replace(state.deployment, manifest=manifest, models=models),
        monitor=replace(state.monitor, pipeline=pipeline),
    )
    warned: list[Effect] = [Log("warning", state.refusal)] if state.refusal else []
    state, told = tell(state)
    saved: list[Effect] = [save_model(manifest, body, personal, models.slot), save(models)]
    return state, [*saved, *_said(state, manifest, personal, found), *warned, *told]


def _said(state: State, manifest: Manifest, personal: Arrays, found: str) -> list[Effect]:
    judge = state.monitor.pipeline.judge
    if judge is None:
        raise AssertionError("a model in force without a judge")
    levels = judge.levels
    how = "extrapolated from" if levels.extrapolated else "seen in"
    how = f"capped at [alarm] reach above what was {how}" if levels.capped else how
    level = (
        f"model {manifest.version} in force; alarms from {levels.raise_level:.3g}, {how} {levels.samples} calibration "
        f"windows with median {levels.median:.3g}; {found}"
    )
    neutral = sorted(set(manifest.personal) - personal.keys())
    if neutral:
        level += f"; {', '.join(neutral)} as the model has them, as this gateway took no part in learning its own"
    return [Log("info", level), *(Log(*said) for said in spoken(judge.watch, state.monitor.pipeline.watching))]


def _can_borrow(state: State, manifest: Manifest) -> bool:
    """Tell whether a gateway without a baseline of its own can watch by what the others found: units of its own it
    has from its first windows, the level from the site.
    """
    is_new = state.deployment.manifest is None or state.deployment.manifest.version < manifest.version
    windows = max(min(BORROWING_WINDOWS, state.monitor.pipeline.baseline_needed // 2), MINIMUM_SCORES)
    is_lent = bool(manifest.site) and state.deployment.unlent != named(manifest)
    return is_new and is_lent and len(state.monitor.pipeline.baseline) >= windows


def _borrow(state: State, manifest: Manifest, body: bytes) -> tuple[State, list[Effect]]:
    """Put the candidate in force at the level of the site; it stays the candidate until the baseline is whole.

    It is not stored: after a restart it comes again, as long as the gateway still has nothing of its own. Where the
    site has no level to lend, the candidate waits for the baseline.
    """
    units, _ = normalise({}, {FEATURES: rows_of(state.monitor.pipeline.baseline)}, "own")
    try:
        scorer, _ = loaded(state, manifest, body, {name: units[name] for name in manifest.personal if name in units})
        counts = unpacked(manifest.site)["scores"]
        levels = levels_of(state.context.settings.alarm, counts, DAY_S / state.context.settings.features.hop_s)
    except UntriedError as error:
        return _put_off(state, manifest, error)
    except ModelRefusedError as error:
        return _refuse(
            replace(state, deployment=replace(state.deployment, candidate=None)), manifest, f"refused: {error}"
        )
    except (*UNFIT, LookupError) as error:
        state = replace(state, deployment=replace(state.deployment, unlent=named(manifest)))
        return refuse(state, f"model {manifest.version} waits for this gateway's own baseline: {error}")
    judge = Judge(scorer, Watch(levels, is_borrowed=True))
    state = replace(
        state,
        refusal="",
        deployment=replace(state.deployment, manifest=manifest),
        monitor=replace(state.monitor, pipeline=judged_by(state.monitor.pipeline, judge)),
    )
    state, told = tell(state)
    text = (
        f"model {manifest.version} in force; alarms from {levels.raise_level:.3g}, the level of the site in "
        f"{levels.samples} windows of {manifest.gateways} gateways, until this gateway's own baseline is whole; rules, "
        "context and drift wait for that"
    )
    return state, [Log("info", text), *told]


def _personal(state: State, manifest: Manifest) -> Arrays:
    return {name: array for name, array in own_in(state.training, manifest.run).items() if name in manifest.personal}
