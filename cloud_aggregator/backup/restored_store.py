"""What has to be set anew in a store that comes from a backup: gateways and operators have gone on since.

Nobody knows here what came since. So no number is used twice, nothing is done twice, nothing is decided on what may
have been decided otherwise, and whoever is known to be revoked stays so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import Answered, DropHeld, Durable, SaveRollout, SaveTraining
from fedgate.cloud_aggregator.releases.releases import UNDER_WAY

SET_BACK = "set-back"  # in the place of what names a training: no settings have this digest


class Stored(NamedTuple):
    """What a restored store holds of what is set anew."""

    training: SaveTraining | None
    rollout: bytes | None
    registry: Registry
    orders: tuple[tuple[int, str, str], ...]  # without an answer: number, kind, body


class Renewal(NamedTuple):
    """What is to be written, and what it means, a line each."""

    effects: list[Durable]
    lines: list[str]


def renew(stored: Stored, made: str, made_ns: int, now_ns: int, known: Iterable[Certificate]) -> Renewal:
    """Return what makes a store of `made_ns` good to go on with at `now_ns`; `made` is that time as it is shown, and
    `known` are the certificates of the store that is replaced, where there is one that can be read.
    """
    parts = (
        _renew_training(stored),
        _release(stored, made, now_ns),
        _keep_revoked(stored.registry, known),
        _void_tokens(stored.registry, made_ns),
        _refuse_orders(stored, made),
    )
    return Renewal(
        [effect for part in parts for effect in part.effects], [line for part in parts for line in part.lines]
    )


def _renew_training(stored: Stored) -> Renewal:
    """Begin the training anew: its rounds since are answered, and no gateway answers twice."""
    if stored.training is None:
        return Renewal([], [])
    meta = stored.training.meta
    anew = replace(stored.training, meta=meta | {"run": f"{SET_BACK}.{meta['run'].partition('.')[2]}"})
    text = (
        "the training begins anew, for gateways answer no round twice; the model in force stays until it has made one"
    )
    return Renewal([anew, DropHeld()], [text])


def _release(stored: Stored, made: str, now_ns: int) -> Renewal:
    """Let no release go on by itself. Which versions were used since, the gateways have signed: see `newest`."""
    held: dict[str, Any] = json.loads(stored.rollout) if stored.rollout else {"rollout": {"stage": "none"}}
    rollout = held["rollout"]
    if rollout["stage"] not in UNDER_WAY:
        return Renewal([], [])
    why = f"the store was put back from a backup of {made}; what became of this release since is not known"
    paused = {**held, "rollout": {**rollout, "stage": "paused", "why": why}}
    text = f"the release of model {rollout['version']} is paused: cloud-aggregator release --go-on or --stop"
    return Renewal([SaveRollout(json.dumps(paused).encode(), now_ns)], [text])


def _keep_revoked(registry: Registry, known: Iterable[Certificate]) -> Renewal:
    """Keep out whom the store that is replaced has shut out."""
    over = tuple(
        replace(registry.certificates.get(one.serial, one), reason=one.reason, ended_ns=one.ended_ns)
        for one in known
        if one.reason and not registry.is_over(one.serial)
    )
    who = ", ".join(sorted({one.gateway for one in over}))
    lines = [f"{len(over)} certificates more are over, by the store that was there: {who}"] if over else []
    return Renewal([RecordRegistry(over)], lines)


def _void_tokens(registry: Registry, made_ns: int) -> Renewal:
    """Void the tokens that were not used: one that was used since would admit a second device."""
    unused = [one for one in registry.passes.values() if not one.key and one.expires_ns > made_ns]
    who = ", ".join(sorted({one.gateway for one in unused}))
    lines = [f"tokens that were not used are void, make new ones where they are wanted: {who}"] if unused else []
    return Renewal([RecordRegistry(passes=tuple(replace(one, expires_ns=made_ns) for one in unused))], lines)


def _refuse_orders(stored: Stored, made: str) -> Renewal:
    """Refuse what waited: it may have been carried out since."""
    text = f"the store was put back from a backup of {made}, in which this waited: it may be done; order it again"
    effects: list[Durable] = [Answered(number, "refused", text) for number, _, _ in stored.orders]
    lines = [
        f"order {number} waited and is refused, it may be done: {kind} {body}" for number, kind, body in stored.orders
    ]
    return Renewal(effects, lines)
