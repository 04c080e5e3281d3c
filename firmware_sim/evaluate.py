"""`firmware-sim evaluate`: how well a federated algorithm does on data of the user's, as a table or as JSON.

One command for any registered algorithm and for two kinds of data, with the same baselines beside every result.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from pydantic import ValidationError

from config import cli
from config.messages import first_problem
from config.settings import SettingsError
from firmware_sim.datasets import EvaluationError, Table, load_table
from firmware_sim.experiment import TO_STDOUT, Experiment, OptionError, add_arguments, expectation, experiment_of
from firmware_sim.folders import Folder, load_folder
from firmware_sim.recordings import RecordingError
from firmware_sim.splits import Plan, Split, split_folder, split_table
from firmware_sim.trials import Trial, learns_from_labels, run_trial
from models.arrays import generator
from models.features import FeatureError
from models.federated import ALGORITHMS, build
from models.federated.algorithm import Algorithm

PROGRESS_S = 5.0  # between lines where the output is no terminal
SEEDS = 2**31

__all__ = ["add_arguments", "evaluate", "main"]


class Progress:
    """One line that is written over on a terminal; elsewhere a line every few seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._said_s, self._width = stream, time.monotonic(), 0

    def __call__(self, text: str) -> None:
        """Say how far the work is."""
        if self._stream.isatty():
            self._stream.write(f"\r{text.ljust(self._width)}")
            self._width = len(text)
        elif time.monotonic() - self._said_s >= PROGRESS_S:
            self._said_s = time.monotonic()
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._width:
            self._stream.write(f"\r{' ' * self._width}\r")
            self._stream.flush()


def main(args: argparse.Namespace) -> int:
    """Run an evaluation and return the exit code: 0, or 2 with one line on standard error."""
    progress = Progress(sys.stderr)
    try:
        experiment = experiment_of(args)
        report = evaluate(experiment, progress)
        text = json.dumps(report, indent=2, allow_nan=False) + "\n"
        if experiment.output not in (None, TO_STDOUT):
            Path(experiment.output).write_text(text, encoding="utf-8")
    except (EvaluationError, SettingsError, RecordingError, FeatureError, OSError) as error:
        progress.close()
        sys.stderr.write(f"firmware-sim evaluate: {'; '.join(str(error).splitlines())}\n")
        return cli.USAGE_ERROR
    progress.close()
    sys.stdout.write(text if experiment.output == TO_STDOUT else page(report))
    return 0


def evaluate(experiment: Experiment, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the result of all runs, ready for JSON; `say` is told how far it is.

    Raises:
        EvaluationError, SettingsError, RecordingError, FeatureError: one line that says what cannot be used.
    """
    data = _load(experiment)
    rows = data.rows if isinstance(data, Table) else next(iter(data.gateways.values())).rows
    chosen = _with_normalisation(experiment, data)
    algorithm = _built(experiment.algorithm, rows.x.shape[1], chosen)
    plan = _plan(experiment, learns_from_labels(algorithm, rows.x.shape[1]))
    trials, counts = [], []
    for index in range(experiment.repeats):
        say(f"run {index + 1} of {experiment.repeats}")
        seed = int(generator(experiment.seed, index, "repeat").integers(SEEDS))
        split = split_table(data, plan, seed) if isinstance(data, Table) else split_folder(data, plan)
        counts += split.row_counts
        trials.append(run_trial(algorithm, split, metric=experiment.metric, fraction=experiment.fraction, seed=seed))
    return _report(experiment, data, plan, algorithm, chosen, trials, counts)
