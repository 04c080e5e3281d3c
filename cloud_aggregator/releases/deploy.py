"""A model's way from the training to all gateways: made of parameters, and given to them at once or to a few first.

Rounds go on meanwhile: what they train on is the gateways' data, which no model changes. A model that is made while the
release of another is under way waits for its end, and only the newest of several does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedgate.cloud_aggregator.attempts import attempt
from fedgate.cloud_aggregator.context import Context, Statuses
from fedgate.cloud_aggregator.events import BuildModel, Effect, Log, Ordered, OrderError, RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases import announce, rollout
from fedgate.cloud_aggregator.releases.releases import ModelRelease, Releases, Rollout, dump, fit_to_limits
from fedgate.cloud_aggregator.releases.rollout import draw_canaries, list_able
from fedgate.config.protocol.messages import Manifest
from fedgate.config.protocol.transfer import describe
from fedgate.config.protocol.wire import pack_survey
from fedgate.models import onnx_policy
from fedgate.models.arrays import generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base.graph import OPSET, is_alike
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.wrappers.site_thresholds import site_of
from fedgate.models.time_units import NS
from fedgate.models.units import COMMON

BY_HAND = "by order of the operator"
GOLDEN_ROWS = 4
GOLDEN_VALUES = 2_000  # about 40 KB of JSON: a manifest is one message
REMIND_S = 300.0  # brokers drop messages silently: a manifest may never have arrived
Result = tuple[Releases, list[Effect]]


def build_model(releases: Releases, context: Context, statuses: Statuses, wanted: BuildModel) -> Result:
    """Make a model of what the training has learned, and release it as the settings say."""
    made = attempt(
        lambda: make_model(
            wanted.algorithm,
            wanted.server,
            version=releases.highest_version + 1,
            name=context.settings.algorithm.name,
            run=wanted.run,
            features=context.settings.features,
            max_payload_bytes=context.settings.limits.max_payload_bytes,
            gateways=wanted.gateways,
            created_ns=context.now_ns,
        )
    )
    if isinstance(made, Exception):  # the same parameters would be there after a restart
        return releases, [Log("warning", f"no model can be made: {type(made).__name__}: {made}")]
    return receive_model(releases, context, statuses, ModelRelease(*made))


def make_model(
    algorithm: Algorithm,
    server: Server,
    *,
    version: int,
    name: str,
    run: str,
    features: FeatureSpec,
    max_payload_bytes: int,
    gateways: int,
    created_ns: int,
) -> tuple[Manifest, bytes]:
    """Return the manifest, which is signed when it is announced, and the ONNX bytes of the server's shared parameters.

    The golden inputs are drawn from the version, so that equal parameters give equal bytes. Raises `ModelRefusedError`
    for a graph that every gateway would refuse.
    """
    detector = DETECTORS[algorithm.detector]
    body = detector.graph(server.global_state, algorithm.personal)
    onnx_policy.check(body)
    rng = generator(version, server.round_index, "golden")
    feature_count = len(feature_names(features))
    rows = max(min(GOLDEN_ROWS, GOLDEN_VALUES // feature_count), 1)
    golden_x = (rng.normal(size=(rows, feature_count)) * server.global_state.get(COMMON, 1.0)).astype(np.float32)
    surveyed = site_of(server.global_state)
    manifest = Manifest(
        version=version,
        model=describe(body, max_payload_bytes),
        algorithm=name,
        detector=algorithm.detector,
        run=run,
        round_index=server.round_index,
        features=features,
        personal=algorithm.personal,
        opset=OPSET,
        golden_x=tuple(tuple(float(value) for value in row) for row in golden_x),
        site=pack_survey(surveyed) if surveyed else "",
        golden_score=tuple(float(value) for value in detector.score(server.global_state, golden_x)),
        gateways=gateways,
        created_ns=created_ns,
    )
    return manifest, body


def receive_model(releases: Releases, context: Context, statuses: Statuses, new: ModelRelease) -> Result:
    """Take in a model that the training has made: to all, to canaries, or to wait, as the settings say."""
    mode, stage, candidate = context.settings.release.mode, releases.rollout, releases.candidate
    was_stopped = stage.stage == "stopped" and candidate is not None and is_same(candidate, new)
    if new.manifest.model.digest in stage.stopped or was_stopped:
        text = f"the model that the training made is one whose release was stopped ({new.manifest.model.digest[:12]})"
        return releases, [Log("warning", f"{text}: released by order alone, cloud-aggregator release --version")]
    latest = releases.waiting or (candidate if stage.is_under_way else None) or releases.everywhere
    if latest is not None and _is_known(releases, new, latest):
        # Of sums over rows that have not changed; a fleet on cellular links need not fetch it again.
        return releases, [Log("info", f"model {latest.manifest.version} is as it was, nothing to release")]
    version = new.manifest.version
    releases = replace(releases, waiting=new)
    text = f"model {version} made: {len(new.body)} bytes, {new.manifest.model.digest[:12]}"
    log = Log("info", text, _name_model(new.manifest))
    effects: list[Effect] = [RecordModel(*new), log]
    if not stage.is_under_way and mode != "manual":
        releases, more = _release_next(releases, context, statuses)
        return releases, [*effects, *more]
    text = (
        f": the release of model {stage.version} is under way"
        if stage.is_under_way
        else " for cloud-aggregator release"
    )
    return releases, [*effects, save(releases, context), Log("info", f"model {version} waits{text}")]


def is_same(one: ModelRelease, other: ModelRelease) -> bool:
    """Tell whether two models say the same. Of the same rows, updates that arrive in another order or are made on
    another processor make a model whose last bits differ, and so does its digest.
    """
    return one.manifest.model.digest == other.manifest.model.digest or is_alike(one.body, other.body)


def _is_known(releases: Releases, new: ModelRelease, known: ModelRelease) -> bool:
    """Tell whether a model is one that gateways have or can have: they take none below the newest that was signed."""
    is_taken = known.manifest.version >= releases.newest.version
    return is_taken and known.manifest.run == new.manifest.run and is_same(known, new)


def save(releases: Releases, context: Context) -> SaveRollout:
    """Return the effect that stores how the release stands, with the time of day at which it began."""
    dated = replace(releases.rollout, since_ns=releases.rollout.since_ns + context.anchor_ns)
    return SaveRollout(dump(replace(releases, rollout=dated)), context.now_ns)


def _release_next(releases: Releases, context: Context, statuses: Statuses) -> Result:
    """Release the model that waits, where there is one and the settings do not leave that to the operator."""
    new, table, current = releases.waiting, context.settings.release, releases.everywhere
    if new is not None and current is not None and _is_known(releases, new, current):
        releases, new = replace(releases, waiting=None), None  # all have been given the same meanwhile
    if new is None or table.mode == "manual":
        return releases, [save(releases, context)]
    new, effects = _renumber(releases, context, new)
    releases = replace(releases, waiting=None)
    releases, more = (
        give_to_all(releases, context, new)
        if table.mode == "all"
        else begin_rollout(releases, context, statuses, new, table.canary)
    )
    return releases, [*effects, *more]


def _renumber(releases: Releases, context: Context, new: ModelRelease) -> tuple[ModelRelease, list[Effect]]:
    """Return a model that has waited under a version that every gateway takes: some may have been given a higher one
    since it was made.
    """
    is_newest = new.manifest.version == releases.highest_version
    return (new, []) if is_newest else _repeat_model(releases, context, new)


def _repeat_model(releases: Releases, context: Context, old: ModelRelease) -> tuple[ModelRelease, list[Effect]]:
    """Return a model under a new version, as a gateway takes no version below one it had."""
    manifest = old.manifest.changed(version=releases.highest_version + 1, created_ns=context.now_ns)
    new = ModelRelease(manifest, old.body)
    return new, [RecordModel(*new)]


def give_to_all(releases: Releases, context: Context, new: ModelRelease) -> Result:
    """Give a model to all; who was given one alone is notified that what is announced to all holds for it too."""
    alone, stage, before = releases.recipients, releases.rollout, releases.version
    if stage.stage != "none":
        left = stage.without(new.manifest.model.digest)
        stage = replace(stage, stage="everywhere", version=new.manifest.version, canaries=(), recalled=(), stopped=left)
    releases = replace(releases, everywhere=new, rollout=stage, candidate=None, recall=None, before=before)
    log = Log("info", f"model {new.manifest.version} released to all gateways", _name_model(new.manifest))
    back: list[Effect] = [announce.retract(context, name) for name in alone]
    return releases, [save(releases, context), *announce.announce(context, new), *back, log]


def begin_rollout(
    releases: Releases,
    context: Context,
    statuses: Statuses,
    new: ModelRelease,
    share: float,
    names: tuple[str, ...] = (),
) -> Result:
    """Give a model to some first: to those named, or to a share that is drawn. Who had one that was stopped and may not
    have left it yet, is still given back what all have.
    """
    before, version = releases.rollout, new.manifest.version
    begin = Rollout("watching", version, 0, share, names, bool(names), context.uptime_ns, recalled=before.recalled)
    begin = replace(begin, stopped=before.without(new.manifest.model.digest))
    begin = draw_canaries(begin, statuses, context.settings.algorithm.seed)
    releases = replace(releases, rollout=begin, candidate=new)
    return releases, [save(releases, context), *_announce_to(context, new, begin.canaries)]


def _name_model(manifest: Manifest) -> dict[str, object]:
    return {"model": manifest.version, "digest": manifest.model.digest, "round": manifest.round_index}


def _announce_to(context: Context, new: ModelRelease, names: tuple[str, ...]) -> list[Effect]:
    if not names:
        return [Log("info", "no gateway with a whole baseline is online: the model waits for its canaries")]
    text = f"model {new.manifest.version} released to {len(names)} canaries: {', '.join(names[:9])}"
    log = Log("info", text, _name_model(new.manifest))
    return [effect for name in names for effect in announce.announce(context, new, name)] + [log]


def watch_rollout(releases: Releases, context: Context, statuses: Statuses) -> Result:
    """Decide what follows from what the canaries tell."""
    stage, table, candidate = releases.rollout, context.settings.release, releases.candidate
    if stage.stage != "watching":
        return releases, []
    if not stage.canaries and candidate is not None:
        stage = draw_canaries(stage, statuses, context.settings.algorithm.seed)
        if not stage.canaries:
            return releases, []
        releases = replace(releases, rollout=replace(stage, since_ns=context.uptime_ns))
        return releases, [save(releases, context), *_announce_to(context, candidate, stage.canaries)]
    hop_s = context.settings.features.hop_s
    report = rollout.report(stage, statuses, releases.version, table, hop_s)
    word, why = rollout.judge_canaries(stage, report, table, context.uptime_ns)
    if word == "go on":
        return continue_rollout(releases, context, statuses, why)
    if word == "stop":
        return stop_rollout(releases, context, statuses, why)
    return pause_rollout(releases, context, why) if word == "pause" else (releases, [])


def continue_rollout(releases: Releases, context: Context, statuses: Statuses, why: str) -> Result:
    """Give the model of the canaries to all."""
    candidate = releases.candidate
    if candidate is None:
        return releases, []
    releases = replace(releases, rollout=replace(releases.rollout, why=why))
    releases, effects = give_to_all(releases, context, candidate)
    releases, more = _release_next(releases, context, statuses)
    text = f"release of model {candidate.manifest.version} goes on: {why}"
    return releases, [Log("info", text, _name_model(candidate.manifest)), *effects, *more]


def pause_rollout(releases: Releases, context: Context, why: str) -> Result:
    """Leave the model with the canaries, until the operator decides."""
    stage = replace(releases.rollout, stage="paused", why=why)
    releases = replace(releases, rollout=stage)
    log = Log("warning", f"release of model {stage.version} is paused: {why}", {"model": stage.version})
    return releases, [save(releases, context), log]


def stop_rollout(releases: Releases, context: Context, statuses: Statuses, why: str) -> Result:
    """Give the canaries back what all have, under a new version: gateways refuse a lower one."""
    stage, recall, recorded = releases.rollout, None, list[Effect]()
    recalled, candidate, waiting = releases.recipients, releases.candidate, releases.waiting
    if releases.everywhere is not None:
        recall, recorded = _repeat_model(releases, context, releases.everywhere)
    log = Log("warning", f"release of model {stage.version} is stopped: {why}", {"model": stage.version})
    effects: list[Effect] = [log, *recorded]
    digests = stage.stopping(candidate.manifest.model.digest) if candidate else stage.stopped
    version, given_back = (recall.manifest.version, recalled) if recall else (0, ())
    stage = replace(stage, stage="stopped", why=why, recall=version, recalled=given_back, stopped=digests)
    if waiting is not None and candidate is not None and is_same(candidate, waiting):
        waiting = None  # the training has made the same again meanwhile
    # What was stopped is kept: the training goes on, and may make it again in other last bits.
    releases = replace(releases, rollout=stage, recall=recall, waiting=waiting)
    if recall is not None and recalled:
        effects += [effect for name in recalled for effect in announce.announce(context, recall, name)]
        effects.append(Log("info", f"{', '.join(recalled[:9])} given back what all have, as model {stage.recall}"))
    elif recall is None:
        effects += [announce.retract(context, name) for name in stage.canaries]
        effects.append(Log("warning", "there is no model before it: canaries that have it keep it until the next"))
    saved = save(releases, context)  # what the canaries are given back, before all are given what has waited
    releases, more = _release_next(releases, context, statuses) if waiting is not None else (releases, [])
    return releases, [saved, *effects, *more]


def remind(releases: Releases, context: Context, statuses: Statuses) -> Result:
    """Repeat the announcements that some gateway seems not to have received."""
    if context.uptime_ns - releases.reminded_ns < REMIND_S * NS:
        return releases, []
    return replace(releases, reminded_ns=context.uptime_ns), list_reminders(releases, context, statuses)


def list_reminders(releases: Releases, context: Context, statuses: Statuses) -> list[Effect]:
    """Return the announcements that some gateway seems not to have received."""
    effects: list[Effect] = []
    if releases.manifest is not None and any(one.lacks(releases.manifest.version) for one in statuses.values()):
        effects.append(announce.manifest(context, releases.manifest))
    for name in releases.recipients:
        new, status = releases.find_alone(name), statuses.get(name)
        if new is not None and status is not None and status.lacks(new.manifest.version):
            effects.append(announce.manifest(context, new.manifest, name))
    return effects


def find_model(releases: Releases, version: int | None, stored: tuple[Manifest, bytes] | None) -> ModelRelease:
    """Return the model that an order releases: the one that waits, or that of a version, which is `stored`.

    Raises `OrderError` where there is none, and while another release is under way.
    """
    stage, waiting = releases.rollout, releases.waiting
    if stage.is_under_way:
        raise OrderError(f"the release of model {stage.version} is {stage.stage}; give --go-on or --stop first")
    if waiting is not None and version in (None, waiting.manifest.version):
        return waiting
    if version is None:
        raise OrderError(
            "no model waits to be released: [release] mode = 'manual' keeps what the training makes until it is "
            "ordered, --version releases an older one once more"
        )
    if stored is None:
        raise OrderError(
            f"version {version} given, and no such model is stored (any more); see cloud-aggregator models"
        )
    return ModelRelease(*stored)


def _repeat_ordered(releases: Releases, context: Context, stored: ModelRelease) -> tuple[ModelRelease, list[Effect]]:
    """Return a stored model under a new version. Raises `OrderError`."""
    if stored.manifest.features != context.settings.features:
        raise OrderError(f"model {stored.manifest.version} is of other [features]: every gateway would refuse it")
    return _repeat_model(releases, context, fit_to_limits(stored, context.settings.limits))


def release_ordered(
    releases: Releases, context: Context, statuses: Statuses, order: Ordered
) -> tuple[Releases, list[Effect], str]:
    """Release a model to canaries, or to all. Raises `OrderError`."""
    names, share = tuple(order.body.get("gateways", ())), float(order.body.get("share", 0.0))
    if unknown := [name for name in names if name not in list_able(statuses)]:
        raise OrderError(f"{', '.join(unknown)} cannot be canaries: not known, or without a whole baseline")
    if not (names or 0.0 < share <= 1.0):
        raise OrderError(f"share {share} given; expected more than 0, and 1 at most")
    model = find_model(releases, order.body.get("version"), order.model)
    waiting = releases.waiting
    renumber = _renumber if model is waiting else _repeat_ordered
    new, effects = renumber(releases, context, model)
    if waiting is not None and new.manifest.model == waiting.manifest.model:
        releases = replace(releases, waiting=None)
    if order.body.get("to_all"):
        releases, more = give_to_all(releases, context, new)
        return releases, [*effects, *more], f"model {new.manifest.version} is released to all gateways"
    releases, more = begin_rollout(releases, context, statuses, new, share, names)
    who = ", ".join(releases.rollout.canaries) or "nobody yet, for no gateway with a whole baseline is online"
    return releases, [*effects, *more], f"model {new.manifest.version} is released to {who}"


def check_decision(stage: Rollout, kind: str) -> None:
    """Raise `OrderError` where there is no release to go on with, to pause or to stop."""
    if not stage.is_under_way:
        raise OrderError(
            f"no release is under way (the last one: {stage.stage}); cloud-aggregator release shows how it stands"
        )
    if kind == "pause" and stage.stage == "paused":
        raise OrderError(f"the release of model {stage.version} is paused already; give --go-on or --stop")


def decide_release(
    releases: Releases, context: Context, statuses: Statuses, order: Ordered
) -> tuple[Releases, list[Effect], str]:
    """Go on, pause or stop the release at hand. Raises `OrderError`, also where the order names another version: who
    decides must mean what is under way.
    """
    stage, kind, meant = releases.rollout, order.kind, order.body.get("version")
    check_decision(stage, kind)
    if meant not in (None, stage.version):
        raise OrderError(f"version {meant} given, and under way is {stage.version}; look at it again, then decide")
    if kind == "pause":
        releases, effects = pause_rollout(releases, context, BY_HAND)
        return releases, effects, f"release of model {stage.version} is paused"
    act, text = (continue_rollout, "goes on to all gateways") if kind == "go-on" else (stop_rollout, "is stopped")
    releases, effects = act(releases, context, statuses, BY_HAND)
    return releases, effects, f"release of model {stage.version} {text}"
