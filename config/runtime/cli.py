"""How the three programs are called: commands and their options, one-line errors and exit codes, readable tables.

A module declares its commands with `Commands.add`. What a command does is a function of its arguments, which returns an
exit code, or nothing where it is done; facts it prints with `show`. What cannot be done is raised:

    ValueError, OSError    what was asked for or what stands in a file is not good          exit code 2
    NotDoneError           it was understood and is not done; it may be tried again         exit code 1
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fedgate.config.runtime.logs import begin_log
from fedgate.config.runtime.supervisor import Supervisor
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings import extras
from fedgate.models.time_units import NS

# What every command ends with: 0 where it is done, 128 and its number where a signal ended it, and
USAGE_ERROR = 2  # where trying again cannot help: what was asked for or what stands in a file is not good
SERVICE_ERROR = 1  # where it was understood and is not done or not good: an order refused, a promise broken, a fault
Act = Callable[[argparse.Namespace], int | None]


class NotDoneError(Exception):
    """What was asked for is not done, and may be tried again; `facts` is what is shown of it as JSON, if anything."""

    def __init__(self, text: str, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.facts = facts


class Running(Protocol):
    """A service that was started."""

    def run(self) -> None: ...
    def stop(self) -> None: ...


class Parser(argparse.ArgumentParser):
    """The parser of a program, or of a command; where that has parts and none is named it takes `default_part`."""

    default_part = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Return what argparse makes of the arguments, which calls this for each command with what follows its name."""
        given = sys.argv[1:] if args is None else list(args)
        is_named = bool(given) and (given[0] in ("-h", "--help") or not given[0].startswith("-"))
        if self.default_part and not is_named:
            given = [self.default_part, *given]
        return super().parse_known_args(given, namespace)


def make_parser(name: str, description: str, epilog: str) -> Parser:
    """Return the parser of a program with `--version` and a help text that keeps its line breaks."""
    made = Parser(
        prog=name, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--version", action="version", version=f"{name} (fedgate) {VERSION}")
    return made


@dataclass(frozen=True)
class Commands:
    """The commands of a program, or the parts of one command, each declared by `add`."""

    parsers: argparse._SubParsersAction[Parser]
    settings_file: str = ""  # that `-c` takes
    examples: str = ""  # of commands that show none of their own

    def add(
        self, name: str, act: Act, text: str, *, description: str = "", examples: str = "", shows_facts: bool = True
    ) -> Parser:
        """Declare a command that reads the settings file, and prints JSON if it is asked to and shows facts.

        Return its parser, which takes the options of its own.
        """
        command = self.add_bare(name, text, description=description, examples=examples)
        command.epilog = command.epilog or f"example:\n  {command.prog} -c {self.settings_file}\n"
        command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help=self.settings_file)
        if shows_facts:
            command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(act=act)
        return command

    def add_bare(self, name: str, text: str, *, description: str = "", examples: str = "") -> Parser:
        """Declare a command with no options but its own, `text` being what the list of commands says of it."""
        return self.parsers.add_parser(
            name,
            help=text,
            description=description or text,
            epilog=examples or self.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def add_group(
        self, name: str, text: str, *, description: str = "", examples: str = "", default_part: str = ""
    ) -> Commands:
        """Declare a command that has parts, and return these; they show its examples."""
        command = self.add_bare(name, text, description=description, examples=examples)
        command.default_part = default_part
        return Commands(
            command.add_subparsers(dest="part", required=True, metavar="WHAT"), self.settings_file, examples
        )


def add_commands(program: Parser, settings_file: str = "") -> Commands:
    """Return the commands of a program, none yet."""
    return Commands(program.add_subparsers(dest="command", required=True, metavar="COMMAND"), settings_file)


def run(name: str, arguments: argparse.Namespace, *also: type[Exception]) -> int:
    """Run the command that was chosen and return the exit code; the errors of the table above, and those of the kinds
    in `also`, become one line.

    What ends a service that ran is another matter: see `serve`.
    """
    ours: tuple[type[Exception], ...] = (ValueError, OSError, *also)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_warn, name)
            return arguments.act(arguments) or 0
    except BrokenPipeError:  # whoever read has seen enough
        sys.stdout = None  # or the interpreter complains about it once more at the end
        return 0
    except NotDoneError as error:
        if error.facts is not None and getattr(arguments, "json", False):
            show(arguments, error.facts, "")
        else:
            complain(name, str(error))
        return SERVICE_ERROR
    except ModuleNotFoundError as error:
        advice = extras.advise_install(error.name)
        complain(name, f"needs the package {error.name}, which is not installed; {advice}")
        return USAGE_ERROR
    except ours as error:
        complain(name, describe(error))
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def show(arguments: argparse.Namespace, facts: Any, text: str) -> None:
    """Print facts as JSON where that is asked for, else the text that says them to people."""
    sys.stdout.write(f"{json.dumps(facts, indent=2) if arguments.json else text}\n")


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


def report_retry(name: str, error: Exception) -> int:
    """Say why a service cannot start now, and return the exit code after which it is tried again: a disk that is full
    or a store that another still holds is not so for ever.
    """
    complain(name, describe(error))
    return SERVICE_ERROR


def start_and_serve(
    name: str, arguments: argparse.Namespace, start: Callable[[], Running], store_error: type[Exception]
) -> int:
    """Start a service, have it end on SIGTERM and SIGINT, and run it; return the exit code. Where its store raises
    `store_error` it is tried again: see `report_retry`.
    """
    begin_log(arguments)
    Supervisor().report_start()
    try:
        service = start()
    except store_error as error:
        return report_retry(name, error)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: service.stop())
    return serve(name, service.run, store_error)


def serve(name: str, run_service: Callable[[], None], *clear: type[Exception]) -> int:
    """Run a service that has started. An error that ends it gives 1, so that it is started again; it is logged whole,
    but for the kinds that say all in a sentence.
    """
    try:
        run_service()
    except clear as error:
        return report_retry(name, error)
    except (ValueError, OSError, RuntimeError):
        logging.getLogger("fedgate").exception("%s ends", name)
        return SERVICE_ERROR
    return 0


def format_time(t_ns: int | None) -> str:
    """Return a moment of Unix time as text, in UTC to the second; empty where there is none."""
    return "" if t_ns is None else datetime.fromtimestamp(t_ns / NS, UTC).isoformat(timespec="seconds")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an aligned text table."""
    cells = [list(columns), *[[str(cell) for cell in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def format_rows(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of the named values of rows; what is missing or empty is a dash."""
    return table(columns, ([_format_cell(row.get(name)) for name in columns] for row in rows))


def _format_cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, dict):  # counts by kind
        return str(sum(value.values()))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
