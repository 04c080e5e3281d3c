"""The picture of the building demo: per room what its sensor said over what is usual at that hour, and its alarms.

Colours are those of `fedgate.firmware_sim.demo.picture`. The profile drawn is made of the commissioning by the
functions that the gateway makes its own with.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedgate.config.protocol.messages import Score
from fedgate.firmware_sim.demo.building import RoomAlarm, Verdict
from fedgate.firmware_sim.demo.picture import COMMISSIONING, DAMAGED, DASHED, HEALTHY
from fedgate.firmware_sim.demo.rooms import Building, Room, profile
from fedgate.firmware_sim.pictures import BLUE, DOTS_PER_IN, GREY, INK, VERMILLION
from fedgate.models.alarms.profile import build_profile, cells, sums
from fedgate.models.alarms.profile_spec import ProfileSpec
from fedgate.models.arrays import Array, Floats
from fedgate.models.time_units import DAY_S, NS

WIDTH_IN, ROOM_IN, HEAD_IN, FOOT_IN = 12.0, 2.3, 0.6, 1.0
SPREADS = 2.0  # deviations either way
ROOM_FOR_TEXT = 0.09  # of the length of the replay
HEIGHT_MAX = 2.6  # of the panel of heights; higher ones touch its upper edge


def draw(
    building: Building,
    scores: Mapping[str, Sequence[Score]],
    alarms: Mapping[str, Sequence[RoomAlarm]],
    verdicts: Sequence[Verdict],
) -> bytes:
    """Return the picture as PNG, the same bytes for the same input."""
    height_in = HEAD_IN + ROOM_IN * len(building.rooms) + FOOT_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), facecolor="white")
    FigureCanvasAgg(figure)
    title = building.story.scenario.title
    figure.text(0.06, 1 - 0.3 / height_in, title, fontsize=14, fontweight="bold", va="center", color=INK)
    grid = figure.add_gridspec(len(building.rooms), 1, hspace=0.42)
    grid.update(left=0.06, right=0.985, top=1 - 0.75 / height_in, bottom=FOOT_IN / height_in)
    for row, (room, verdict) in enumerate(zip(building.rooms, verdicts, strict=True)):
        panels = grid[row].subgridspec(2, 1, height_ratios=[3, 1], hspace=0.08)
        values, heights = figure.add_subplot(panels[0]), figure.add_subplot(panels[1])
        for axes in (values, heights):
            _stage(axes, building, room)
        values.tick_params(labelbottom=False)
        values.set_title(f"{room.name}  ·  {room.fault}", loc="left", fontsize=11, fontweight="bold", color=INK)
        values.set_title(_describe(verdict), loc="right", fontsize=10, color=INK)
        _values(values, building, room, alarms[room.name])
        _heights(heights, building, scores.get(room.name, ()))
    heights.set_xlabel("day of the replay", color=INK)
    _legend(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_IN)
    return buffer.getvalue()


def _describe(verdict: Verdict) -> str:
    count = {0: "no false alarm", 1: "1 false alarm"}.get(verdict.false_alarms, f"{verdict.false_alarms} false alarms")
    if verdict.delay_s is None:
        return f"not found  ·  {count}"
    return f"found after {verdict.delay_s / 3_600:.3g} h by rule {verdict.found_by} ({verdict.kind})  ·  {count}"


def _stage(axes: Axes, building: Building, room: Room) -> None:
    axes.set_facecolor(HEALTHY)
    axes.axvspan(0.0, building.watched_s / DAY_S, color=COMMISSIONING, lw=0, zorder=0)
    axes.axvspan(room.start_s / DAY_S, room.end_s / DAY_S, color=DAMAGED, lw=0, zorder=1)
    axes.set_xlim(0.0, building.story.length_s / DAY_S)
    axes.spines[:].set_color(GREY)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelsize=8)


def find_expected(building: Building, room: Room) -> tuple[Floats, Floats, Floats]:
    """Return the profile of the watched time: seconds (n,) and the range (n,), (n,) that is usual then."""
    spec, rate_hz = ProfileSpec.model_validate(profile()), building.story.sensors[0].rate_hz
    border = round(building.watched_s * rate_hz)
    ends_s = (np.arange(len(room.healthy)) + 1) / rate_hz
    ends_ns = building.story.t0_ns + np.round(ends_s * NS).astype(np.int64)
    known = np.flatnonzero(np.isfinite(room.healthy[:border]))
    level, deviation = room.healthy[known].mean(), room.healthy[known].std()
    z: Array = ((room.healthy[known] - level) / deviation)[:, None]
    places = cells(spec, ends_ns, np.zeros((len(ends_ns), 0)))
    found = build_profile(spec, sums(spec, places[known], z))
    mean, spread = (column[places[border:], 0] for column in (found.mean, found.deviation))
    return (
        ends_s[border:],
        level + deviation * (mean - SPREADS * spread),
        level + deviation * (mean + SPREADS * spread),
    )


def _values(axes: Axes, building: Building, room: Room, alarms: Sequence[RoomAlarm]) -> None:
    days = (np.arange(len(room.reported)) + 1) / building.story.sensors[0].rate_hz / DAY_S
    at_s, low, high = find_expected(building, room)
    axes.fill_between(at_s / DAY_S, low, high, color=BLUE, alpha=0.18, lw=0, zorder=2)
    axes.plot(days, room.healthy, color=GREY, lw=0.8, zorder=3)
    axes.plot(days, room.reported, color=INK, lw=1.0, zorder=4)
    unit = building.story.sensors[0].channels[0].unit
    axes.set_ylabel(f"temperature{f' [{unit}]' if unit else ''}", color=INK, fontsize=8)
    axes.margins(y=0.16)
    top = axes.get_ylim()[1]
    labelled_s = -building.story.length_s
    for alarm in alarms:
        end_s = building.story.length_s if alarm.cleared_s is None else alarm.cleared_s
        axes.plot([alarm.raised_s / DAY_S, end_s / DAY_S], [top, top], color=VERMILLION, lw=5, solid_capstyle="butt")
        axes.plot(alarm.raised_s / DAY_S, top, marker="v", ms=9, color=VERMILLION, mec="white", clip_on=False)
        if alarm.raised_s - labelled_s > ROOM_FOR_TEXT * building.story.length_s:
            axes.annotate(alarm.by, (alarm.raised_s / DAY_S, top), (4, -12), textcoords="offset points", fontsize=8)
            labelled_s = alarm.raised_s


def _heights(axes: Axes, building: Building, scores: Sequence[Score]) -> None:
    kept = [score for score in sorted(scores, key=lambda score: score.t_ns) if score.level > 0.0]
    at = [building.story.seconds(score.t_ns) / DAY_S for score in kept]
    axes.plot(at, [min(score.score / score.level, HEIGHT_MAX) for score in kept], color=BLUE, lw=1.0, zorder=3)
    axes.axhline(1.0, color=INK, lw=1.0, ls=DASHED, zorder=4)
    axes.set_ylim(0.0, HEIGHT_MAX)
    axes.set_yticks([0, 1, 2])
    axes.set_ylabel("height", color=INK, fontsize=8)


def _legend(figure: Figure) -> None:
    marks = [
        Line2D([], [], color=INK, lw=1.0, label="what the sensor said"),
        Line2D([], [], color=GREY, lw=0.8, label="without the fault"),
        Patch(color=BLUE, alpha=0.18, label="usual at that hour (± 2 deviations)"),
        Line2D([], [], color=BLUE, lw=1.0, label="height of the rule that stands out most"),
        Line2D([], [], color=INK, lw=1.0, ls=DASHED, label="alarm level"),
        Line2D([], [], color=VERMILLION, lw=5, marker="v", ms=9, mec="white", label="alarm, and its rule"),
        Patch(color=DAMAGED, label="fault"),
        Patch(color=COMMISSIONING, label="commissioning"),
    ]
    figure.legend(handles=marks, loc="lower center", ncols=4, frameon=False, fontsize=9, columnspacing=1.4)
