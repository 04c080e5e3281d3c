"""How the release of a model stands: who has it first, what they tell of it, and what follows from that.

A decision is a function of what is stored and of the statuses of the gateways, so it is the same after a restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import Any, Literal, NamedTuple

from scipy.special import gammainc

from fedgate.cloud_aggregator.names import first_of
from fedgate.config.protocol.messages import Manifest, Status
from fedgate.config.settings.release import ReleaseTable
from fedgate.models.arrays import select
from fedgate.models.promise import LEAST_BLOCKS, block_windows, level_at
from fedgate.models.records import replace

DAY_S = 86_400.0
NS = 1_000_000_000
OUTVOTED = 3  # canaries of whom one alone decides nothing
STOPPED_MAX = 20  # remembered: a training that goes on makes another model sooner or later

Stage = Literal["none", "watching", "paused", "everywhere", "stopped"]
Verdict = Literal["wait", "go on", "pause", "stop"]
UNDER_WAY = ("watching", "paused")


class BuiltModel(NamedTuple):
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
class Staging:
    """The release at hand with the models that it is about; the one that all have is not among them."""

    rollout: Rollout = field(default_factory=Rollout)
    candidate: BuiltModel | None = None  # of the canaries, while it is under way; what was stopped, after that
    recall: BuiltModel | None = None  # of those who had a model that was stopped
    waiting: BuiltModel | None = None  # made since, and given to nobody yet
    before: int = 0  # the version that all had before, to be kept for whoever wants it back

    @property
    def recipients(self) -> tuple[str, ...]:
        """Who was given something that not all have."""
        return tuple(dict.fromkeys((*self.rollout.canaries, *self.rollout.recalled)))

    def of(self, gateway: str) -> BuiltModel | None:
        """Return what is announced to a gateway alone, None where it is what all have."""
        if self.rollout.is_under_way and gateway in self.rollout.canaries:
            return self.candidate
        return self.recall if gateway in self.rollout.recalled else None

    @property
    def newest(self) -> int:
        """The highest version among these."""
        held = (self.candidate, self.recall, self.waiting)
        return max(self.rollout.version, self.rollout.recall, *(one.manifest.version for one in held if one), 0)


def dump_staging(staging: Staging, everywhere: int) -> bytes:
    """Return how a release stands as bytes, with the version that all have; the models themselves lie elsewhere."""
    held = {name: getattr(staging, name) for name in ("candidate", "recall", "waiting")}
    versions = {name: one.manifest.version for name, one in held.items() if one is not None}
    known = {"everywhere": everywhere, "before": staging.before}
    return json.dumps({"rollout": asdict(staging.rollout), **known, **versions}).encode()


def needed(body: bytes | None) -> set[int]:
    """Return the versions whose models a stored release is about, that all have or had before among them."""
    held: dict[str, Any] = json.loads(body) if body else {}
    return {held[name] for name in ("everywhere", "before", "candidate", "recall", "waiting") if held.get(name)}


def restore_staging(
    body: bytes | None, of: Callable[[int], tuple[Manifest, bytes] | None], latest: tuple[Manifest, bytes] | None
) -> tuple[tuple[Manifest, bytes] | None, Staging]:
    """Return the model that all have and how the release at hand stands; `of` finds a stored model by its version.

    Where nothing was ever staged the latest model is the one that all have.
    """
    if body is None:
        return latest, Staging()
    held: dict[str, Any] = json.loads(body)
    lists = {name: tuple(held["rollout"][name]) for name in ("canaries", "recalled", "stopped")}
    rollout = Rollout(**{**held["rollout"], **lists})
    found = {name: of(held[name]) for name in ("candidate", "recall", "waiting") if name in held}
    models = {name: BuiltModel(*one) for name, one in found.items() if one is not None}
    return of(held["everywhere"]) if held["everywhere"] else None, Staging(rollout, before=held["before"], **models)


def able(gateways: Mapping[str, Status]) -> list[str]:
    """Return the gateways that can put a model in force: their baseline is whole."""
    return sorted(name for name, one in gateways.items() if one.baseline_windows >= one.baseline_needed > 0)


def drawn(rollout: Rollout, gateways: Mapping[str, Status], seed: int) -> Rollout:
    """Return the same with its canaries, where there are any to be drawn: as many as the share of all who can take a
    model, and of those who are here, for who is away tells nothing of it.
    """
    names = able(gateways)
    here = [name for name in names if gateways[name].state == "online"]
    if rollout.canaries or not here:
        return rollout
    share = min(rollout.share * len(names) / len(here), 1.0)
    return replace(rollout, canaries=tuple(select(seed, rollout.version, here, share)))


class Report(NamedTuple):
    """What the canaries tell of a model, by what each of them does with it."""

    watched_s: dict[str, float]  # those that have it in force, and for how long they have watched with it
    rejected: dict[str, str]  # those that refused it or went back from it, and why
    away: tuple[str, ...]  # those that have said nothing of it, or are offline
    alarms: int  # of those that are counted, see `report`
    expected: float  # of their alarms, that would be within the limit in that time
    least_s: float  # for which each must watch: a few windows have shown nothing, whatever the settings say


def report(rollout: Rollout, gateways: Mapping[str, Status], base: int, table: ReleaseTable, hop_s: float) -> Report:
    """Return what the canaries tell. What is expected of each is what they promise, or what the gateways that have the
    model of all raise meanwhile, whichever is more, times the factor of the settings: a storm raises alarms everywhere.

    Each says of itself what it likes. So a promise and what is usual, which two must say, are medians, the lower one of
    two; and where there are three canaries or more, the one with the most alarms beyond what is expected of it and the
    one with the fewest are not counted.
    """
    canaries = {name: gateways[name] for name in rollout.canaries if name in gateways}
    taken = {name: one for name, one in canaries.items() if one.model_version == rollout.version}
    rejected = {name: one.rejected[str(rollout.version)] for name, one in canaries.items() if _rejects(one, rollout)}
    days = {name: one.model_windows * hop_s / DAY_S for name, one in taken.items()}
    others = [one for name, one in gateways.items() if name not in canaries and one.model_version == base > 0]
    others_days = [(one.model_alarms, one.model_windows * hop_s / DAY_S) for one in others if one.model_windows > 0]
    usual = median_low([count / watched for count, watched in others_days]) if len(others_days) > 1 else 0.0
    promised = median_low([one.promised_alarms_per_day for one in taken.values()]) if taken else 0.0
    limits = {name: table.alarm_factor * max(promised, usual) * days[name] for name in taken}
    judged = sorted(taken, key=lambda name: (taken[name].model_alarms - limits[name], name))
    judged = judged[1:-1] if len(judged) >= OUTVOTED else judged
    here = {name for name in taken.keys() | rejected.keys() if canaries[name].state == "online"}
    return Report(
        {name: days[name] * DAY_S for name in taken},
        rejected,
        tuple(name for name in rollout.canaries if name not in here),
        sum(taken[name].model_alarms for name in judged),
        sum(limits[name] for name in judged),
        max(table.watch_s, block_windows(hop_s) * hop_s),
    )


def _rejects(status: Status, rollout: Rollout) -> bool:
    return str(rollout.version) in status.rejected and status.model_version != rollout.version


def verdict(rollout: Rollout, report: Report, table: ReleaseTable, uptime_ns: int) -> tuple[Verdict, str]:
    """Return what follows from what the canaries tell, and why."""
    count = len(rollout.canaries)
    if count == 0:
        return "wait", "no gateway with a whole baseline is online yet, so there are no canaries"
    if len(report.rejected) > max(table.rejected_share * count, count >= OUTVOTED):
        name, why = next(iter(report.rejected.items()))
        return "stop", f"{len(report.rejected)} of {count} canaries rejected it; {name}: {why}"
    if is_alarming(report):
        return "stop", f"the canaries raised {report.alarms} alarms, at most {report.expected:.1f} are expected of them"
    lacking = [name for name in rollout.canaries if name not in report.rejected and not _is_done(name, report)]
    if not lacking:
        return "go on", f"{count} canaries have watched with it, and raised {report.alarms} alarms"
    text = f"{first_of(lacking)} have not watched with it for {report.least_s / 3600:.3g} h"
    text += f"; offline or silent: {first_of(report.away)}" if report.away else ""
    if uptime_ns - rollout.since_ns > table.patience_s * NS:
        return "pause", f"{text}, and {table.patience_s / 3600:g} h have passed"
    return "wait", text


def _is_done(name: str, report: Report) -> bool:
    return report.watched_s.get(name, 0.0) >= report.least_s


def is_alarming(report: Report) -> bool:
    """Tell whether the canaries raise more alarms than the limit explains. Each alarm is a look of its own, so that all
    looks together blame a model that keeps the limit with a probability of `fedgate.models.promise.LEVEL` at most.
    """
    if report.alarms < LEAST_BLOCKS:
        return False
    at_least = gammainc(report.alarms, report.expected)  # P(N >= alarms) of a Poisson count N, whatever its size
    return bool(at_least <= level_at(report.alarms))
