"""The tables of Frasson and Malchiodi, "Support Vector Based Anomaly Detection in Federated Learning".

Table 1 trains and scores on all rows, outliers included; Table 2 is nested cross-validation. Each cell is one
configuration with all values of C or ν inside. The third table is not in the paper: what its anonymisation is worth.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Results, Study
from fedgate.firmware_sim.studies.federated_svdd.membership import (
    measure_membership,
    membership_report,
    membership_values,
)
from fedgate.firmware_sim.studies.federated_svdd.options import CENTRAL, FEDERATED, SVE, Options, drawn_values
from fedgate.firmware_sim.studies.federated_svdd.report import tables
from fedgate.firmware_sim.studies.federated_svdd.trials import Rows, auc_of, stratified_folds, table
from fedgate.models.arrays import generator


def cells(options: Options) -> list[Cell]:
    """Return every method x set x form, the federated ones in every configuration."""
    plain = [] if options.table == "membership" else _central_cells(options)
    federated: list[Cell] = [
        {
            "method": method,
            "set": name,
            "form": form,
            "clients": clients,
            "fraction": fraction,
            "split": split,
            "anonymise": anonymise,
        }
        for name, form, method, clients, fraction, split, anonymise in product(
            options.sets,
            options.forms,
            FEDERATED,
            options.clients,
            options.fractions,
            options.splits,
            options.anonymise,
        )
    ]
    if options.table == "membership":
        values = membership_values(options)
        return [cell | {"value": values[cell["form"]]} for cell in federated]
    return plain + federated + _tau_cells(options)


def _central_cells(options: Options) -> list[Cell]:
    return [
        {"method": method, "set": name, "form": form}
        for name, form, method in product(options.sets, options.forms, CENTRAL)
    ]


def _tau_cells(options: Options) -> list[Cell]:
    where = {"clients": max(options.clients), "fraction": max(options.fractions), "split": "iid", "anonymise": True}
    first = next(iter(options.forms))
    return [
        {"method": SVE, "set": name, "form": first, **where, "tau": tau}
        for name, tau in product(options.sets, options.taus)
    ]


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the areas of one cell: `auc.i` for each value of C or ν (Table 1) or each outer fold (Table 2).

    Raises `DataError` or `RecordingError` where the set cannot be read.
    """
    if options.table == "membership":
        return measure_membership(options, data, cell)
    values = drawn_values(options, options.forms[cell["form"]])
    y = table(data, options.sets[cell["set"]]).y
    if options.table == "generalisation":
        areas, best = _nested(options, data, cell, values.tolist(), y)
        figures = {f"value.{index}": value for index, value in enumerate(best)}
    else:
        every = np.arange(len(y))
        areas, figures = [], {}
        for index, value in enumerate(values.tolist()):
            areas.append(auc_of(options, data, cell, value, every, every, options.seed + index))
    return {f"auc.{index}": area for index, area in enumerate(areas)} | figures


def _nested(options: Options, data: Path, cell: Cell, values: list[float], y: Rows) -> tuple[list[float], list[float]]:
    """Return the area on each outer fold and the value that was chosen for it, by inner folds of the others alone."""
    outer = stratified_folds(y, options.folds, generator(options.seed, 0, "outer"))
    areas, best = [], []
    for fold in range(options.folds):
        train, test = np.flatnonzero(outer != fold), np.flatnonzero(outer == fold)
        inner = stratified_folds(y[train], options.folds, generator(options.seed, fold, "inner"))
        seed = options.seed + fold

        def mean_area(value: float, train: Rows = train, inner: Rows = inner, seed: int = seed) -> float:
            parts = [(train[inner != each], train[inner == each]) for each in range(options.folds)]
            return float(np.mean([auc_of(options, data, cell, value, *part, seed) for part in parts]))

        value = max(values, key=mean_area)
        areas.append(auc_of(options, data, cell, value, train, test, seed))
        best.append(value)
    return areas, best


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return the options that the measurement of a cell depends on."""
    found: dict[str, Any] = {
        "table": options.table,
        "file": options.sets[cell["set"]],
        "form": options.forms[cell["form"]].model_dump(),
        "gamma": options.gamma,
        "seed": options.seed,
    }
    if cell["method"] == SVE:
        found |= {"sigma": options.sigma, "tau": cell.get("tau", options.tau)}
    if options.table == "membership":
        return found | {"repeats": options.repeats}
    folds = {"folds": options.folds} if options.table == "generalisation" else {}
    return found | {"values": options.values} | folds


def report(options: Options, results: Results, prefix: Path) -> str:
    """Return the report of a table; the first one draws the paper's Figures 1 to 3 into `<prefix>-differences.png`."""
    if options.table == "membership":
        return membership_report(options, results)
    return tables(options, results, prefix)


STUDY = Study(Options, cells, measure, report, identity)
