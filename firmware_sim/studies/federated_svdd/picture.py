"""The paper's Figures 1 to 3 in one picture: what split, client fraction and anonymisation change, for both methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedgate.firmware_sim.pictures import BLUE, INK, write
from fedgate.firmware_sim.studies.engine.markdown import deviation
from fedgate.firmware_sim.studies.engine.study import Results
from fedgate.firmware_sim.studies.federated_svdd.options import FEDERATED, Options
from fedgate.models.arrays import Floats

AXES = ("clients", "fraction", "split", "anonymise")
TITLES = {"support-vector-election": "SVE", "ensemble-svdd": "ESVDD"}


class Comparison(NamedTuple):
    """Two values of one coordinate whose areas are subtracted, all others being equal."""

    key: str
    first: Any
    second: Any
    title: str
    meaning: str


COMPARISONS = (
    Comparison("split", "iid", "biased", "iid - biased", "above zero where rows dealt at random do better"),
    Comparison("fraction", 1.0, 0.5, "F = 1 - F = 0.5", "above zero where it pays that all clients take part"),
    Comparison("anonymise", False, True, "plain - anonymised", "above zero where anonymisation costs"),
)


def differences(options: Options, results: Results, method: str, comparison: Comparison) -> dict[str, Floats]:
    """Return the differences of areas by configuration, over all sets and values, in the first form.

    A configuration whose counterpart was not measured is left out.
    """
    form = next(iter(options.forms))
    known: dict[tuple[Any, ...], Floats] = {}
    for cell, figures in results:
        if cell["method"] == method and cell["form"] == form and "tau" not in cell:
            values = np.array([value for key, value in figures.items() if key.startswith("auc.")])
            known[cell["set"], *(cell[axis] for axis in AXES)] = values
    found: dict[str, list[Floats]] = {}
    at = 1 + AXES.index(comparison.key)
    for key, values in known.items():
        other = (*key[:at], comparison.second, *key[at + 1 :])
        if key[at] == comparison.first and other in known:
            found.setdefault(_label(dict(zip(AXES, key[1:], strict=True)), comparison.key), []).append(
                values - known[other]
            )
    return {label: np.concatenate(parts) for label, parts in found.items()}


def _label(cell: Mapping[str, Any], without: str) -> str:
    """Name a configuration by what stands on the horizontal axis: K, F and, but in the first picture, the split."""
    parts = [f"K={cell['clients']}"]
    parts += [] if without == "fraction" else [f"F={cell['fraction']:g}"]
    parts += [] if without == "split" else [cell["split"]]
    return " ".join(parts)


def draw(options: Options, results: Results, path: Path) -> None:
    """Write the picture, a row for each comparison and a column for each method."""
    figure = Figure(figsize=(11, 10), layout="constrained")
    axes = figure.subplots(len(COMPARISONS), len(FEDERATED), sharey="row", squeeze=False)
    for row, comparison in enumerate(COMPARISONS):
        for column, method in enumerate(FEDERATED):
            panel, found = axes[row][column], differences(options, results, method, comparison)
            means, deviations = ([float(way(each)) for each in found.values()] for way in (np.mean, deviation))
            panel.errorbar(range(len(found)), means, deviations, fmt="o", capsize=3, color=BLUE)
            panel.axhline(0.0, color=INK, linewidth=0.8)
            panel.set_xticks(range(len(found)), list(found), rotation=60, ha="right", fontsize=7)
            panel.set_title(f"{TITLES[method]}: {comparison.title}", fontsize=9)
            panel.set_ylabel("difference of AUC")
    write(figure, path)
