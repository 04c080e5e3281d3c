"""The pictures of the study of alarm rules: what each method finds at which price, and promises beside what came."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.building_alarms.options import Options
from fedgate.firmware_sim.studies.engine.pictures import GREEN, ORANGE, PINK, SKY
from fedgate.firmware_sim.studies.engine.study import Results

COLOURS = (VERMILLION, BLUE, GREEN, ORANGE, PINK, SKY, INK, GREY)
MARKS = "osD^vP*X"
LEAST_RATE = 0.004  # a day, on the logarithmic axis: none at all is drawn here
PANEL_IN = 5.2


def draw_recall(options: Options, results: Results, path: Path) -> None:
    """Write a panel for each data set with recall over false alarms, promises of one method joined."""
    sets = list(options.sets)
    figure = Figure(figsize=(13.0, PANEL_IN * ((len(sets) + 1) // 2)), facecolor="white", layout="constrained")
    panels = figure.subplots((len(sets) + 1) // 2, 2, squeeze=False).flatten()
    for axes in panels[len(sets) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, sets, strict=False):
        for index, method in enumerate(options.sets[name].methods):
            found = [f for cell, f in results if (cell["set"], cell["method"]) == (name, method)]
            rates = [max(each["false_alarms"] / each["days"], LEAST_RATE) for each in found]
            mark = MARKS[(index + index // len(COLOURS)) % len(MARKS)]
            recalls = [each["recall"] for each in found]
            axes.plot(rates, recalls, lw=1.2, ms=7, label=method, color=COLOURS[index % len(COLOURS)], marker=mark)
        axes.set_xscale("log")
        axes.set_ylim(-0.03, 1.03)
        _dressed(axes, name, "false alarms per sensor and day", "recall, mean over kinds")
        axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    write(figure, path)


def draw_promises(options: Options, results: Results, path: Path) -> None:
    """Write measured over promised false alarms, with the band in which a promise counts as kept."""
    figure = Figure(figsize=(8.5, 5.0), facecolor="white", layout="constrained")
    axes = figure.subplots()
    line = [0.02, 1.5]
    axes.plot(line, line, color=INK, lw=1.0)
    factor = options.held_within
    axes.fill_between(line, [x / factor for x in line], [x * factor for x in line], color=GREY, alpha=0.2, lw=0)
    pairs = [(name, method) for name, methods in options.checked.items() for method in methods]
    for index, (name, method) in enumerate(pairs):
        found = [(c["promised"], f) for c, f in results if (c["set"], c["method"]) == (name, method)]
        rates = [max(each["false_alarms"] / each["days"], LEAST_RATE) for _, each in found]
        promised, label = [each for each, _ in found], f"{name}: {method}"
        axes.plot(promised, rates, lw=1.2, ms=7, label=label, color=COLOURS[index], marker=MARKS[index])
    axes.set_xscale("log")
    axes.set_yscale("log")
    _dressed(axes, "healthy data of a later period", "promised false alarms a day", "measured")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    write(figure, path)


def _dressed(axes: Axes, title: str, across: str, up: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=GREY, alpha=0.25, lw=0.6)
    axes.tick_params(colors=INK)
