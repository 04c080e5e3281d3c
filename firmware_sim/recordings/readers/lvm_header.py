"""The header of a LabVIEW measurement file (.lvm), which turns the rest into a table like any other.

Layout after National Instruments, "Specification for the LabVIEW Measurement File (.lvm)": lines of key, separator,
value, closed by `***End_of_Header***`, once for the file and once for the segment, then column names, then rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError
from fedgate.firmware_sim.recordings.timing import date_ns

_END = "***End_of_Header***"
_SEPARATORS: dict[str, Literal[",", "\t"]] = {"comma": ",", "tab": "\t"}
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")


@dataclass(frozen=True)
class LvmHeader:
    """What the header says about the table below it."""

    names_line: int  # number of the line with the column names
    delimiter: Literal[",", "\t"]
    decimal: Literal[".", ","]
    has_time: bool
    units: tuple[str, ...]  # one a channel, or none
    rate_hz: float | None
    t0_ns: int | None


def read_lvm_header(text: str) -> LvmHeader:
    """Parse both header blocks.

    Raises:
        DamagedError: the two blocks are not there, or a value in them cannot be read.
        ChoiceError: every channel has a time column of its own.
    """
    if not text.startswith("LabVIEW Measurement"):
        raise DamagedError("line 1", f"found {text[:19]!r}, expected 'LabVIEW Measurement'", "export it again as .lvm")
    separator = re.search(r"^Separator[,\t](\w+)", text[:2000], re.MULTILINE)
    delimiter = _SEPARATORS.get(separator[1].lower() if separator else "tab")
    if delimiter is None:
        raise DamagedError("header", f"separator {separator and separator[1]}", "export it with commas or tabs")
    fields, names_line = _fields(text, delimiter)
    if _first(fields, "X_Columns", "One").lower() == "multi":
        raise ChoiceError("header", "every channel has its own time column", "export it with one or no X column")
    return LvmHeader(
        names_line=names_line,
        delimiter=delimiter,
        decimal="," if _first(fields, "Decimal_Separator", ".") == "," else ".",
        has_time=_first(fields, "X_Columns", "One").lower() == "one",
        units=tuple(fields.get("Y_Unit_Label", [])),
        rate_hz=_rate_hz(fields),
        t0_ns=_start_ns(fields),
    )


def _fields(text: str, delimiter: str) -> tuple[dict[str, list[str]], int]:
    """Values by key, the segment's winning over the file's, and the number of the line below both blocks."""
    fields: dict[str, list[str]] = {}
    blocks = 0
    for number, match in enumerate(_LINE.finditer(text), start=1):
        key, *values = match[0].rstrip("\r\n").split(delimiter)
        if key == _END:
            blocks += 1
        if blocks == 2:
            return fields, number + 1
        fields[key.strip()] = [value.strip() for value in values if value.strip()]
    raise DamagedError("header", f"{blocks} lines {_END}, expected 2", "the file is cut; copy it again")


def _first(fields: dict[str, list[str]], key: str, default: str) -> str:
    return next(iter(fields.get(key, [])), default)


def _rate_hz(fields: dict[str, list[str]]) -> float | None:
    steps = set(fields.get("Delta_X", []))
    if not steps:
        return None
    try:
        intervals_s = {float(step.replace(",", ".")) for step in steps}
    except ValueError as error:
        raise DamagedError("header, Delta_X", f"found {sorted(steps)}, expected numbers", "set rate_hz") from error
    if len(intervals_s) > 1:
        raise ChoiceError("header, Delta_X", f"channels with different rates {sorted(steps)}", "export them one by one")
    interval_s = intervals_s.pop()
    return 1 / interval_s if interval_s > 0 else None


def _start_ns(fields: dict[str, list[str]]) -> int | None:
    if "Date" not in fields or "Time" not in fields:
        return None
    written = f"{_first(fields, 'Date', '')} {_first(fields, 'Time', '')}"
    try:
        return date_ns(written)
    except ValueError as error:
        raise DamagedError("header, Date and Time", f"found {written!r}", "expected year/month/day h:m:s") from error
