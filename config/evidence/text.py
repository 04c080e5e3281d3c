"""The evidence of an alarm as text for a terminal, at most `WIDTH` columns wide."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from fedgate.config.evidence.likely_cause import find_likely_cause
from fedgate.config.evidence.observation import STRONG_DB
from fedgate.config.protocol.evidence import (
    AlarmEvidence,
    BandChange,
    BandSpectrum,
    ChannelHealth,
    Standout,
    cut_text,
)
from fedgate.config.protocol.messages import Trail
from fedgate.models.time_units import format_duration, format_moment

WIDTH = 100
ROWS = 6  # of the plot of scores
BARS = " ▁▂▃▄▅▆▇█"
BANDS_SHOWN = 12
PLOT_WIDTH = 80
NAME_WIDTH = 30
LOG_FROM = 30.0  # a score so many times as high as the level leaves nothing to see of the others on a linear axis
LOG_UNIT, LOG_LEAST = 0.1, 1e-12  # of the level, of the highest score: below them an axis is linear


def render_evidence(evidence: AlarmEvidence) -> str:
    """Return what an alarm looks like, and what it rests on: the features that stand out, the scores before it, the
    bands that are out of the ordinary, the sensors, the model and the rule.
    """
    cause = find_likely_cause(evidence)
    parts = [
        [cause.verdict, *(f"- {of}: {sign}" for of, sign in cause.signs.items())],
        _render_contributions(evidence.contributions),
        _render_channels(evidence),
        _render_trail(evidence.trail),
        _render_spectrum(evidence.spectrum, evidence.no_spectrum),
        _render_changes(evidence.spectrum, evidence.changes),
        _render_health(evidence.health),
        _render_origin(evidence),
    ]
    return "\n\n".join("\n".join(_wrap(part)) for part in parts if part)


def _wrap(lines: Sequence[str]) -> list[str]:
    wrapped = list[str]()
    for line in lines:
        wrapped += [line] if len(line) <= WIDTH else textwrap.wrap(line, WIDTH, subsequent_indent="  ")
    return wrapped


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


def _render_channels(evidence: AlarmEvidence) -> list[str]:
    known = [one for one in evidence.health if one.features]
    if not known:
        return []
    lines = ["channels, and how many of their features are outside of all that they were in the baseline:"]
    for one in sorted(known, key=lambda one: -one.outside / one.features):
        off = "it never moved in the baseline" if one.deviation is None else f"{one.deviation:+.3g} spreads off"
        kind = " (covariate)" if one.is_covariate else ""
        farthest = one.farthest.removeprefix(f"{one.channel}.")
        lines.append(
            f"  {cut_text(one.channel, NAME_WIDTH) + kind:{NAME_WIDTH}} {one.outside:>3} of {one.features:>3} features,"
            f" farthest {cut_text(farthest, NAME_WIDTH)}: {off}"
        )
    return lines


def needs_log(scores: Sequence[float], level: float) -> bool:
    """Tell whether scores dwarf a level."""
    return abs(level) > 0.0 and max(map(abs, scores)) > LOG_FROM * abs(level)


def find_log_unit(scores: Sequence[float], level: float) -> float:
    """Return below which height an axis of scores is linear that dwarf a level, however small that is."""
    return max(LOG_UNIT * abs(level), LOG_LEAST * max(map(abs, scores)))


def _render_trail(trail: Trail | None) -> list[str]:
    if trail is None:
        return []
    scores, levels = _thin(trail.scores), _thin(trail.list_levels())
    is_log = needs_log(trail.scores, trail.levels[-1])
    unit = find_log_unit(trail.scores, trail.levels[-1])

    def place(value: float) -> float:
        return math.copysign(math.log1p(abs(value) / unit), value) if is_log else value

    low, high = min(*scores, *levels), max(*scores, *levels)
    span = place(high) - place(low) or 1.0
    heights = [(place(score) - place(low)) / span * ROWS for score in scores]
    at_level = [min(int((place(level) - place(low)) / span * ROWS), ROWS - 1) for level in levels]
    head = f"the last {len(trail.scores)} windows, {format_duration(trail.offsets_s[-1] - trail.offsets_s[0])}"
    lines = [f"{head}; ╌ is the level, {levels[-1]:.4g}{'; the axis is logarithmic' if is_log else ''}"]
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
    beyond = [_measure_beyond(spectrum, place) for place in range(len(spectrum.worst))]
    head = f"spectrum of {cut_text(spectrum.channel, NAME_WIDTH)} at {format_moment(spectrum.t_ns)}, beside "
    head += f"{spectrum.healthy_windows} healthy windows"
    if not any(beyond):
        return [f"{head}: no band is outside of its healthy 5 to 95 % quantiles"]
    outside = sorted((place for place, ratio in enumerate(beyond) if ratio), key=lambda place: -abs(beyond[place]))
    above = sum(ratio > 0 for ratio in beyond)
    counts = (
        f"{above} of {len(beyond)} bands are above their healthy 95 % quantile, {len(outside) - above} below their 5 %"
    )
    cut = f", of which the {BANDS_SHOWN} farthest are shown" if len(outside) > BANDS_SHOWN else ""
    lines, shown = [head, f"{counts}{cut}:"], sorted(outside[:BANDS_SHOWN])
    lines.append(f"{'band [Hz]':>21} {'now':>10} {'5 %':>10} {'50 %':>10} {'95 %':>10} {'of usual':>9}")
    for place in shown:
        band = f"{spectrum.edges_hz[place]:.4g} - {spectrum.edges_hz[place + 1]:.4g}"
        values = [of[place] for of in (spectrum.worst, spectrum.healthy_5, spectrum.healthy_50, spectrum.healthy_95)]
        ratio = f"x {values[0] / values[2]:.3g}" if values[2] > 0.0 else "new"
        lines.append(f"{band:>21} {' '.join(f'{value:>10.4g}' for value in values)} {ratio:>9}")
    return lines


def _measure_beyond(spectrum: BandSpectrum, place: int) -> float:
    """Return how many times a band is above its highest healthy value, or below its lowest with a minus; 0 within."""
    now, low, high = (of[place] for of in (spectrum.worst, spectrum.healthy_5, spectrum.healthy_95))
    if now > high:
        return now / high if high > 0.0 else math.inf
    if now < low:
        return -low / now if now > 0.0 else -math.inf
    return 0.0


def _render_changes(spectrum: BandSpectrum | None, changes: Sequence[BandChange]) -> list[str]:
    if spectrum is None or not changes:
        return []
    head = (
        f"bands of the channels in that window, {spectrum.edges_hz[0]:.3g} to {spectrum.edges_hz[-1]:.3g} Hz, beside "
    )
    head += f"healthy ones: · usual, + above, # {STRONG_DB} dB or more above, - below, = {STRONG_DB} dB or more below"
    return [head, *(f"  {cut_text(one.channel, NAME_WIDTH):{NAME_WIDTH}} {_draw_bands(one)}" for one in changes)]


def _draw_bands(change: BandChange) -> str:
    signs = [
        ("#" if one >= STRONG_DB else "+") if one > 0 else ("=" if one <= -STRONG_DB else "-")
        for one in change.decibels
    ]
    return "".join(sign if one else "·" for sign, one in zip(signs, change.decibels, strict=True))


def _render_health(health: Sequence[ChannelHealth]) -> list[str]:
    ill = [one for one in health if one.is_faulty or one.filled or one.windows_lost]
    if not ill:
        checked = "stuck or clipped, no value was bridged, no window lost; offset, drift and gain are not checked"
        return [f"sensors, since the agent started: none was {checked}"] if health else []
    listed = [
        f"  {cut_text(one.channel, NAME_WIDTH):{NAME_WIDTH}} {one.filled} values bridged, "
        f"{one.windows_lost} windows lost{', FAULTY' if one.is_faulty else ''}"
        for one in ill
    ]
    return ["sensors, since the agent started:", *listed]


def _render_origin(evidence: AlarmEvidence) -> list[str]:
    whose = "the site" if evidence.level_of == "site" else "its own baseline"
    what = "score" if evidence.rule == "score" else f"height by rule {evidence.rule}"
    origin = f"the window that raised it: {what} {evidence.score:.4g} at the level {evidence.level:.4g} of {whose}"
    lines = [origin, f"model {evidence.model_version} {evidence.model_digest[:16]}, windows of {evidence.window_s:g} s"]
    return [*lines, f"cut for its length: {', '.join(evidence.cut)}"] if evidence.cut else lines
