"""The options of an evaluation: the same names on the command line and as keys of an experiment file.

What is given on the command line wins over the file, and both are checked by one model.
"""

from __future__ import annotations

import argparse
import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.settings import settings
from fedgate.config.settings.base import FilePath
from fedgate.firmware_sim.evaluate.datasets import EvaluationError
from fedgate.firmware_sim.evaluate.trials import Metric
from fedgate.firmware_sim.recordings import ReadOptions
from fedgate.firmware_sim.recordings.reading import READ, keys, options_of
from fedgate.models.federated import ALGORITHMS, COMMON_SETTINGS
from fedgate.models.installed import InstallationError

BARE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
TO_STDOUT = "-"
HELP = {
    "algorithm": f"one of {', '.join(ALGORITHMS.ours)}, or one of another package; default support-vector-election",
    "data": "table (.csv, .npz, .parquet) with a column `label`, or folder of recordings with evaluation.toml",
    "groups": "column of a table that names the gateway of each row: nothing is dealt at random, it is no feature",
    "clients": "clients that share the rows of a table, default 5; a folder names its gateways",
    "fraction": "share of the clients that take part in a round, default 1",
    "split": "rows of a table: iid (default) deals equal parts at random, biased gives each client a KMeans cluster",
    "protocol": "heldout (default) scores what did not train; whole trains and scores on all rows, as papers do",
    "train_on": "normal or all rows; default all with protocol whole or where labels are used, else normal",
    "metric": "auc (default), or f1 at the model's own border",
    "repeats": "runs, each with a seed of its own, default 10",
    "seed": "of all randomness, default 0",
    "json": "also write the result to this file; - writes JSON to standard output instead of the table",
}


class OptionError(EvaluationError):
    """An option that cannot be used; the message names it and what was expected."""


class Experiment(settings.Table):
    """All options; an experiment file is one of these in TOML, `data` relative to the file."""

    algorithm: str = "support-vector-election"
    data: FilePath | None = None
    groups: Annotated[str, Field(min_length=1)] | None = None
    clients: Annotated[int, Field(ge=1, le=10_000)] = 5
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    split: Literal["iid", "biased"] = "iid"
    protocol: Literal["heldout", "whole"] = "heldout"
    train_on: Literal["normal", "all"] | None = None
    metric: Metric = "auc"
    repeats: Annotated[int, Field(ge=1, le=10_000)] = 10
    seed: Annotated[int, Field(ge=0)] = 0
    settings: dict[str, Any] = Field(default_factory=dict, alias="set")
    read: ReadOptions = ReadOptions()
    output: Annotated[str | None, Field(alias="json")] = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options; only those that are given appear in the parsed arguments."""
    lines = ["settings of the algorithms and their defaults:"]
    lines += [f"  {name}: {_settings_of(name)}" for name in ALGORITHMS]
    lines.append("  all: " + ", ".join(f"{name}={_as_text(value)}" for name, value in COMMON_SETTINGS.items()))
    parser.epilog = "\n".join(
        [
            f"{parser.epilog}\n",
            *lines,
            "With a table without --groups, normalisation is none unless it is set.",
            "",
            keys(),
        ]
    )
    absent = argparse.SUPPRESS
    parser.add_argument("--experiment", type=Path, metavar="FILE", default=absent, help="TOML with these options")
    for key, text in HELP.items():
        metavar = key.upper().replace("_", "-")
        parser.add_argument(f"--{key.replace('_', '-')}", dest=key, metavar=metavar, default=absent, help=text)
    explained = "a setting of the algorithm, such as nu=0.3, c=null or network.leak=0.5; may be repeated"
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", default=absent, help=explained)
    parser.add_argument("--read", action="append", metavar="KEY=VALUE", default=absent, help=f"of a table: {READ}")


def _settings_of(name: str) -> str:
    """Return the settings of an algorithm with their defaults, or what is wrong with the package that has it."""
    try:
        known = inspect.signature(ALGORITHMS[name]).parameters.values()
    except InstallationError as error:
        return str(error)
    return ", ".join(f"{one.name}={_default_of(one)}" for one in known if one.name != "feature_count")


def _default_of(parameter: inspect.Parameter) -> str:
    return "(to be set)" if parameter.default is parameter.empty else _as_text(parameter.default)


def load_experiment(path: Path) -> Experiment:
    """Return the options in an experiment file.

    Raises:
        OptionError: the file describes a study.
        SettingsError: it is wrong.
    """
    if _is_of_study(path):
        raise OptionError(
            f"{path}: a study, a table of a paper; those are in a clone of fedgate, not in its wheel:"
            f" python -m fedgate.firmware_sim.studies measure {path}"
        )
    return settings.load(path, Experiment)


def check_output(target: str | None) -> None:
    """Refuse a file for JSON whose folder does not exist, before hours of work: raises `OptionError`."""
    if target not in (None, TO_STDOUT) and not Path(target).resolve().parent.is_dir():
        raise OptionError(f"--json: {target!r} lies in a folder that does not exist; make the folder first")


def _is_of_study(path: Path) -> bool:
    try:
        return "study" in tomllib.loads(path.read_text(encoding=settings.ENCODING))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False  # whoever reads the file in earnest says what is wrong with it


def experiment_of(args: argparse.Namespace) -> Experiment:
    """Return the options given on the command line on top of those of the experiment file.

    Raises:
        OptionError: an option is wrong or missing.
        SettingsError: the experiment file is wrong.
    """
    base = load_experiment(args.experiment) if "experiment" in args else Experiment()
    given = {key: value for key, value in vars(args).items() if key in HELP}
    together = settings_of(getattr(args, "set", []), base.settings)
    try:
        read_as = {**base.read.model_dump(exclude_unset=True), **options_of(getattr(args, "read", []))}
    except ValueError as error:
        raise OptionError(str(error)) from None
    known = base.model_dump(exclude_unset=True, by_alias=True)
    chosen = {**known, **given, "set": together} | ({"read": read_as} if read_as else {})
    try:
        experiment = Experiment.model_validate(chosen)
    except ValidationError as error:
        option, _, problem = find_first_problem(error).partition(": ")
        raise OptionError(f"--{option.replace('_', '-')}: {expectation(problem)}") from None
    if experiment.data is None:
        raise OptionError("--data is missing; expected a table or a folder of recordings")
    check_output(experiment.output)
    return experiment


def settings_of(texts: Sequence[str], base: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return settings with those that KEY=VALUE texts give on top; raises `OptionError` for what is none."""
    return nested({**base, **dict(_setting(text) for text in texts)})


def nested(pairs: dict[str, Any]) -> dict[str, Any]:
    """Return settings with `table.key` put into the table, as TOML does it; raises `OptionError` where none can be."""
    found: dict[str, Any] = {}
    for key, value in pairs.items():
        table, dot, rest = key.partition(".")
        if not dot:
            found[key] = {**value} if isinstance(value, dict) else value
            continue
        inside = found.setdefault(table, {})
        if not isinstance(inside, dict):
            raise OptionError(f"--set {key}: {table} is {inside!r} already; expected a table or nothing")
        found[table] = {**inside, rest: value}
    return found


def expectation(problem: str) -> str:
    """Return pydantic's words for a problem in the words of this project."""
    return problem.replace("Input should be ", "expected ")


def _setting(text: str) -> tuple[str, Any]:
    """Return key and value of `key=value`; a value is written as in TOML, or null, or a bare word."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value or "\n" in value:
        raise OptionError(f"--set: expected KEY=VALUE, got {text!r}")
    if value == "null":
        return key, None
    if value == "inf":  # the name of a norm, which TOML would take for a number
        return key, value
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        if BARE_WORD.fullmatch(value):
            return key, value
        raise OptionError(f"--set {key}: expected a number, true, false, null or a word, got {value!r}") from None


def _as_text(value: object) -> str:
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name}={_as_text(each)}" for name, each in value) + "}"
    if isinstance(value, tuple):
        return str(list(value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
