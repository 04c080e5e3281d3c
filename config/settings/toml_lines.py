"""On which line of a TOML file a key stands, for errors that an operator can act on; `tomllib` keeps no lines.

The text was parsed by `tomllib` before, so only what is good TOML has to be understood here.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from pydantic import BaseModel, ValidationError

from fedgate.config.settings.mistaken import meant_key

Path = tuple[str | int, ...]  # keys, and indices of arrays

SPACE = re.compile(r"(?:[\s,]|#[^\n]*)*")
STRING = r'"""(?:\\.|[^\\])*?"""(?!")|' + r"'''.*?'''(?!')|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'"
VALUE = re.compile(rf"{STRING}|[^,\]}}#\n]+", re.DOTALL)
PART = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
KEY = re.compile(rf"{PART}(?:[ \t]*\.[ \t]*{PART})*")
# The key that the message of a check of ours begins with, such as `steps[1].edges_hz: ...`.
NAMED = re.compile(r"[a-z]\w*(?:\[\d+\]|\.\w+)*(?=: )")


class UnreadableError(ValueError):
    """A text that is no TOML; the message begins with the line."""


def as_json(text: str) -> str:
    """Return a TOML document as JSON; raises `UnreadableError`.

    A date, which JSON lacks, becomes what no setting is, and is named as such.
    """
    try:
        return json.dumps(tomllib.loads(text), default=lambda date: {"date": str(date)})
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        raise UnreadableError(f"{found[1] if found else text.count(chr(10)) + 1}: not TOML: {error}") from None
    except RecursionError:
        raise UnreadableError("1: nested deeper than any setting") from None
    except ValueError as error:  # Python's own: a number of thousands of digits
        raise UnreadableError(f"1: not a number that a setting may have: {error}") from None


def described(text: str, error: ValidationError, kind: type[BaseModel] | None = None) -> list[str]:
    """Return each problem of a file's settings as `line: key: what was expected, got what`; where their `kind` is
    given, with the key that was meant in the place of one that is not known.
    """
    lines, problems = lines_of(text), error.errors()
    deeper = {problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))}
    return [_described(lines, problem, kind) for problem in problems if not _follows(problem, deeper)]


def _follows(problem: Any, deeper: set[Path]) -> bool:
    """Tell whether pydantic names a problem only because of others: an array with a bad element counts as too short,
    and a default that depends on a bad value cannot be made.
    """
    is_too_short = problem["type"] == "too_short" and problem["loc"] in deeper
    return is_too_short or problem["type"] == "default_factory_not_called"


def _described(lines: dict[Path, int], problem: Any, kind: type[BaseModel] | None) -> str:
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
    given = "" if isinstance(problem["input"], dict | list | tuple) else f", got {problem['input']!r}"
    path, key = _located(lines, problem["loc"])
    if problem["type"] == "missing":
        message, given = "is missing", ""
    elif problem["type"] == "extra_forbidden":
        message, meant = "is not a known key", meant_key(kind, problem["loc"]) if kind else ""
        given += f"; did you mean {meant}?" if meant else ""
    elif problem["type"] == "value_error":
        named, given = NAMED.match(message), ""
        parts = re.findall(r"\w+", named[0]) if named else []
        path, _ = _located(lines, (*path, *(int(part) if part.isdigit() else part for part in parts)))
    return f"{lines.get(path, 1)}: {key}{': ' if key else ''}{message}{given}"


def _located(lines: dict[Path, int], location: Path) -> tuple[Path, str]:
    """Return as much of a location as stands in the file, and the location in words.

    Names that pydantic puts in, such as the kind of a step, are passed over; the last one may be of a key that is
    missing.
    """
    path: Path = ()
    for part in location:
        if (*path, part) in lines:
            path = (*path, part)
    named = path if not location or path[-1:] == location[-1:] else (*path, location[-1])
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in named)
    return path, words.removeprefix(".")


def lines_of(text: str) -> dict[Path, int]:
    """Return the line of every table, key and array element of a TOML document, by its path.

    >>> lines_of("[broker]\\nport = 1\\n[[source]]\\n[[source]]\\nname = 'x'")[("source", 1, "name")]
    5
    """
    return _Reader(text).document()


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Path, int] = {}
        self.latest: dict[Path, int] = {}  # array of tables -> index of its latest

    def document(self) -> dict[Path, int]:
        table: Path = ()
        while self.peek():
            if self.peek() == "[":
                table = self.header()
            else:
                self.pair(table)
        return self.lines

    def peek(self) -> str:
        """Return the next character that is neither space, comma nor comment; empty at the end."""
        self.take(SPACE)
        return self.text[self.at : self.at + 1]

    def take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else len(self.text)
        return found[0] if found else ""

    def names(self) -> list[str]:
        """Read a key, dotted or not, as the names it is made of."""
        self.peek()
        inner, names = tomllib.loads(f"{self.take(KEY)} = 0"), []
        while inner:
            ((name, value),) = inner.items()
            names.append(name)
            inner = value if isinstance(value, dict) else {}
        return names

    def mark(self, path: Path, at: int) -> None:
        """Note that a path and, where they were not seen before, its beginnings stand at `at`."""
        line = self.text.count("\n", 0, at) + 1
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def header(self) -> Path:
        path: Path = ()
        start, is_array = self.at, self.text.startswith("[[", self.at)
        self.at += 1 + is_array
        names = self.names()
        for depth, name in enumerate(names, start=1):
            path = (*path, name)
            if is_array and depth == len(names):
                self.latest[path] = self.latest.get(path, -1) + 1
            if path in self.latest:
                path = (*path, self.latest[path])
        self.mark(path, start)
        self.at = self.text.index("]", self.at) + 1 + is_array
        return path

    def pair(self, table: Path) -> None:
        self.peek()
        start, path = self.at, (*table, *self.names())
        self.mark(path, start)
        self.at = self.text.index("=", self.at) + 1
        self.value(path)

    def value(self, path: Path) -> None:
        opening = self.peek()
        if opening == "{":
            self.at += 1
            while self.peek() not in ("}", ""):
                self.pair(path)
            self.at += 1
        elif opening == "[":
            self.at += 1
            index = 0
            while self.peek() not in ("]", ""):
                self.mark((*path, index), self.at)
                self.value((*path, index))
                index += 1
            self.at += 1
        else:
            self.take(VALUE)
