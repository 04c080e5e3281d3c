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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from pydantic import ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim.evaluate.datasets import EvaluationError, Table, load_table
from fedgate.firmware_sim.evaluate.experiment import (
    TO_STDOUT,
    Experiment,
    OptionError,
    expectation,
    experiment_of,
)
from fedgate.firmware_sim.evaluate.folders import FOLDER_FILE, Folder, load_folder
from fedgate.firmware_sim.evaluate.splits import Plan, Split, by_group, split_folder, split_table
from fedgate.firmware_sim.evaluate.training import check_privacy_budget
from fedgate.firmware_sim.evaluate.trials import run_trial
from fedgate.firmware_sim.recordings import RecordingError
from fedgate.models.arrays import generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.features.spec import FeatureError
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.installed import InstallationError

PROGRESS_S = 5.0  # between lines where the output is no terminal
SEEDS = 2**31
FOR_FLEETS = ("privacy", "compression", "masking")  # settings that mean nothing where all rows lie in one place


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
        progress.close()
        write_result(experiment.output, report, page(report))
    except (EvaluationError, SettingsError, RecordingError, FeatureError, OSError) as error:
        progress.close()
        sys.stderr.write(f"firmware-sim evaluate: {'; '.join(str(error).splitlines())}\n")
        return cli.USAGE_ERROR
    return 0


def write_result(target: str | None, facts: dict[str, Any], text: str) -> None:
    """Print a result: the text for people, and JSON into the file `target`, or instead where that is `-`."""
    as_json = json.dumps(facts, indent=2, allow_nan=False) + "\n"
    if target not in (None, TO_STDOUT):
        Path(target).write_text(as_json, encoding="utf-8")
    sys.stdout.write(as_json if target == TO_STDOUT else text)


def evaluate(experiment: Experiment, say: Callable[[str], None]) -> dict[str, Any]:
    """Return the result of all runs, ready for JSON; `say` is told how far it is.

    Raises:
        EvaluationError, SettingsError, RecordingError, FeatureError: one line that says what cannot be used.
    """
    data = _load(experiment)
    rows = data.rows if isinstance(data, Table) else next(iter(data.gateways.values())).rows
    chosen = _with_normalisation(experiment, data)
    algorithm = build_algorithm(experiment.algorithm, rows.x.shape[1], chosen)
    apart = {key: value for key, value in chosen.items() if key not in FOR_FLEETS}
    alone = algorithm if apart == chosen else build_algorithm(experiment.algorithm, rows.x.shape[1], apart)
    plan = _plan(experiment, algorithm.labels)
    trials, splits = [], []
    for index in range(experiment.repeats):
        progress = _prefixed(say, f"run {index + 1} of {experiment.repeats}")
        seed = int(generator(experiment.seed, index, "repeat").integers(SEEDS))
        split = split_table(data, plan, seed) if isinstance(data, Table) else split_folder(data, plan)
        trial = run_trial(
            algorithm,
            split,
            alone=alone,
            metric=experiment.metric,
            fraction=experiment.fraction,
            seed=seed,
            say=progress,
        )
        trials.append(trial)
        splits.append(split)
    return {
        "algorithm": experiment.algorithm,
        "data": data.name,
        "metric": experiment.metric,
        **_summary([trial.value for trial in trials]),
        "bytes_up_per_client": _mean(trial.bytes_up for trial in trials),
        "bytes_down_per_client": _mean(trial.bytes_down for trial in trials),
        "rounds": algorithm.rounds,
        "fit_s": _mean(trial.fit_s for trial in trials),
        "score_us": _mean(trial.score_us for trial in trials),
        "baselines": {name: _summary([trial.baselines[name] for trial in trials]) for name in trials[0].baselines},
        "settings": chosen,
        "split": plan.partition if isinstance(data, Table) else "gateways",
        "groups": experiment.groups,
        "gateways": None if isinstance(data, Table) else list(data.gateways),
        "clients": len(splits[0].train),
        "clients_judged": min(len(split.judged) for split in splits),
        "fraction": experiment.fraction,
        "seed": experiment.seed,
        "protocol": plan.protocol,
        "train_on": plan.train_on,
        "read_as": data.read_as,
        "windows_lost_to_gaps": None if isinstance(data, Table) else data.lost,  # rows of a table are no windows
        "rows_per_client": _extremes(splits),
        "clients_untrained_alone": sum(trial.untrained for trial in trials),
    }


def _prefixed(say: Callable[[str], None], start: str) -> Callable[[str], None]:
    return lambda text: say(f"{start}: {text}")


def _load(experiment: Experiment) -> Table | Folder:
    path = Path(experiment.data or "")
    if not path.is_dir():
        return _load_table(path, experiment)
    for option in sorted({"clients", "split", "read", "groups"} & experiment.model_fields_set):
        raise OptionError(
            f"--{option} belongs to tables; {path} is a folder, and {FOLDER_FILE} in it says this: leave it out"
        )
    return load_folder(path)


def _load_table(path: Path, experiment: Experiment) -> Table | Folder:
    table = load_table(path, experiment.read, experiment.groups)
    if experiment.groups is None:
        return table
    for option in sorted({"clients", "split"} & experiment.model_fields_set):
        raise OptionError(f"--{option} deals rows to clients; --groups says whose they are: leave one of both out")
    return by_group(table)


def _with_normalisation(experiment: Experiment, data: Table | Folder) -> dict[str, Any]:
    """Columns of a table share one scale already, gateways of a folder and groups each have their own."""
    try:
        factory = ALGORITHMS.get(experiment.algorithm)
    except InstallationError as error:
        raise OptionError(f"--algorithm: {error}") from None
    if factory is None or "normalisation" not in inspect.signature(factory).parameters:
        return experiment.settings
    as_they_are = {"normalisation": "none", "unit": "feature"}
    return {**(as_they_are if isinstance(data, Table) else {"normalisation": "own"}), **experiment.settings}


def build_algorithm(name: str, feature_count: int, chosen: dict[str, Any]) -> Algorithm:
    """Return the algorithm of this name with the chosen settings; raises `OptionError`."""
    if chosen.get("survey") is not None:
        raise OptionError("--set survey: expected none, a survey gives levels to gateways of a live site; leave it out")
    for key, value in chosen.items():
        if isinstance(value, float) and not math.isfinite(value):  # TOML has inf and nan, JSON has neither
            raise OptionError(f"--set {key}: expected a finite number, got {value}")
    try:
        algorithm = build(name, feature_count, chosen)
    except ValidationError as error:
        raise OptionError(f"--set {expectation(find_first_problem(error))}") from None
    except ValueError as error:
        raise OptionError(str(error)) from None
    if algorithm.detector not in DETECTORS:
        raise OptionError(f"--algorithm: {name} needs the detector {algorithm.detector!r}, which is not installed here")
    check_privacy_budget(chosen)
    return algorithm


def _plan(experiment: Experiment, with_labels: bool) -> Plan:
    train_on = experiment.train_on
    if train_on is None:
        train_on = "all" if with_labels or experiment.protocol == "whole" else "normal"
    if with_labels and train_on == "normal":
        raise OptionError(f"--train-on: {experiment.algorithm} learns from labels here, so it needs both classes: all")
    return Plan(experiment.protocol, train_on, with_labels, experiment.clients, experiment.split)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _summary(values: Sequence[float]) -> dict[str, Any]:
    """Return mean and sample standard deviation over the runs that have a value; null where there are too few."""
    known = [value for value in values if math.isfinite(value)]
    mean = float(np.mean(known)) if known else None
    return {"mean": mean, "std": float(np.std(known, ddof=1)) if len(known) > 1 else None, "runs": len(known)}


def _extremes(splits: Sequence[Split]) -> dict[str, int]:
    counts = [count for split in splits for count in split.row_counts]
    return {"min": min(counts), "max": max(counts)}


def page(report: dict[str, Any]) -> str:
    """Return the result for a person: how the data was read and split, and one table."""
    costs = [f"{report[key]:,.0f}" for key in ("bytes_up_per_client", "bytes_down_per_client", "rounds")]
    times = [f"{report['fit_s']:.3g}", f"{report['score_us']:.3g}"]
    rows = [[report["algorithm"], report["data"], _value(report), str(report["runs"]), *costs, *times]]
    for name, summary in report["baselines"].items():
        rows.append([name, report["data"], _value(summary), str(summary["runs"]), *["-"] * 5])
    columns = ["algorithm", "data", f"{report['metric']}: mean ± std", "runs", "bytes up", "bytes down", "rounds"]
    return "\n".join(
        [*_circumstances(report), "", cli.table([*columns, "fit_s", "score_us"], rows), "", *_notes(report), ""]
    )


def _value(summary: dict[str, Any]) -> str:
    if summary["mean"] is None:
        return "-"
    return f"{summary['mean']:.4f} ± " + ("-" if summary["std"] is None else f"{summary['std']:.4f}")


def _circumstances(report: dict[str, Any]) -> list[str]:
    rows = report["rows_per_client"]
    trained = f"{rows['min']} to {rows['max']} {report['train_on']} rows each"
    settings = ", ".join(f"{key}={value}" for key, value in report["settings"].items()) or "defaults"
    return [
        f"{report['data']}: {report['read_as']}",
        f"{report['clients']} clients ({report['split']}) train on {trained.replace('all rows', 'rows')},"
        f" {report['fraction']:.0%} of them in a round; protocol {report['protocol']}, seed {report['seed']}",
        f"settings: {settings}",
    ]


def _notes(report: dict[str, Any]) -> list[str]:
    notes = [
        "std: sample standard deviation over runs; bytes: per client, over all rounds; score_us: per row, 64 at a time",
        "local: each client alone; pooled: one client with all data; distance: from the mean, in standard deviations",
    ]
    if report["clients_judged"] < report["clients"]:
        count = f"{report['clients_judged']} of {report['clients']}"
        notes.append(f"means are over {count} clients: the others have no rows of both classes to be scored")
    if report["clients_untrained_alone"]:
        count = f"{report['clients_untrained_alone']} of {report['clients'] * report['runs']}"
        notes.append(f"local: {count} times a client could not train alone, for too few rows or for want of others")
    return notes
