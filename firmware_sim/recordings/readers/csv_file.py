"""Reads tables in text form: .csv, .tsv, .txt and LabVIEW's .lvm.

Not `numpy.loadtxt`: it cannot say which cell is wrong, and takes an empty cell for an error.
"""

from __future__ import annotations

import codecs
import csv
import io
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError, FileAccessError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.columns import (
    Numbers,
    Roles,
    channels_of,
    numbers_of,
    roles,
    stamp_unit,
    states_from,
    with_groups,
    words_among,
)
from fedgate.firmware_sim.recordings.readers.csv_layout import MISSING, Layout, detect, stream_at
from fedgate.firmware_sim.recordings.readers.lvm_header import LvmHeader, read_lvm_header
from fedgate.firmware_sim.recordings.recording import MAX_VALUES, Recording
from fedgate.firmware_sim.recordings.source import Source
from fedgate.firmware_sim.recordings.timing import StampReader, Timing, stamp_reader, timing

_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@dataclass
class _Cells:
    """Parsed cells of T rows, by purpose; `numbers` holds one value per wanted column and row, `texts` a list for each
    row where any column of words is wanted.
    """

    numbers: array[float] = field(default_factory=lambda: array("d"))
    stamps_ns: array[int] = field(default_factory=lambda: array("q"))
    texts: list[list[str]] = field(default_factory=list)


def read_csv(source: Source, options: ReadOptions) -> Recording:
    """Read a table of one row per sample and one column per channel.

    Raises:
        DamagedError: the place is a line and a column, or a byte where the text cannot be decoded.
        ChoiceError: the sampling rate or the columns cannot be told without an option.
    """
    text, found = _decode(source, options)
    header = read_lvm_header(text) if source.suffix == ".lvm" else None
    layout = detect(text, options) if header is None else _lvm_layout(text, header, options)
    chosen = roles(layout.columns, options)
    stamps = _stamp_reader(layout, chosen, options)
    wanted = [i for i in (*chosen.channels, chosen.label, chosen.change) if i is not None]
    words = [] if chosen.state is None else [chosen.state]
    cells = _parse(text, layout, wanted, words, chosen.timestamp, stamps)
    numbers = np.frombuffer(cells.numbers, dtype=np.float64).reshape(-1, len(wanted))  # (T, C + 0..2)
    clock = _clock(cells, stamps, header, options)
    labels = None if chosen.label is None else numbers[:, len(chosen.channels)]
    if chosen.change is not None:
        found += (_change_points(numbers[:, -1], clock),)
    return Recording(
        name=source.name,
        channels=channels_of(layout.columns, chosen),
        rate_hz=clock.rate_hz,
        values=numbers[:, : len(chosen.channels)],
        t0_ns=clock.t0_ns,
        states=states_from(labels, [state for (state,) in cells.texts] if words else None, clock.rate_hz, clock.gaps),
        found=(*found, *layout.found, *chosen.found, *clock.found),
        gaps=clock.gaps,
    )


def read_csv_table(source: Source, options: ReadOptions, groups: str | None) -> Numbers:
    """Read a table whose rows need no clock; otherwise its cells and columns are read as those of a recording, but for
    a column that names groups.

    Raises:
        DamagedError, ChoiceError: as `read_csv` does.
    """
    text, _ = _decode(source, options)
    layout = detect(text, options)
    columns = with_groups(layout.columns, groups)
    chosen = roles(columns, options)
    wanted = [i for i in (*chosen.channels, chosen.label) if i is not None]
    texts = words_among(columns, chosen)
    cells = _parse(text, layout, wanted, texts, None, None)
    words = {columns[i].name: [row[at] for row in cells.texts] for at, i in enumerate(texts)}
    return numbers_of(columns, chosen, np.frombuffer(cells.numbers, dtype=np.float64).reshape(-1, len(wanted)), words)


def _decode(source: Source, options: ReadOptions) -> tuple[str, tuple[str, ...]]:
    """The text, without a last partial line where `allow_cut` says so."""
    marked = next((name for bom, name in _BOMS if source.data.startswith(bom)), None)
    encoding = options.encoding or marked or ("utf-8" if _is_utf8(source.data, options.allow_cut) else "cp1252")
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(source.data, not options.allow_cut)
    except UnicodeError as error:
        place = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else "text"
        raise DamagedError(place, f"cannot be decoded as {encoding} ({error})", "set encoding") from error
    found = [f"encoding {encoding}"]
    if source.is_cut:
        found.append("the packed stream is cut; read up to there")
    if text.endswith(("\n", "\r")) or not text:
        return text, tuple(found)
    if not options.allow_cut:
        return text, (*found, "the last line has no line end, so its last cell may be cut")
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    lines = sum(1 for _ in io.StringIO(text[:end], newline=""))
    return text[:end], (*found, f"line {lines + 1} has no line end: taken as cut and left out")


def _is_utf8(data: bytes, may_be_cut: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, not may_be_cut)
    except UnicodeDecodeError:
        return False
    return True


def _lvm_layout(text: str, header: LvmHeader, options: ReadOptions) -> Layout:
    given = {"delimiter": header.delimiter, "decimal": header.decimal, "header_line": header.names_line}
    layout = detect(text, options.model_copy(update=given))
    columns = list(layout.columns)
    if columns[-1].name == "Comment":
        columns.pop()
    if not header.has_time:
        columns[0] = replace(columns[0], kind="ignored")
    measured = [i for i, column in enumerate(columns) if column.name != "X_Value"]
    if len(header.units) == len(measured):
        for i, unit in zip(measured, header.units, strict=True):
            columns[i] = replace(columns[i], unit=unit)
    return replace(layout, columns=tuple(columns), comments=len(columns) < len(layout.columns))


def _stamp_reader(layout: Layout, chosen: Roles, options: ReadOptions) -> StampReader | None:
    if chosen.timestamp is None:
        if options.timestamp_format is not None:
            raise ChoiceError("columns", "timestamp_format is set, but no column holds time", "set timestamp")
        return None
    column = layout.columns[chosen.timestamp]
    cells = [row[chosen.timestamp].strip() for row in layout.sample if chosen.timestamp < len(row)]
    first = next((cell for cell in cells if cell), "")
    return stamp_reader(first, stamp_unit(column), options.timestamp_format, layout.decimal)


def _parse(
    text: str,
    layout: Layout,
    wanted: Sequence[int],
    texts: Sequence[int],
    timestamp: int | None,
    stamps: StampReader | None,
) -> _Cells:
    cells = _Cells()
    for line, row in _rows(text, layout):
        cells.numbers.extend(_numbers(row, wanted, layout, line))
        if len(cells.numbers) > MAX_VALUES:
            remedy = f"cut the recording into pieces below {MAX_VALUES} values"
            raise FileAccessError(f"line {line}", f"more than {MAX_VALUES} values so far", remedy)
        if stamps is not None and timestamp is not None:
            cells.stamps_ns.append(_stamp(row[timestamp], stamps, layout, line, timestamp))
        if texts:
            cells.texts.append([row[i].strip() for i in texts])
    return cells


def _rows(text: str, layout: Layout) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row, checked for their number; of a row over several lines, the last."""
    stream = stream_at(text, layout.first_line)
    reader = csv.reader(stream, delimiter=layout.delimiter, strict=True)
    width = len(layout.columns)
    try:
        for row in reader:
            extra = row[width + layout.comments :]
            if row and (len(row) < width or any(cell.strip() for cell in extra)):
                line = layout.first_line - 1 + reader.line_num
                raise DamagedError(f"line {line}", f"{len(row)} cells, expected {width}", _remedy(stream, text))
            if row:
                yield layout.first_line - 1 + reader.line_num, row
    except csv.Error as error:
        line = layout.first_line - 1 + reader.line_num
        raise DamagedError(f"line {line}", f"cannot be split into cells ({error})", _remedy(stream, text)) from error


def _remedy(stream: io.StringIO, text: str) -> str:
    if not stream.readline() and not text.endswith(("\n", "\r")):
        return "the file ends in the middle of this line: set allow_cut to read it without"
    return "correct the line, or set delimiter or header_line"


def _numbers(row: Sequence[str], wanted: Sequence[int], layout: Layout, line: int) -> list[float]:
    if layout.decimal == ".":
        # The fast way, for rows without missing cells.
        with suppress(ValueError):
            return [float(row[i]) for i in wanted]
    return [_number(row[i], layout, line, i) for i in wanted]


def _number(cell: str, layout: Layout, line: int, index: int) -> float:
    if cell.strip().lower() in MISSING:
        return float("nan")
    try:
        # A point beside decimal commas groups thousands, or is a mistake; either way the value is not certain.
        return float(cell.replace(".", "?").replace(",", ".") if layout.decimal == "," else cell)
    except ValueError as error:
        place = f"line {line}, column {layout.columns[index].name!r}"
        remedy = "correct the cell, or set decimal or columns"
        raise DamagedError(place, f"found {cell[:40]!r}, expected a number", remedy) from error


def _stamp(cell: str, stamps: StampReader, layout: Layout, line: int, index: int) -> int:
    try:
        return stamps.to_ns(cell)
    except ValueError as error:
        place = f"line {line}, column {layout.columns[index].name!r}"
        problem = f"found {cell[:40]!r}, expected a time ({stamps.meaning})"
        raise DamagedError(place, problem, "correct the cell, or set timestamp_format") from error


def _clock(cells: _Cells, stamps: StampReader | None, header: LvmHeader | None, options: ReadOptions) -> Timing:
    start_ns = None if header is None else header.t0_ns
    if stamps is not None:
        clock = timing(np.frombuffer(cells.stamps_ns, dtype=np.int64), stamps.absolute, options.rate_hz)
        clock = replace(clock, found=(stamps.meaning, *clock.found))
        return clock if start_ns is None else replace(clock, t0_ns=start_ns + cells.stamps_ns[0])
    if options.rate_hz is not None:
        return Timing(options.rate_hz, start_ns, (f"rate {options.rate_hz:g} Hz as declared",))
    if header is not None and header.rate_hz is not None:
        return Timing(header.rate_hz, start_ns, (f"rate {header.rate_hz:.6g} Hz from Delta_X in the header",))
    raise ChoiceError("columns", "no column of time stamps, so no sampling rate", "set rate_hz, or timestamp")


def _change_points(marks: NDArray[np.float64], clock: Timing) -> str:
    at_s = ", ".join(f"{clock.gaps.start_s(row, clock.rate_hz):g}" for row in np.flatnonzero(marks > 0)[:20].tolist())
    return f"{int(np.sum(marks > 0))} change points marked" + (f", at {at_s} s" if at_s else "")
