"""Reads Parquet, what data historians export."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError, FileAccessError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.columns import (
    Column,
    Numbers,
    Roles,
    channels_of,
    numbers_of,
    roles,
    split_unit,
    stamp_unit,
    states_from,
    with_groups,
    words_among,
)
from fedgate.firmware_sim.recordings.recording import Recording, as_float64
from fedgate.firmware_sim.recordings.source import MAX_BYTES, Source
from fedgate.firmware_sim.recordings.timing import Timing, stamp_reader, timing


def read_parquet(source: Source, options: ReadOptions) -> Recording:
    """Read a table of one row per sample; columns mean what they mean in a CSV file.

    Raises:
        DamagedError: the file or a column cannot be decoded; the place is the column.
        ChoiceError: the sampling rate or the columns cannot be told without an option.
    """
    table = _load(source.data)
    columns = [_column(field) for field in table.schema]
    chosen = roles(columns, options)
    values = np.column_stack([_numbers(table, i) for i in chosen.channels])  # (T, C)
    clock = _clock(table, columns, chosen, options)
    labels = None if chosen.label is None else _numbers(table, chosen.label)
    texts = None if chosen.state is None else [str(text) for text in table.column(chosen.state).to_pylist()]
    return Recording(
        name=source.name,
        channels=channels_of(columns, chosen),
        rate_hz=clock.rate_hz,
        values=values,
        t0_ns=clock.t0_ns,
        states=states_from(labels, texts, clock.rate_hz, clock.gaps),
        found=(*chosen.found, *clock.found),
        gaps=clock.gaps,
    )


def read_parquet_table(source: Source, options: ReadOptions, groups: str | None) -> Numbers:
    """Read a table whose rows need no clock, but may have a column that names groups; raises as `read_parquet` does."""
    table = _load(source.data)
    columns = with_groups([_column(field) for field in table.schema], groups)
    chosen = roles(columns, options)
    wanted = [i for i in (*chosen.channels, chosen.label) if i is not None]
    words = {columns[i].name: _words(table, i) for i in words_among(columns, chosen)}
    return numbers_of(columns, chosen, np.column_stack([_numbers(table, i) for i in wanted]), words)


def _load(data: bytes) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data), page_checksum_verification=True)
        file = _with_texts_as_they_are(file, data)
        table = file.read()
        table.validate(full=True)
        table = _with_texts_unpacked(table)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedError("file", f"cannot be read ({error})", "the file is cut or garbled; copy it again") from error
    if table.num_rows == 0:
        raise DamagedError("table", "no rows", "the file holds no data")
    return table


def _with_texts_as_they_are(file: Any, data: bytes) -> Any:
    """The file opened so that a text which is stored once for many rows is also held once; refuses what is too large.

    Raises `FileAccessError`; what the file says of its own sizes is checked here, what it holds when it is read.
    """
    import pyarrow
    import pyarrow.parquet

    about = file.metadata
    groups = [about.row_group(i) for i in range(about.num_row_groups)]
    chunks = [group.column(j) for group in groups for j in range(group.num_columns)]
    size = max(8 * about.num_rows * about.num_columns, sum(chunk.total_uncompressed_size for chunk in chunks))
    if size > MAX_BYTES:
        raise FileAccessError("table", f"{size} bytes as numbers", f"keep it below {MAX_BYTES} bytes")
    texts = sorted({chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"})
    reader = pyarrow.BufferReader(data)
    return pyarrow.parquet.ParquetFile(reader, page_checksum_verification=True, read_dictionary=texts)


def _with_texts_unpacked(table: Any) -> Any:
    """The table with every text in its own row, refused where that would be too large."""
    from pyarrow import compute, types

    for i, field in enumerate(table.schema):
        if not types.is_dictionary(field.type):
            continue
        column = table.column(i)
        size = sum(
            compute.sum(compute.take(compute.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
            for chunk in column.chunks
        )
        if size > MAX_BYTES:
            raise FileAccessError(f"column {field.name!r}", f"{size} bytes of text", f"keep it below {MAX_BYTES} bytes")
        table = table.set_column(i, field.name, column.cast(field.type.value_type))
    return table


def _column(field: Any) -> Column:
    from pyarrow import types

    name, unit = split_unit(field.name)
    if types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type):
        return Column(name, unit, "number")
    return Column(name, unit, "time" if types.is_timestamp(field.type) else "text")


def _words(table: Any, index: int) -> list[str]:
    """One column as words, nulls as empty ones."""
    return ["" if cell is None else str(cell).strip() for cell in table.column(index).to_pylist()]


def _numbers(table: Any, index: int) -> NDArray[np.float64]:
    """One column, shape (T,), nulls as NaN."""
    column = table.column(index)
    try:
        return as_float64(np.asarray(column.to_numpy(zero_copy_only=False)))
    except (TypeError, ValueError) as error:
        place = f"column {table.schema.names[index]!r}"
        raise DamagedError(place, f"type {column.type}, expected numbers", "choose other columns") from error


def _clock(table: Any, columns: list[Column], chosen: Roles, options: ReadOptions) -> Timing:
    if chosen.timestamp is None:
        if options.rate_hz is None:
            raise ChoiceError("columns", "no column of time stamps, so no sampling rate", "set rate_hz, or timestamp")
        return Timing(options.rate_hz, None, (f"rate {options.rate_hz:g} Hz as declared",))
    place = f"column {columns[chosen.timestamp].name!r}"
    stamps = table.column(chosen.timestamp)
    if stamps.null_count:
        raise DamagedError(place, f"{stamps.null_count} rows without a time", "remove these rows, or set timestamp")
    if columns[chosen.timestamp].kind == "time":
        return timing(_stamps_ns(stamps, place), True, options.rate_hz)
    cells = [str(cell) for cell in stamps.to_pylist()]
    reader = stamp_reader(cells[0], stamp_unit(columns[chosen.timestamp]), options.timestamp_format)
    try:
        stamps_ns = np.array([reader.to_ns(cell) for cell in cells], dtype=np.int64)
    except ValueError as error:
        raise DamagedError(place, f"not a time ({error})", "set timestamp_format, or timestamp") from error
    clock = timing(stamps_ns, reader.absolute, options.rate_hz)
    return replace(clock, found=(reader.meaning, *clock.found))


def _stamps_ns(stamps: Any, place: str) -> NDArray[np.int64]:
    import pyarrow

    try:
        whole = stamps.cast(pyarrow.timestamp("ns", tz=stamps.type.tz)).cast(pyarrow.int64())
    except pyarrow.ArrowException as error:
        raise DamagedError(place, f"not a time ({error})", "set timestamp to another column") from error
    stamps_ns: NDArray[np.int64] = whole.to_numpy(zero_copy_only=False)
    if np.abs(stamps_ns // 2).max() >= 2**61:
        raise DamagedError(place, "a time outside the years 1824 to 2116", "set timestamp to another column")
    return stamps_ns
