"""The options of an evaluation, on top of what a file of a study says; both end as one study of the engine."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.firmware_sim.engine.cells import EVALUATE
from fedgate.firmware_sim.engine.spec import Spec, load_raw, overlaid, spec_of
from fedgate.firmware_sim.evaluate.methods import DISTANCE
from fedgate.firmware_sim.evaluate.probe import ALWAYS, BASELINES, RUN, Case, OptionError
from fedgate.firmware_sim.recordings import ReadOptions
from fedgate.firmware_sim.recordings.reading import READ, keys, options_of
from fedgate.models.federated import ALGORITHMS, COMMON_SETTINGS, build
from fedgate.models.installed import InstallationError

BARE_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
TO_STDOUT = "-"
RUNS = 10
PLACE_DIGITS = 6
FIRST = "support-vector-election"
METHOD, SETTINGS, DEFINE, CELLS = "method", "settings", "define", "cells"
# By option: what it is read as, and its help.
OPTIONS: dict[str, tuple[type, str]] = {
    "label-column": (str, "column of a table with the classes, default label"),
    "groups": (
        str,
        "column of a table that names the gateway of each row: nothing is dealt at random, it is no feature",
    ),
    "clients": (int, "clients that share the rows of a table, default 5; a folder names its gateways"),
    "fraction": (float, "share of the clients that take part in a round, default 1"),
    "split": (
        str,
        "rows of a table: iid (default) deals equal parts at random, biased gives each client a KMeans cluster",
    ),
    "protocol": (str, "heldout (default) scores what did not train; whole trains and scores on all rows, as papers do"),
    "train-on": (str, "normal or all rows; default all with protocol whole or where labels are used, else normal"),
    "seed": (int, "of all randomness, default 0"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    lines = ["settings of the algorithms and their defaults:"]
    lines += [f"  {name}: {_settings_of(name)}" for name in ALGORITHMS]
    lines.append("  all: " + ", ".join(f"{name}={_as_text(value)}" for name, value in COMMON_SETTINGS.items()))
    note = "With a table without --groups, normalisation is none unless it is set."
    parser.epilog = "\n".join([f"{parser.epilog}\n", *lines, note, "", keys()])
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="TOML that describes the comparison")
    data = "table (.csv, .npz, .parquet) with a column of classes, or folder of recordings with evaluation.toml"
    parser.add_argument("--data", type=Path, help=data)
    named = f"one of {', '.join(ALGORITHMS.ours)}, or of another package; may be repeated; default {FIRST}"
    parser.add_argument("--algorithm", action="append", default=[], metavar="NAME", help=named)
    for option, (kind, text) in OPTIONS.items():
        parser.add_argument(f"--{option}", type=kind, metavar=option.upper(), help=text)
    parser.add_argument("--repeats", type=int, metavar="N", help=f"runs, each with a seed of its own, default {RUNS}")
    explained = "a setting of the algorithms, such as nu=0.3, c=null or network.leak=0.5; may be repeated"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=explained)
    parser.add_argument("--read", action="append", default=[], metavar="KEY=VALUE", help=f"of a table: {READ}")


def _settings_of(name: str) -> str:
    """Return the settings of an algorithm with their defaults, or what is wrong with the package that has it."""
    try:
        known = inspect.signature(ALGORITHMS[name]).parameters.values()
    except InstallationError as error:
        return str(error)
    return ", ".join(f"{one.name}={_default_of(one)}" for one in known if one.name != "feature_count")


def _default_of(parameter: inspect.Parameter) -> str:
    return "(to be set)" if parameter.default is parameter.empty else _as_text(parameter.default)


def _as_text(value: object) -> str:
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name}={_as_text(each)}" for name, each in value) + "}"
    if isinstance(value, tuple):
        return str(list(value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def study_of(args: argparse.Namespace) -> tuple[str, Spec, Path]:
    """Return the name of the comparison, its study, and the folder that its data lie in.

    Raises:
        OptionError: an option is wrong or missing.
        SettingsError: the file is wrong.
    """
    raw = load_raw(args.file) if args.file else {}
    given = {option.replace("-", "_"): getattr(args, option.replace("-", "_")) for option in OPTIONS}
    given = {key: value for key, value in given.items() if value is not None}
    read = _read_as(args.read)
    raw = overlaid({SETTINGS: {}, DEFINE: {METHOD: {}}}, raw)
    raw = overlaid(raw, {SETTINGS: given | ({"read": read} if read else {})})
    _check_names(args.file, raw)
    if args.algorithm:
        _check_algorithms(args.algorithm)
        raw[DEFINE][METHOD] = {name: {"algorithm": name} for name in args.algorithm}
    elif not raw[DEFINE][METHOD]:
        raw[DEFINE][METHOD] = {FIRST: {"algorithm": FIRST}}
    raw[DEFINE][METHOD] = _with_baselines(_with_settings(raw[DEFINE][METHOD], settings_of(args.set)))
    raw[CELLS] = _with_runs(raw.get(CELLS, {METHOD: "*"}), args.repeats)
    path = args.data or _data_of(args.file, raw)
    if path is None:
        raise OptionError("--data is missing; expected a table or a folder of recordings")
    path = path.resolve()
    raw[SETTINGS]["data"] = path.name
    raw = {"title": f"Methods on {path.name}", **raw}
    return _name_of(args.file, path), spec_of(raw, args.file), path.parent


def _name_of(file: Path | None, data: Path) -> str:
    """Return the name of page and finished runs: files of one name in two folders, or of two formats, share none."""
    places = "\n".join(str(each) for each in ((file.resolve(), data) if file else (data,)))
    return f"{(file or data).name}-{hashlib.sha256(places.encode()).hexdigest()[:PLACE_DIGITS]}"


def _check_names(file: Path | None, raw: Mapping[str, Any]) -> None:
    """Raise `OptionError` for a setting or an axis that the probe does not know."""
    if raw.get("probe", EVALUATE) != EVALUATE:
        return
    cells = raw.get(CELLS, [])
    products = [each for each in (cells if isinstance(cells, list) else [cells]) if isinstance(each, dict)]
    for where, names in ((SETTINGS, raw[SETTINGS]), *((CELLS, product) for product in products)):
        for name in names:
            if name.partition(".")[0] not in Case.model_fields:
                near = get_close_matches(name.replace("-", "_"), Case.model_fields, 1)
                hint = f"did you mean {near[0]}? " if near else ""
                known = ", ".join(sorted(Case.model_fields))
                raise OptionError(f"{file}: {where}.{name} is not known; {hint}Expected one of {known}")


def _check_algorithms(names: Sequence[str]) -> None:
    """Raise `OptionError` for a name that is none of an algorithm."""
    for name in names:
        if name not in ALGORITHMS:
            try:
                build(name, 1, {})
            except ValueError as error:
                raise OptionError(f"--algorithm: {error}") from None


def _read_as(texts: Sequence[str]) -> dict[str, Any]:
    """Return what --read says of a table; raises `OptionError`."""
    try:
        return ReadOptions.model_validate(options_of(texts)).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        raise OptionError(f"--read {find_first_problem(error)}") from None
    except ValueError as error:
        raise OptionError(str(error)) from None


def _data_of(file: Path | None, raw: Mapping[str, Any]) -> Path | None:
    name = raw[SETTINGS].get("data")
    return file.parent / name if file and isinstance(name, str) else None


def _with_settings(methods: dict[str, Any], chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the methods with these settings, each with those that its algorithm takes; somebody must take each."""
    found: dict[str, Any] = {}
    taken = set[str]()
    for name, method in methods.items():
        known = _known_settings(method.get("algorithm", ""))
        mine = {key: value for key, value in chosen.items() if known is None or key in known}
        taken |= mine.keys()
        found[name] = overlaid(method, {SETTINGS: mine}) if mine else method
    for key in chosen.keys() - taken:
        raise OptionError(f"--set {key}: none of {', '.join(methods)} has such a setting; --help lists what each takes")
    return found


def _known_settings(algorithm: str) -> set[str] | None:
    if algorithm not in ALGORITHMS:
        return None
    return {"normalisation", *inspect.signature(ALGORITHMS[algorithm]).parameters, *COMMON_SETTINGS}


def _with_baselines(methods: dict[str, Any]) -> dict[str, Any]:
    """Return the methods with what always stands beside them."""
    found = dict(methods)
    for name, method in methods.items():
        if "data" not in method and method.get("algorithm") not in BASELINES:
            for data in ("local", "pooled"):
                found.setdefault(f"{name}, {data}", {"like": name, "data": data})
    found.setdefault(DISTANCE, {"algorithm": DISTANCE})
    found.setdefault(ALWAYS, {"algorithm": ALWAYS})
    return found


def _with_runs(cells: Any, runs: int | None) -> list[Any]:
    products = cells if isinstance(cells, list) else [cells]
    if runs is not None and runs < 1:
        raise OptionError(f"--repeats: expected at least 1, got {runs}")
    return [{**product, RUN: runs or product.get(RUN, RUNS)} for product in products]


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
