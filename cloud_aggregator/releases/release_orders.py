"""What an operator orders of releases; see `orders` for how it comes here."""

from __future__ import annotations

from typing import Any

from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, Ordered, OrderError, RecordModel
from fedgate.cloud_aggregator.releases import build, deploy
from fedgate.cloud_aggregator.releases.releases import Releases
from fedgate.cloud_aggregator.releases.rollout import BuiltModel

Result = tuple[Releases, list[Effect], str]
BY_HAND = "by order of the operator"


def release_of(releases: Releases, context: Context, order: Ordered) -> tuple[BuiltModel, list[Effect]]:
    """Return the model that is to be released: the one that waits, or the stored one that the order names, which is
    released once more under a new version. Raises `OrderError`.
    """
    named: Any = order.body.get("version")
    waiting = releases.staging.waiting
    if named is None or (waiting is not None and named == waiting.manifest.version):
        if waiting is None:
            raise OrderError(
                "no model waits to be released: [release] mode = 'manual' keeps what the training makes until it is "
                "ordered, --version releases an older one once more"
            )
        return deploy.renumbered(releases, context, waiting)
    if order.model is None:
        raise OrderError(f"version {named} given, and no such model is stored (any more); see cloud-aggregator models")
    manifest, body = order.model
    if manifest.features != context.settings.features:
        raise OrderError(f"model {named} is of other [features]: every gateway would refuse it")
    fitting = build.fitting(manifest, body, context.settings.limits)
    new = BuiltModel(build.again(fitting, releases.highest_version + 1, context.now_ns), body)
    return new, [RecordModel(*new)]


def release_ordered(releases: Releases, context: Context, access: Access, order: Ordered) -> Result:
    """Release a model to canaries, or to all. Raises `OrderError`."""
    stage = releases.staging.rollout
    if stage.is_under_way:
        raise OrderError(f"the release of model {stage.version} is {stage.stage}; give --go-on or --stop first")
    names, share = tuple(order.body.get("gateways", ())), float(order.body.get("share", 0.0))
    if unknown := deploy.unknown(access, names):
        raise OrderError(f"{', '.join(unknown)} cannot be canaries: not known, or without a whole baseline")
    if not (names or 0.0 < share <= 1.0):
        raise OrderError(f"share {share} given; expected more than 0, and 1 at most")
    new, effects = release_of(releases, context, order)
    waiting = releases.staging.waiting
    if waiting is not None and new.manifest.model == waiting.manifest.model:
        releases = deploy.emptied(releases)
    if order.body.get("to_all"):
        releases, more = deploy.everywhere(releases, context, new)
        return releases, [*effects, *more], f"model {new.manifest.version} is released to all gateways"
    releases, more = deploy.begin_rollout(releases, context, access, new, share, names)
    who = ", ".join(releases.staging.rollout.canaries) or "nobody yet, for no gateway with a whole baseline is online"
    return releases, [*effects, *more], f"model {new.manifest.version} is released to {who}"


def decide_release(releases: Releases, context: Context, access: Access, kind: str) -> Result:
    """Go on, pause or stop the release at hand. Raises `OrderError`."""
    stage = releases.staging.rollout
    if not stage.is_under_way:
        raise OrderError(
            f"no release is under way (the last one: {stage.stage}); cloud-aggregator release shows how it stands"
        )
    if kind == "pause" and stage.stage == "paused":
        raise OrderError(f"the release of model {stage.version} is paused already; give --go-on or --stop")
    if kind == "pause":
        releases, effects = deploy.pause_rollout(releases, context, BY_HAND)
        return releases, effects, f"release of model {stage.version} is paused"
    act, text = (
        (deploy.continue_rollout, "goes on to all gateways") if kind == "go-on" else (deploy.stop_rollout, "is stopped")
    )
    releases, effects = act(releases, context, access, BY_HAND)
    return releases, effects, f"release of model {stage.version} {text}"
