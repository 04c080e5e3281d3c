"""What the three commands share: logging to standard error, one-line errors, readable tables."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fedgate.config.runtime.version import VERSION
from fedgate.config.settings import extras
from fedgate.models.time_units import NS

# What every command ends with: 0 where it is done, 128 and its number where a signal ended it, and
USAGE_ERROR = 2  # where trying again cannot help: what was asked for or what stands in a file is not good
SERVICE_ERROR = 1  # where it was understood and is not done or not good: an order refused, a promise broken, a fault


def parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Return the parser of a command with `--version` and a help text that keeps its line breaks."""
    made = argparse.ArgumentParser(
        prog=name, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--version", action="version", version=f"{name} (fedgate) {VERSION}")
    return made


def run(
    name: str, act: Callable[[argparse.Namespace], int], arguments: argparse.Namespace, *also: type[Exception]
) -> int:
    """Run a command; an error of ours, or one of the kinds in `also`, becomes one line and exit code 2.

    2 says that trying again cannot help. What ends a service that ran is another matter: see `serve`.
    """
    ours: tuple[type[Exception], ...] = (ValueError, OSError, *also)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_warn, name)
            return act(arguments)
    except BrokenPipeError:  # whoever read has seen enough
        sys.stdout = None  # or the interpreter complains about it once more at the end
        return 0
    except ours as error:
        complain(name, describe(error))
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def complain(name: str, text: str) -> None:
    """Say in one line, of one form for all commands, what is wrong."""
    sys.stderr.write(f"{name}: {text}\n")


def describe(error: Exception) -> str:
    """Return what an error says, without the number by which the system calls it."""
    if not isinstance(error, OSError) or error.errno is None or not error.strerror:
        return str(error)
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes | os.PathLike) else ""
    return f"{where}{error.strerror.lower()}"


def _warn(name: str, message: Warning | str, *_where: object) -> None:
    """Tell the operator what a line of Python's own format would hide behind the path of a source file."""
    complain(name, f"warning: {message}")


def missing(name: str, error: ModuleNotFoundError) -> int:
    """Say which extra brings a package that is not installed, and return the exit code."""
    complain(name, f"needs the package {error.name}, which is not installed; {extras.advice(error.name)}")
    return USAGE_ERROR


def again(name: str, error: Exception) -> int:
    """Say why a service cannot start now, and return the exit code after which it is tried again: a disk that is full
    or a store that another still holds is not so for ever.
    """
    complain(name, describe(error))
    return SERVICE_ERROR


def serve(name: str, run_service: Callable[[], None]) -> int:
    """Run a service that has started; an error that ends it is logged whole and gives 1, so that it is started
    again.
    """
    try:
        run_service()
    except (ValueError, OSError, RuntimeError):
        logging.getLogger("fedgate").exception("%s ends", name)
        return SERVICE_ERROR
    return 0


def log_to_stderr(*, verbose: bool) -> None:
    """Log with the time in UTC; a service manager keeps the lines."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def on_terminate(stop: Callable[[], None]) -> None:
    """Call `stop` on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop())


def moment(t_ns: int | None) -> str:
    """Return a moment of Unix time as text, in UTC to the second; empty where there is none."""
    return "" if t_ns is None else datetime.fromtimestamp(t_ns / NS, UTC).isoformat(timespec="seconds")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an aligned text table."""
    cells = [list(columns), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def cells(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of the named values of rows; what is missing or empty is a dash."""
    return table(columns, ([_shown(row.get(name)) for name in columns] for row in rows))


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, dict):  # counts by kind
        return str(sum(value.values()))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
