"""Study of the robust SVM's running time (FDR-SVM paper, Experiment 2): gateways, training rows, features.

As in the paper a run ends at the model with the highest rate on the test rows, since neither method has a stopping
rule; the time is that of all gateways one after the other on one core.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from config.settings import Table
from firmware_sim.studies.robust_data import clouds, drawn
from firmware_sim.studies.robust_methods import (
    CENTRAL,
    FEDERATED,
    Grid,
    ball_name,
    evenly,
    gateways_of,
    trained,
)
from firmware_sim.studies.robust_pictures import draw_scaling
from firmware_sim.studies.robust_report import Means, grouped, means_of, table_of
from firmware_sim.studies.robust_sensitivity import mean_class_rate
from firmware_sim.studies.study import Cell, Figures, Results, Study, StudyOptions
from models.arrays import generator
from models.detectors import fault_classes
from models.robust.ball import Ball
from models.robust.box import Box, worst_case
from models.robust.central import central
from models.robust.gateway import imported, with_bias
from models.robust.program import worst_case_program

SOLVERS = ("direct", "program")


class Axis(Table):
    """One panel: what grows, and the sizes at each of its points; rows are those of all gateways together."""

    grows: Literal["gateways", "rows", "features"]
    clients: tuple[int, ...]
    rows: tuple[int, ...]
    features: tuple[int, ...]


class Options(StudyOptions):
    """The experiment file: panels of sizes of equal length, repetitions, and what is tried."""

    axes: dict[str, Axis]
    repeats: int = Field(ge=1)
    test_each: int = Field(ge=2)
    spread: float = Field(default=1.0, gt=0)
    grid: Grid
    program_rows_max: int = 400  # rows of one gateway up to which the linear program is timed as well


def cells(options: Options) -> list[Cell]:
    return [
        {"axis": name, "at": at, "clients": clients, "rows": rows, "features": features, "repeat": k}
        for name, axis in options.axes.items()
        for at, (clients, rows, features) in enumerate(zip(axis.clients, axis.rows, axis.features, strict=True))
        for k in range(options.repeats)
    ]


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the seconds to the best model of each method, its rate, and the milliseconds of one worst case."""
    del data
    clients, count, features = int(cell["clients"]), int(cell["rows"]), int(cell["features"])
    rng, grid = generator(options.seed, int(cell["repeat"]), "scaling"), options.grid
    rows = clouds(features, 2 * (count + 2 * options.test_each), options.spread, options.seed + int(cell["repeat"]))
    split = drawn(rows, (count // 2, count - count // 2), options.test_each, rng).scaled()
    gateways = gateways_of(split.x, split.y, evenly(clients, options.seed))
    figures: Figures = {}
    for method in grid.federated:
        found = []
        for _, setting in grid.settings(method):
            for _, shared, taken_s in trained(FEDERATED[method][0], setting, gateways, grid.federated[method].rounds):
                rate = mean_class_rate(split.test_y, fault_classes.classify(shared, split.test_x))
                found.append((rate, -taken_s))
        rate, minus_s = max(found)
        figures |= {f"{method}|s": -minus_s, f"{method}|rate": rate}
    began_s = time.perf_counter()
    params = central(split.x, split.y, Ball(grid.central_radii[0], grid.central_kappas[0], grid.norm))
    figures[f"{CENTRAL}|s"] = time.perf_counter() - began_s
    figures[f"{CENTRAL}|rate"] = mean_class_rate(split.test_y, fault_classes.classify(params, split.test_x))
    first = next(iter(gateways.values()))
    x, sign = with_bias(first["x"]), np.where(first["y"] > 0, 1.0, -1.0)
    ball, box = Ball(grid.radii[0], grid.kappas[0], grid.norm), Box(0.0, 1.0)
    solvers = {"direct": worst_case} | ({"program": worst_case_program} if len(x) <= options.program_rows_max else {})
    for name, solver in solvers.items():
        began_s = time.perf_counter()
        solver(x, sign, imported(params)[0], ball, box)
        figures[f"{name}|ms"] = 1e3 * (time.perf_counter() - began_s)
    return figures


def report(options: Options, results: Results, folder: Path) -> str:
    grid, picture = options.grid, "fdr-svm-scaling.png"
    ball = ball_name(grid.radii[0], grid.kappas[0])
    methods = (*grid.federated, CENTRAL)
    parts = [
        f"Seconds on one core until the model with the best rate on the test rows, mean over {options.repeats}"
        f" repetitions (seed {options.seed}); all gateways one after the other; {ball}. Milliseconds of one worst case"
        " on the box, at one gateway: `direct` is ours, `program` the paper's linear program. The paper's figures are"
        " lost in the text at hand; it says that time grows with gateways, rows and features, clearest for SM, and that"
        " SM takes far longer than ADMM, ADMM-SC and ADMM-REG, which are alike.\n"
    ]
    panels: dict[str, tuple[str, list[int], dict[str, list[float]]]] = {}
    for name, axis in options.axes.items():
        points = grouped([each for each in results if each[0]["axis"] == name], "at")
        means = [means_of(figures)[0] for figures in points.values()]
        sizes = list(zip(axis.clients, axis.rows, axis.features, strict=True))
        rows = [
            [*map(str, size), *(f"{found[f'{m}|s']:.3f}" for m in methods), *(_ms(found, s) for s in SOLVERS)]
            for size, found in zip(sizes, means, strict=True)
        ]
        header = ["gateways", "rows", "features", *(f"{m} s" for m in methods), *(f"{s} ms" for s in SOLVERS)]
        parts += [f"## {name}\n", table_of(header, rows)]
        grown = {"gateways": axis.clients, "rows": axis.rows, "features": axis.features}[axis.grows]
        panels[name] = (axis.grows, list(grown), {m: [found[f"{m}|s"] for found in means] for m in methods})
    draw_scaling(panels, folder / picture)
    return "\n".join([*parts, f"![running time]({picture})\n"])


def _ms(means: Means, solver: str) -> str:
    return f"{means[f'{solver}|ms']:.2f}" if f"{solver}|ms" in means else "-"


STUDY = Study(Options, cells, measure, report)
