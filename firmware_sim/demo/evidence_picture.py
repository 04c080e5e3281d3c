"""The picture of what an alarm rests on: its scores, the features and channels that stand out, and the spectra.

The one place where evidence is drawn: for the demo's report, for a backtest and for prepared stories.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedgate.config.evidence.likely_cause import find_likely_cause
from fedgate.config.evidence.text import find_log_unit, needs_log
from fedgate.config.protocol.evidence import AlarmEvidence, ChannelHealth
from fedgate.firmware_sim.pictures import BLUE, DOTS_PER_IN, GREY, INK, ORANGE, VERMILLION
from fedgate.models.arrays import Floats
from fedgate.models.time_units import DAY_S, NS, format_duration

SIZE_IN = (12.0, 10.2)
KNOWN_NS = 1_577_836_800 * NS  # 2020: a clock that shows less was never set
CHANNELS_DRAWN = 12
TEXT_LETTERS, FEATURE_LETTERS, CHANNEL_LETTERS, TITLE_LETTERS, HEAD_LETTERS = 52, 34, 26, 132, 150
DECIBELS_DRAWN = 20.0


def draw_evidence(evidence: AlarmEvidence) -> bytes:
    """Return the picture as PNG, the same bytes for the same evidence."""
    figure = Figure(figsize=SIZE_IN, facecolor="white")
    FigureCanvasAgg(figure)
    _head(figure, evidence)
    grid = figure.add_gridspec(3, 2, height_ratios=[1.0, 0.85, 1.0], hspace=0.5, wspace=0.42)
    grid.update(left=0.15, right=0.975, top=0.87, bottom=0.065)
    _scores(figure.add_subplot(grid[0, :]), evidence)
    _contributions(figure.add_subplot(grid[1, 0]), evidence)
    _channels(figure.add_subplot(grid[1, 1]), evidence)
    _spectrum(figure.add_subplot(grid[2, 0]), evidence)
    _changes(figure, figure.add_subplot(grid[2, 1]), evidence)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_IN, metadata={"Software": None})
    return buffer.getvalue()


def _head(figure: Figure, evidence: AlarmEvidence) -> None:
    lines = textwrap.wrap(evidence.text, TITLE_LETTERS)[:3]
    head = figure.text(0.02, 0.985, "\n".join(lines), fontsize=10.5, fontweight="bold", va="top", color=INK)
    head.set_parse_math(False)
    signs = find_likely_cause(evidence).signs
    beside = [f"{of} {signs[of]}" for of in ("rise", "weather", "supply", "weather and supply") if of in signs]
    text = "   ·   ".join([f"raised {_format_time(evidence.t_ns)}", *beside])
    lines = textwrap.wrap(text, HEAD_LETTERS)[:2]
    figure.text(0.02, 0.925, "\n".join(lines), fontsize=9, va="top", color=INK).set_parse_math(False)


def _format_time(t_ns: int) -> str:
    if t_ns < KNOWN_NS:
        return f"{format_duration(t_ns / NS)} into the recording"
    return f"{datetime.fromtimestamp(t_ns // NS, UTC):%A %Y-%m-%d %H:%M UTC}"


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold", color=INK).set_parse_math(False)
    axes.spines[:].set_color(GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)


def _say_nothing(axes: Axes, text: str) -> None:
    axes.text(
        0.5, 0.5, "\n".join(textwrap.wrap(text, 50)), transform=axes.transAxes, ha="center", va="center", color=GREY
    )
    axes.set_xticks([])
    axes.set_yticks([])


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"


def _scores(axes: Axes, evidence: AlarmEvidence) -> None:
    trail = evidence.trail
    if trail is None:
        _title(axes, "scores")
        _say_nothing(axes, "no scores came with it")
        return
    is_log = needs_log(trail.scores, trail.levels[-1])
    _title(axes, f"score of the last {len(trail.scores)} windows{', on a logarithmic axis' if is_log else ''}")
    ends_ns = [trail.first_ns + round(at_s * NS) for at_s in trail.offsets_s]
    is_dated = trail.first_ns >= KNOWN_NS
    times = [_place(t_ns, is_dated=is_dated) for t_ns in ends_ns]
    axes.plot(times, trail.scores, color=BLUE, lw=1.0, marker="o", ms=2.8)
    axes.step(times, trail.list_levels(), where="mid", color=INK, lw=1.3, ls=(0, (5, 2)), label="level")
    axes.axvline(_place(evidence.onset_ns, is_dated=is_dated), color=VERMILLION, lw=1.3, label="onset")
    if is_dated:
        with rc_context({"date.converter": "concise"}):
            axes.xaxis_date("UTC")
    if is_log:
        axes.set_yscale("symlog", linthresh=find_log_unit(trail.scores, trail.levels[-1]))
    axes.set_ylabel(_cut(evidence.rule, 20), fontsize=9)
    axes.set_xlabel("UTC" if is_dated else "seconds into the recording", fontsize=9)
    axes.margins(x=0.01)
    axes.legend(loc="upper left", fontsize=8, frameon=False, ncols=2)


def _place(t_ns: int, *, is_dated: bool) -> float:
    """Return where a moment lies on the axis: matplotlib counts days since 1970."""
    return t_ns / NS / DAY_S if is_dated else t_ns / NS


def _contributions(axes: Axes, evidence: AlarmEvidence) -> None:
    _title(axes, "what adds to the score")
    if not evidence.contributions:
        _say_nothing(axes, "no feature stands out alone")
        return
    rows = range(len(evidence.contributions))
    axes.barh(rows, [one.amount for one in evidence.contributions], color=BLUE, height=0.5)
    names = [_cut(one.feature, FEATURE_LETTERS) for one in evidence.contributions]
    axes.set_yticks(rows, names, fontsize=7.5, parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    largest = evidence.contributions[0].amount
    for row, one in enumerate(evidence.contributions):
        off = "never moved before" if one.deviation is None else f"{one.deviation:+.3g} spreads"
        text = f"{_cut(one.text.partition(': ')[2] or one.text, TEXT_LETTERS)} ({off})"
        note = axes.text(0.02 * largest, row + 0.43, text, fontsize=7, va="center", color=INK)
        note.set_parse_math(False)


def _channels(axes: Axes, evidence: AlarmEvidence) -> None:
    known = [one for one in evidence.health if one.features][:CHANNELS_DRAWN]
    _title(axes, _count_channels(evidence.health))
    if not known:
        _say_nothing(axes, "of no channel a feature is known")
        return
    rows = range(len(known))
    axes.barh(rows, [100.0 * one.outside / one.features for one in known], height=0.5,
              color=[GREY if one.is_covariate else ORANGE for one in known])  # fmt: skip
    axes.set_yticks(rows, [_name_channel(one) for one in known], fontsize=8, parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0.0, 100.0)
    axes.set_xlabel("% of its features where they never were in the baseline", fontsize=8.5)
    for row, one in enumerate(known):
        off = "it never moved before" if one.deviation is None else f"{one.deviation:+.3g} spreads"
        text = f"farthest: {_cut(one.farthest.removeprefix(f'{one.channel}.'), 24)}, {off}{_describe_health(one)}"
        axes.text(1.0, row + 0.43, text, fontsize=7, va="center", color=INK).set_parse_math(False)


def _count_channels(health: Sequence[ChannelHealth]) -> str:
    own = [one for one in health if not one.is_covariate]
    return f"channels outside of their baseline: {sum(one.outside > 0 for one in own)} of {len(own)}"


def _name_channel(one: ChannelHealth) -> str:
    return _cut(one.channel, CHANNEL_LETTERS) + ("\n(covariate)" if one.is_covariate else "")


def _describe_health(one: ChannelHealth) -> str:
    parts = [f"{one.filled} values bridged"] if one.filled else []
    parts += [f"{one.windows_lost} windows lost"] if one.windows_lost else []
    parts += ["FAULTY"] if one.is_faulty else []
    return "".join(f"; {part}" for part in parts)


def _spectrum(axes: Axes, evidence: AlarmEvidence) -> None:
    spectrum = evidence.spectrum
    _title(axes, "spectrum" if spectrum is None else f"spectrum of {_cut(spectrum.channel, CHANNEL_LETTERS)}")
    if spectrum is None:
        _say_nothing(axes, evidence.no_spectrum or "none came with it")
        return
    edges = np.array(spectrum.edges_hz)
    low, middle, high, now = (_density(values, edges) for values in (
        spectrum.healthy_5, spectrum.healthy_50, spectrum.healthy_95, spectrum.worst))  # fmt: skip
    text = f"5 to 95 % of {spectrum.healthy_windows} healthy windows"
    axes.fill_between(edges, [*low, low[-1]], [*high, high[-1]], step="post", color=GREY, alpha=0.4, lw=0, label=text)
    axes.step(edges, [*middle, middle[-1]], where="post", color=GREY, lw=1.0, label="healthy median")
    axes.step(edges, [*now, now[-1]], where="post", color=VERMILLION, lw=1.4, label="now")
    axes.set_yscale("log")
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("Hz", fontsize=9)
    axes.set_ylabel("mean square per Hz", fontsize=9)
    axes.legend(loc="best", fontsize=7.5, frameon=False)


def _density(values: tuple[float, ...], edges: Floats) -> Floats:
    positive = [value for value in values if value > 0.0]
    density: Floats = np.maximum(np.array(values), min(positive, default=1.0)) / np.diff(edges)
    return density


def _changes(figure: Figure, axes: Axes, evidence: AlarmEvidence) -> None:
    _title(axes, "bands of all channels beside their healthy median")
    spectrum, changes = evidence.spectrum, evidence.changes
    if spectrum is None or not changes:
        _say_nothing(axes, "no bands came with it")
        return
    values = np.array([one.decibels for one in changes], dtype=float)
    edges, rows = np.array(spectrum.edges_hz), np.arange(len(changes) + 1) - 0.5
    mesh = axes.pcolormesh(edges, rows, values, cmap="RdBu_r", vmin=-DECIBELS_DRAWN, vmax=DECIBELS_DRAWN)
    axes.set_yticks(range(len(changes)), [_cut(one.channel, CHANNEL_LETTERS) for one in changes], fontsize=8,
                    parse_math=False)  # fmt: skip
    axes.set_ylim(len(changes) - 0.5, -0.5)
    for row in rows[1:-1]:
        axes.axhline(row, color="white", lw=2)
    axes.set_xlabel("Hz; white: within the healthy 5 to 95 %", fontsize=9)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02, extend="both")
    bar.set_label("dB", fontsize=8)
    bar.ax.tick_params(labelsize=7)
