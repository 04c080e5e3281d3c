"""One alarm of the whole site, where a quorum of its gateways raise anomalies together, and what they have in common.

Of the gateways with an anomaly that stands, the largest group is taken whose onsets lie within `window_s`; where it is
a quorum (`share` of the gateways that watch or are of the group, and at least `least`) the fleet alarm stands. Below it
the anomalies are local and nothing is raised. It clears when it was below for `clear_s`. What a group has in common is
told by the first rule that holds:

| rule                                                                                       | common              |
|--------------------------------------------------------------------------------------------|---------------------|
| half of the group rebooted, went offline or came back within `window_s` of the onsets      | `power`             |
| half of the group's clocks changed their quality then, or gave onsets that cannot be       | `clock`             |
| every gateway that watches is of the group                                                 | `weather-or-load`   |
| otherwise                                                                                  | `structure-or-area` |

A reboot loses the clock too, so power comes first; and evidence that was seen once is kept while the alarm stands.

The limits of these rules: they look at when, never at what was measured, so `weather-or-load` means only that nobody
was spared. A broker that restarts takes everybody offline and looks like a power cut. What happened to a gateway while
this aggregator was away is seen on its return, and dated then. A gateway whose clock is not set counts with the time at
which its alarm arrived. A site of fewer gateways than `least` has no fleet alarm.

Which gateways are of the group and what they have in common depends on what is known, never on the order in which it
came; the id of a fleet alarm is the moment at which it was seen, so that does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cloud_aggregator.standing import NS, Alarms, Standing, active, said
from config.messages import FleetAlarm, Status
from config.outlets import FleetSpec
from config.topics import ALL
from models.records import replace

CAUSE = "fleet"
NAMED_MAX = 10  # gateways that the text of an alarm names
SEVERITIES: tuple[Literal["warning", "major", "critical"], ...] = ("warning", "major", "critical")
Common = Literal["power", "clock", "weather-or-load", "structure-or-area"]
LASTING: tuple[Common, ...] = ("power", "clock")  # once seen they hold while the alarm stands, the first before others
MEANING: dict[Common, str] = {
    "power": "many of them rebooted or lost their connection then: look at power and network first",
    "clock": "many of their clocks jumped or were lost then: look at the time server first",
    "weather-or-load": "every gateway that watches is among them: weather, load or something else that reaches all",
    "structure-or-area": "the others are at peace: look at what these have in common",
}


@dataclass(frozen=True)
class Disturbance:
    """When a gateway last did what tells of power, network or clock; the time of the aggregator."""

    rebooted_ns: int | None = None
    left_ns: int | None = None
    returned_ns: int | None = None
    clock_ns: int | None = None  # its quality changed


@dataclass(frozen=True)
class Fleet:
    """The latest fleet alarm, standing or over, and since when one that stands is below its quorum."""

    alarm: FleetAlarm | None = None
    below_ns: int | None = None

    @property
    def active(self) -> bool:
        """True while a fleet alarm stands."""
        return self.alarm is not None and self.alarm.state == "raised"


@dataclass(frozen=True)
class Facts:
    """What a fleet alarm is judged by."""

    gateways: Mapping[str, Status]
    alarms: Alarms
    disturbances: Mapping[str, Disturbance]


Group = dict[str, Standing]  # gateway -> its anomaly


def disturbed(known: Disturbance, before: Status, after: Status, now_ns: int) -> Disturbance:
    """Return what befell a gateway with one more status of it."""
    if (before.state, after.state) == ("online", "offline"):
        known = replace(known, left_ns=now_ns)
    if (before.state, after.state) == ("offline", "online"):
        known = replace(known, returned_ns=now_ns)
    if before.boot_id and after.boot_id and before.boot_id != after.boot_id:
        known = replace(known, rebooted_ns=now_ns)
    if after.state == "online" and "unknown" not in (before.clock, after.clock) and before.clock != after.clock:
        known = replace(known, clock_ns=now_ns)
    return known


def judge(spec: FleetSpec, fleet: Fleet, facts: Facts, now_ns: int) -> Fleet:
    """Return the fleet alarm at `now_ns`: equal to the one before where there is nothing new to say."""
    group = largest_group(facts.alarms, round(spec.window_s * NS)) if spec.enabled else {}
    watching = {gateway for gateway, status in facts.gateways.items() if status.watching}
    quorum = max(spec.least, math.ceil(spec.share * len(watching | group.keys())))
    if len(group) >= quorum:
        return Fleet(_raised(spec, fleet, facts, group, watching, now_ns))
    if fleet.alarm is None or not fleet.active:
        return Fleet(fleet.alarm)
    below_ns = now_ns if fleet.below_ns is None else min(fleet.below_ns, now_ns)
    if now_ns - below_ns < spec.clear_s * NS:
        return Fleet(fleet.alarm, below_ns)
    text = f"fewer than {quorum} gateways share an anomaly"
    return Fleet(fleet.alarm.model_copy(update={"state": "cleared", "t_ns": now_ns, "text": text}))


def largest_group(alarms: Alarms, window_ns: int) -> Group:
    """Return the gateways whose anomalies began within `window_ns`, as many as possible; of equals the latest."""
    onsets = [(known, gateway) for gateway in alarms for known in _anomalies(alarms, gateway)]
    onsets.sort(key=lambda onset: (onset[0].onset_ns, onset[1], onset[0].alarm.id))
    first, best, place = 0, 0, slice(0)
    inside: Counter[str] = Counter()
    for last, (known, gateway) in enumerate(onsets):
        inside[gateway] += 1
        while onsets[first][0].onset_ns < known.onset_ns - window_ns:
            inside -= Counter([onsets[first][1]])  # which drops who has none left
            first += 1
        if len(inside) >= best:
            best, place = len(inside), slice(first, last + 1)
    group: Group = {}
    for known, gateway in onsets[place]:
        group.setdefault(gateway, known)
    return dict(sorted(group.items()))


def _anomalies(alarms: Alarms, gateway: str) -> list[Standing]:
    return [known for known in active(alarms, gateway) if known.alarm.kind == "anomaly"]


def _raised(spec: FleetSpec, fleet: Fleet, facts: Facts, group: Group, watching: set[str], now_ns: int) -> FleetAlarm:
    held = fleet.alarm if fleet.active else None
    seen = _common(facts, group, watching, round(spec.window_s * NS))
    common = seen if held is None else min(seen, held.common, key=_lasting)
    names = ", ".join(list(group)[:NAMED_MAX]) + (", ..." if len(group) > NAMED_MAX else "")
    raised_ns = held.t_ns if held else now_ns
    return FleetAlarm(
        id=held.id if held else f"{ALL}.{CAUSE}.{raised_ns}",
        cause=CAUSE,
        kind="anomaly",
        state="raised",
        severity=max((known.alarm.severity for known in group.values()), key=SEVERITIES.index),
        text=f"{len(group)} gateways ({names}) raised anomalies within {spec.window_s:g} s; {MEANING[common]}",
        onset_ns=min(known.onset_ns for known in group.values()),
        t_ns=raised_ns,
        common=common,
        gateways=tuple(group),
    )


def _lasting(common: Common) -> int:
    return LASTING.index(common) if common in LASTING else len(LASTING)


def _common(facts: Facts, group: Group, watching: set[str], window_ns: int) -> Common:
    onsets = [known.onset_ns for known in group.values()]
    span = (min(onsets) - window_ns, max(onsets) + window_ns)
    befell = {gateway: facts.disturbances.get(gateway, Disturbance()) for gateway in group}
    power = sum(_within(span, one.rebooted_ns, one.left_ns, one.returned_ns) for one in befell.values())
    clock = sum(_within(span, befell[gateway].clock_ns) or group[gateway].is_astray for gateway in group)
    if 2 * power >= len(group):
        return "power"
    if 2 * clock >= len(group):
        return "clock"
    return "weather-or-load" if watching <= group.keys() else "structure-or-area"


def _within(span: tuple[int, int], *moments_ns: int | None) -> bool:
    return any(moment_ns is not None and span[0] <= moment_ns <= span[1] for moment_ns in moments_ns)


def restored_fleet(rows: Iterable[Mapping[str, Any]]) -> Fleet:
    """Return the latest fleet alarm of those in the store."""
    latest = max(rows, key=lambda row: int(row["raised_ns"]), default=None)
    if latest is None:
        return Fleet()
    state = "raised" if latest["cleared_ns"] is None else "cleared"
    told = {**said(latest), "common": latest["common"]}
    told |= {"state": state, "t_ns": latest[f"{state}_ns"], "gateways": tuple(latest["gateways"].split())}
    return Fleet(FleetAlarm.model_validate(told))
