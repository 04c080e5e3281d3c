"""`firmware-sim evaluate --experiment FILE` where the file describes a study: a table of a paper, measured."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgate.firmware_sim.experiment import HELP, TO_STDOUT, OptionError
from fedgate.firmware_sim.studies import STUDIES
from fedgate.firmware_sim.studies.runner import Outcome, measured
from fedgate.firmware_sim.studies.study import StudyError, load_options


def run_study(args: argparse.Namespace, name: str, say: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """Run the study of an experiment file; return the report in Markdown and as JSON.

    Raises:
        OptionError, SettingsError, StudyError: one line that says what cannot be used.
    """
    if name not in STUDIES:
        raise StudyError(f"{args.experiment}: study {name!r} is unknown; expected one of {', '.join(STUDIES)}")
    given = vars(args)
    for key in sorted((HELP.keys() - {"data", "json"}) & given.keys() | {"set", "read"} & given.keys()):
        option = f"--{key.replace('_', '-')}"
        raise OptionError(f"{option}: a study takes this from its experiment file; edit a copy of {args.experiment}")
    profile, results = given.get("profile", "full"), given.get("results", Path("out/results"))
    jobs = given.get("jobs", os.cpu_count() or 1)
    if jobs < 1:
        raise OptionError(f"--jobs: expected at least 1, got {jobs}")
    options = load_options(args.experiment, STUDIES[name], profile)
    data = Path(given["data"]) if "data" in given else options.data
    if data is None or not data.is_dir():
        raise OptionError(f"--data: expected the folder that holds the data of this study, got {data}")
    label = args.experiment.stem
    command = f"firmware-sim evaluate --experiment {shlex.quote(str(_relative(args.experiment)))} --data DATA"
    outcome = measured(
        label,
        options,
        data,
        results=results,
        profile=profile,
        command=command + " --profile short" * (profile == "short"),
        jobs=jobs,
        say=say,
        fresh="fresh" in given,
    )
    return f"{outcome.text}\nreport: {outcome.path}\n", _as_json(name, profile, outcome)


def output_of(args: argparse.Namespace) -> str | None:
    """Return where JSON goes: a file, `-` for standard output, or nowhere."""
    target = getattr(args, "json", None)
    if target not in (None, TO_STDOUT) and not Path(target).resolve().parent.is_dir():
        raise OptionError(f"--json: {target!r} lies in a folder that does not exist; make the folder first")
    return target


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
