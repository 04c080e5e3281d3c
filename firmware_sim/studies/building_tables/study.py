"""Tables 2 and 4 of Abdel Sater and Ben Hamza (ACM Transactions on Internet of Things 2 (2021) 28), on open recordings.

The paper's recordings are not public, so its tables cannot be repeated; their pattern can: the same methods, classes
and values, with rooms and air handling units as clients. Settings and the number of rounds are chosen on inner folds of
what trains, never on what is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgate.firmware_sim.studies.building_tables.data import load
from fedgate.firmware_sim.studies.building_tables.figures import figures, roc, told, worth
from fedgate.firmware_sim.studies.building_tables.methods import Fitted, fit
from fedgate.firmware_sim.studies.building_tables.options import Method, Options, TableOptions, combinations, of_table
from fedgate.firmware_sim.studies.building_tables.report import report
from fedgate.firmware_sim.studies.building_tables.streams import REPORT, TRAINS, Task, windows
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study
from fedgate.models.arrays import Floats

CURVE_EVERY = 4  # of the reported windows, one in so many shows how the error fell


def cells(options: Options) -> list[Cell]:
    """Return table x room left out x method x seed; what draws nothing is measured once."""
    found: list[Cell] = []
    for name, table in options.tables.items():
        for left_out, key in product(table.left_out, table.methods):
            method = options.methods[key]
            seeds = min(table.seeds, method.seeds or table.seeds) if method.seeded else 1
            found += [{"table": name, "left_out": left_out, "method": key, "seed": seed} for seed in range(seeds)]
    return found


class Choice(NamedTuple):
    """Settings and rounds that were best on the inner folds, and what they were worth there."""

    settings: dict[str, Any]
    rounds: int
    worth: float


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return the figures of a method on the reported windows of a table."""
    table, method = options.tables[cell["table"]], options.methods[cell["method"]]
    task = _task(table, data, cell["left_out"])
    choice = chosen(options, table, method, data, cell["left_out"])
    fitted = fit(task, method, choice.settings, TRAINS, cell["seed"], choice.rounds)
    streams = [stream for stream in task.streams if stream.seen or not _only_seen(method)]
    reported = [windows(task, stream, (REPORT,)) for stream in streams]
    found = told(fitted.tell, reported)
    result = figures(found, classify=task.classify)
    if len(streams) < len(task.streams):  # so that nobody compares it with what is of all gateways
        result = {name: value for name, value in result.items() if not name.startswith("all.")}
    if cell["method"] in table.roc:
        result |= roc(found)
    if cell["method"] in table.curve and cell["seed"] == 0:
        result |= _curve(task, fitted, streams)
    settled = {f"chosen.{key}": float(choice.settings[key]) for key in _grid(options, method)}
    known = {"rounds": float(choice.rounds), "inner": choice.worth, "bytes_up": fitted.bytes_up}
    return {**result, **settled, **known, "numbers": float(fitted.numbers), "places": float(len(streams))}


def _only_seen(method: Method) -> bool:
    return method.only_seen or method.data == "local"


def _grid(options: Options, method: Method) -> dict[str, list[Any]]:
    return options.methods[method.like].grid if method.like else method.grid


def _task(table: TableOptions, data: Path, left_out: str) -> Task:
    return load(table.data, data / table.folder, table.window, table.horizon, table.every, left_out, table.change)


def _curve(task: Task, fitted: Fitted, streams: list[Any]) -> Figures:
    some = [windows(task, stream, (REPORT,), CURVE_EVERY) for stream in streams]
    errors = (worth(told(tell, some), classify=task.classify) for tell in fitted.after)
    return {f"curve.{index:03d}": abs(value) for index, value in enumerate(errors, start=1)}


def chosen(options: Options, table: TableOptions, method: Method, data: Path, left_out: str) -> Choice:
    """Return what was chosen for a method on the inner folds, its own `fixed` on top where it goes by another's."""
    if not _grid(options, method):
        return Choice({**of_table(table, method), **method.fixed}, method.rounds, float("nan"))
    chooser = options.methods[method.like] if method.like else method
    found = _chosen(_json(chooser), _json(table), str(data), left_out)
    return found._replace(settings={**found.settings, **method.fixed}) if method.like else found


def _json(options: Method | TableOptions) -> str:
    """Return options as text, by which a choice that many cells share is known."""
    keys = (
        {"data", "folder", "window", "horizon", "change", "every", "recurrent"}
        if isinstance(options, TableOptions)
        else None
    )
    return options.model_dump_json(include=keys)


@lru_cache(maxsize=64)
def _chosen(method_json: str, table_json: str, data: str, left_out: str) -> Choice:
    """Return the settings with the best mean over the inner folds, and the round after which it was."""
    method = Method.model_validate_json(method_json)
    table = TableOptions.model_validate({**json.loads(table_json), "methods": [""]})
    task = _task(table, Path(data), left_out)
    return max(_tried(task, table, method), key=lambda each: each.worth)


def _tried(task: Task, table: TableOptions, method: Method) -> Iterator[Choice]:
    for settings in combinations(table, method):
        folds = []
        for trains, chooses in task.inner:
            fitted = fit(task, method, settings, (trains,), 0, method.rounds)
            streams = [stream for stream in task.streams if stream.seen]
            left = [windows(task, stream, (chooses,), task.every) for stream in streams]
            folds.append([worth(told(tell, left), classify=task.classify) for tell in fitted.after or (fitted.tell,)])
        means = _with_neighbours(np.mean(folds, axis=0))
        best = int(np.argmax(means))
        yield Choice(settings, best + 1 if len(means) > 1 else method.rounds, float(means[best]))


def _with_neighbours(values: Floats) -> Floats:
    """Return the mean of each value, the one before and the one after: a single lucky round is no reason to stop."""
    window = np.ones(min(3, len(values)))
    return np.asarray(np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same"))


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return what of the options a measurement depends on, beside its cell."""
    table, method = options.tables[cell["table"]], options.methods[cell["method"]]
    like = options.methods[method.like].model_dump(mode="json") if method.like else {}
    drawn = [cell["method"] in names for names in (table.curve, table.roc)]
    return {"table": _json(table), "method": method.model_dump(mode="json"), "like": like, "drawn": drawn}


STUDY = Study(Options, cells, measure, report, identity)
