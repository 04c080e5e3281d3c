"""The evidence of an alarm as text for a terminal, at most `WIDTH` columns wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime

from fedgate.config.protocol.evidence import AlarmEvidence, BandSpectrum, ChannelHealth, Standout, Trail, cut_text
from fedgate.models.time_units import NS

WIDTH = 100
ROWS = 6  # of the plot of scores
BARS = " ▁▂▃▄▅▆▇█"
BANDS_SHOWN = 12
PLOT_WIDTH = 80
NAME_WIDTH = 30


def render_evidence(evidence: AlarmEvidence) -> str:
    """Return what an alarm rests on: the features that stand out, the scores before it, the bands that are out of the
    ordinary, the sensors, the model and the rule.
    """
    parts = [
        _render_contributions(evidence.contributions),
        _render_trail(evidence.trail),
        _render_spectrum(evidence.spectrum, evidence.no_spectrum),
        _render_health(evidence.health),
        _render_origin(evidence),
    ]
    return "\n\n".join("\n".join(_wrap(part)) for part in parts if part)


def _wrap(lines: Sequence[str]) -> list[str]:
    wrapped = list[str]()
    for line in lines:
        wrapped += [line] if len(line) <= WIDTH else textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    return wrapped


def _format_time(t_ns: int) -> str:
    try:
        return f"{datetime.fromtimestamp(t_ns // NS, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):  # a clock that was never set may say anything
        return f"at {t_ns} ns"


def _render_contributions(contributions: Sequence[Standout]) -> list[str]:
    if not contributions:
        return ["features: none stands out alone"]
    lines = [f"{'feature':{NAME_WIDTH}} {'adds':>10} {'value':>10} {'median':>10} {'spread':>10} {'spreads off':>12}"]
    for one in contributions:
        off = "never moved" if one.deviation is None else f"{one.deviation:+.3g}"
        numbers = " ".join(f"{value:>10.4g}" for value in (one.amount, one.value, one.median, one.spread))
        lines += [
            f"{cut_text(one.feature, NAME_WIDTH):{NAME_WIDTH}} {numbers} {off:>12}",
            f"  {cut_text(one.text, WIDTH - 2)}",
        ]
    return lines


def _render_trail(trail: Trail | None) -> list[str]:
    if trail is None:
        return []
    scores, levels = _thin(trail.scores), _thin(trail.list_levels())
    low, high = min(*scores, *levels), max(*scores, *levels)
    if low == high:
        high = low + 1.0
    heights = [(score - low) / (high - low) * ROWS for score in scores]
    at_level = [min(int((level - low) / (high - low) * ROWS), ROWS - 1) for level in levels]
    lines = [f"the last {len(trail.scores)} windows, {trail.offsets_s[-1] - trail.offsets_s[0]:.4g} s; ╌ is the level"]
    for row in range(ROWS - 1, -1, -1):
        cells = [_draw_cell(height - row, is_level=at == row) for height, at in zip(heights, at_level, strict=True)]
        label = high if row == ROWS - 1 else low if row == 0 else None
        lines.append(f"{'' if label is None else format(label, '.4g'):>10} │{''.join(cells)}".rstrip())
    return lines


def _draw_cell(filled: float, *, is_level: bool) -> str:
    if filled <= 0.0 and is_level:
        return "╌"
    return BARS[min(max(math.ceil(filled * (len(BARS) - 1)), 0), len(BARS) - 1)]


def _thin(values: Sequence[float]) -> list[float]:
    """Return at most `PLOT_WIDTH` values, each the highest of its neighbours."""
    step = math.ceil(len(values) / PLOT_WIDTH)
    return [max(values[at : at + step]) for at in range(0, len(values), step)]


def _render_spectrum(spectrum: BandSpectrum | None, reason: str) -> list[str]:
    if spectrum is None:
        return [f"spectrum: none ({reason})"] if reason else []
    excess = [(now / high if high > 0.0 else math.inf, place) for place, (now, high) in enumerate(
        zip(spectrum.worst, spectrum.healthy_95, strict=True)) if now > high]  # fmt: skip
    head = f"spectrum of {cut_text(spectrum.channel, NAME_WIDTH)} at {_format_time(spectrum.t_ns)}, beside "
    head += f"{spectrum.healthy_windows} healthy windows"
    if not excess:
        return [f"{head}: no band is above its healthy 95 % quantile"]
    shown = sorted(place for _, place in sorted(excess, reverse=True)[:BANDS_SHOWN])
    lines = [head, f"{len(excess)} of {len(spectrum.worst)} bands are above their healthy 95 % quantile:"]
    lines.append(f"{'band [Hz]':>21} {'now':>10} {'5 %':>10} {'50 %':>10} {'95 %':>10} {'of usual':>9}")
    for place in shown:
        band = f"{spectrum.edges_hz[place]:.4g} - {spectrum.edges_hz[place + 1]:.4g}"
        values = [of[place] for of in (spectrum.worst, spectrum.healthy_5, spectrum.healthy_50, spectrum.healthy_95)]
        ratio = f"x {values[0] / values[2]:.3g}" if values[2] > 0.0 else "new"
        lines.append(f"{band:>21} {' '.join(f'{value:>10.4g}' for value in values)} {ratio:>9}")
    return lines


def _render_health(health: Sequence[ChannelHealth]) -> list[str]:
    ill = [one for one in health if one.is_faulty or one.filled or one.windows_lost]
    if not ill:
        return ["sensors: all well since the agent started"] if health else []
    listed = [
        f"  {cut_text(one.channel, NAME_WIDTH):{NAME_WIDTH}} {one.filled} values bridged, "
        f"{one.windows_lost} windows lost{', FAULTY' if one.is_faulty else ''}"
        for one in ill
    ]
    return ["sensors, since the agent started:", *listed]


def _render_origin(evidence: AlarmEvidence) -> list[str]:
    whose = "the site" if evidence.level_of == "site" else "its own baseline"
    origin = f"rule {evidence.rule}: {evidence.score:.4g} at the level {evidence.level:.4g} of {whose}"
    lines = [origin, f"model {evidence.model_version} {evidence.model_digest[:16]}, windows of {evidence.window_s:g} s"]
    return [*lines, f"cut for its length: {', '.join(evidence.cut)}"] if evidence.cut else lines
