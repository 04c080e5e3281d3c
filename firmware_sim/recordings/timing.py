"""From the time written in each row to one sampling rate and one start time, for the formats that write times.

A recording has one regular clock between its gaps, files have whatever the logger wrote. What is lost in between
(jitter, gaps, rows out of order) is also said in words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, DecimalException

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import ChoiceError
from fedgate.firmware_sim.recordings.gaps import GAPLESS, Gaps, find_gaps
from fedgate.firmware_sim.recordings.options import NUMERIC_STAMPS
from fedgate.models.time_units import NS

UNIT_NS = {"s": NS, "sec": NS, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "μs": 1_000, "ns": 1}
UNIT_NAMES = {NS: "seconds", 1_000_000: "milliseconds", 1_000: "microseconds", 1: "nanoseconds"}

_CLOCK = (
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?)?"
    r"\s*(?:Z|(?P<sign>[+-])(?P<zone_h>\d\d):?(?P<zone_min>\d\d))?"
)
_DATES = (
    re.compile(r"(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})" + _CLOCK, re.ASCII),
    re.compile(r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})" + _CLOCK, re.ASCII),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Half of what int64 holds, so that the difference of two time stamps cannot overflow: years 1824 to 2116.
_LIMIT_NS = 2**62
# Seconds since 1970 are above this from March 1973 on; a smaller number counts from the start of the recording.
_OLDEST_UNIX_S = 10**8


@dataclass(frozen=True)
class StampReader:
    """How one file writes time. `to_ns` raises ValueError for a cell it cannot read."""

    to_ns: Callable[[str], int]
    absolute: bool  # False: counted from an unknown start
    meaning: str


@dataclass(frozen=True)
class Timing:
    """One regular clock: `t0_ns` is None when the time stamps count from an unknown start."""

    rate_hz: float
    t0_ns: int | None
    found: tuple[str, ...]
    gaps: Gaps = GAPLESS


def stamp_reader(first: str, unit: str, declared: str | None = None, decimal: str = ".") -> StampReader:
    """Choose how to read a column of time stamps from its first cell, its unit and what the user declared.

    Dates are year-month-day, year/month/day or day.month.year; without a zone they are taken as UTC.

    Raises:
        ChoiceError: the first cell is in none of these forms.
    """
    if declared is not None and declared not in NUMERIC_STAMPS:
        return StampReader(lambda cell: _strptime_ns(cell, declared), True, f"time stamps read as {declared}, UTC")
    try:
        value = float(first.replace(decimal, "."))
    except ValueError:
        return _date_reader(first)
    factor, absolute = _numeric_meaning(value, unit, declared)
    origin = "since 1970, UTC" if absolute else "since the start"
    meaning = f"time stamps count {UNIT_NAMES[factor]} {origin}"
    return StampReader(lambda cell: _number_ns(cell, factor, decimal), absolute, meaning)


def _date_reader(first: str) -> StampReader:
    try:
        date_ns(first)
    except ValueError as error:
        remedy = "set timestamp_format, or another timestamp column"
        raise ChoiceError("time stamps", f"cannot tell how {first!r} is to be read", remedy) from error
    return StampReader(date_ns, True, "time stamps are dates, taken as UTC where no zone is written")


def _numeric_meaning(value: float, unit: str, declared: str | None) -> tuple[int, bool]:
    """Nanoseconds per unit, and whether the number counts from 1970."""
    if declared is not None:
        return NUMERIC_STAMPS[declared], True
    guesses = ((1e17, 1), (1e14, 1_000), (1e11, 1_000_000))
    guessed = next((ns for least, ns in guesses if abs(value) >= least), NS)
    factor = UNIT_NS.get(unit.strip().lower(), guessed)
    return factor, abs(value) * factor >= _OLDEST_UNIX_S * NS


def date_ns(text: str) -> int:
    """Nanoseconds since 1970 (UTC) of a written date, exact to the nanosecond.

    Raises:
        ValueError: no date in a known form, no such day, or outside the years 1824 to 2116.
    """
    match = next((found for pattern in _DATES if (found := pattern.fullmatch(text.strip()))), None)
    if match is None:
        raise ValueError(f"{text!r} is no date such as 2022-04-11 08:36:25.984 or 11.04.2022 08:36:25.984")
    part = match.groupdict()
    day = datetime(int(part["year"]), int(part["month"]), int(part["day"]), tzinfo=UTC)
    day = day.replace(hour=int(part["hour"] or 0), minute=int(part["minute"] or 0), second=int(part["second"] or 0))
    zone_s = int(part["zone_h"] or 0) * 3600 + int(part["zone_min"] or 0) * 60
    zone_s = -zone_s if part["sign"] == "-" else zone_s
    return _bounded((_whole_seconds(day) - zone_s) * NS + int((part["fraction"] or "0")[:9].ljust(9, "0")))


def _strptime_ns(cell: str, pattern: str) -> int:
    moment = datetime.strptime(cell.strip(), pattern)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return _bounded(_whole_seconds(moment) * NS + moment.microsecond * 1000)


def _whole_seconds(moment: datetime) -> int:
    since = moment - _EPOCH
    return since.days * 86_400 + since.seconds


def _number_ns(cell: str, factor: int, decimal: str) -> int:
    # Decimal, because a float of seconds since 1970 is only good to 0.2 microseconds.
    try:
        value = Decimal(cell.strip().replace(decimal, ".")) * factor
    except DecimalException as error:
        raise ValueError(f"{cell!r} is no number") from error
    if not value.is_finite() or abs(value) >= _LIMIT_NS:
        raise ValueError(f"{cell!r} is no time between the years 1824 and 2116")
    return round(value)


def _bounded(stamp_ns: int) -> int:
    if abs(stamp_ns) >= _LIMIT_NS:
        raise ValueError("outside the years 1824 to 2116")
    return stamp_ns


def timing(stamps_ns: NDArray[np.int64], absolute: bool, declared_hz: float | None) -> Timing:
    """One clock for the rows whose times are `stamps_ns`, shape (T,), each within +-2**62.

    The rate is one over the mean of the regular intervals, those within half a median of the median: written times are
    rounded (0.000605 s, 0.001211 s, ...), and the median alone would inherit that rounding.

    Raises:
        ChoiceError: no rate can be had from these times and none is declared.
    """
    t0_ns = int(stamps_ns[0]) if absolute else None
    intervals_ns, gaps = np.diff(stamps_ns), find_gaps(stamps_ns)  # (T - 1,)
    measured_hz, rate = _measured_rate(intervals_ns, gaps)
    irregular = _irregular(intervals_ns, gaps)
    if declared_hz is not None:
        given = f"; the time stamps give {measured_hz:.6g} Hz" if measured_hz else ""
        return Timing(declared_hz, t0_ns, (f"rate {declared_hz:g} Hz as declared{given}", *irregular), gaps)
    if measured_hz is None:
        raise ChoiceError("time stamps", "the rows do not advance in time", "set rate_hz, or another timestamp column")
    return Timing(measured_hz, t0_ns, (rate, *irregular), gaps)


def _measured_rate(intervals_ns: NDArray[np.int64], gaps: Gaps) -> tuple[float | None, str]:
    span_ns = int(intervals_ns.sum())
    if span_ns <= 0:
        return None, "no rate from the time stamps"
    median_ns = float(np.median(intervals_ns))
    if median_ns <= 0:
        rate_hz = len(intervals_ns) / (span_ns - int(gaps.lost_ns.sum())) * NS
        return rate_hz, f"rate {rate_hz:.6g} Hz: rows over time span, as most rows share their time with another"
    regular_ns = intervals_ns[np.abs(intervals_ns - median_ns) <= median_ns / 2]
    # The mean of two middle intervals may be near neither of them.
    interval_ns, jitter_ns = (float(regular_ns.mean()), float(regular_ns.std())) if len(regular_ns) else (median_ns, 0)
    rate = f"rate {NS / interval_ns:.6g} Hz from the time stamps: median interval {median_ns / NS:.6g} s"
    return NS / interval_ns, f"{rate}, jitter {jitter_ns / NS:.3g} s (standard deviation)"


def _irregular(intervals_ns: NDArray[np.int64], gaps: Gaps) -> list[str]:
    """Gaps and steps back in time, by the number of the data row before them (1 is the first)."""
    notes = []
    before = gaps.rows[gaps.lost_ns > 0] - 1
    if len(before):
        longest = int(before[np.argmax(intervals_ns[before])])
        longest_s = intervals_ns[longest] / NS
        notes.append(
            f"gaps in time, split there: {len(before)}, the longest of {longest_s:.6g} s after row {longest + 1}"
        )
    steps_back = np.flatnonzero(intervals_ns <= 0)
    if len(steps_back):
        first = int(steps_back[0]) + 1
        notes.append(f"rows that do not advance in time: {len(steps_back)}, the first after row {first}")
    return notes
