"""A model's way into force, a step at a time.

    announced -> fetched -> marked on the disk -> loaded, elsewhere first -> run in shadow -> stored and in force

Whatever fails on the way leaves the model in force untouched and says why, in the log and in the gateway's status. What
comes after is in `probation`, and how a stored model comes back into force in `reloading`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedgate.config.protocol.messages import Manifest
from fedgate.config.protocol.topics import ALL
from fedgate.config.protocol.wire import unpack_survey
from fedgate.gateway_agent.context import Context, check_signed
from fedgate.gateway_agent.deployment.deployment import (
    Bundle,
    Deployment,
    Probation,
    Rejected,
    Result,
    Swap,
    UntriedError,
    name_manifest,
    put_in_slot,
    save,
)
from fedgate.gateway_agent.deployment.validation import (
    UNFIT,
    BrokenPromiseError,
    describe_out_of_reach,
    examine_model,
    load_model,
    mismatch,
    run_in_shadow,
)
from fedgate.gateway_agent.events import OF_ROUND, Fetch, Log, PublishStatus, SetRefusal, Wanted, refuse
from fedgate.gateway_agent.pipeline.decision import DecisionState, ScoringModel, describe_rules
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, make_beside, replace_model, stack_rows
from fedgate.models.alarms.site_thresholds import levels_of
from fedgate.models.alarms.threshold import MINIMUM_SCORES
from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.time_units import DAY_S, NS

UNTRIED_S = 60.0  # until a model is tried again that no process could try
BORROWING_WINDOWS = 200  # or half of a short baseline: of its own, for its units, to use the level of the site


def receive_announcement(
    deployment: Deployment, context: Context, payload: bytes, *, is_own: bool, signed_version: int
) -> Result:
    """Take in what is announced to all, or to this gateway alone; an empty payload takes an announcement back.
    `signed_version` is the newest model that the aggregator has signed to be.

    Raises `MessageError`.
    """
    if payload:
        manifest = Manifest.from_bytes(payload)
        return _consider_manifest(deployment, context, manifest, is_own=is_own, signed_version=signed_version)
    is_taken_back = is_own and deployment.candidate_is_own and deployment.candidate != deployment.manifest
    return (replace(deployment, candidate=None) if is_taken_back else deployment), []


def _consider_manifest(
    deployment: Deployment, context: Context, manifest: Manifest, *, is_own: bool, signed_version: int
) -> Result:
    """Take in a manifest, whose model is fetched (`put_in_force`) if it may become the next one.

    One that was refused is refused again without another look: its model would be fetched for nothing each time.
    """
    known, reason = deployment.refused
    name, newest = name_manifest(manifest), deployment.models.newest
    is_known = known in (name, _name_announcement(manifest, is_own=is_own))
    if final := deployment.models.why_not(name) or (reason if is_known else ""):
        return deployment, [] if context.refusal == final else refuse(final)
    if manifest.version <= newest and not _is_lost(deployment, name):
        return _refuse_older(deployment, manifest, newest, is_own=is_own)
    if deployment.candidate is not None and manifest.version < deployment.candidate.version:
        return deployment, []  # announced before the one that is on its way, and arrived after it
    if problem := check_signed(context, manifest, context.settings.gateway.id if is_own else ALL):
        return _refuse_announcement(deployment, manifest, f"refused: {problem}", is_own=is_own)
    deployment = replace(deployment, announced=max(deployment.announced, manifest.version))
    if name == deployment.models.current.name and not _is_lost(deployment, name):  # in force, signed by a new key
        models = replace(deployment.models, newest=manifest.version)
        return replace(deployment, models=models, candidate=None), [save(models)]
    if manifest.version < signed_version:
        why = f"is older than {signed_version}, which the aggregator has signed to be the newest"
        return _refuse_announcement(deployment, manifest, why, is_own=is_own)
    if problem := mismatch(manifest, context.settings):
        return _refuse(deployment, manifest, f"refused: {problem}")
    return replace(deployment, candidate=manifest, candidate_is_own=is_own), []


def _name_announcement(manifest: Manifest, *, is_own: bool) -> str:
    """Return the name of an announcement: one that is forged or misplaced must not keep out what it imitates."""
    return f"{name_manifest(manifest)}.{manifest.signature}.{is_own}"


def _is_lost(deployment: Deployment, name: str) -> bool:
    """Tell whether a manifest is that of the stored model, which is not in force: its bytes are damaged."""
    return (deployment.manifest is None or deployment.is_stood_in_for) and deployment.models.current.name == name


def _refuse_older(deployment: Deployment, manifest: Manifest, newest: int, *, is_own: bool) -> Result:
    """Refuse a model that is older than one that was in force; quietly where that is as it should be: it is the one in
    force, or this gateway was given a newer one before the others.
    """
    same = deployment.manifest is not None and manifest.model.digest == deployment.manifest.model.digest
    if same or (deployment.models.current.is_own and not is_own):
        return deployment, []
    where = f"{newest} in force" if newest == deployment.version else f"{newest}, which was in force"
    return _refuse_announcement(deployment, manifest, f"is not newer than {where}", is_own=is_own)


def _refuse_announcement(deployment: Deployment, manifest: Manifest, why: str, *, is_own: bool) -> Result:
    """Say why an announcement is not taken, and leave no trace of it in the store: anyone may have made it."""
    reason = f"model {manifest.version} {why}"
    return replace(deployment, refused=(_name_announcement(manifest, is_own=is_own), reason)), refuse(reason)


def _refuse(deployment: Deployment, manifest: Manifest, why: str, *, is_final: bool = False) -> Result:
    """Say why a model is not taken, and remember it."""
    reason, name = f"model {manifest.version} {why}", name_manifest(manifest)
    models = deployment.models.rejecting(Rejected(manifest.version, name, reason, is_final))
    return replace(deployment, refused=(name, reason), models=models), [save(models), *refuse(reason)]


def put_in_force(
    deployment: Deployment, context: Context, pipeline: Pipeline, own: Arrays, bodies: Mapping[str, bytes]
) -> Swap:
    """Take the next step on the way of the candidate, whose body is looked for among `bodies`, by digest;
    `own` is what this gateway keeps for itself in its training.

    That a model is loaded is stored in a step of its own, before anything loads it: one that ends the process would end
    it at every start.
    """
    manifest, waiting = deployment.candidate, (deployment, pipeline, list[Wanted]())
    if manifest is None or not (pipeline.commissioned or _can_borrow(deployment, pipeline, manifest)):
        return waiting
    body = bodies.get(manifest.model.digest)
    if body is None:
        return deployment, pipeline, [Fetch(manifest.model)]
    if deployment.untried_ns is not None and context.uptime_ns - deployment.untried_ns < UNTRIED_S * NS:
        return waiting
    if deployment.tried[0] != name_manifest(manifest):
        deployment, effects = _mark(deployment, context, manifest)
        return deployment, pipeline, effects
    if context.store.is_unstored:  # the mark is not on the disk, and what is not loaded ends nothing
        return waiting
    return _load(deployment, context, pipeline, own, manifest, body)


def _mark(deployment: Deployment, context: Context, manifest: Manifest) -> Result:
    """Mark that the candidate is loaded, which begins when that is stored, or refuse it where it has ended the agent
    too often.

    A mark of this process that is not finished stands for all loads of the same bytes, under whatever version and
    whatever was in force between: the process ends but once.
    """
    name, digest = name_manifest(manifest), manifest.model.digest
    unfinished = deployment.marked & deployment.models.trying.keys()
    tried = replace(deployment, tried=(name, context.uptime_ns))
    if digest in unfinished:
        return tried, []
    if problem := deployment.models.find_attempts(digest).why_no_more(context.boot_id):
        is_final = name != deployment.models.current.name  # what was in force may be again
        return _refuse(replace(deployment, candidate=None), manifest, f"refused: {problem}", is_final=is_final)
    models = deployment.models.with_load(digest, context.boot_id)
    return replace(tried, marked=unfinished | {digest}, models=models), [save(models)]


def _load(
    deployment: Deployment, context: Context, pipeline: Pipeline, own: Arrays, manifest: Manifest, body: bytes
) -> Swap:
    """Load the candidate and put it in force, or say why not."""
    swap = _swap if pipeline.commissioned else _borrow
    try:
        return swap(deployment, context, pipeline, own, manifest, body)
    except UntriedError as error:
        deployment, effects = _put_off(deployment, context, manifest, error)
    except UNFIT as error:  # the agent lives: a refusal is no load that did not end
        models = deployment.models.finished(manifest.model.digest)
        deployment, is_final = replace(deployment, candidate=None, models=models), isinstance(error, BrokenPromiseError)
        deployment, effects = _refuse(deployment, manifest, f"refused: {error}", is_final=is_final)
    return deployment, pipeline, effects


def _put_off(deployment: Deployment, context: Context, manifest: Manifest, why: UntriedError) -> Result:
    """Keep a candidate of which nothing is known, as no process could try it, and try again in a while."""
    models = deployment.models.finished(manifest.model.digest)  # nothing loaded it
    deployment = replace(deployment, models=models, tried=("", context.uptime_ns), untried_ns=context.uptime_ns)
    return deployment, [save(models), *refuse(f"model {manifest.version} waits: {why}")]


def _swap(
    deployment: Deployment, context: Context, pipeline: Pipeline, own: Arrays, manifest: Manifest, body: bytes
) -> Swap:
    """Put the candidate in force if it is as it should be; the proven one before is kept. Raises one of `UNFIT`."""
    personal = {name: array for name, array in own.items() if name in manifest.personal}
    bundle = Bundle(manifest, body, personal)
    judge, watching = examine_model(deployment.examine, context, pipeline, bundle, own)
    found = run_in_shadow(context, pipeline, judge, watching)
    before = pipeline.judge
    if before is not None and before.drift is not None:  # another model is no other baseline
        watching = watching._replace(drift=pipeline.watching.drift)
    models, saved = put_in_slot(deployment, bundle)
    trial = _start_trial(deployment, context, pipeline)
    deployment = replace(deployment, candidate=None, manifest=manifest, models=models, trial=trial)
    pipeline = replace_model(pipeline, judge, watching)
    refusal = describe_out_of_reach(pipeline, judge)
    logged = _describe_model(judge, watching, bundle, found)
    warned = [Log("warning", refusal)] if refusal else []
    return deployment, pipeline, [*saved, *logged, *warned, *_clear_refusal(context, refusal), PublishStatus()]


def _clear_refusal(context: Context, refusal: str = "") -> list[Wanted]:
    """Return what takes the place of a refusal where a model comes into force; that of a round stays."""
    return [] if not refusal and context.refusal.startswith(OF_ROUND) else [SetRefusal(refusal)]


def _start_trial(deployment: Deployment, context: Context, pipeline: Pipeline) -> Probation | None:
    """Return the model in force as the one before, beside the next; where that is itself on probation, it is the
    proven one that stays. No model is watched beside a borrowed level, or where no time is given to watch.
    """
    judge, manifest = pipeline.judge, deployment.manifest
    if manifest is None or judge is None or judge.is_borrowed or context.settings.models.probation_s == 0:
        return None
    if deployment.trial is not None:
        return Probation(deployment.trial.manifest, deployment.trial.pipeline)
    return Probation(manifest, make_beside(pipeline, judge, pipeline.watching, pipeline.memory))


def _describe_model(judge: ScoringModel, watching: DecisionState, bundle: Bundle, found: str) -> list[Log]:
    manifest, levels = bundle.manifest, judge.levels
    how = "extrapolated from" if levels.extrapolated else "seen in"
    how = f"capped at [alarm] reach above what was {how}" if levels.capped else how
    level = (
        f"model {manifest.version} in force; alarms from {levels.raise_level:.3g}, {how} {levels.samples} calibration "
        f"windows with median {levels.median:.3g}; {found}"
    )
    neutral = sorted(set(manifest.personal) - bundle.personal.keys())
    if neutral:
        level += f"; {', '.join(neutral)} as the model has them, as this gateway took no part in learning its own"
    about = {"model": manifest.version, "digest": manifest.model.digest}
    return [Log("info", level, about), *(Log(*entry) for entry in describe_rules(judge, watching))]


def _can_borrow(deployment: Deployment, pipeline: Pipeline, manifest: Manifest) -> bool:
    """Tell whether a gateway without a baseline of its own can watch by what the others found: units of its own it
    has from its first windows, the level from the site.
    """
    windows = max(min(BORROWING_WINDOWS, pipeline.baseline_needed // 2), MINIMUM_SCORES)
    is_lent = bool(manifest.site) and deployment.unlent != name_manifest(manifest)
    return deployment.version < manifest.version and is_lent and len(pipeline.baseline) >= windows


def _borrow(
    deployment: Deployment, context: Context, pipeline: Pipeline, _own: Arrays, manifest: Manifest, body: bytes
) -> Swap:
    """Put the candidate in force at the level of the site; it stays the candidate until the baseline is whole.

    It is not stored: after a restart it comes again, as long as the gateway still has nothing of its own. Where the
    site has no level to lend, the candidate waits for the baseline. Raises `ModelRefusedError` or `UntriedError`.
    """
    units, _ = normalise({}, {FEATURES: stack_rows(pipeline.baseline)}, "own")
    personal = {name: units[name] for name in manifest.personal if name in units}
    scorer, _ = load_model(deployment.examine, context, pipeline, Bundle(manifest, body, personal))
    try:
        counts = unpack_survey(manifest.site)["scores"]
        levels = levels_of(context.settings.alarm, counts, DAY_S / context.settings.features.hop_s)
    except (*UNFIT, LookupError) as error:
        text = f"model {manifest.version} waits for this gateway's own baseline: {error}"
        return replace(deployment, unlent=name_manifest(manifest)), pipeline, refuse(text)
    text = (
        f"model {manifest.version} in force; alarms from {levels.raise_level:.3g}, the level of the site in "
        f"{levels.samples} windows of {manifest.gateways} gateways, until this gateway's own baseline is whole; rules, "
        "context and drift wait for that"
    )
    pipeline = replace_model(pipeline, ScoringModel(scorer, levels, is_borrowed=True))
    return (
        replace(deployment, manifest=manifest),
        pipeline,
        [
            Log("info", text, {"model": manifest.version, "digest": manifest.model.digest}),
            *_clear_refusal(context),
            PublishStatus(),
        ],
    )


def change_keys(deployment: Deployment, context: Context, *, is_other_release_key: bool) -> Result:
    """Let the aggregator announce again what was refused, unless that is final (`Models.why_not`). With another release
    key forget the candidate and the numbers of models that the one before has signed.
    """
    effects: list[Wanted] = [SetRefusal("")] if context.refusal == deployment.refused[1] else []
    deployment = replace(deployment, refused=("", ""))
    if not is_other_release_key:
        return deployment, effects
    models = replace(deployment.models, newest=0)
    return replace(deployment, announced=0, candidate=None, models=models), [save(models), *effects]
