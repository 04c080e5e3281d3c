"""How many alarms there were and how many were right, as EEMUA publication 191 measures an alarm system."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from fedgate.cloud_aggregator.alarms.workflow import LABELS
from fedgate.models.time_units import DAY_NS, NS

PEAK_NS = 600 * NS
SOURCES = 10  # the most frequent


class Counted(Protocol):
    """Of an alarm what is counted."""

    @property
    def gateway(self) -> str:
        """Whose it is."""

    @property
    def cause(self) -> str:
        """What it is about."""

    @property
    def rule(self) -> str:
        """What raised it."""

    @property
    def begun_ns(self) -> int:
        """When it began."""

    @property
    def is_active(self) -> bool:
        """True while it stands."""

    @property
    def state(self) -> str:
        """Whether somebody has seen to it."""

    @property
    def label(self) -> str:
        """What it was, by an operator."""


class Fact(NamedTuple):
    """An alarm that is here to be counted alone."""

    gateway: str
    cause: str
    rule: str
    begun_ns: int
    is_active: bool
    state: str
    label: str


def measure(alarms: Sequence[Counted], now_ns: int, past_ns: int) -> dict[str, Any]:
    """Return the rates of the alarms that began within the last `past_ns`, which of all stand, and the precision of
    each gateway and rule by the labels: damage / (damage + false), None where neither was given.
    """
    recent = [one for one in alarms if now_ns - past_ns <= one.begun_ns <= now_ns]
    standing = [one for one in alarms if one.is_active]
    days, sources = past_ns / DAY_NS, Counter((one.gateway, one.cause) for one in recent)
    return {
        "days": days,
        "alarms": len(recent),
        "per_day": len(recent) / days,
        "per_10_min": len(recent) / (past_ns / PEAK_NS),
        "peak_per_10_min": find_peak([one.begun_ns for one in recent]),
        "standing": len(standing),
        "standing_over_24_h": sum(now_ns - one.begun_ns > DAY_NS for one in standing),
        "states": dict(sorted(Counter(one.state for one in alarms).items())),
        "sources": [
            {"gateway": gateway, "cause": cause, "alarms": count, "share": count / len(recent)}
            for (gateway, cause), count in sorted(sources.items(), key=lambda one: (-one[1], one[0]))[:SOURCES]
        ],
        "precision": _find_precision(recent),
    }


def find_peak(onsets_ns: Sequence[int]) -> int:
    """Return the largest number of alarms that began within ten minutes of one another."""
    ordered, first, peak = sorted(onsets_ns), 0, 0
    for last, onset_ns in enumerate(ordered):
        while onset_ns - ordered[first] >= PEAK_NS:
            first += 1
        peak = max(peak, last - first + 1)
    return peak


def _find_precision(alarms: Sequence[Counted]) -> list[dict[str, Any]]:
    counts = defaultdict[tuple[str, str], Counter[str]](Counter)
    for one in alarms:
        if one.label:
            counts[one.gateway, one.rule][one.label] += 1
    rows = []
    for (gateway, rule), of_label in sorted(counts.items()):
        judged = of_label["damage"] + of_label["false"]
        precision = of_label["damage"] / judged if judged else None
        by_label = {name: of_label[name] for name in LABELS}
        rows.append({"gateway": gateway, "rule": rule, "precision": precision} | by_label)
    return rows
