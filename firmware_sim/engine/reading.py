"""Which files of the data a probe opens: one that no key of a cell holds would give figures of other data."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from fedgate.firmware_sim.engine.spec import StudyError

CODE, METADATA = frozenset({".py", ".pyc", ".so"}), frozenset({".dist-info", ".egg-info"})
_opened: ContextVar[list[str] | None] = ContextVar("opened", default=None)


@contextmanager
def only(reads: Iterable[Path], data: Path) -> Iterator[None]:
    """Refuse a block that opens a file below the folder of data that is none of these, nor below one of them.

    Code and installed packages are no data. What compiled readers open past Python is not seen, such as those of
    Parquet.

    Raises:
        StudyError: there is such a file.
    """
    _begin()
    opened: list[str] = []
    token = _opened.set(opened)
    try:
        yield
    finally:
        _opened.reset(token)
    allowed, below = [path.resolve() for path in reads], data.resolve()
    for path in (Path(name).resolve() for name in dict.fromkeys(opened)):
        is_installed = path.is_relative_to(sys.prefix) or path.parent.suffix in METADATA
        is_data = path.is_relative_to(below) and path.suffix not in CODE and not is_installed and path.is_file()
        if is_data and not any(path.is_relative_to(each) for each in allowed):
            raise StudyError(f"{path}: read, but not in what `reads` of the probe returns; name it there")


@cache
def _begin() -> None:
    sys.addaudithook(_note)


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and (opened := _opened.get()) is not None:
        name, _, flags = args
        if isinstance(name, str | bytes) and flags & os.O_ACCMODE == os.O_RDONLY:
            opened.append(os.fsdecode(name))
