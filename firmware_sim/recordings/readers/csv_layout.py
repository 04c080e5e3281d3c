"""How a table in text form is laid out, seen from its first rows: delimiter, decimal mark, header, kinds of columns.

Kept apart from reading the rows, because this is guessing and that is not.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from fedgate.firmware_sim.recordings.errors import DamagedError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.columns import Column, split_unit
from fedgate.firmware_sim.recordings.timing import date_ns

MISSING = {"", "nan", "na", "n/a", "null", "none", "-"}
_SAMPLE_ROWS = 100
_DELIMITERS = (";", "\t", ",")
_COMMA_NUMBER = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")
_POINT_NUMBER = re.compile(r"\s*[+-]?\d*\.\d+(?:[eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class Layout:
    """How to read the rows: `first_line` is the number of the first line of data, `sample` the first rows."""

    delimiter: str
    decimal: Literal[".", ","]
    first_line: int
    columns: tuple[Column, ...]
    sample: tuple[tuple[str, ...], ...]
    found: tuple[str, ...]
    comments: bool = False  # a row may end in one more cell of free text


def stream_at(text: str, line: int) -> io.StringIO:
    """The text from a line number on."""
    stream = io.StringIO(text, newline="")
    for _ in range(line - 1):
        stream.readline()
    return stream


def detect(text: str, options: ReadOptions) -> Layout:
    """Find the layout, as far as `options` does not declare it.

    Raises:
        DamagedError: there are no rows, or the first ones cannot be split into cells.
    """
    first_line = options.header_line or 1
    delimiter = options.delimiter or _delimiter(text, first_line)
    rows = _sample(text, first_line, delimiter)
    if not rows:
        raise DamagedError(f"line {first_line}", "no rows from here on", "the file is empty, or header_line too large")
    has_header = options.header_line is not None or not all(_is_value(cell) for cell in rows[0])
    body = rows[1:] if has_header else rows
    if not body:
        raise DamagedError(f"line {first_line}", "a header without rows below it", "the file holds no data")
    decimal = options.decimal or _decimal(body)
    names = _names(rows[0] if has_header else [f"column_{i + 1}" for i in range(len(rows[0]))], body)
    columns = tuple(_column(name, i, body, decimal) for i, name in enumerate(names))
    shown = {"\t": "tab"}.get(delimiter, delimiter)
    found = [f"delimiter {shown!r}, decimal mark {decimal!r}, {'a' if has_header else 'no'} header line"]
    if columns[0].kind == "ignored":
        found.append("the first column has no name: taken as row numbers and left out")
    # The header may span lines where a name holds a line end, so the data begins where the reader then stands.
    below = _lines_of_first_row(text, first_line, delimiter) if has_header else 0
    sample = tuple(tuple(row) for row in body)
    return Layout(delimiter, decimal, first_line + below, columns, sample, tuple(found))


def _delimiter(text: str, first_line: int) -> str:
    """The first delimiter that splits the first two rows into as many cells, one more or less."""
    for delimiter in _DELIMITERS:
        try:
            rows = _sample(text, first_line, delimiter, at_most=2)
        except DamagedError:
            continue
        widths = [len(row) for row in rows]
        if widths and min(widths) > 1 and max(widths) - min(widths) <= 1:
            return delimiter
    return ";"  # one column: any delimiter does that is not a decimal mark


def _sample(text: str, first_line: int, delimiter: str, at_most: int = _SAMPLE_ROWS + 1) -> list[list[str]]:
    reader = csv.reader(stream_at(text, first_line), delimiter=delimiter, strict=True)
    try:
        return list(islice((row for row in reader if row), at_most))
    except csv.Error as error:
        place = f"line {first_line - 1 + reader.line_num}"
        raise DamagedError(place, f"cannot be split into cells ({error})", "check quotes and delimiter") from error


def _lines_of_first_row(text: str, first_line: int, delimiter: str) -> int:
    reader = csv.reader(stream_at(text, first_line), delimiter=delimiter, strict=True)
    next(row for row in reader if row)
    return reader.line_num


def _is_value(cell: str) -> bool:
    return _is_number(cell, ".") or _is_number(cell, ",") or _is_date(cell)


def _is_number(cell: str, decimal: str) -> bool:
    try:
        float(cell.replace(decimal, "."))
    except ValueError:
        return False
    return True


def _is_date(cell: str) -> bool:
    try:
        date_ns(cell)
    except ValueError:
        return False
    return True


def _decimal(body: Sequence[Sequence[str]]) -> Literal[".", ","]:
    cells = [cell for row in body for cell in row]
    has_points = any(_POINT_NUMBER.fullmatch(cell) for cell in cells)
    return "," if not has_points and any(_COMMA_NUMBER.fullmatch(cell) for cell in cells) else "."


def _names(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Column names, also where the header has one more (a closing delimiter) or less (row numbers, as R writes)."""
    names = [cell.strip().removeprefix("#").strip() for cell in header]
    filled = max(max((i + 1 for i, cell in enumerate(row) if cell.strip()), default=0) for row in body)
    while len(names) > max(filled, 1) and not names[-1]:
        names.pop()
    if filled == len(names) + 1 and all(len(row) >= filled and row[0].strip() for row in body):
        names.insert(0, "")
    return names


def _column(header: str, index: int, body: Sequence[Sequence[str]], decimal: str) -> Column:
    cells = [row[index] for row in body if index < len(row) and row[index].strip().lower() not in MISSING]
    name, unit = split_unit(header)
    if not name and index == 0 and cells and all(cell.strip().isdecimal() for cell in cells):
        return Column("row number", "", "ignored")
    name = name or f"column_{index + 1}"
    if not cells or any(_is_number(cell, decimal) for cell in cells):
        return Column(name, unit, "number")
    return Column(name, unit, "time" if _is_date(cells[0]) else "text")
