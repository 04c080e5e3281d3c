"""The report of the study of memory: what it is worth on every task, and how long which reservoir remembers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.engine.markdown import deviation, spread, table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Figures, Results
from fedgate.firmware_sim.studies.esn_memory.models import (
    EQUAL_LAGS,
    FORGETFUL,
    LAGS,
    LAST,
    LOGISTIC,
    MEMORYLESS,
    NETWORK,
    REGRESSIONS,
    TRIVIAL,
    models_of,
)
from fedgate.firmware_sim.studies.esn_memory.options import Options
from fedgate.firmware_sim.studies.esn_memory.pictures import Panel, draw_capacity, draw_settings

CAPACITY = "capacity"
WITHOUT = (FORGETFUL, MEMORYLESS, LOGISTIC)  # a memory; LAST is told what no other model is
SETTINGS = ("lags", "leak", "spectral_radius", "input_scaling", "ridge")


class Row(NamedTuple):
    """A model on a task: the figure reported of each seed, higher or lower as the task has it, and all else."""

    model: str
    values: list[float]
    every: list[Figures]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """Deviation over seeds, nan where nothing was drawn."""
        return deviation(self.values)


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report in Markdown; the pictures become `<prefix>-capacity.png` and `<prefix>-settings.png`."""
    found = {name: _rows(options, results, name) for name in options.tasks}
    parts = [_introduction(options), "## In short", _summary(options, found), _verdict(options, found)]
    for name, rows in found.items():
        parts += [f"## {name}", _table(options, name, rows), options.tasks[name].note]
    path = beside(prefix, "settings")
    draw_settings({name: _settings(options, name, rows) for name, rows in found.items()}, path)
    parts += ["## What leak and spectral radius do", _told_settings(), f"![figures over the radius]({path.name})"]
    path = beside(prefix, "capacity")
    curves = _curves(results)
    draw_capacity({key: [figures[f"delay.{k}"] for k in _delays(options)] for key, figures in curves.items()}, path)
    parts += ["## How long a reservoir remembers", _capacity(options, curves), f"![memory capacity]({path.name})"]
    return "\n\n".join(part for part in parts if part)


def _rows(options: Options, results: Results, name: str) -> list[Row]:
    rows = []
    for model in models_of(options.tasks[name].kind):
        every = [figures for cell, figures in results if cell["task"] == name and cell["model"] == model]
        rows.append(Row(model, [_shown(options, name, each["loss"]) for each in every], every))
    return rows


def _is_regression(options: Options, name: str) -> bool:
    return options.tasks[name].kind in REGRESSIONS


def _shown(options: Options, name: str, loss: float) -> float:
    """Return NRMSE as it is, and of a classification the balanced accuracy."""
    return loss if _is_regression(options, name) else 1.0 - loss


def _introduction(options: Options) -> str:
    return (
        "An echo state network beside models that see the same inputs. All but the logistic ones end in the same ridge"
        " regression, with the same ridges on offer:\n\n"
        f"- `{FORGETFUL}`: as many units, of spectral radius 0 and leak 1: a unit hears the present input alone."
        " The network's gain over it is memory, its own gain over the next is that it is not linear.\n"
        f"- `{MEMORYLESS}`, `{LOGISTIC}`: the present inputs.\n"
        f"- `{LAGS}` ({', '.join(map(str, options.grid.lags))}), `{EQUAL_LAGS}` as the network's readout.\n"
        f"- `{LAST}`: what the target was a step before, which no other model is told; of Mackey-Glass the input.\n"
        f"- `{TRIVIAL}` of the training rows.\n\n"
        "Everything is chosen on rows that are neither trained on nor reported; ± is the deviation over"
        f" {options.seeds} seeds, of the reservoir and, where the series is generated, of the series. Classes weigh the"
        " same in training; accuracy is balanced, the mean over classes.\n\n"
        f"{options.note}"
    ).strip()


def _summary(options: Options, found: Mapping[str, list[Row]]) -> str:
    head = ["task", "figure", NETWORK, "the best without memory", "the best on lags", "trivial"]
    lines = []
    for name, rows in found.items():
        groups = ((NETWORK,), WITHOUT, (LAGS, EQUAL_LAGS), (TRIVIAL,))
        best = [_best(options, name, rows, group) for group in groups]
        figure = "NRMSE, lower is better" if _is_regression(options, name) else "accuracy, higher is better"
        shown = [spread(row.mean, row.deviation) for row in best]
        lines.append([name, figure, shown[0], f"{shown[1]} ({best[1].model})", *shown[2:]])
    return table(head, lines)


def _best(options: Options, name: str, rows: list[Row], models: tuple[str, ...]) -> Row:
    best = min if _is_regression(options, name) else max
    return best((row for row in rows if row.model in models), key=lambda row: row.mean)


def _verdict(options: Options, found: Mapping[str, list[Row]]) -> str:
    """Return in words where the network is ahead, by more than the deviation over seeds."""
    without, ahead, level = list[str](), list[str](), list[str]()
    for name, rows in found.items():
        network = _best(options, name, rows, (NETWORK,))
        noise = 0.0 if np.isnan(network.deviation) else network.deviation
        sign = -1.0 if _is_regression(options, name) else 1.0
        if sign * (network.mean - _best(options, name, rows, WITHOUT).mean) <= noise:
            without.append(name)
        lagged = _best(options, name, rows, (LAGS, EQUAL_LAGS))
        (ahead if sign * (network.mean - lagged.mean) > noise else level).append(name)
    told = [f"Ahead of ridge on lags, by more than its deviation over seeds: {'; '.join(ahead)}."] * bool(ahead)
    told += [f"Not ahead of ridge on lags, which then is the simpler choice: {'; '.join(level)}."] * bool(level)
    told += [f"Not ahead of the best without memory: {'; '.join(without)}."] * bool(without)
    told += ["On every task it is ahead of the models that see the present inputs alone."] * (not without)
    return " ".join(told)


def _table(options: Options, name: str, rows: list[Row]) -> str:
    figure = "NRMSE" if _is_regression(options, name) else "balanced accuracy"
    lines = []
    for row in rows:
        chosen = float(np.mean([_shown(options, name, each["choose"]) for each in row.every]))
        told = dict.fromkeys(", ".join(f"{k}={each[k]:g}" for k in SETTINGS if k in each) for each in row.every)
        size = f"{row.every[0]['size']:.0f}" if row.every[0]["size"] else "-"
        lines.append([row.model, size, f"{chosen:.3f}", spread(row.mean, row.deviation), "; ".join(told) or "-"])
    return table(
        ["model", "numbers read", "where chosen", f"{figure}, reported", "chosen, by seed where it differs"], lines
    )


def _settings(options: Options, name: str, rows: list[Row]) -> Panel:
    """Return what is drawn: the figure reported by leak and radius, a mean over seeds, and the best without memory."""
    figure = "NRMSE" if _is_regression(options, name) else "balanced accuracy"
    network, without = (_best(options, name, rows, group) for group in ((NETWORK,), WITHOUT))
    curves: dict[float, dict[float, float]] = {}
    for leak in options.grid.leak:
        for radius in options.grid.spectral_radius:
            found = [_shown(options, name, each[f"at.{leak:g}.{radius:g}"]) for each in network.every]
            curves.setdefault(leak, {})[radius] = float(np.mean(found))
    return figure, without.mean, curves


def _told_settings() -> str:
    return (
        "The figure reported at each leak and radius, everything else chosen as above; nothing was chosen by this"
        " picture. A small leak averages over 1 / leak steps, which suits what changes slowly; leak 1 with a radius"
        " near one keeps an order of events, which NARMA-10 asks for."
    )


def _delays(options: Options) -> range:
    return range(1, options.capacity.delays + 1)


def _curves(results: Results) -> dict[tuple[float, float], Figures]:
    found: dict[tuple[float, float], list[Figures]] = {}
    for cell, figures in results:
        if cell["task"] == CAPACITY:
            found.setdefault((cell["leak"], cell["radius"]), []).append(figures)
    return {key: {name: float(np.mean([one[name] for one in many])) for name in many[0]} for key, many in found.items()}


def _capacity(options: Options, curves: Mapping[tuple[float, float], Figures]) -> str:
    radii = options.capacity.spectral_radius
    lines = [
        [f"{leak:g}", *(f"{curves[leak, radius]['total']:.1f}" for radius in radii)] for leak in options.capacity.leak
    ]
    told = (
        f"How much of an input of so many steps ago the states of {options.capacity.units} units still hold: the"
        " squared correlation of the best linear readout with it, on rows that trained nothing (Jaeger 2001). The input"
        " is uniform noise, every value news, so no reservoir holds more steps than it has units. Sums over all delays"
        f" up to {options.capacity.delays} steps, in steps, means over {options.seeds} reservoirs:"
    )
    return f"{told}\n\n{table(['leak', *(f'radius {radius:g}' for radius in radii)], lines)}"
