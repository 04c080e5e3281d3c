"""Pictures of the bridges study: what one gateway's narrow view does to its scores, and curves over a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedgate.firmware_sim.demo.picture import BLUE, GREY, INK, VERMILLION, write
from fedgate.firmware_sim.studies.bridges.data import DAMAGED, HEALTHY
from fedgate.firmware_sim.studies.bridges.options import QUANTILES
from fedgate.firmware_sim.studies.engine.pictures import GREEN, ORANGE, PINK, SKY
from fedgate.firmware_sim.studies.engine.study import Figures

MARKS = "os^vDPX*"
COLOURS = (BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, INK, GREY)
ALWAYS = "always in alarm"
OFFSET = 0.17  # of a box from the middle of its gateway


def draw_setups(methods: Mapping[str, Figures], path: Path) -> None:
    """Draw for each method and gateway where healthy and damaged scores of the same windows lie; methods are not
    compared in height, so each has an axis of its own.
    """
    figure = Figure(figsize=(4.6 * len(methods), 4.2), facecolor="white", layout="constrained")
    panels = figure.subplots(1, len(methods), squeeze=False)[0]
    for axes, (name, figures) in zip(panels, methods.items(), strict=True):
        gateways = [key.removeprefix("auc.") for key in figures if key.startswith("auc.")]
        for place, gateway in enumerate(gateways):
            for label, colour, side in ((HEALTHY, BLUE, -OFFSET), (DAMAGED, VERMILLION, OFFSET)):
                _box(axes, place + side, [figures[f"box.{gateway}.{label}.{q:g}"] for q in QUANTILES], colour)
        labels = [f"{gateway}\nAUC {figures[f'auc.{gateway}']:.2f}" for gateway in gateways]
        axes.set_xticks(range(len(gateways)), labels)
        _plain(axes, name)
    panels[0].set_ylabel("score, in healthy spreads", color=INK)
    handles = [
        panels[0].plot([], [], color=c, lw=6, label=t)[0] for c, t in ((BLUE, "healthy"), (VERMILLION, "damaged"))
    ]
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=2)
    write(figure, path)


def _box(axes: Axes, at: float, levels: Sequence[float], colour: str) -> None:
    low, lower, middle, upper, high = levels
    axes.plot([at, at], [low, high], color=colour, lw=1.2)
    axes.plot([at, at], [lower, upper], color=colour, lw=9, solid_capstyle="butt", alpha=0.55)
    axes.plot(at, middle, color=colour, marker="_", ms=13, mew=2)


def draw_curves(
    key: str, values: Sequence[int], curves: Mapping[str, Sequence[Figures]], always: float, path: Path
) -> None:
    """Draw F (damage as positive, mean over gateways) and AUC of the fleet over the values of a setting; beside F the
    line of a gateway that is `always` in alarm.
    """
    figure = Figure(figsize=(10.0, 4.2), facecolor="white", layout="constrained")
    for axes, (name, figure_name) in zip(
        figure.subplots(1, 2),
        (("F, damage as positive", "gateway.f_damage"), ("AUC of the fleet", "fleet.auc")),
        strict=True,
    ):
        for index, (method, measured) in enumerate(curves.items()):
            heights = [each[figure_name] for each in measured]
            mark, colour = MARKS[index % len(MARKS)], COLOURS[index % len(COLOURS)]
            axes.plot(values, heights, marker=mark, color=colour, lw=1.4, label=method)
        axes.set_xlabel(key, color=INK)
        _plain(axes, name)
    figure.axes[0].axhline(always, color=INK, ls="--", lw=1.0)
    figure.axes[0].annotate(ALWAYS, (values[0], always), (0, 3), textcoords="offset points", fontsize=8, color=INK)
    figure.axes[-1].legend(frameon=False, fontsize=8)
    write(figure, path)


def _plain(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
    axes.tick_params(colors=INK)
