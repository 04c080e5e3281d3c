"""Problems of a TOML file's settings in words, each with the line that it stands on; `tomllib` keeps no lines.

Loaded only where there is something to say.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

Path = tuple[str | int, ...]  # keys, and indices of arrays

FILES = {"gateway": "a gateway.toml", "aggregator": "an aggregator.toml"}  # by the table that only this file has
# What may end a value that is cut off behind one of its lines: a string, then up to three arrays and inline tables.
ENDS = ["".join(end) for depth in range(4) for end in product(("", '"""', "'''"), *["]}"] * depth)]
# The key that the message of a check of ours begins with, such as `steps[1].edges_hz: ...`.
NAMED = re.compile(r"[a-z]\w*(?:\[\d+\]|\.\w+)*(?=: )")


def list_problems(text: str, error: ValidationError, kind: type[BaseModel]) -> list[str]:
    """Return each problem of settings of a `kind` as `line: key: what was expected, got what`, with the key that was
    meant in the place of one that is not known; of a file that is the other program's only that.
    """
    found = error.errors()
    deeper = {problem["loc"][:length] for problem in found for length in range(len(problem["loc"]))}
    own = [_describe(text, problem, kind) for problem in found if not _is_consequence(problem, deeper)]
    return _find_other_file(text, kind) or own


def _is_consequence(problem: Any, deeper: set[Path]) -> bool:
    """Tell whether pydantic names a problem only because of others: an array with a bad element counts as too short,
    and a default that depends on a bad value cannot be made.
    """
    is_too_short = problem["type"] == "too_short" and problem["loc"] in deeper
    return is_too_short or problem["type"] == "default_factory_not_called"


def _describe(text: str, problem: Any, kind: type[BaseModel]) -> str:
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
    given = "" if isinstance(problem["input"], dict | list | tuple) else f", got {problem['input']!r}"
    location, document = problem["loc"], tomllib.loads(text)
    path = key = _find_known(document, location)
    if problem["type"] == "missing":
        message, given, key = "is missing", "", (*path, location[-1])
    elif problem["type"] == "extra_forbidden":
        message, meant = "is not a known key", _guess_key(kind, location)
        given += f"; did you mean {meant}?" if meant else ""
    elif problem["type"] == "value_error":
        named, given = NAMED.match(message), ""
        parts = re.findall(r"\w+", named[0]) if named else []
        path = _find_known(document, (*path, *(int(part) if part.isdigit() else part for part in parts)))
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")
    return f"{line_of(text, path)}: {words}{': ' if words else ''}{message}{given}"


def _find_known(document: Any, location: Path) -> Path:
    """Return as much of a location as stands in a document: names that pydantic puts in, such as the kind of a step,
    are passed over.
    """
    path: Path = ()
    for part in location:
        with suppress(LookupError, TypeError):
            document = document[part]
            path = (*path, part)
    return path


def line_of(text: str, path: Path) -> int:
    """Return the line on which a key, a table or an element of an array of a TOML document begins; 1 for all of it.

    >>> line_of("[broker]\\nport = 1\\n[[source]]\\n[[source]]\\nname = 'x'", ("source", 1, "name"))
    5
    """
    lines = text.split("\n")
    return 1 + bisect_left(range(1, len(lines)), True, key=partial(_has_path, lines, path))


def _has_path(lines: Sequence[str], path: Path, count: int) -> bool:
    """Tell whether a path stands in the first lines of a document."""
    return _find_known(_parse_beginning(lines[:count]), path) == path


def _parse_beginning(lines: Sequence[str]) -> dict[str, Any]:
    """Return what the first lines of a document say, whatever they leave open."""
    for length in range(len(lines), 0, -1):
        text = "\n".join(lines[:length])
        for end in ENDS:
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads(f"{text}\n{end}")
    return {}


def _find_other_file(text: str, kind: type[BaseModel]) -> list[str]:
    """Return the one problem of a file that is the other program's; nothing where it is not."""
    held = tomllib.loads(text)
    own = next((name for name in FILES if name in kind.model_fields), "")
    other = next((name for name in FILES if name in held and name != own), "")
    if not own or not other or own in held:
        return []
    return [f"1: this is {FILES[other]}, of the other program; expected {FILES[own]}"]


def _guess_key(kind: type[BaseModel], location: tuple[str | int, ...]) -> str:
    """Return the known key that looks most like the last of a path into settings of a kind; empty where none does."""
    kinds = {kind}
    for part in location[:-1]:
        if isinstance(part, str):  # not the place in an array; and not the name of a variant, which no field has
            fields = [one.model_fields[part].annotation for one in kinds if part in one.model_fields]
            kinds = {found for field in fields for found in _list_models(field)} or kinds
    names = sorted({name for one in kinds for name in one.model_fields})
    return next(iter(difflib.get_close_matches(str(location[-1]), names, n=1)), "")


def _list_models(annotation: Any) -> set[type[BaseModel]]:
    """Return the kinds of tables that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for part in get_args(annotation) for found in _list_models(part)}
