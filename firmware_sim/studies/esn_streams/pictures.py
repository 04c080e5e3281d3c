"""The picture of the study of sensor streams: for every data set what each method finds, and at what price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.engine.study import Figures

Marks = Sequence[tuple[str, bool, Figures]]  # method, whether it is a network, its figures

WIDTH_IN, HEAD_IN, LINE_IN = 12.0, 1.0, 0.27
COLUMNS = (("AUC", "auc"), ("recall", "recall"), ("false alarms a day", "false"))
LEAST_RATE = 0.05  # a day, on the logarithmic axis: none at all is drawn here


def draw_methods(sets: Mapping[str, Marks], path: Path) -> None:
    """Write a row of panels for each data set: area, recall, and false alarms beside the promise."""
    heights = [HEAD_IN + LINE_IN * len(marks) for marks in sets.values()]
    figure = Figure(figsize=(WIDTH_IN, sum(heights)), facecolor="white", layout="constrained")
    panels = figure.subplots(len(sets), len(COLUMNS), squeeze=False, gridspec_kw={"height_ratios": heights})
    for row, (name, marks) in zip(panels, sets.items(), strict=True):
        for axes, (title, key) in zip(row, COLUMNS, strict=True):
            _panel(axes, marks, key)
            axes.set_xlabel(title, color=INK)
        row[0].set_title(name, loc="left", fontsize=11, color=INK)
        row[0].set_yticks(range(len(marks)), [method for method, _, _ in marks])
        for axes in row[1:]:
            axes.set_yticks(range(len(marks)), [""] * len(marks))
        promised = marks[0][2]["promised"]
        row[2].axvline(promised, color=INK, ls="--", lw=1.0)
        row[2].annotate(" promised", (promised, -0.45), fontsize=8, color=INK)
    for colour, mark, label in ((VERMILLION, "o", "echo state network"), (BLUE, "s", "simpler method")):
        panels[0][0].plot([], [], color=colour, marker=mark, ls="", label=label)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
    write(figure, path)


def _panel(axes: Axes, marks: Marks, key: str) -> None:
    for place, (_, is_network, figures) in enumerate(marks):
        value = max(figures["false_alarms"] / figures["days"], LEAST_RATE) if key == "false" else figures[key]
        axes.plot(value, place, color=VERMILLION if is_network else BLUE, marker="o" if is_network else "s", ls="")
    axes.set_ylim(len(marks) - 0.4, -0.6)
    if key == "false":
        axes.set_xscale("log")
        axes.set_xlim(LEAST_RATE * 0.8, 2_000.0)
    else:
        axes.set_xlim(0.0 if key == "recall" else 0.4, 1.03)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color=GREY, alpha=0.25, lw=0.6)
    axes.tick_params(colors=INK)
