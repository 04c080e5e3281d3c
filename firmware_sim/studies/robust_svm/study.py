"""Study of the robust SVM on tables of the UCI repository (FDR-SVM paper, Experiment 3, Table 1) and on pump faults.

The numbers of the paper's table are lost in the text that is at hand, so there is no column of the paper; its
statements in words stand beside what is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results, Study, StudyOptions
from fedgate.firmware_sim.studies.robust_svm.data import fault_codes, shuffled, table
from fedgate.firmware_sim.studies.robust_svm.methods import Grid, Labels, compared, evenly
from fedgate.firmware_sim.studies.robust_svm.report import faults_section, sets_section
from fedgate.models.arrays import generator

BY_GROUP = ", by person"
FAULTS = "faults"


class Options(StudyOptions):
    """The experiment file: which tables, how often shuffled, dealt to how many gateways, and what is tried."""

    sets: tuple[str, ...]
    grouped: tuple[str, ...] = ()  # of the sets, those that are also split by group
    shuffles: int = Field(ge=1)
    clients: int = Field(ge=1)
    grid: Grid
    defaults: dict[str, str]  # method -> the setting that is reported as its default
    faults: str | None = None  # a table with classes beside it
    fault_shuffles: int = Field(default=10, ge=1)
    fault_grid: Grid
    claims: dict[str, str] = Field(default_factory=dict)  # statements of the paper


def cells(options: Options) -> list[Cell]:
    names = [*options.sets, *(name + BY_GROUP for name in options.grouped)]
    found: list[Cell] = [{"set": name, "shuffle": k} for name in names for k in range(options.shuffles)]
    if options.faults is not None:
        found += [{"set": FAULTS, "shuffle": k} for k in range(options.fault_shuffles)]
    return found


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return F1 (for fault classes the accuracy) of every method at every setting on the rows held out."""
    name, shuffle = str(cell["set"]), int(cell["shuffle"])
    rng, share = generator(options.seed, shuffle, name), evenly(options.clients, options.seed + shuffle)
    if name == FAULTS and options.faults is not None:
        rows = table(data, options.faults)._replace(y=fault_codes(data, options.faults))
        classes = int(rows.y.max())
        split = shuffled(rows, rng)
        figures = compared(split, share, (options.fault_grid,), accuracy, rng, classes=classes)
        return {**figures, "most frequent|": float(np.bincount(split.test_y).max() / len(split.test_y))}
    plain = name.removesuffix(BY_GROUP)
    split = shuffled(table(data, plain, grouped=name != plain), rng)
    return compared(split, share, (options.grid,), f1, rng)


def f1(truth: Labels, found: Labels) -> float:
    return metrics.f1(truth, found > 0)


def accuracy(truth: Labels, found: Labels) -> float:
    return float((truth == found).mean())


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that the measurement of a cell depends on."""
    found: dict[str, Any] = {"seed": options.seed, "clients": options.clients}
    if cell["set"] == FAULTS:
        return found | {"table": options.faults, "grid": options.fault_grid.model_dump(mode="json")}
    return found | {"grid": options.grid.model_dump(mode="json")}


def report(options: Options, results: Results, prefix: Path) -> str:
    del prefix  # no picture
    sets = [each for each in results if each[0]["set"] != FAULTS]
    faults = [each for each in results if each[0]["set"] == FAULTS]
    text = sets_section(sets, options.defaults, options.claims, options.shuffles, options.clients, options.seed)
    return f"{text}\n\n{faults_section(faults, options.fault_shuffles)}" if faults else text


STUDY = Study(Options, cells, measure, report, identity)
