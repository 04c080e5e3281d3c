"""`python -m fedgate.firmware_sim.studies`: measure a table of a paper, as a file describes it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from fedgate.config.runtime import cli
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.cells import cells_of, check_data, count_cells, load_probe
from fedgate.firmware_sim.engine.runner import Outcome, Plan, run_study
from fedgate.firmware_sim.engine.spec import Spec, StudyError, load_spec
from fedgate.firmware_sim.evaluate.command import check_output, write_result
from fedgate.firmware_sim.progress import Progress
from fedgate.firmware_sim.recordings.errors import RecordingError
from fedgate.firmware_sim.studies.datasets.convert import CONVERTERS, convert
from fedgate.firmware_sim.studies.datasets.tiny import write_tiny

NAME = "python -m fedgate.firmware_sim.studies"
DESCRIPTION = "Measure the tables of papers, each described by a file."
EPILOG = f"""examples:
  {NAME} measure firmware_sim/studies/tables/munich.toml
  {NAME} measure firmware_sim/studies/tables/z24-table-2.toml --data DATA --short
  {NAME} check firmware_sim/studies/tables/munich.toml
  {NAME} tiny out/tiny
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the program."""
    parser = cli.make_parser(NAME, DESCRIPTION, EPILOG)
    commands = cli.add_commands(parser)
    _add_measure(commands)
    check = commands.add_bare("check", "check a file without measuring")
    check.add_argument("file", type=Path, help="TOML file that describes a study")
    check.add_argument("--data", type=Path, metavar="DIR", help="folder of data, to check that its files are there")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(act=_check)
    tiny = commands.add_bare("tiny", "write a tiny folder of data in the layouts that the studies read")
    tiny.add_argument("folder", type=Path, help="new folder, for measure --short --data")
    tiny.set_defaults(act=_write_tiny)
    convert = commands.add_bare("convert", "convert a data set from what its publisher hands out")
    convert.add_argument("name", choices=CONVERTERS, metavar="NAME", help=f"one of {', '.join(CONVERTERS)}")
    convert.add_argument("source", type=Path, help="the publisher's file or folder")
    convert.add_argument("target", type=Path, help="folder for measure --data, below which it is written")
    convert.set_defaults(act=_convert)
    return cli.run(NAME, parser.parse_args(argv), RecordingError)


def _add_measure(commands: cli.Commands) -> None:
    measure = commands.add_bare("measure", "measure what is not measured yet, and write the report")
    measure.add_argument("file", type=Path, help="TOML file that describes a study")
    measure.add_argument("--data", type=Path, metavar="DIR", help="folder that holds the data of the study")
    short = "the first value of each axis, every method, few rounds: seconds, to see that all is in place"
    measure.add_argument("--short", action="store_true", help=short)
    results = "folder for the report, its pictures and the finished cells (default: %(default)s)"
    measure.add_argument("--results", type=Path, metavar="DIR", default=Path("out/results"), help=results)
    jobs = "cells at a time, default one a core"
    measure.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count() or 1, help=jobs)
    cluster = "address of a Dask scheduler whose workers measure, e.g. tcp://10.0.0.1:8786"
    measure.add_argument("--cluster", metavar="ADDRESS", default="", help=cluster)
    measure.add_argument("--fresh", action="store_true", help="forget finished cells and begin anew")
    output = "also write the result to this file; - writes JSON to standard output instead of the report"
    measure.add_argument("--json", metavar="FILE", help=output)
    measure.set_defaults(act=_measure)


def _measure(args: argparse.Namespace) -> None:
    if args.jobs < 1:
        raise StudyError(f"--jobs: expected at least 1, got {args.jobs}")
    check_output(args.json)
    spec = load_spec(args.file)
    command = f"{NAME} measure {shlex.quote(str(_relative(args.file)))}"
    command += " --data DATA" * (spec.data is None) + " --short" * args.short
    plan = Plan(
        _folder(spec, args.data), args.results, command, args.short, args.jobs, fresh=args.fresh, cluster=args.cluster
    )
    progress = Progress(sys.stderr)
    try:
        outcome = run_study(args.file.stem, spec, plan, progress)
    finally:
        progress.close()
    facts = _as_json(spec, args.file.stem, outcome, short=args.short)
    write_result(args.json, facts, f"{outcome.text}\nreport: {outcome.path}\n")


def _folder(spec: Spec, given: Path | None) -> Path:
    data = given or spec.data
    if data is None or not data.is_dir():
        raise StudyError(f"--data: expected the folder that holds the data of this study, got {data}")
    return data


def _check(args: argparse.Namespace) -> None:
    spec = load_spec(args.file)
    probe, data = load_probe(spec.probe), args.data or spec.data
    cells = cells_of(spec, probe, data or Path())
    if data is not None:
        check_data(probe, cells, _folder(spec, data))
    kind = f"study of {count_cells(cells)} cells: {spec.title}"
    cli.show(args, {"ok": True, "file": str(args.file), "what": kind}, f"{args.file}: good; {kind}")


def _write_tiny(args: argparse.Namespace) -> None:
    print(f"{write_tiny(args.folder)}: written; it shows that studies run, not what methods are worth")


def _convert(args: argparse.Namespace) -> None:
    convert(args.name, args.source, args.target)
    print(f"{args.target}: {args.name} written")


def _relative(path: Path) -> Path:
    """Return a path as seen from here where it lies below, else its name: a report is read on other machines."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else Path(path.name)


def _as_json(spec: Spec, name: str, outcome: Outcome, *, short: bool) -> dict[str, Any]:
    cells = [
        {
            "cell": cell.coordinates,
            "figures": {key: metrics.as_json(value) for key, value in done.figures.items()},
            "s": done.seconds,
        }
        for cell, done in zip(outcome.cells, outcome.measured, strict=True)
    ]
    return {"study": name, "probe": spec.probe, "short": short, "report": str(outcome.path), "cells": cells}


if __name__ == "__main__":
    sys.exit(main())
