"""Curves of the bridges study: how values of one setting change the result while all others stay."""

from __future__ import annotations

from pathlib import Path

from fedgate.firmware_sim.studies.bridges.methods import View
from fedgate.firmware_sim.studies.bridges.options import Options
from fedgate.firmware_sim.studies.bridges.pictures import ALWAYS, draw_curves
from fedgate.firmware_sim.studies.bridges.rows import VIEWS, always_in_alarm, with_error
from fedgate.firmware_sim.studies.engine.markdown import table
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results


def sweeps(options: Options, results: Results, prefix: Path) -> list[str]:
    """Return tables and pictures for every view and setting."""
    parts = []
    for view in options.views:
        for key, values in options.sweep.items():
            curves = {name: _curve(options, results, view, name, key) for name in options.methods}
            always = always_in_alarm(results[0][1])
            where = f"{view.replace(' ', '-')}-" * (len(options.views) > 1)
            path = prefix.with_name(f"{prefix.name}-{where}{key}.png")
            draw_curves(key, values, curves, always, path)
            lines = [[name, *(f"{each['gateway.f_damage']:.3f}" for each in many)] for name, many in curves.items()]
            lines.append([ALWAYS, *(f"{always:.3f}" for _ in values)])
            area = [[name, *(with_error(each, "fleet.auc") for each in many)] for name, many in curves.items()]
            head = [f"{key} =", *map(str, values)]
            parts += [f"## {VIEWS[view]}: effect of {key}", "F, damage as positive, mean over gateways:"]
            parts += [table(head, lines), "AUC of the fleet:", table(head, area), f"![effect of {key}]({path.name})"]
    return parts


def _curve(options: Options, results: Results, view: View, name: str, key: str) -> list[Figures]:
    mine = {
        cell["settings"][key]: figures
        for cell, figures in results
        if (cell["method"], cell["view"]) == (name, view) and _swept(options, name, cell, key)
    }
    return [mine[value] for value in options.sweep[key]]


def _swept(options: Options, name: str, cell: Cell, key: str) -> bool:
    """Tell whether it is this setting that a cell sweeps: all others are as the method fixes them."""
    fixed = options.methods[name].fixed
    return all(fixed.get(other) == value for other, value in cell["settings"].items() if other != key)
