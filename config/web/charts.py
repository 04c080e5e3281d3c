"""Charts as columns of numbers, which `static/fedgate.js` draws in the browser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from fedgate.config.evidence.likely_cause import find_likely_cause
from fedgate.config.evidence.observation import STRONG_DB
from fedgate.config.evidence.text import find_log_unit, needs_log
from fedgate.config.protocol.evidence import DECIBELS_MAX, AlarmEvidence, BandChange
from fedgate.config.protocol.messages import Trail
from fedgate.models.time_units import NS

NAMED_BANDS = 3  # of a channel, in words
BEFORE_SHOWN = 60  # windows before an alarm: enough to see what is ordinary, and few enough to see how it came
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


def make_mark(t_ns: int, label: str) -> Facts:
    """Return a moment that a chart over time shows as a line across."""
    return {"x": t_ns / NS, "label": label}


def describe_evidence(evidence: AlarmEvidence | None, later: Sequence[Point] = (), end_ns: int | None = None) -> Facts:
    """Return the evidence of an alarm with its channels by how far they are off, what it looks like, and its charts;
    nothing where there is none. The rest is as in `draw_evidence`.
    """
    if evidence is None:
        return {"evidence": None, "likely_cause": None, "charts": {}}
    health = sorted(
        evidence.health, key=lambda one: (-one.is_clear, one.deviation is not None, -abs(one.deviation or 0.0))
    )
    shown = evidence.model_dump(mode="json", exclude={"health"})
    shown["health"] = [one.model_dump(mode="json") | {"is_clear": one.is_clear} for one in health]
    largest = max((one.amount for one in evidence.contributions), default=0.0)
    for one in shown["contributions"]:
        one["share"] = max(one["amount"], 0.0) / largest if largest > 0.0 else 0.0
    cause = find_likely_cause(evidence)._asdict()
    return {"evidence": shown, "likely_cause": cause, "charts": draw_evidence(evidence, later, end_ns)}


def draw_evidence(evidence: AlarmEvidence, later: Sequence[Point] = (), end_ns: int | None = None) -> Facts:
    """Return the charts of the evidence of an alarm, by what they are of.

    :param later: windows that came behind the evidence, their times rising.
    :param end_ns: of the alarm, where it is over.
    """
    charts: Facts = {"trail": draw_trail(evidence, later, end_ns), "spectrum": None, "bands": None}
    if (spectrum := evidence.spectrum) is not None:
        charts["spectrum"] = make_chart(
            "frequency",
            [(low + high) / 2 for low, high in pairwise(spectrum.edges_hz)],
            [
                make_series("in the alarm", "now", spectrum.worst),
                make_series("healthy 5 %", "low", spectrum.healthy_5),
                make_series("healthy median", "usual", spectrum.healthy_50),
                make_series("healthy 95 %", "high", spectrum.healthy_95),
            ],
            is_log=True,
        )
        charts["bands"] = {"strong_db": STRONG_DB, "channels": draw_bands(evidence.changes, spectrum.edges_hz)}
    return charts


def draw_trail(evidence: AlarmEvidence, later: Sequence[Point], end_ns: int | None) -> Facts | None:
    """Return scored windows around an alarm, at most as long behind its evidence as is shown of that, with when it was
    over its level, when it was raised, and its end; None where the evidence has none.
    """
    trail = evidence.trail
    if trail is None:
        return None
    own = list_points(trail)
    before = sum(one.t_ns < evidence.onset_ns for one in own)
    own = own[max(before - BEFORE_SHOWN, 0) :]
    until_ns = own[-1].t_ns + (own[-1].t_ns - own[0].t_ns)
    points = [*own, *(one for one in later if one.t_ns <= until_ns)]
    marks = [make_mark(evidence.onset_ns, "stays over the level"), make_mark(evidence.t_ns, "raised")]
    marks += [] if end_ns is None else [make_mark(end_ns, "ended")]
    hop_s = median([after - before for before, after in pairwise(trail.offsets_s)] or [evidence.window_s])
    return draw_scores(points, hop_s) | {"marks": marks}


def draw_bands(changes: Sequence[BandChange], edges_hz: Sequence[float]) -> list[Facts]:
    """Return of each channel how many bands are above and below their healthy ones, the farthest in words, and all of
    them as paths of a drawing as wide as there are bands: above in the upper half, below in the lower.
    """
    return [
        {
            "channel": one.channel,
            "above": sum(value > 0 for value in one.decibels),
            "below": sum(value < 0 for value in one.decibels),
            "farthest": ", ".join(
                f"{edges_hz[place]:.3g}-{edges_hz[place + 1]:.3g} Hz {one.decibels[place]:+d} dB"
                for place in sorted(range(len(one.decibels)), key=lambda place: -abs(one.decibels[place]))[:NAMED_BANDS]
                if one.decibels[place]
            ),
            "paths": {
                "up": _join_bands(one.decibels, 0, STRONG_DB),
                "up strong": _join_bands(one.decibels, STRONG_DB - 1, DECIBELS_MAX + 1),
                "down": _join_bands([-value for value in one.decibels], 0, STRONG_DB, top=5),
                "down strong": _join_bands([-value for value in one.decibels], STRONG_DB - 1, DECIBELS_MAX + 1, top=5),
            },
        }
        for one in changes
    ]


def _join_bands(decibels: Sequence[int], above: int, below: int, top: int = 0) -> str:
    """Return the bands whose values lie between two as a path of boxes of 1 by 5."""
    return "".join(f"M{place} {top}h1v5h-1z" for place, value in enumerate(decibels) if above < value < below)


def list_points(trail: Trail) -> list[Point]:
    """Return the windows of a trail."""
    rows = zip(trail.offsets_s, trail.scores, trail.list_levels(), strict=True)
    return [Point(trail.first_ns + round(offset_s * NS), score, level) for offset_s, score, level in rows]


def find_linear_part(scores: Sequence[float], level: float) -> float:
    """Return below which height the axis of scores is linear, and logarithmic beyond, on both sides of zero, for scores
    may be below it; 0 for an axis that is linear all over. It is a power of ten, for from any other number uPlot
    finds no end of the ticks.
    """
    return 10.0 ** math.floor(math.log10(find_log_unit(scores, level))) if needs_log(scores, level) else 0.0


def draw_scores(points: Sequence[Point], hop_s: float) -> Facts:
    """Return scored windows, their times rising, as columns of numbers, with a hole where windows are missing, on an
    axis that is logarithmic where scores dwarf the last level.
    """
    rows: list[tuple[float, float | None, float | None]] = []
    for before, one in pairwise([*points[:1], *points]):
        if one.t_ns - before.t_ns > GAP_HOPS * hop_s * NS:
            rows.append(((before.t_ns + one.t_ns) / 2 / NS, None, None))
        rows.append((one.t_ns / NS, one.score, one.level))
    series = [
        make_series("score", "now", [score for _, score, _ in rows]),
        make_series("level", "limit", [level for *_, level in rows]),
    ]
    linear_to = find_linear_part([one.score for one in points], points[-1].level) if points else 0.0
    return make_chart("time", [seconds for seconds, *_ in rows], series, linear_to=linear_to)
