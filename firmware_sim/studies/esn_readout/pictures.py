"""The picture of the gradient-trained readout: balanced accuracy after every round, by rate and by reservoirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, GREY, VERMILLION, write
from fedgate.firmware_sim.studies.engine.pictures import GREEN, PINK
from fedgate.firmware_sim.studies.esn_readout.options import Options
from fedgate.firmware_sim.studies.esn_readout.summary import Place, Summary

STYLES = ((BLUE, "-"), (VERMILLION, "--"), (GREEN, ":"), (PINK, "-."))
PANEL_IN = (2.9, 2.3)
CONSTANT = 0.5


def draw_curves(options: Options, found: Summary, path: Path) -> None:
    """Write one panel for each rate and kind of reservoirs, one line for each method without an attack."""
    bench = options.tables
    size = (PANEL_IN[0] * len(bench.rates), PANEL_IN[1] * len(bench.reservoirs) + 0.6)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(bench.reservoirs), len(bench.rates), sharex=True, sharey=True, squeeze=False)
    rounds = np.arange(1, options.rounds + 1)
    for row, reservoirs in enumerate(bench.reservoirs):
        for column, rate in enumerate(sorted(bench.rates)):
            panel = panels[row, column]
            panel.axhline(CONSTANT, color=GREY, linewidth=1.0)
            for (colour, line), method in zip(STYLES, bench.methods, strict=False):
                place = Place("tables", reservoirs, method, bench.attacks[0], bench.answers[0])
                panel.plot(rounds, found.curve(place, rate, options.rounds), color=colour, linestyle=line, label=method)
            panel.set_title(f"{reservoirs} reservoirs, rate {rate:g}", fontsize="small")
            panel.set_ylim(0.0, 1.0)
        panels[row, 0].set_ylabel("balanced accuracy")
    for panel in panels[-1]:
        panel.set_xlabel("round")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STYLES))
    write(figure, path)
