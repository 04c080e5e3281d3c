"""The cells of a study: the product of its axes, each a case of the probe, and each known by what it depends on."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, reduce
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Axes, Figures, Section, Spec, StudyError, overlaid

PROBES = "fedgate.firmware_sim.studies.probes"
EVALUATE = "evaluate"
EVALUATION = "fedgate.firmware_sim.evaluate.probe"
EVERY = "*"
CHOICE = "settings"  # the coordinate of a definition with a grid
METHOD = "method"  # the axis that a short run keeps whole
EFFORT = frozenset({"rounds", "epochs", "repeats", "draws", "folds", "inner_folds", "steps", "count"})  # less if short
SHORT_EFFORT = 2


def _read_nothing(_case: Any, _data: Path) -> list[Path]:
    return []


class Probe(NamedTuple):
    """What measures a cell: its case, the function, the sections of a report whose file names none, and the files or
    folders that a case reads, and its module.
    """

    name: str
    case: type[settings.Table]
    measure: Callable[[Any, Path], Figures]
    sections: Callable[[Spec], list[Section]]
    reads: Callable[[Any, Path], list[Path]] = _read_nothing
    module: str = __name__


class Cell(NamedTuple):
    """One measurement: where it stands in tables, what it is given, and what it is known by."""

    coordinates: dict[str, Any]
    case: settings.Table
    key: str


def load_probe(name: str) -> Probe:
    """Return a probe of ours by its short name, or anybody's by the full name of its module.

    Raises:
        StudyError: there is no such module, or it has no `Case` and `measure`.
    """
    ours = EVALUATION if name == EVALUATE else f"{PROBES}.{name}"
    full = ours if _exists(ours) else name
    expected = "expected a module with `Case` and `measure`"
    if not _exists(full):
        raise StudyError(f"probe {name!r}: No module named {full!r}; {expected}")
    try:
        module = importlib.import_module(full)
    except ImportError as error:
        place = traceback.extract_tb(error.__traceback__)
        at = next((each for each in reversed(place) if not each.filename.startswith("<")), place[-1])
        raise StudyError(f"probe {name!r}: cannot be imported: {error} ({at.filename}, line {at.lineno})") from None
    if missing := next((each for each in ("Case", "measure") if not hasattr(module, each)), ""):
        raise StudyError(f"probe {name!r}: has no {missing!r}; {expected}")
    sections = getattr(module, "sections", lambda spec: spec.section)
    return Probe(name, module.Case, module.measure, sections, getattr(module, "reads", _read_nothing), full)


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError as error:  # of a package above it: it is none, or imports what is not there
        return not f"{module}.".startswith(f"{error.name}.")


def cells_of(spec: Spec, probe: Probe, data: Path, *, short: bool = False) -> list[Cell]:
    """Return the cells in the order of the file; a `short` run keeps the first value of each axis but every method,
    and few rounds. Where the file does not say what is shown, an axis that a product lacks has the value of its case.

    Raises:
        StudyError: an axis or a case is wrong, or a product lacks an axis for which its case has no value.
    """
    found: dict[str, Cell] = {}
    contents_of = cache(_contents)
    for axes, given in _cases(spec, short=short):
        where = ", ".join(f"{key}={value}" for key, value in axes.items())
        try:
            case = probe.case.model_validate_json(json.dumps(_reduced(given) if short else given), strict=True)
        except ValidationError as error:
            problem = find_first_problem(error).replace("Value error, ", "").replace("Input should be ", "expected ")
            raise StudyError(": ".join(filter(None, (where, problem)))) from None
        coordinates = axes if spec.section else axes | _lacking(spec, case, axes)
        contents = [each for path in probe.reads(case, data) for each in contents_of(path)]
        identity = [probe.name, case.model_dump(), contents]
        key = hashlib.sha256(json.dumps(identity, sort_keys=True, default=to_jsonable_python).encode()).hexdigest()[:24]
        cell = Cell({**coordinates, **_words_of(case, coordinates)}, case, key)
        if found.setdefault(json.dumps(coordinates, sort_keys=True), cell).key != key:
            raise StudyError(f"{where}: two cells that differ have these coordinates; name their axes otherwise")
    return list(found.values())


def _lacking(spec: Spec, case: settings.Table, coordinates: Axes) -> Axes:
    """Return the axes of other products with the values that a case has for them."""
    found: Axes = {}
    for axis in dict.fromkeys(name for axes in spec.cells for name in axes if _last(name) not in coordinates):
        value: Any = case.model_dump()
        for part in axis.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if axis in spec.define or not isinstance(value, str | int | float):
            raise StudyError(
                f"cells: {axis!r} stands in one product and not in another, which has no value for it;"
                " name it in all of them, say in a [[section]] what is shown, or make two files"
            )
        found[_last(axis)] = value
    return found


def count_cells(cells: Iterable[Cell]) -> int:
    """Return how many are measured: of cells with the same case one."""
    return len({cell.key for cell in cells})


def check_data(probe: Probe, cells: Iterable[Cell], data: Path) -> None:
    """Raise `StudyError` where a file or folder that a case reads is not there."""
    for cell in cells:
        for path in probe.reads(cell.case, data):
            if not path.exists():
                raise StudyError(f"{path}: no such file or folder, which {probe.name} reads; see --data")


def _words_of(case: settings.Table, coordinates: Axes) -> Axes:
    """Return the texts in the definitions of a cell, such as `method.data` or `method.settings.rule`: a report may pick
    cells by them.
    """
    tables = {axis: table for axis in coordinates if isinstance(table := getattr(case, axis, None), BaseModel)}
    found = dict(pair for axis, table in tables.items() for pair in _flat(axis, table.model_dump()))
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, each in value.items():
        yield from _flat(f"{name}.{key}", each)


def _contents(path: Path) -> list[tuple[str, str]]:
    """Return names and digests of the files of a data set: what tells it from another edition, wherever it lies."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return [(each.name, _digest(each)) for each in files if each.is_file()]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cases(spec: Spec, *, short: bool) -> Iterator[tuple[Axes, Axes]]:
    every = {_last(name) for axes in spec.cells for name in axes}
    for axes in spec.cells:
        if clash := [name for name, count in Counter(map(_last, axes)).items() if count > 1]:
            raise StudyError(f"cells: several axes end with {clash[0]!r}; expected one, for it is the coordinate")
        values = {name: list_values(spec, name, given) for name, given in axes.items()}
        if short:
            values = {name: many if name == METHOD else many[:1] for name, many in values.items()}
        for chosen in product(*values.values()):
            given = dict(zip(values, chosen, strict=True))
            coordinates = {_last(name): as_coordinate(value) for name, value in given.items()}
            definitions = {name: resolve(spec, name, value) for name, value in given.items() if "." not in name}
            if not all(_is_wanted(name, definition, coordinates, every) for name, definition in definitions.items()):
                continue
            inside = {name: value for name, value in given.items() if "." in name}
            for label, resolved in _with_grids(definitions, short=short):
                yield coordinates | label, overlaid(overlaid(spec.settings, resolved), nested(inside))


def _last(axis: str) -> str:
    return axis.rpartition(".")[2]


def as_coordinate(value: Any) -> Any:
    """Return a value of an axis as it stands in tables: a list as words."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def nested(inside: Mapping[str, Any]) -> Axes:
    """Return the values of axes with dotted names, such as `method.settings.rounds`, as tables in tables."""
    found: Axes = {}
    for name, value in inside.items():
        parts = name.split(".")
        found = overlaid(found, reduce(lambda inner, part: {part: inner}, reversed(parts), value))
    return found


def list_values(spec: Spec, axis: str, given: Any) -> list[Any]:
    if given == EVERY and axis in spec.define:
        return list(spec.define[axis])
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return list(range(given))
    if not isinstance(given, list) or not given:
        raise StudyError(
            f"cells.{axis}: {given!r} given; expected values, a number of them, or '*' for all that is defined"
        )
    return given


def resolve(spec: Spec, axis: str, value: Any, likes: tuple[Any, ...] = ()) -> Any:
    """Return what a name of an axis stands for; a value that nothing is defined for stands for itself."""
    defined = spec.define.get(axis)
    if defined is None:
        return value
    if value not in list(defined):
        raise StudyError(f"cells.{axis}: {value!r} is not defined; expected one of {', '.join(defined)}")
    if value in likes:
        raise StudyError(f"define.{axis}: {' is like '.join((*likes, value))}; expected one that is like none")
    found = defined[value]
    if isinstance(found, dict) and "like" in found:
        own = {key: each for key, each in found.items() if key != "like"}
        return overlaid(resolve(spec, axis, found["like"], (*likes, value)), own)
    return found


def _is_wanted(name: str, definition: Any, coordinates: Axes, every: set[str]) -> bool:
    only = definition.get("only", {}) if isinstance(definition, dict) else {}
    if unknown := sorted(only.keys() - every):
        raise StudyError(f"define.{name}: only: {unknown[0]!r} is no axis; expected one of {', '.join(sorted(every))}")
    return all(coordinates.get(axis) in _as_list(values) for axis, values in only.items())


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _with_grids(definitions: Axes, *, short: bool) -> Iterable[tuple[Axes, Axes]]:
    """Yield the definitions with every combination of the grids inside them, and the coordinate that names it."""
    grids = {name: each["grid"] for name, each in definitions.items() if isinstance(each, dict) and "grid" in each}
    plain = {name: _without_words(each) for name, each in definitions.items()}
    keys = [(name, key) for name, grid in grids.items() for key in grid]
    for values in product(*(grids[name][key][: 1 if short else None] for name, key in keys)):
        resolved = dict(plain)
        for (name, key), value in zip(keys, values, strict=True):
            resolved[name] = overlaid(resolved[name], {"settings": {key: value}})
        text = ", ".join(f"{key}={value}" for (_, key), value in zip(keys, values, strict=True))
        yield {CHOICE: text} if keys else {}, resolved


def _without_words(definition: Any) -> Any:
    if not isinstance(definition, dict):
        return definition
    return {key: value for key, value in definition.items() if key not in ("grid", "only")}


def _reduced(given: Any) -> Any:
    if isinstance(given, dict):
        return {key: _effort(value) if key in EFFORT else _reduced(value) for key, value in given.items()}
    return [_reduced(each) for each in given] if isinstance(given, list) else given


def _effort(value: Any) -> Any:
    if isinstance(value, list) and all(map(_is_whole, value)):
        return list(dict.fromkeys(map(_effort, value)))
    return min(value, SHORT_EFFORT) if _is_whole(value) else _reduced(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
