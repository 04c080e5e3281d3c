"""`firmware-sim evaluate`: how well federated algorithms do on data of the user's, as a table, a page and JSON."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedgate.config.runtime import cli
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.cells import cells_of, load_probe
from fedgate.firmware_sim.engine.spec import Section, Spec
from fedgate.firmware_sim.evaluate import options
from fedgate.firmware_sim.evaluate.datasets import EvaluationError, Table
from fedgate.firmware_sim.evaluate.folders import Folder
from fedgate.firmware_sim.evaluate.probe import (
    BASELINES,
    RUN,
    Case,
    OptionError,
    build_algorithm,
    check,
    load,
    settings_of,
)
from fedgate.firmware_sim.progress import Progress

if TYPE_CHECKING:
    from fedgate.firmware_sim.engine.runner import Outcome

NAME = "firmware-sim evaluate"
RESULTS = Path("out/evaluate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    options.add_arguments(parser)
    jobs = "runs at a time, default one a core"
    parser.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count() or 1, help=jobs)
    cluster = "address of a Dask scheduler whose workers measure, e.g. tcp://10.0.0.1:8786"
    parser.add_argument("--cluster", metavar="ADDRESS", default="", help=cluster)
    results = "folder for the page, its pictures and the finished runs (default: %(default)s)"
    parser.add_argument("--results", type=Path, metavar="DIR", default=RESULTS, help=results)
    parser.add_argument("--short", action="store_true", help="one run with few rounds, to see that all is in place")
    parser.add_argument("--fresh", action="store_true", help="forget finished runs and begin anew")
    output = "also write the result to this file; - writes JSON to standard output instead of the table"
    parser.add_argument("--json", metavar="FILE", help=output)
    parser.set_defaults(act=main)


def main(args: argparse.Namespace) -> None:
    """Run a comparison, and print what came of it.

    Raises:
        EvaluationError, StudyError, SettingsError, RecordingError, FeatureError: one line that says what is wrong.
    """
    from fedgate.firmware_sim.engine.report import tabulated  # late: --help needs neither pandas nor matplotlib
    from fedgate.firmware_sim.engine.runner import Plan, run_study

    if args.jobs < 1:
        raise OptionError(f"--jobs: expected at least 1, got {args.jobs}")
    check_output(args.json)
    name, spec, data = options.study_of(args)
    spec = _described(spec, data)
    command = f"{NAME} {shlex.join(sys.argv[2:])}"
    plan = Plan(data, args.results, command, args.short, args.jobs, fresh=args.fresh, cluster=args.cluster)
    progress = Progress(sys.stderr)
    try:
        outcome = run_study(name, spec, plan, progress, template="report.html")
    finally:
        progress.close()
    worth = load_probe(spec.probe).sections(spec)[0]
    results = [(cell.coordinates, done.figures) for cell, done in zip(outcome.cells, outcome.measured, strict=True)]
    table = tabulated(worth, results)
    text = f"{spec.about}\n\n{cli.table(table.head, table.rows)}\n\npage: {outcome.path}\n"
    write_result(args.json, _facts(spec, worth, outcome), text)


def check_output(target: str | None) -> None:
    """Refuse a file for JSON whose folder does not exist, before hours of work: raises `OptionError`."""
    if target not in (None, options.TO_STDOUT) and not Path(target).resolve().parent.is_dir():
        raise OptionError(f"--json: {target!r} lies in a folder that does not exist; make the folder first")


def write_result(target: str | None, facts: dict[str, Any], text: str) -> None:
    """Print a result: the text for people, and JSON into the file `target`, or instead where that is `-`."""
    as_json = json.dumps(facts, indent=2, allow_nan=False) + "\n"
    if target not in (None, options.TO_STDOUT):
        Path(target).write_text(as_json, encoding="utf-8")
    sys.stdout.write(as_json if target == options.TO_STDOUT else text)


def _described(spec: Spec, data: Path) -> Spec:
    """Return a comparison that says how its data are read and split; raises `EvaluationError` for wrong settings."""
    cells = [cell for cell in cells_of(spec, load_probe(spec.probe), data) if isinstance(cell.case, Case)]
    if not cells:
        raise EvaluationError(f"probe: {spec.probe!r} measures no algorithm on data; expected 'evaluate'")
    first, used = cast(Case, cells[0].case), dict[str, str]()
    for cell in cells:
        case = cast(Case, cell.case)
        rows = load(case, data)
        algorithm = None if case.method.algorithm in BASELINES else build_algorithm(case, rows)
        check(case, rows, algorithm)
        if algorithm is not None and case.method.data == "federated":
            used.setdefault(cell.coordinates["method"], _used(cell.coordinates["method"], case, rows))
    rows = load(first, data)
    about = f"{spec.about.strip()} " if spec.about else ""
    about += f"{first.data}: {rows.read_as}. {PROTOCOLS[first.protocol]} Seed {first.seed}. {' '.join(used.values())}"
    return spec.model_copy(update={"about": about})


def _used(name: str, case: Case, rows: Table | Folder) -> str:
    """Return a sentence with the settings of a method."""
    texts = [f"{key}={value}" for key, value in settings_of(case.method, rows).items()]
    return f"{name}: {', '.join(texts) or 'defaults'}."


PROTOCOLS = {
    "heldout": "What is scored took no part in the training, and nothing was chosen on it.",
    "whole": "Trained and scored on all rows, as some papers do: the figures flatter.",
}


def _facts(spec: Spec, worth: Section, outcome: Outcome) -> dict[str, Any]:
    """Return the result as JSON holds it: a line for each method, and every run."""
    from fedgate.firmware_sim.engine.frame import lay_out

    results = [(cell.coordinates, done.figures) for cell, done in zip(outcome.cells, outcome.measured, strict=True)]
    lines = []
    for row, columns in lay_out(results, worth).items():
        line: dict[str, Any] = dict(zip(worth.rows, row, strict=True))
        for (*_, head), shown in columns.items():
            line[head] = {"mean": metrics.as_json(shown.value), "std": metrics.as_json(shown.spread)}
        lines.append(line)
    runs = [
        {**cell.coordinates, "figures": {key: metrics.as_json(value) for key, value in done.figures.items()}}
        for cell, done in zip(outcome.cells, outcome.measured, strict=True)
    ]
    count = len({cell.coordinates.get(RUN) for cell in outcome.cells})
    about = {"data": spec.settings["data"], "about": spec.about, "runs": count, "page": str(outcome.path)}
    return {**about, "methods": lines, "cells": runs}
