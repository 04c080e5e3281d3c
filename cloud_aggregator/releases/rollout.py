"""Who has a model first, what they tell of it, and what follows from that.

A decision is a function of what is stored and of the statuses of the gateways, so it is the same after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median_low
from typing import Any, Literal, NamedTuple

from fedgate.cloud_aggregator.names import list_first
from fedgate.cloud_aggregator.releases.releases import Releases, Rollout
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.release import ReleaseTable
from fedgate.models.alarms.false_alarm_test import LEAST_BLOCKS, block_windows, level_at
from fedgate.models.arrays import select
from fedgate.models.time_units import DAY_S, NS

OUTVOTED = 3  # canaries of whom one alone decides nothing

Verdict = Literal["wait", "go on", "pause", "stop"]


def list_able(gateways: Mapping[str, Status]) -> list[str]:
    """Return the gateways that can put a model in force: their baseline is whole."""
    return sorted(name for name, one in gateways.items() if one.baseline_windows >= one.baseline_needed > 0)


def draw_canaries(rollout: Rollout, gateways: Mapping[str, Status], seed: int) -> Rollout:
    """Return the same with its canaries, where there are any to be drawn: as many as the share of all who can take a
    model, and of those who are here, for who is away tells nothing of it.
    """
    names = list_able(gateways)
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
    rejected = {
        name: one.rejected[str(rollout.version)] for name, one in canaries.items() if _has_rejected(one, rollout)
    }
    days = {name: one.model_windows * hop_s / DAY_S for name, one in taken.items()}
    others = [one for name, one in gateways.items() if name not in canaries and one.model_version == base > 0]
    others_days = [(one.model_alarms, one.model_windows * hop_s / DAY_S) for one in others if one.model_windows > 0]
    median = median_low([count / watched for count, watched in others_days]) if len(others_days) > 1 else 0.0
    promised = median_low([one.promised_alarms_per_day for one in taken.values()]) if taken else 0.0
    limits = {name: table.alarm_factor * max(promised, median) * days[name] for name in taken}
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


def _has_rejected(status: Status, rollout: Rollout) -> bool:
    return str(rollout.version) in status.rejected and status.model_version != rollout.version


def judge_canaries(rollout: Rollout, report: Report, table: ReleaseTable, uptime_ns: int) -> tuple[Verdict, str]:
    """Return what follows from what the canaries tell, and why."""
    count = len(rollout.canaries)
    if count == 0:
        return "wait", "no gateway with a whole baseline is online yet, so there are no canaries"
    if len(report.rejected) > max(table.rejected_share * count, count >= OUTVOTED):
        name, why = next(iter(report.rejected.items()))
        return "stop", f"{len(report.rejected)} of {count} canaries rejected it; {name}: {why}"
    if is_alarming(report):
        return "stop", f"the canaries raised {report.alarms} alarms, at most {report.expected:.1f} are expected of them"
    done = {name for name, watched_s in report.watched_s.items() if watched_s >= report.least_s}
    lacking = [name for name in rollout.canaries if name not in report.rejected and name not in done]
    if not lacking:
        return "go on", f"{count} canaries have watched with it, and raised {report.alarms} alarms"
    text = f"{list_first(lacking)} have not watched with it for {report.least_s / 3600:.3g} h"
    text += f"; offline or silent: {list_first(report.away)}" if report.away else ""
    if uptime_ns - rollout.since_ns > table.patience_s * NS:
        return "pause", f"{text}, and {table.patience_s / 3600:g} h have passed"
    return "wait", text


def is_alarming(report: Report) -> bool:
    """Tell whether the canaries raise more alarms than the limit explains. Each alarm is a look of its own, so that all
    looks together blame a model that keeps the limit with a probability of
    `fedgate.models.alarms.false_alarm_test.LEVEL` at most.
    """
    if report.alarms < LEAST_BLOCKS:
        return False
    from scipy.special import gammainc  # an eighth of the time in which an aggregator starts

    at_least = gammainc(report.alarms, report.expected)  # P(N >= alarms) of a Poisson count N, whatever its size
    return bool(at_least <= level_at(report.alarms))


def summarise(stored: Releases, gateways: Mapping[str, Status], table: ReleaseTable, hop_s: float) -> dict[str, Any]:
    """Return how the release at hand stands, canary by canary, as operators are shown it."""
    stage = stored.rollout
    found = report(stage, gateways, stored.version, table, hop_s)
    return {
        "mode": table.mode,
        "version_of_all": stored.version,
        "stage": stage.stage,
        "version": stage.version,
        "recall": stage.recall,
        "waiting": stored.waiting.manifest.version if stored.waiting else 0,
        "is_under_way": stage.is_under_way,
        "why": judge_canaries(stage, found, table, stage.since_ns)[1] if stage.stage == "watching" else stage.why,
        "alarms": found.alarms,
        "alarms_expected": found.expected,
        "least_s": found.least_s,
        "canaries": [
            {
                "gateway": name,
                "state": gateways[name].state if name in gateways else "unknown",
                "model_version": gateways[name].model_version if name in gateways else 0,
                "watched_s": found.watched_s.get(name, 0.0),
                "alarms": gateways[name].model_alarms if name in found.watched_s else 0,
                "rejected": found.rejected.get(name, ""),
            }
            for name in stage.canaries
        ],
    }
