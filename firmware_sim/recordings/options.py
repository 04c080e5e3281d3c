"""What a person may have to tell a reader because the file does not say it, or says it ambiguously."""

from __future__ import annotations

import io
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NUMERIC_STAMPS = {"unix_s": 1_000_000_000, "unix_ms": 1_000_000, "unix_us": 1_000, "unix_ns": 1}


def _known_encoding(encoding: str) -> str:
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    except LookupError as error:
        raise ValueError(f"{encoding!r} is not an encoding known to Python; try 'utf-8' or 'cp1252'") from error
    return encoding


def _known_stamp_format(text: str) -> str:
    if text not in NUMERIC_STAMPS and "%" not in text:
        raise ValueError(f"{text!r}: expected {', '.join(NUMERIC_STAMPS)} or a pattern such as '%m/%d/%Y %H:%M:%S'")
    return text


class ReadOptions(BaseModel):
    """Everything left None or empty is detected from the file; an option a format cannot use is refused by `read`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)  # --help shows them

    rate_hz: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Samples per second; wins over what the file says."""
    columns: tuple[str, ...] = ()
    """Channels to read, in this order, by name without unit; empty means all."""
    units: dict[str, str] = {}
    """Unit of a channel, by channel name; wins over what the file says."""

    delimiter: Literal[",", ";", "\t"] | None = None
    """What separates the cells of a line: comma, semicolon or tab."""
    decimal: Literal[".", ","] | None = None
    """What separates whole from fraction: point or comma."""
    encoding: Annotated[str, AfterValidator(_known_encoding)] | None = None
    """Of the text, such as utf-8 or cp1252."""
    header_line: Annotated[int, Field(ge=1)] | None = None
    """Number of the line with the column names, where other lines stand above it."""
    timestamp: str | None = None
    """Name of the column with the time of each row."""
    timestamp_format: Annotated[str, AfterValidator(_known_stamp_format)] | None = None
    """unix_s, unix_ms, unix_us, unix_ns or a pattern for `datetime.strptime`."""
    label: str | None = None
    """Name of the column with 0 healthy, 1 damaged, -1 unknown."""
    state: str | None = None
    """Name of the column with the state in words."""
    allow_cut: bool = False
    """Read a file that ends in the middle of a line, without that line."""

    array: str | None = None
    """Which array holds the samples (npz, mat)."""
    array_index: Annotated[int, Field(ge=0)] | None = None
    """Which block along the first axis of a three-dimensional array (npz, mat)."""
    member: str | None = None
    """Which file inside a zip."""
