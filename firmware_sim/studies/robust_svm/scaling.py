"""Study of the robust SVM's running time (FDR-SVM paper, Experiment 2): gateways, training rows, features.

As in the paper a run ends at the model with the highest rate on the test rows, since neither method has a stopping
rule; the time is that of all gateways one after the other on one core. The paper's times are curves; what it says of
them in words stands beside what is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedgate.config.settings.settings import Table
from fedgate.firmware_sim.studies.engine.markdown import table
from fedgate.firmware_sim.studies.engine.pictures import beside
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results, Study, StudyOptions
from fedgate.firmware_sim.studies.robust_svm.central import central
from fedgate.firmware_sim.studies.robust_svm.data import clouds, drawn
from fedgate.firmware_sim.studies.robust_svm.figures import Means, grouped
from fedgate.firmware_sim.studies.robust_svm.methods import (
    CENTRAL,
    FEDERATED,
    Grid,
    ball_name,
    evenly,
    gateways_of,
    trained,
)
from fedgate.firmware_sim.studies.robust_svm.pictures import draw_scaling
from fedgate.firmware_sim.studies.robust_svm.program import worst_case_program
from fedgate.firmware_sim.studies.robust_svm.sensitivity import mean_class_rate
from fedgate.models.arrays import generator
from fedgate.models.detectors.base import fault_classes
from fedgate.models.federated.robust_svm.ball import Ball
from fedgate.models.federated.robust_svm.box import Box, worst_case
from fedgate.models.federated.robust_svm.gateway import imported, with_bias

SOLVERS = ("direct", "program")


class Axis(Table):
    """One panel: what grows, and the sizes at each of its points; rows are those of all gateways together."""

    grows: Literal["gateways", "rows", "features"]
    clients: tuple[int, ...]
    rows: tuple[int, ...]
    features: tuple[int, ...]
    claim: str = ""  # what the paper says of this panel


class Options(StudyOptions):
    """The experiment file: panels of sizes of equal length, repetitions, and what is tried."""

    axes: dict[str, Axis]
    repeats: int = Field(ge=1)
    test_each: int = Field(ge=2)
    spread: float = Field(default=1.0, gt=0)
    grid: Grid
    program_rows_max: int = 400  # rows of one gateway up to which the linear program is timed as well
    claims: dict[str, str] = Field(default_factory=dict)  # statements of the paper on all panels


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


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that the measurement of every cell depends on."""
    del cell
    return {
        "seed": options.seed,
        "test_each": options.test_each,
        "spread": options.spread,
        "grid": options.grid.model_dump(mode="json"),
        "program_rows_max": options.program_rows_max,
    }


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return a table for each panel, the paper's statements beside what was measured, and the picture."""
    grid, picture = options.grid, beside(prefix, "seconds")
    ball = ball_name(grid.radii[0], grid.kappas[0])
    methods = (*grid.federated, CENTRAL)
    parts = [
        f"Seconds on one core until the model with the best rate on the test rows, mean over {options.repeats}"
        f" repetitions (seed {options.seed}); all gateways one after the other; {ball}. Milliseconds of one worst case"
        " on the box, at one gateway: `direct` is ours, `program` the paper's linear program. The paper's sizes are"
        " lost in the text at hand and its times are curves without numbers: what it says of them in words stands"
        " beside what is measured."
    ]
    panels: dict[str, tuple[str, list[int], dict[str, list[float]]]] = {}
    measured = {}
    for name, axis in options.axes.items():
        points = grouped([each for each in results if each[0]["axis"] == name], "at")
        means = [summary.means for summary in points.values()]
        sizes = list(zip(axis.clients, axis.rows, axis.features, strict=True))
        rows = [
            [*map(str, size), *(f"{found[f'{m}|s']:.3f}" for m in methods), *(_ms(found, s) for s in SOLVERS)]
            for size, found in zip(sizes, means, strict=True)
        ]
        header = ["gateways", "rows", "features", *(f"{m} s" for m in methods), *(f"{s} ms" for s in SOLVERS)]
        parts += [f"## {name}", table(header, rows)]
        grown = {"gateways": axis.clients, "rows": axis.rows, "features": axis.features}[axis.grows]
        panels[name] = (axis.grows, list(grown), {m: [found[f"{m}|s"] for found in means] for m in methods})
        measured[name] = means
    draw_scaling(panels, picture)
    parts += [_claims(options, measured), f"![running time]({picture.name})"]
    return "\n\n".join(part for part in parts if part)


def _ms(means: Means, solver: str) -> str:
    return f"{means[f'{solver}|ms']:.2f}" if f"{solver}|ms" in means else "-"


def _claims(options: Options, measured: Mapping[str, Sequence[Means]]) -> str:
    """Return the paper's statements with how the times grew along each panel and how those of two methods compare."""
    methods, points = (*options.grid.federated, CENTRAL), [point for means in measured.values() for point in means]

    def grown(means: Sequence[Means]) -> str:
        ratios = (f"{method} × {means[-1][f'{method}|s'] / means[0][f'{method}|s']:.1f}" for method in methods)
        return f"from the first to the last size: {'; '.join(ratios)}"

    def over(pairs: Sequence[tuple[str, str]]) -> str:
        ratios = {
            pair: np.median([point[f"{pair[0]}|s"] / point[f"{pair[1]}|s"] for point in points]) for pair in pairs
        }
        told = (f"{first} takes {ratio:.1f} times as long as {other}" for (first, other), ratio in ratios.items())
        return f"median over all sizes: {'; '.join(told)}" if pairs else "not measured"

    alike = [("ADMM", "ADMM-REG"), ("ADMM-SC", "ADMM-REG")]
    overall = {
        "sm_longest": over([("SM", other) for other in methods if other != "SM"]),
        "admm_alike": over([pair for pair in alike if set(pair) <= set(methods)]),
    }
    rows = [[name, axis.claim, grown(measured[name])] for name, axis in options.axes.items() if axis.claim]
    rows += [["all", claim, overall[key]] for key, claim in options.claims.items()]
    return f"## Statements of the paper\n\n{table(['panel', 'paper', 'measured'], rows)}" if rows else ""


STUDY = Study(Options, cells, measure, report, identity)
