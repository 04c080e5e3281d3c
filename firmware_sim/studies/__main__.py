"""`python -m fedgate.firmware_sim.studies`: measure a table of a paper, as an experiment file says."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedgate.config.runtime import cli
from fedgate.config.settings import settings
from fedgate.firmware_sim.evaluate.command import Progress, write_result
from fedgate.firmware_sim.evaluate.experiment import OptionError, check_output
from fedgate.firmware_sim.recordings.errors import RecordingError
from fedgate.firmware_sim.studies.datasets.convert import CONVERTERS, convert
from fedgate.firmware_sim.studies.datasets.tiny import write_tiny
from fedgate.firmware_sim.studies.engine.study import Profile, Study, StudyError, StudyOptions, load_options

if TYPE_CHECKING:
    from fedgate.firmware_sim.studies.runner import Outcome

NAME = "python -m fedgate.firmware_sim.studies"
DESCRIPTION = "Measure the tables of papers, each described by an experiment file."
EPILOG = f"""examples:
  {NAME} measure firmware_sim/experiments/munich.toml --data firmware_sim/recordings/data --profile short
  {NAME} check firmware_sim/experiments/munich.toml
  {NAME} tiny out/tiny
"""


class _Named(settings.Table, extra="ignore"):
    """What every experiment file of a study begins with."""

    study: str


def main(argv: list[str] | None = None) -> int:
    """Entry point of the program."""
    parser = cli.make_parser(NAME, DESCRIPTION, EPILOG)
    commands = cli.add_commands(parser)
    _add_measure(commands)
    check = commands.add_bare("check", "check an experiment file without measuring")
    check.add_argument("file", type=Path, help="experiment file")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(act=_check)
    tiny = commands.add_bare("tiny", "write a tiny folder of data in the layouts that the studies read")
    tiny.add_argument("folder", type=Path, help="new folder, for measure --profile short --data")
    tiny.set_defaults(act=_write_tiny)
    convert = commands.add_bare("convert", "convert a data set from what its publisher hands out")
    convert.add_argument("name", choices=CONVERTERS, metavar="NAME", help=f"one of {', '.join(CONVERTERS)}")
    convert.add_argument("source", type=Path, help="the publisher's file or folder")
    convert.add_argument("target", type=Path, help="folder for measure --data, below which it is written")
    convert.set_defaults(act=_convert)
    return cli.run(NAME, parser.parse_args(argv), RecordingError)


def _add_measure(commands: cli.Commands) -> None:
    measure = commands.add_bare("measure", "measure what is not measured yet, and write the report")
    measure.add_argument("file", type=Path, help="experiment file")
    measure.add_argument("--data", type=Path, metavar="DIR", help="folder that holds the data of the study")
    profile = "full (default), or short: a few cells in seconds, to see that all is in place"
    measure.add_argument("--profile", choices=("full", "short"), default="full", help=profile)
    results = "folder for the report, its pictures and the finished cells (default: %(default)s)"
    measure.add_argument("--results", type=Path, metavar="DIR", default=Path("out/results"), help=results)
    jobs = "cells at a time, default one a core"
    measure.add_argument("--jobs", type=int, metavar="N", default=os.cpu_count() or 1, help=jobs)
    measure.add_argument("--fresh", action="store_true", help="forget finished cells and begin anew")
    output = "also write the result to this file; - writes JSON to standard output instead of the report"
    measure.add_argument("--json", metavar="FILE", help=output)
    measure.set_defaults(act=_measure)


def _measure(args: argparse.Namespace) -> None:
    from fedgate.firmware_sim.studies.runner import measured  # and every study and matplotlib with it

    if args.jobs < 1:
        raise OptionError(f"--jobs: expected at least 1, got {args.jobs}")
    check_output(args.json)
    _, options = _described(args.file, args.profile)
    data = args.data or options.data
    if data is None or not data.is_dir():
        raise OptionError(f"--data: expected the folder that holds the data of this study, got {data}")
    command = f"{NAME} measure {shlex.quote(str(_relative(args.file)))} --data DATA"
    progress = Progress(sys.stderr)
    try:
        outcome = measured(
            args.file.stem,
            options,
            data,
            results=args.results,
            profile=args.profile,
            command=command + " --profile short" * (args.profile == "short"),
            jobs=args.jobs,
            say=progress,
            fresh=args.fresh,
        )
    finally:
        progress.close()
    facts = _as_json(options.study, args.profile, outcome)
    write_result(args.json, facts, f"{outcome.text}\nreport: {outcome.path}\n")


def _check(args: argparse.Namespace) -> None:
    study, options = _described(args.file, "full")
    kind = f"study of {len(study.cells(options))} cells: {options.title}"
    cli.show(args, {"ok": True, "file": str(args.file), "what": kind}, f"{args.file}: good; {kind}")


def _write_tiny(args: argparse.Namespace) -> None:
    print(f"{write_tiny(args.folder)}: written; it shows that studies run, not what methods are worth")


def _convert(args: argparse.Namespace) -> None:
    convert(args.name, args.source, args.target)
    print(f"{args.target}: {args.name} written")


def _described(file: Path, profile: Profile) -> tuple[Study, StudyOptions]:
    from fedgate.firmware_sim.studies.registry import STUDIES

    name = settings.load(file, _Named).study
    if name not in STUDIES:
        raise StudyError(f"{file}: study {name!r} is unknown; expected one of {', '.join(STUDIES)}")
    return STUDIES[name], load_options(file, STUDIES[name], profile)


def _relative(path: Path) -> Path:
    """Return a path as seen from here where it lies below, else its name: a report is read on other machines."""
    here = Path.cwd()
    return path.resolve().relative_to(here) if path.resolve().is_relative_to(here) else Path(path.name)


def _as_json(name: str, profile: str, outcome: Outcome) -> dict[str, Any]:
    cells = [
        {"cell": each.cell, "figures": {key: _number(value) for key, value in each.figures.items()}, "s": each.seconds}
        for each in outcome.measured
    ]
    return {"study": name, "profile": profile, "report": str(outcome.path), "cells": cells}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    sys.exit(main())
