"""Pictures of the robust SVM's studies: rates over parameters, running time over sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.engine.pictures import GREEN, PINK, SKY
from fedgate.firmware_sim.studies.robust_svm.figures import Means, Summary, peaks_of
from fedgate.firmware_sim.studies.robust_svm.methods import CENTRAL, FEDERATED, LINEAR, METHODS, Grid, ball_name

STYLES: dict[str, tuple[str, str]] = {
    LINEAR: (GREY, ":"),
    CENTRAL: (INK, "--"),
    "SM": (BLUE, "o"),
    "SM, box": (SKY, "s"),
    "ADMM": (VERMILLION, "^"),
    "ADMM-SC": (PINK, "v"),
    "ADMM-REG": (GREEN, "x"),
}
PANEL_IN = (3.4, 2.9)


def draw_sensitivity(summaries: Mapping[str, Summary], global_grid: Grid, local_grid: Grid, path: Path) -> None:
    """Write a picture with one column per setting: above over rounds, below over the radius, one line for each κ."""
    figure = Figure(figsize=(PANEL_IN[0] * len(summaries), 2 * PANEL_IN[1] + 0.8), layout="constrained")
    axes = figure.subplots(2, len(summaries), sharey=True, squeeze=False)
    for column, (setting, (means, *_)) in enumerate(summaries.items()):
        above, below = axes[0, column], axes[1, column]
        above.set_title(setting)
        _over_rounds(above, means, global_grid)
        _over_radii(below, means, local_grid)
        for panel in (above, below):
            for method, key in peaks_of(means, (LINEAR, CENTRAL)).items():
                colour, line = STYLES[method]
                panel.axhline(means[key], color=colour, linestyle=line, label=f"{method}, peak")
        above.set_xlabel("rounds T, best step or penalty")
        below.set_xlabel("radius, one line for each κ")
    for row in (0, 1):
        axes[row, 0].set_ylabel("mean correct classification rate")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=8)
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    write(figure, path)


def _over_rounds(panel: Axes, means: Means, grid: Grid) -> None:
    for method, tried in grid.federated.items():
        colour, marker = STYLES[method]
        best = [
            max(means[f"{method}|{name} T={rounds}"] for name, _ in grid.settings(method)) for rounds in tried.rounds
        ]
        panel.plot(tried.rounds, best, color=colour, marker=marker, label=method)
    panel.set_xscale("log")


def _over_radii(panel: Axes, means: Means, grid: Grid) -> None:
    for method, tried in grid.federated.items():
        colour, marker = STYLES[method]
        certain = "kappa" in FEDERATED[method][2]
        for index, kappa in enumerate((None,) if certain else grid.kappas):
            end = f"{FEDERATED[method][1]}={tried.values[0]:g} T={tried.rounds[-1]}"
            rates = [means[f"{method}|{ball_name(radius, kappa)} {end}"] for radius in grid.radii]
            label = method if kappa is None else f"{method}, κ {kappa:g}"
            strength = 0.4 + 0.6 * (index + 1) / max(len(grid.kappas), 1)
            panel.plot(grid.radii, rates, color=colour, marker=marker, label=label, alpha=min(strength, 1.0))
    panel.set_xscale("log")


def draw_scaling(panels: Mapping[str, tuple[str, list[int], dict[str, list[float]]]], path: Path) -> None:
    """Write a picture with one panel per axis: what grows, at which sizes, and seconds by method."""
    figure = Figure(figsize=(PANEL_IN[0] * len(panels), PANEL_IN[1] + 0.8), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for panel, (name, (grows, sizes, seconds)) in zip(axes, panels.items(), strict=True):
        for method in (method for method in METHODS if method in seconds):
            colour, marker = STYLES[method]
            mark = {"linestyle": marker} if method == CENTRAL else {"marker": marker}
            panel.plot(sizes, seconds[method], color=colour, label=method, **mark)
        panel.set(title=name, xlabel=grows, yscale="log")
    axes[0].set_ylabel("seconds to the best model")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    write(figure, path)
