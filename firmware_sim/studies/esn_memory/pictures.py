"""Pictures of the study of memory: figures over the spectral radius, and how much of the past a state holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.engine.pictures import GREEN, ORANGE, PINK

COLOURS, MARKS = (BLUE, VERMILLION, GREEN, PINK, ORANGE), "os^vD"
LINES = ("-", "--", ":", "-.")
PANEL_IN, COLUMNS = (4.0, 3.0), 3

Curves = Mapping[float, Mapping[float, float]]  # leak -> spectral radius -> figure
Panel = tuple[str, float, Curves]  # what is drawn, the same of the best without memory, and of networks


def draw_settings(tasks: Mapping[str, Panel], path: Path) -> None:
    """Write a panel for each task: its figure over the spectral radius, a line for each leak, and the best without."""
    rows = -(-len(tasks) // COLUMNS)
    figure = Figure(figsize=(PANEL_IN[0] * COLUMNS, PANEL_IN[1] * rows), facecolor="white", layout="constrained")
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes, (name, (told, without, curves)) in zip(panels, tasks.items(), strict=False):
        for index, (leak, by_radius) in enumerate(curves.items()):
            axes.plot(
                range(len(by_radius)),
                list(by_radius.values()),
                color=COLOURS[index % len(COLOURS)],
                marker=MARKS[index % len(MARKS)],
                label=f"leak {leak:g}",
            )
            axes.set_xticks(range(len(by_radius)), [f"{radius:g}" for radius in by_radius])
        axes.axhline(without, color=INK, ls="--", lw=1.0, label="best without memory")
        axes.set_xlabel("spectral radius", color=INK)
        axes.set_ylabel(told, color=INK)
        _plain(axes, name)
    for axes in panels[len(tasks) :]:
        axes.set_axis_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    write(figure, path)


def draw_capacity(curves: Mapping[tuple[float, float], Sequence[float]], path: Path) -> None:
    """Write a panel for each leak: the share of an input that is held over the steps since, a line for each radius."""
    leaks = list(dict.fromkeys(leak for leak, _ in curves))
    figure = Figure(figsize=(PANEL_IN[0] * len(leaks), PANEL_IN[1] + 0.4), facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(leaks), squeeze=False, sharey=True)[0]
    for axes, leak in zip(panels, leaks, strict=True):
        radii = [radius for each, radius in curves if each == leak]
        for index, radius in enumerate(radii):
            held = curves[leak, radius]
            label = f"radius {radius:g}, {sum(held):.1f} steps in all"
            axes.plot(range(1, len(held) + 1), held, color=COLOURS[index], ls=LINES[index % len(LINES)], label=label)
        axes.set_xlabel("steps since the input", color=INK)
        axes.set_ylim(-0.03, 1.03)
        axes.legend(frameon=False, fontsize=8)
        _plain(axes, f"leak {leak:g}")
    panels[0].set_ylabel("share still held (squared correlation)", color=INK)
    write(figure, path)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color=GREY, alpha=0.25, lw=0.6)
    axes.tick_params(colors=INK)
