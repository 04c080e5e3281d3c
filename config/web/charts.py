"""Charts as columns of numbers, which `static/fedgate.js` draws in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.evidence_text import LOG_UNIT, needs_log
from fedgate.config.protocol.messages import Trail
from fedgate.models.time_units import NS

GAP_HOPS = 3.0  # without a window, over which no line is drawn
Facts = dict[str, Any]  # of a page or a part of it, as JSON has them


class Point(NamedTuple):
    """A scored window."""

    t_ns: int
    score: float
    level: float


def make_series(label: str, role: str, values: Sequence[float | None]) -> Facts:
    """Return a line of a chart; its role says how it is drawn: `now`, `limit`, `usual`, `low` or `high`."""
    return {"label": label, "role": role, "values": values}


def make_chart(
    kind: str, x: Sequence[float], series: Sequence[Facts], *, is_log: bool = False, linear_to: float = 0.0
) -> Facts:
    """Return a chart as columns of numbers. Its axis is linear, logarithmic, or logarithmic on both sides of zero from
    `linear_to` on.
    """
    return {"kind": kind, "is_log": is_log, "linear_to": linear_to, "x": x, "series": series}


def draw_evidence(evidence: AlarmEvidence) -> Facts:
    """Return the charts of the evidence of an alarm, by what they are of."""
    charts: Facts = {}
    if (trail := evidence.trail) is not None:
        charts["trail"] = make_chart(
            "time",
            [trail.first_ns / NS + offset_s for offset_s in trail.offsets_s],
            [make_series("score", "now", trail.scores), make_series("level", "limit", trail.list_levels())],
            linear_to=find_linear_part(trail),
        )
    if (spectrum := evidence.spectrum) is not None:
        charts["spectrum"] = make_chart(
            "frequency",
            [(low + high) / 2 for low, high in pairwise(spectrum.edges_hz)],
            [
                make_series("now", "now", spectrum.worst),
                make_series("healthy 5 %", "low", spectrum.healthy_5),
                make_series("healthy median", "usual", spectrum.healthy_50),
                make_series("healthy 95 %", "high", spectrum.healthy_95),
            ],
            is_log=True,
        )
    return charts


def find_linear_part(trail: Trail) -> float:
    """Return below which height the axis of scores is linear, and logarithmic beyond, on both sides of zero, for scores
    may be below it; 0 for an axis that is linear all over.
    """
    return LOG_UNIT * abs(trail.levels[-1]) if needs_log(trail) else 0.0


def draw_scores(points: Sequence[Point], hop_s: float) -> Facts:
    """Return scored windows, their times rising, as columns of numbers, with a hole where windows are missing."""
    rows: list[tuple[float, float | None, float | None]] = []
    for before, one in pairwise([*points[:1], *points]):
        if one.t_ns - before.t_ns > GAP_HOPS * hop_s * NS:
            rows.append(((before.t_ns + one.t_ns) / 2 / NS, None, None))
        rows.append((one.t_ns / NS, one.score, one.level))
    series = [
        make_series("score", "now", [score for _, score, _ in rows]),
        make_series("level", "limit", [level for *_, level in rows]),
    ]
    return make_chart("time", [seconds for seconds, *_ in rows], series)
