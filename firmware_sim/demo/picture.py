"""The picture of a watched replay: per gateway its score, its raise level and its alarms above the true state.

The colours are those of Okabe and Ito (Color Universal Design, 2008), told apart by colour-blind readers; shape or
line style says the same thing a second time. Only the Figure object is used, since pyplot keeps global state.
"""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MultipleLocator
from numpy.typing import NDArray

from fedgate.firmware_sim.demo.outcome import GatewayResult, Scenario, Trace, evaluate
from fedgate.firmware_sim.pictures import BLUE, DOTS_PER_IN, GREY, INK, VERMILLION

COMMISSIONING, HEALTHY, DAMAGED = "#E6EAED", "#DDF0EA", "#FBE6BF"
DASHED = (0, (5, 2))

WIDTH_IN, LEFT, RIGHT = 11.0, 0.075, 0.985
HEAD_IN, ROW_IN, FOOT_IN = 1.25, 2.2, 0.95
TICKS_MAX = 14
TICK_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
LETTERS_PER_IN = 13.0  # of the text in the timeline
DENSE_WINDOWS = 150  # from here on markers of full size would run into one another
RATIO_FOR_LOG = 30.0  # a raise level this far below the highest score is unreadable on a linear axis


@dataclass(frozen=True)
class _Clock:
    """The time axis, in recording seconds that are written in a unit fit for its length."""

    start_s: float
    end_s: float

    def apply(self, axes: Axes) -> None:
        span_s = self.end_s - self.start_s
        step_s = next((step for step in TICK_STEPS_S if span_s / step <= TICKS_MAX), span_s / TICKS_MAX)
        unit_s, unit = (3600.0, "h") if step_s >= 1800 else (60.0, "min") if step_s >= 60 else (1.0, "s")
        axes.set_xlim(self.start_s, self.end_s)
        axes.xaxis.set_major_locator(MultipleLocator(step_s))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda t_s, _: f"{t_s / unit_s:g}"))
        axes.set_xlabel(f"recording time [{unit}]")


def draw(scenario: Scenario, traces: Sequence[Trace]) -> bytes:
    """Picture of the scenario: a timeline above one row per gateway.

    Returns:
        PNG; the same bytes for the same input.
    """
    ends_s = [float(trace.t_s[-1]) for trace in traces if trace.t_s.size]
    ends_s += [end for _, end, _ in scenario.damage]
    clock = _Clock(scenario.commissioning[0], max([scenario.commissioning[1], *ends_s]))
    height_in = HEAD_IN + ROW_IN * len(traces) + FOOT_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    FigureCanvasAgg(figure)
    head = figure.text(
        LEFT, 1 - 0.32 / height_in, scenario.title, fontsize=14, fontweight="bold", va="center", color=INK
    )
    head.set_parse_math(False)  # a dollar sign in a name is a dollar sign
    rows = figure.add_gridspec(len(traces) + 1, 1, height_ratios=[0.42, *[ROW_IN] * len(traces)], hspace=0.28)
    rows.update(left=LEFT, right=RIGHT, top=1 - 0.6 / height_in, bottom=FOOT_IN / height_in)
    _timeline(figure.add_subplot(rows[0]), scenario, clock)
    for row, trace in enumerate(traces, start=1):
        cells = rows[row].subgridspec(2, 1, height_ratios=[1, 7], hspace=0.0)
        strip, panel = figure.add_subplot(cells[0]), figure.add_subplot(cells[1])
        for axes in (strip, panel):
            _stage(axes, scenario, clock)
        _alarms(strip, trace, evaluate(trace, scenario), clock)
        _scores(panel, trace)
        if row < len(traces):
            panel.tick_params(labelbottom=False)
            panel.set_xlabel("")
    _legend(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_IN)
    return buffer.getvalue()


def _phases(scenario: Scenario, clock: _Clock) -> list[tuple[float, float, str, str]]:
    """Spans (start_s, end_s, colour, text) that cover the whole clock."""
    spans = [(*scenario.commissioning, COMMISSIONING, "commissioning")]
    spans += [(start, end, DAMAGED, text) for start, end, text in scenario.damage]
    phases: list[tuple[float, float, str, str]] = []
    reached_s = clock.start_s
    for start, end, colour, text in [*spans, (clock.end_s, clock.end_s, HEALTHY, "")]:
        if start > reached_s:
            phases.append((reached_s, start, HEALTHY, "healthy, watched"))
        phases.append((start, end, colour, text))
        reached_s = end
    return phases


def _timeline(axes: Axes, scenario: Scenario, clock: _Clock) -> None:
    clock.apply(axes)
    axes.set_ylim(0, 1)
    axes.set_axis_off()
    for start, end, colour, text in _phases(scenario, clock):
        axes.axvspan(start, end, color=colour, lw=0)
        width_in = WIDTH_IN * (RIGHT - LEFT) * (end - start) / (clock.end_s - clock.start_s)
        lines = textwrap.wrap(text, max(4, int(width_in * LETTERS_PER_IN)), max_lines=2, placeholder=" …")
        note = axes.text((start + end) / 2, 0.5, "\n".join(lines), ha="center", va="center", fontsize=9, color=INK)
        note.set_parse_math(False)
    for start, _, _ in scenario.damage:
        axes.axvline(start, color=VERMILLION, lw=1.5)


def _stage(axes: Axes, scenario: Scenario, clock: _Clock) -> None:
    """What all gateways have in common: time, and the true state behind everything else."""
    clock.apply(axes)
    axes.axvspan(*scenario.commissioning, color=COMMISSIONING, lw=0, zorder=0)
    for start, end, _ in scenario.damage:
        axes.axvspan(start, end, color=DAMAGED, lw=0, zorder=0)
        axes.axvline(start, color=VERMILLION, lw=1.2, zorder=1)
    axes.spines[:].set_color(GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)


def _alarms(axes: Axes, trace: Trace, result: GatewayResult, clock: _Clock) -> None:
    """The strip above a panel: a bar from raised to cleared, a thin line back to the onset."""
    name = axes.set_title(f"{trace.gateway}  ·  {trace.sensor}", loc="left", fontsize=11, fontweight="bold", color=INK)
    name.set_parse_math(False)
    axes.set_title(result.verdict, loc="right", fontsize=10, color=INK)
    axes.set_ylim(0, 1)
    axes.set_yticks([0.5], ["alarm"])
    axes.set_xlabel("")
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    for alarm in trace.alarms:
        end_s = clock.end_s if alarm.cleared_s is None else alarm.cleared_s
        axes.plot([alarm.onset_s, alarm.raised_s], [0.5, 0.5], color=VERMILLION, lw=1)
        axes.plot([alarm.raised_s, end_s], [0.5, 0.5], color=VERMILLION, lw=5, solid_capstyle="butt")
        axes.plot(alarm.raised_s, 0.5, marker="v", ms=9, color=VERMILLION, mec="white", clip_on=False)
        if alarm.cleared_s is not None:
            axes.plot(end_s, 0.5, marker="^", ms=8, mfc="white", mec=VERMILLION, mew=1.5, clip_on=False)


def _scores(axes: Axes, trace: Trace) -> None:
    axes.set_ylabel("score", color=INK)
    if trace.t_s.size == 0:
        box = {"facecolor": "white", "edgecolor": "none"}
        axes.text(0.5, 0.5, "no window was scored", transform=axes.transAxes, ha="center", va="center", bbox=box)
        axes.set_yticks([])
        return
    _choose_scale(axes, trace.score, trace.level)
    size = 0.6 if trace.t_s.size > DENSE_WINDOWS else 1.0
    alarmed_t_s, alarmed_score = trace.t_s[trace.alarmed], trace.score[trace.alarmed]
    axes.plot(trace.t_s, trace.score, color=BLUE, lw=1.1, marker="o", ms=2.6 * size, zorder=3)
    axes.plot(alarmed_t_s, alarmed_score, color=VERMILLION, lw=0, marker="s", ms=4.4 * size, zorder=4)
    axes.step(trace.t_s, trace.level, where="post", color=INK, lw=1.4, ls=DASHED, zorder=5)
    axes.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
    axes.margins(y=0.12)
    halo = [withStroke(linewidth=3, foreground="white")]
    for swap in np.flatnonzero(np.diff(trace.model_version)) + 1:
        axes.axvline(trace.t_s[swap], color=GREY, lw=1, ls=":", zorder=2)
        at = (float(trace.t_s[swap]), 0.03)
        note = axes.annotate(f" model {trace.model_version[swap]}", at, xycoords=("data", "axes fraction"), fontsize=8)
        note.set(path_effects=halo, zorder=6, color=INK)


def _choose_scale(axes: Axes, score: NDArray[np.float64], level: NDArray[np.float64]) -> None:
    """Logarithmic where the scores dwarf the raise level, with a linear part around zero if some are not positive."""
    known = np.abs(level[np.isfinite(level)])
    reference = float(np.median(known)) if known.size else 0.0
    if reference == 0.0 or np.abs(score).max() < reference * RATIO_FOR_LOG:
        return
    if score.min() > 0:
        axes.set_yscale("log")
    else:
        linear = 10.0 ** np.ceil(np.log10(reference))
        axes.set_yscale("symlog", linthresh=linear)
        decades = linear * 10.0 ** np.arange(np.ceil(np.log10(np.abs(score).max() / linear)) + 1)
        # Its own ticks begin a decade inside the linear part, where they lie upon the one of zero.
        axes.set_yticks([*-decades[decades <= -score.min()], 0.0, *decades[decades <= score.max()]])
        axes.minorticks_off()


def _legend(figure: Figure) -> None:
    marks = [
        Line2D([], [], color=BLUE, lw=1.1, marker="o", ms=3, label="score of a window"),
        Line2D([], [], color=VERMILLION, lw=0, marker="s", ms=5, label="window in alarm"),
        Line2D([], [], color=INK, lw=1.4, ls=DASHED, label="raise level"),
        Line2D([], [], color=VERMILLION, lw=5, marker="v", ms=9, mec="white", label="alarm raised"),
        Line2D([], [], color=VERMILLION, lw=0, marker="^", ms=8, mfc="white", mew=1.5, label="cleared"),
        Patch(color=DAMAGED, label="damaged"),
        Patch(color=COMMISSIONING, label="commissioning"),
    ]
    figure.legend(handles=marks, loc="lower center", ncols=len(marks), frameon=False, fontsize=9, columnspacing=1.4)
