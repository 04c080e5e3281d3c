"""How many alarms there were and how many were right, as EEMUA publication 191 measures an alarm system."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.alarms.workflow import LABELS
from fedgate.models.time_units import DAY_NS, NS

PEAK_NS = 600 * NS
SOURCES = 10  # the most frequent


class Fact(NamedTuple):
    """Of an alarm what is counted."""

    gateway: str
    cause: str
    rule: str
    onset_ns: int
    is_active: bool
    state: str
    label: str


def measure(alarms: Iterable[Fact], now_ns: int, past_ns: int) -> dict[str, Any]:
    """Return the rates of the alarms that began within the last `past_ns`, which of all stand, and the precision of
    each gateway and rule by the labels: damage / (damage + false), None where neither was given.
    """
    onsets_ns, active_ns = list[int](), list[int]()
    states, sources = Counter[str](), Counter[tuple[str, str]]()
    labels = defaultdict[tuple[str, str], Counter[str]](Counter)  # by gateway and rule
    for one in alarms:  # once, so that they need not all be in memory
        states[one.state] += 1
        if one.is_active:
            active_ns.append(one.onset_ns)
        if now_ns - past_ns <= one.onset_ns <= now_ns:
            onsets_ns.append(one.onset_ns)
            sources[one.gateway, one.cause] += 1
            if one.label:
                labels[one.gateway, one.rule][one.label] += 1
    days, recent = past_ns / DAY_NS, len(onsets_ns)
    return {
        "days": days,
        "alarms": recent,
        "per_day": recent / days,
        "per_10_min": recent / (past_ns / PEAK_NS),
        "peak_per_10_min": find_peak(onsets_ns),
        "standing": len(active_ns),
        "standing_over_24_h": sum(now_ns - onset_ns > DAY_NS for onset_ns in active_ns),
        "states": dict(sorted(states.items())),
        "sources": [
            {"gateway": gateway, "cause": cause, "alarms": count, "share": count / recent}
            for (gateway, cause), count in sorted(sources.items(), key=lambda one: (-one[1], one[0]))[:SOURCES]
        ],
        "precision": _find_precision(labels),
    }


def find_peak(onsets_ns: Sequence[int]) -> int:
    """Return the largest number of alarms that began within ten minutes of one another."""
    ordered, first, peak = sorted(onsets_ns), 0, 0
    for last, onset_ns in enumerate(ordered):
        while onset_ns - ordered[first] >= PEAK_NS:
            first += 1
        peak = max(peak, last - first + 1)
    return peak


def _find_precision(labels: Mapping[tuple[str, str], Counter[str]]) -> list[dict[str, Any]]:
    rows = []
    for (gateway, rule), of_label in sorted(labels.items()):
        judged = of_label["damage"] + of_label["false"]
        precision = of_label["damage"] / judged if judged else None
        by_label = {name: of_label[name] for name in LABELS}
        rows.append({"gateway": gateway, "rule": rule, "precision": precision} | by_label)
    return rows
