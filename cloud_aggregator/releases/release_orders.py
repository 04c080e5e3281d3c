"""What an operator orders of releases; see `orders` for how it comes here."""

from __future__ import annotations

from typing import Any

from fedgate.cloud_aggregator.events import Effect, Ordered, OrderError, RecordModel
from fedgate.cloud_aggregator.releases import build, deploy
from fedgate.cloud_aggregator.releases.rollout import BuiltModel
from fedgate.cloud_aggregator.state import State

Result = tuple[State, list[Effect], str]
BY_HAND = "by order of the operator"


def release_of(state: State, order: Ordered) -> tuple[BuiltModel, list[Effect]]:
    """Return the model that is to be released: the one that waits, or the stored one that the order names, which is
    released once more under a new version. Raises `OrderError`.
    """
    named: Any = order.body.get("version")
    waiting = state.staging.waiting
    if named is None or (waiting is not None and named == waiting.manifest.version):
        if waiting is None:
            raise OrderError(
                "no model waits to be released: [release] mode = 'manual' keeps what the training makes until it is "
                "ordered, --version releases an older one once more"
            )
        return deploy.renumbered(state, waiting)
    if order.model is None:
        raise OrderError(f"version {named} given, and no such model is stored (any more); see cloud-aggregator models")
    manifest, body = order.model
    if manifest.features != state.settings.features:
        raise OrderError(f"model {named} is of other [features]: every gateway would refuse it")
    fitting = build.fitting(manifest, body, state.settings.limits)
    new = BuiltModel(build.again(fitting, deploy.next_version(state), state.now_ns), body)
    return new, [RecordModel(*new)]


def release_ordered(state: State, order: Ordered) -> Result:
    """Release a model to canaries, or to all. Raises `OrderError`."""
    stage = state.staging.rollout
    if stage.is_under_way:
        raise OrderError(f"the release of model {stage.version} is {stage.stage}; give --go-on or --stop first")
    names, share = tuple(order.body.get("gateways", ())), float(order.body.get("share", 0.0))
    if unknown := deploy.unknown(state, names):
        raise OrderError(f"{', '.join(unknown)} cannot be canaries: not known, or without a whole baseline")
    if not (names or 0.0 < share <= 1.0):
        raise OrderError(f"share {share} given; expected more than 0, and 1 at most")
    new, effects = release_of(state, order)
    waiting = state.staging.waiting
    if waiting is not None and new.manifest.model == waiting.manifest.model:
        state = deploy.emptied(state)
    if order.body.get("to_all"):
        state, more = deploy.everywhere(state, new)
        return state, [*effects, *more], f"model {new.manifest.version} is released to all gateways"
    state, more = deploy.begin_rollout(state, new, share, names)
    who = ", ".join(state.staging.rollout.canaries) or "nobody yet, for no gateway with a whole baseline is online"
    return state, [*effects, *more], f"model {new.manifest.version} is released to {who}"


def decided(state: State, kind: str) -> Result:
    """Go on, pause or stop the release at hand. Raises `OrderError`."""
    stage = state.staging.rollout
    if not stage.is_under_way:
        raise OrderError(
            f"no release is under way (the last one: {stage.stage}); cloud-aggregator release shows how it stands"
        )
    if kind == "pause" and stage.stage == "paused":
        raise OrderError(f"the release of model {stage.version} is paused already; give --go-on or --stop")
    act = {"go-on": deploy.continue_rollout, "pause": deploy.pause_rollout, "stop": deploy.stop_rollout}[kind]
    state, effects = act(state, BY_HAND)
    text = {"go-on": "goes on to all gateways", "pause": "is paused", "stop": "is stopped"}[kind]
    return state, effects, f"release of model {stage.version} {text}"
