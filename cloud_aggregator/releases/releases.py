"""The record of releases: the model that all have, and the one that a few have first.

    none -> watching -> everywhere: given to all
               |  `---> paused: until the operator decides -> everywhere or stopped
               `------> stopped: those few are given back what all have, under a new version

All three end in `watching` again, with the next model. Rounds go on meanwhile, and the newest model of them waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.limits import Allowance
from fedgate.config.protocol.messages import Manifest, Newest
from fedgate.config.protocol.transfer import describe
from fedgate.config.settings.settings import Limits

Stage = Literal["none", "watching", "paused", "everywhere", "stopped"]
STOPPED_MAX = 20  # remembered: a training that goes on makes another model sooner or later
HELD = ("everywhere", "candidate", "recall", "waiting")  # models of a release, each stored as its version
NOTHING_NEWEST = Newest(version=0, highest_version=0, training=0)
UNDER_WAY = ("watching", "paused")


class ModelRelease(NamedTuple):
    """A model and what is said of it."""

    manifest: Manifest
    body: bytes


@dataclass(frozen=True)
class Rollout:
    """The release at hand, or the last one; plain values."""

    stage: Stage = "none"
    version: int = 0  # that is released
    recall: int = 0  # under which the canaries were given back what all have, where it was stopped
    share: float = 0.0
    canaries: tuple[str, ...] = ()  # empty: not drawn yet, for no gateway was here that could take a model
    is_named: bool = False  # by the operator
    since_ns: int = 0  # since the boot; in the store the time of day
    why: str = ""
    recalled: tuple[str, ...] = ()  # who was given back what all have, until all are given another
    stopped: tuple[str, ...] = ()  # digests of models whose releases were stopped, see `stopping`

    @property
    def is_under_way(self) -> bool:
        """True while canaries have a model that the others have not."""
        return self.stage in UNDER_WAY

    def without(self, digest: str) -> tuple[str, ...]:
        """Return the models that were stopped but for one: it is released by order."""
        return tuple(one for one in self.stopped if one != digest)

    def stopping(self, digest: str) -> tuple[str, ...]:
        """Return the models that were stopped with one more."""
        return (*self.without(digest), digest)[-STOPPED_MAX:]


@dataclass(frozen=True)
class Releases:
    """What is released, and what was published of it."""

    everywhere: ModelRelease | None = None  # the model that all have
    rollout: Rollout = field(default_factory=Rollout)
    candidate: ModelRelease | None = None  # of the canaries, while it is under way; what was stopped, after that
    recall: ModelRelease | None = None  # of those who had a model that was stopped
    waiting: ModelRelease | None = None  # made since, and given to nobody yet
    before: int = 0  # the version that all had before, to be kept for whoever wants it back
    newest: Newest = NOTHING_NEWEST  # that was published last, or came back to an aggregator that had lost its own
    announced_week: int = -1  # in which what is retained was signed
    reminded_ns: int = (
        0  # since the boot, when manifests were last repeated to those who seem not to have received them
    )
    fetched: dict[str, Allowance] = field(default_factory=dict)  # by gateway: bodies, see `announce.send_due_chunks`

    @property
    def manifest(self) -> Manifest | None:
        """What is said of the model that all have."""
        return None if self.everywhere is None else self.everywhere.manifest

    @property
    def version(self) -> int:
        """The version of the model that all have; 0 where there is none."""
        return 0 if self.everywhere is None else self.everywhere.manifest.version

    @property
    def recipients(self) -> tuple[str, ...]:
        """Who was given something that not all have."""
        return tuple(dict.fromkeys((*self.rollout.canaries, *self.rollout.recalled)))

    @property
    def highest_version(self) -> int:
        """The highest version that this aggregator gave to a model, also where its record of that was lost and its own
        signed word of it came back. What gateways say of theirs counts for nothing.
        """
        held = [one.manifest.version for one in self.models.values()]
        return max(self.newest.highest_version, self.rollout.version, self.rollout.recall, *held)

    @property
    def models(self) -> dict[str, ModelRelease]:
        """The models that there are, by what they are here."""
        models = (self.everywhere, self.candidate, self.recall, self.waiting)
        return {name: one for name, one in zip(HELD, models, strict=True) if one is not None}

    def find_alone(self, gateway: str) -> ModelRelease | None:
        """Return what is announced to a gateway alone, None where it is what all have."""
        if self.rollout.is_under_way and gateway in self.rollout.canaries:
            return self.candidate
        return self.recall if gateway in self.rollout.recalled else None


def dump(releases: Releases) -> bytes:
    """Return how a release stands as bytes; the models themselves lie elsewhere."""
    versions = {name: one.manifest.version for name, one in releases.models.items()}
    known = {"rollout": asdict(releases.rollout), "everywhere": 0, "before": releases.before}
    return json.dumps(known | versions).encode()


def find_needed(body: bytes | None) -> set[int]:
    """Return the versions whose models a stored release is about, that all have or had before among them."""
    held: dict[str, Any] = json.loads(body) if body else {}
    return {held[name] for name in ("before", *HELD) if held.get(name)}


def restore(
    body: bytes | None, of: Callable[[int], tuple[Manifest, bytes] | None], latest: tuple[Manifest, bytes] | None
) -> Releases:
    """Return the releases as the store holds them; `of` finds a stored model by its version.

    Where nothing was ever staged the latest model is the one that all have.
    """
    if body is None:
        return Releases(None if latest is None else ModelRelease(*latest))
    held: dict[str, Any] = json.loads(body)
    lists = {name: tuple(held["rollout"][name]) for name in ("canaries", "recalled", "stopped")}
    found = {name: of(held[name]) for name in HELD if held.get(name)}
    models: dict[str, Any] = {name: ModelRelease(*one) for name, one in found.items() if one is not None}
    return Releases(rollout=Rollout(**{**held["rollout"], **lists}), before=held["before"], **models)


def resume(context: Context, stored: Releases) -> Releases:
    """Return the releases that go on from those stored, under the present settings and by the present clock."""
    # Begun now at the latest: the clock that it began by may have been ahead.
    rollout = replace(stored.rollout, since_ns=min(stored.rollout.since_ns - context.anchor_ns, context.uptime_ns))
    current = stored.everywhere and fit_to_limits(stored.everywhere, context.settings.limits)
    return replace(stored, everywhere=current, rollout=rollout, reminded_ns=context.uptime_ns)


def fit_to_limits(model: ModelRelease, limits: Limits) -> ModelRelease:
    """Return a stored model as the present limits want it: its manifest says how the body is cut."""
    manifest, body = model
    return ModelRelease(manifest.changed(model=describe(body, limits.max_payload_bytes)), body)
