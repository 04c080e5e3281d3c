"""What the columns of a table mean: one is time, some say the state, the rest are channels.

Shared by the formats that are tables with named columns, so that a file keeps its meaning from one format to the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError
from fedgate.firmware_sim.recordings.gaps import Gaps
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.recording import DAMAGED, LABEL_TEXT, UNKNOWN, Channel, State, positions, shortened

TIME_NAMES = {
    "t", "time", "timestamp", "time stamp", "datetime", "date time", "date", "zeit", "zeitstempel", "datum",
    "x_value", "time_s", "t_s", "time_ms", "t_ms", "time_us", "t_us", "time_ns", "t_ns",
}  # fmt: skip
LABEL_NAMES = {"label", "anomaly"}
STATE_NAMES = {"state"}
CHANGE_NAMES = {"changepoint"}

_UNIT = re.compile(r"(?P<name>.*\S)\s*(?:\[(?P<square>[^][]*)\]|\((?P<round>[^()]*)\))\s*", re.DOTALL)


@dataclass(frozen=True)
class Column:
    """A named column; `kind` is what its cells are."""

    name: str
    unit: str
    kind: Literal["number", "text", "time", "group", "ignored"]


@dataclass(frozen=True)
class Roles:
    """Positions of columns by what they are for."""

    timestamp: int | None
    label: int | None
    state: int | None
    change: int | None
    channels: tuple[int, ...]
    found: tuple[str, ...]


class Numbers(NamedTuple):
    """The columns of a table that are neither time nor state: what is left where no clock is wanted."""

    names: tuple[str, ...]  # C of them, without units
    values: NDArray[np.float64]  # (T, C), NaN where a cell is empty
    labels: NDArray[np.float64] | None  # (T,) None where no column is a label
    found: tuple[str, ...]
    words: Mapping[str, Sequence[str]]  # T cells of each column that holds words, or names groups


def numbers_of(
    columns: Sequence[Column], chosen: Roles, values: NDArray[np.float64], words: Mapping[str, Sequence[str]]
) -> Numbers:
    """The table with these values (T, C or C + 1): those of the channels and, where there is one, of the label."""
    count = len(chosen.channels)
    others = [columns[i].name for i in (chosen.timestamp, chosen.state, chosen.change) if i is not None]
    found = (f"read as time or state and left out: {shortened(others)}",) if others else ()
    names = tuple(columns[i].name for i in chosen.channels)
    labels = None if chosen.label is None else values[:, count]
    return Numbers(names, values[:, :count], labels, (*chosen.found, *found), words)


def with_groups(columns: Sequence[Column], groups: str | None) -> list[Column]:
    """Return the columns, where the one that names the group of each row is no time, state or channel.

    Raises:
        ChoiceError: there is no such column.
    """
    if groups is not None and groups not in (names := [column.name for column in columns]):
        raise ChoiceError("groups", f"no column {groups!r}", f"choose among {shortened(names)}")
    return [replace(column, kind="group") if column.name == groups else column for column in columns]


def words_among(columns: Sequence[Column], chosen: Roles) -> list[int]:
    """Return the positions of columns of words that have no role, and of the one that names groups."""
    known = (chosen.timestamp, chosen.label, chosen.state)
    texts = [i for i, column in enumerate(columns) if column.kind == "text" and i not in known]
    return texts + [i for i, column in enumerate(columns) if column.kind == "group"]


def split_unit(header: str) -> tuple[str, str]:
    """Name and unit of a header cell such as `FRC-01 [kN]` or `DMS_CN (um/m)`; the unit is "" where none is written."""
    match = _UNIT.fullmatch(header)
    if match is None:
        return header.strip(), ""
    return match["name"].strip(), (match["square"] or match["round"] or "").strip()


def roles(columns: Sequence[Column], options: ReadOptions) -> Roles:
    """Decide what each column is for, by what the user declared, then by name, then by what its cells are.

    Raises:
        ChoiceError: a declared column is absent, or no channel is left.
    """
    # Also text, so that a time written in no known form is an error and not a column left out.
    timestamp = _role(columns, options.timestamp, TIME_NAMES, ("number", "time", "text"))
    if timestamp is None:
        timestamp = next((i for i, column in enumerate(columns) if column.kind == "time"), None)
    label = _role(columns, options.label, LABEL_NAMES, ("number",))
    state = _role(columns, options.state, STATE_NAMES, ("text",))
    change = _role(columns, None, CHANGE_NAMES, ("number",))
    rest = [i for i in range(len(columns)) if i not in (timestamp, label, state, change)]
    channels = [i for i in rest if columns[i].kind == "number"]
    if options.columns:
        names = [columns[i].name for i in channels]
        return Roles(timestamp, label, state, change, tuple(channels[i] for i in positions(names, options.columns)), ())
    if not channels:
        seen = shortened([column.name for column in columns])
        raise ChoiceError("columns", f"no column of numbers among {seen}", "check delimiter and decimal")
    left_out = [columns[i].name for i in rest if columns[i].kind in ("text", "time")]
    found = (f"left out, as they hold no numbers: {shortened(left_out)}",) if left_out else ()
    return Roles(timestamp, label, state, change, tuple(channels), found)


def _role(columns: Sequence[Column], declared: str | None, known: set[str], kinds: Sequence[str]) -> int | None:
    names = [column.name for column in columns]
    if declared is not None:
        if declared not in names:
            raise ChoiceError("columns", f"no column {declared!r}", f"choose among {shortened(names)}")
        return names.index(declared)
    return next((i for i, column in enumerate(columns) if _is_named(column, known) and column.kind in kinds), None)


def _is_named(column: Column, known: set[str]) -> bool:
    # A single letter keeps its case: t is time, T is a temperature.
    return (column.name if len(column.name) == 1 else column.name.lower()) in known


def channels_of(columns: Sequence[Column], chosen: Roles) -> tuple[Channel, ...]:
    """The channels among the columns, in the order of `Roles.channels`."""
    return tuple(Channel(columns[i].name, columns[i].unit) for i in chosen.channels)


def stamp_unit(column: Column) -> str:
    """Unit of a column of time stamps, also where it is written as in `t_ms`."""
    return column.unit or (column.name.rpartition("_")[2] if "_" in column.name else "")


def states_from(
    labels: NDArray[np.float64] | None, texts: Sequence[str] | None, rate_hz: float, gaps: Gaps
) -> tuple[State, ...]:
    """Join rows of equal label and text to states; one that lasts over a gap goes on in it.

    Args:
        labels: shape (T,), 0 healthy, above 0 damaged, negative or NaN unknown; None where no column says.
        texts: the T states in words; None where no column says.
        rate_hz: rows per second.
        gaps: between the rows.

    Raises:
        DamagedError: a label is not a whole number; the message gives its row.
    """
    if labels is None and texts is None:
        return ()
    count = len(labels) if labels is not None else len(texts or ())
    known = np.full(count, float(UNKNOWN)) if labels is None else np.where(np.isnan(labels), UNKNOWN, labels)
    fractions = np.flatnonzero(known != np.round(known))
    if len(fractions):
        row = int(fractions[0])
        found = f"label {known[row]:g}, expected 0, 1 or -1"
        raise DamagedError(f"data row {row + 1}", found, "choose another label column")
    changed = known[1:] != known[:-1]
    if texts is not None:
        changed = changed | np.array([a != b for a, b in zip(texts[1:], texts[:-1], strict=True)], dtype=bool)
    starts = [0, *(np.flatnonzero(changed) + 1).tolist()]
    ends = [*starts[1:], count]
    return tuple(
        written_state(
            float(known[a]), "" if texts is None else texts[a], gaps.start_s(a, rate_hz), gaps.end_s(b, rate_hz)
        )
        for a, b in zip(starts, ends, strict=True)
    )


def written_state(value: float, text: str, start_s: float, end_s: float) -> State:
    """A state from a written label: negative is unknown, 0 healthy, anything above damaged."""
    label = UNKNOWN if value < 0 else min(int(value > 0), DAMAGED)
    several = f" (class {value:g})" if value > 1 else ""
    return State(start_s, end_s, label, text or LABEL_TEXT[label] + several)
