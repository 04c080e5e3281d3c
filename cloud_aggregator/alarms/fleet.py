"""One alarm of the whole site, where a quorum of its gateways raise anomalies together, and the cause they measured.

Of the gateways with an anomaly that stands, the largest group is taken whose onsets lie within `window_s`; where it is
a quorum (`share` of the gateways that watch or are of the group, and at least `least`) the fleet alarm stands. Below it
the anomalies are local and nothing is raised. It clears when it was below for `clear_s`.

A cause is named where more than half of the group, and `SURE` gateways, have measured it
(`fedgate.models.alarms.attribution`), at the raising of their own alarms: each says whether weather or load, and
whether its supply, were out of the ordinary and account for what it saw. Where both are measured so, power is named:
what is looked at first. Otherwise the cause is `undetermined`. That everybody changed at once names none: a support
that gives way reaches all sensors too.

The cause and the text are those of the raising and stay while the alarm stands, whatever becomes known: what happens
later, as an outage of the broker or of the power, is no cause of what was before. Which gateways are of the group, how
severe it is and when it began follow what is known. All of it depends on what is known, never on the order in which it
came; the id of a fleet alarm is the moment at which it was seen, so that does.

The limits: a cause is that of the group at the moment of the quorum; what joins later has no say. A gateway whose clock
is not set counts with the time at which its alarm arrived. A site of fewer gateways than `least` has no fleet alarm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedgate.cloud_aggregator.alarms.register import AlarmRecord, Register, alarm_fields, select_active
from fedgate.config.protocol.messages import Common, FleetAlarm, Status
from fedgate.config.protocol.topics import ALL
from fedgate.config.settings.notifications import FleetSpec
from fedgate.models.alarms.attribution import Evidence
from fedgate.models.time_units import NS
from fedgate.models.whole import round_up

CAUSE = "fleet"
SURE = 3  # gateways that must have measured a cause: two of three were wrong once in a thousand simulated changes
NAMED_MAX = 10  # gateways that the text of an alarm names
SEVERITIES: tuple[Literal["warning", "major", "critical"], ...] = ("warning", "major", "critical")
CAUSES: tuple[Literal["power", "weather"], ...] = ("power", "weather")  # the first that most have measured is named
EVIDENCE_WORDS: dict[Evidence, str] = {
    "explained": "out of the ordinary and accounts for it on",
    "unusual": "out of the ordinary and does not account for it on",
    "usual": "no change measured on",
    "": "not measured on",
}


@dataclass(frozen=True)
class Fleet:
    """The latest fleet alarm, standing or over, and since when one that stands is below its quorum."""

    alarm: FleetAlarm | None = None
    below_ns: int | None = None

    @property
    def active(self) -> bool:
        """True while a fleet alarm stands."""
        return self.alarm is not None and self.alarm.state == "raised"


Group = dict[str, AlarmRecord]  # gateway -> its anomaly


def judge(
    spec: FleetSpec, fleet: Fleet, gateways: Mapping[str, Status], alarms: Register, now_ns: int, uptime_ns: int
) -> Fleet:
    """Return the fleet alarm at `now_ns`: equal to the one before where there is nothing new to say."""
    group = find_largest_group(alarms, round(spec.window_s * NS)) if spec.enabled else {}
    watching = {gateway for gateway, status in gateways.items() if status.watching}
    quorum = max(spec.least, round_up(spec.share * len(watching | group.keys())))
    if len(group) >= quorum:
        return Fleet(_raise(fleet, group, watching, now_ns))
    if fleet.alarm is None or not fleet.active:
        return Fleet(fleet.alarm)
    below_ns = uptime_ns if fleet.below_ns is None else fleet.below_ns
    if uptime_ns - below_ns < spec.clear_s * NS:
        return Fleet(fleet.alarm, below_ns)
    text = f"over: fewer than {quorum} gateways share an anomaly; {fleet.alarm.text}"
    return Fleet(fleet.alarm.model_copy(update={"state": "cleared", "t_ns": now_ns, "text": text}))


def find_largest_group(alarms: Register, window_ns: int) -> Group:
    """Return the gateways whose anomalies began within `window_ns`, as many as possible; of equals the latest."""
    onsets = [(known, gateway) for gateway in alarms for known in _list_anomalies(alarms, gateway)]
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


def _list_anomalies(alarms: Register, gateway: str) -> list[AlarmRecord]:
    return [known for known in select_active(alarms, gateway) if known.alarm.kind == "anomaly"]


def _raise(fleet: Fleet, group: Group, watching: set[str], now_ns: int) -> FleetAlarm:
    held = fleet.alarm if fleet.active else None
    common = cause_of(group) if held is None else held.common
    raised_ns = held.t_ns if held else now_ns
    return FleetAlarm(
        id=held.id if held else f"{ALL}.{CAUSE}.{raised_ns}",
        cause=CAUSE,
        kind="anomaly",
        state="raised",
        severity=max((known.alarm.severity for known in group.values()), key=SEVERITIES.index),
        text=held.text if held else _describe_causes(common, group, watching),
        onset_ns=min(known.onset_ns for known in group.values()),
        t_ns=raised_ns,
        common=common,
        gateways=tuple(group),
    )


def cause_of(group: Group) -> Common:
    """Return the cause that more than half of the gateways of a group, and enough of them, have measured;
    `undetermined` where none is.
    """
    for cause in CAUSES:
        explained = sum(getattr(known.alarm, cause) == "explained" for known in group.values())
        if 2 * explained > len(group) and explained >= SURE:
            return cause
    return "undetermined"


def _describe_causes(common: Common, group: Group, watching: set[str]) -> str:
    onsets = [known.onset_ns for known in group.values()]
    names = ", ".join(list(group)[:NAMED_MAX]) + (", ..." if len(group) > NAMED_MAX else "")
    at_peace = len(watching - group.keys())
    parts = [
        f"cause: {common}",
        f"{len(group)} gateways ({names}) changed within {math.ceil((max(onsets) - min(onsets)) / NS)} s",
        *(f"{cause}: {_describe_evidence(group, cause)}" for cause in CAUSES),
        f"{at_peace} others that watch have no anomaly with them" if at_peace else "no other gateway watches",
    ]
    return "; ".join(parts)


def _describe_evidence(group: Group, cause: Literal["power", "weather"]) -> str:
    counts = Counter(getattr(known.alarm, cause) for known in group.values())
    return ", ".join(f"{words} {counts[evidence]}" for evidence, words in EVIDENCE_WORDS.items() if counts[evidence])


def restore_fleet(rows: Iterable[Mapping[str, Any]]) -> Fleet:
    """Return the latest fleet alarm of those in the store."""
    latest = max(rows, key=lambda row: int(row["raised_ns"]), default=None)
    if latest is None:
        return Fleet()
    state = "raised" if latest["cleared_ns"] is None else "cleared"
    fields = {**alarm_fields(latest), "common": latest["common"]}
    fields |= {"state": state, "t_ns": latest[f"{state}_ns"], "gateways": tuple(latest["gateways"].split())}
    return Fleet(FleetAlarm.model_validate(fields))
