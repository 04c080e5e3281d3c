"""A model's way from the training to all gateways: at once, or to a few first, whose word decides.

Rounds go on meanwhile: what they train on is the gateways' data, which no model changes. A model that is made while the
release of another is under way waits for its end, and only the newest of several does.
"""

from __future__ import annotations

from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.attempts import attempt
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, Log, RecordModel, SaveRollout
from fedgate.cloud_aggregator.releases import announce, build, rollout
from fedgate.cloud_aggregator.releases.releases import Releases
from fedgate.cloud_aggregator.releases.rollout import BuiltModel, Rollout, Staging, able, drawn
from fedgate.cloud_aggregator.rounds.rounds import Rounds
from fedgate.models.detectors.graph import is_alike
from fedgate.models.records import replace

NS = 1_000_000_000
REMIND_S = 300.0  # brokers drop messages silently: a manifest may never have arrived
Result = tuple[Releases, list[Effect]]


def build_model(releases: Releases, context: Context, access: Access, rounds: Rounds, gateways: int) -> Result:
    """Make a model of what the training has learned, and release it as the settings say."""
    made = attempt(
        lambda: build.make(
            rounds.algorithm,
            rounds.server,
            version=releases.highest_version + 1,
            name=context.settings.algorithm.name,
            run=rounds.run,
            features=context.settings.features,
            max_payload_bytes=context.settings.limits.max_payload_bytes,
            gateways=gateways,
            created_ns=context.now_ns,
        )
    )
    if isinstance(made, Exception):  # the same parameters would be there after a restart
        return releases, [Log("warning", f"no model can be made: {type(made).__name__}: {made}")]
    return receive_model(releases, context, access, BuiltModel(*made))


def receive_model(releases: Releases, context: Context, access: Access, new: BuiltModel) -> Result:
    """Take in a model that the training has made: to all, to canaries, or to wait, as the settings say."""
    waiting, mode, stage = releases.staging.waiting, context.settings.release.mode, releases.staging.rollout
    candidate = releases.staging.candidate
    was_stopped = stage.stage == "stopped" and candidate is not None and is_same(candidate, new)
    if new.manifest.model.digest in stage.stopped or was_stopped:
        text = f"the model that the training made is one whose release was stopped ({new.manifest.model.digest[:12]})"
        return releases, [Log("warning", f"{text}: released by order alone, cloud-aggregator release --version")]
    latest = waiting or (candidate if stage.is_under_way else None) or releases.everywhere
    if latest is not None and _is_known(releases, new, latest):
        # Of sums over rows that have not changed; a fleet on cellular links need not fetch it again.
        return releases, [Log("info", f"model {latest.manifest.version} is as it was, nothing to release")]
    version = new.manifest.version
    releases = replace(releases, staging=replace(releases.staging, waiting=new))
    log = Log("info", f"model {version} made: {len(new.body)} bytes, {new.manifest.model.digest[:12]}")
    effects: list[Effect] = [RecordModel(*new), log]
    if stage.is_under_way:
        why = f"the release of model {stage.version} is under way"
        return releases, [*effects, _saved(releases, context), Log("info", f"model {version} waits: {why}")]
    if mode == "manual":
        return releases, [
            *effects,
            _saved(releases, context),
            Log("info", f"model {version} waits for cloud-aggregator release"),
        ]
    releases, more = _next(releases, context, access)
    return releases, [*effects, *more]


def is_same(one: BuiltModel, other: BuiltModel) -> bool:
    """Tell whether two models say the same. Of the same rows, updates that arrive in another order or are made on
    another processor make a model whose last bits differ, and so does its digest.
    """
    return one.manifest.model.digest == other.manifest.model.digest or is_alike(one.body, other.body)


def _is_known(releases: Releases, new: BuiltModel, known: BuiltModel) -> bool:
    """Tell whether a model is one that gateways have or can have: they take none below the newest that was signed."""
    is_taken = known.manifest.version >= releases.newest.version
    return is_taken and known.manifest.run == new.manifest.run and is_same(known, new)


def _saved(releases: Releases, context: Context) -> SaveRollout:
    stage = releases.staging.rollout
    dated = replace(releases.staging, rollout=replace(stage, since_ns=stage.since_ns + context.anchor_ns))
    return SaveRollout(rollout.dump_staging(dated, releases.version), context.now_ns)


def _next(releases: Releases, context: Context, access: Access) -> Result:
    """Release the model that waits, where there is one and the settings do not leave that to the operator."""
    new, table = releases.staging.waiting, context.settings.release
    current = releases.everywhere
    if new is not None and current is not None and _is_known(releases, new, current):
        releases, new = emptied(releases), None  # all have been given the same meanwhile
    if new is None or table.mode == "manual":
        return releases, [_saved(releases, context)]
    new, effects = renumbered(releases, context, new)
    releases = replace(releases, staging=replace(releases.staging, waiting=None))
    releases, more = (
        everywhere(releases, context, new)
        if table.mode == "all"
        else begin_rollout(releases, context, access, new, table.canary)
    )
    return releases, [*effects, *more]


def renumbered(releases: Releases, context: Context, new: BuiltModel) -> tuple[BuiltModel, list[Effect]]:
    """Return a model that has waited under a version that every gateway takes: some may have been given a higher one
    since it was made.
    """
    version = releases.highest_version + 1
    if new.manifest.version + 1 == version:
        return new, []
    new = BuiltModel(build.again(new.manifest, version, context.now_ns), new.body)
    return new, [RecordModel(*new)]


def everywhere(releases: Releases, context: Context, new: BuiltModel) -> Result:
    """Give a model to all; who was given one alone is told that what all are told holds for it too."""
    alone, stage = releases.staging.recipients, releases.staging.rollout
    if stage.stage != "none":
        left = stage.without(new.manifest.model.digest)
        stage = replace(stage, stage="everywhere", version=new.manifest.version, canaries=(), recalled=(), stopped=left)
    before, waiting = releases.version, releases.staging.waiting
    releases = replace(releases, manifest=new.manifest, model=new.body)
    releases = replace(releases, staging=Staging(stage, waiting=waiting, before=before))
    log = Log("info", f"model {new.manifest.version} released to all gateways")
    back: list[Effect] = [announce.retract(context, name) for name in alone]
    return releases, [_saved(releases, context), *announce.announce(context, new), *back, log]


def begin_rollout(
    releases: Releases, context: Context, access: Access, new: BuiltModel, share: float, names: tuple[str, ...] = ()
) -> Result:
    """Give a model to some first: to those named, or to a share that is drawn. Who had one that was stopped and may not
    have left it yet, is still given back what all have.
    """
    before = releases.staging.rollout
    left, recalled = before.without(new.manifest.model.digest), before.recalled
    begin = Rollout("watching", new.manifest.version, 0, share, names, bool(names), context.uptime_ns)
    begin = replace(begin, recalled=recalled, stopped=left)
    begin = drawn(begin, access.gateways, context.settings.algorithm.seed)
    releases = replace(releases, staging=replace(releases.staging, rollout=begin, candidate=new))
    return releases, [_saved(releases, context), *_announce_to(context, new, begin.canaries)]


def _announce_to(context: Context, new: BuiltModel, names: tuple[str, ...]) -> list[Effect]:
    if not names:
        return [Log("info", "no gateway with a whole baseline is online: the model waits for its canaries")]
    log = Log("info", f"model {new.manifest.version} released to {len(names)} canaries: {', '.join(names[:9])}")
    return [effect for name in names for effect in announce.announce(context, new, name)] + [log]


def watch_rollout(releases: Releases, context: Context, access: Access) -> Result:
    """Decide what follows from what the canaries tell."""
    stage, table = releases.staging.rollout, context.settings.release
    if stage.stage != "watching":
        return releases, []
    candidate = releases.staging.candidate
    if not stage.canaries and candidate is not None:
        stage = drawn(stage, access.gateways, context.settings.algorithm.seed)
        if not stage.canaries:
            return releases, []
        stage = replace(stage, since_ns=context.uptime_ns)
        releases = replace(releases, staging=replace(releases.staging, rollout=stage))
        return releases, [_saved(releases, context), *_announce_to(context, candidate, stage.canaries)]
    word, why = rollout.verdict(stage, report_canaries(releases, context, access), table, context.uptime_ns)
    if word == "go on":
        return continue_rollout(releases, context, access, why)
    if word == "stop":
        return stop_rollout(releases, context, access, why)
    return pause_rollout(releases, context, why) if word == "pause" else (releases, [])


def report_canaries(releases: Releases, context: Context, access: Access) -> rollout.Report:
    """Return what the canaries tell of the release at hand."""
    hop_s = context.settings.features.hop_s
    return rollout.report(releases.staging.rollout, access.gateways, releases.version, context.settings.release, hop_s)


def continue_rollout(releases: Releases, context: Context, access: Access, why: str) -> Result:
    """Give the model of the canaries to all."""
    candidate = releases.staging.candidate
    if candidate is None:
        return releases, []
    stage = replace(releases.staging.rollout, why=why)
    releases = replace(releases, staging=replace(releases.staging, rollout=stage))
    releases, effects = everywhere(releases, context, candidate)
    releases, more = _next(releases, context, access)
    return releases, [Log("info", f"release of model {candidate.manifest.version} goes on: {why}"), *effects, *more]


def pause_rollout(releases: Releases, context: Context, why: str) -> Result:
    """Leave the model with the canaries, until the operator decides."""
    stage = replace(releases.staging.rollout, stage="paused", why=why)
    releases = replace(releases, staging=replace(releases.staging, rollout=stage))
    return releases, [_saved(releases, context), Log("warning", f"release of model {stage.version} is paused: {why}")]


def stop_rollout(releases: Releases, context: Context, access: Access, why: str) -> Result:
    """Give the canaries back what all have, under a new version: gateways refuse a lower one."""
    stage, base = releases.staging.rollout, releases.manifest
    effects: list[Effect] = [Log("warning", f"release of model {stage.version} is stopped: {why}")]
    recall, recalled = None, releases.staging.recipients
    if base is not None:
        again = build.again(base, releases.highest_version + 1, context.now_ns)
        recall = BuiltModel(again, releases.model)
        effects.append(RecordModel(*recall))
    candidate, waiting = releases.staging.candidate, releases.staging.waiting
    digests = stage.stopping(candidate.manifest.model.digest) if candidate else stage.stopped
    stage = replace(stage, stage="stopped", why=why, recall=recall.manifest.version if recall else 0, stopped=digests)
    stage = replace(stage, recalled=recalled if recall else ())
    if waiting is not None and candidate is not None and is_same(candidate, waiting):
        waiting = None  # the training has made the same again meanwhile
    # What was stopped is kept: the training goes on, and may make it again in other last bits.
    releases = replace(releases, staging=Staging(stage, candidate, recall, waiting, before=releases.staging.before))
    if recall is not None and recalled:
        effects += [effect for name in recalled for effect in announce.announce(context, recall, name)]
        effects.append(Log("info", f"{', '.join(recalled[:9])} given back what all have, as model {stage.recall}"))
    elif recall is None:
        effects += [announce.retract(context, name) for name in stage.canaries]
        effects.append(Log("warning", "there is no model before it: canaries that have it keep it until the next"))
    saved = _saved(releases, context)  # what the canaries are given back, before all are given what has waited
    releases, more = _next(releases, context, access) if releases.staging.waiting is not None else (releases, [])
    return releases, [saved, *effects, *more]


def remind(releases: Releases, context: Context, access: Access) -> Result:
    """Repeat the announcements that some gateway seems not to have received."""
    if context.uptime_ns - releases.reminded_ns < REMIND_S * NS:
        return releases, []
    return replace(releases, reminded_ns=context.uptime_ns), reminders(releases, context, access)


def reminders(releases: Releases, context: Context, access: Access) -> list[Effect]:
    """Return the announcements that some gateway seems not to have heard."""
    effects: list[Effect] = []
    if releases.manifest is not None and any(one.lacks(releases.manifest.version) for one in access.gateways.values()):
        effects.append(announce.manifest(context, releases.manifest))
    for name in releases.staging.recipients:
        new, status = releases.staging.of(name), access.gateways.get(name)
        if new is not None and status is not None and status.lacks(new.manifest.version):
            effects.append(announce.manifest(context, new.manifest, name))
    return effects


def emptied(releases: Releases) -> Releases:
    """Return the record in which no model waits any more: it is being released."""
    return replace(releases, staging=replace(releases.staging, waiting=None))


def unknown(access: Access, names: tuple[str, ...]) -> list[str]:
    """Return which of these gateways cannot be canaries."""
    return [name for name in names if name not in able(access.gateways)]
