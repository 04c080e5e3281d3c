"""What a doctor finds, one line each: ok, warning or failure, and what to do. Both programs have one; it changes
nothing, so it can be asked before an installation, after it, and while the service runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from fedgate.config.runtime import cli

Level = Literal["ok", "warning", "failure"]
FAILED = 1
WITHIN_S = 26.0  # by then no further trial begins; who waits for half a minute thinks that it hangs
EXIT_CODES = "Exit code 0 where nothing fails, warnings or not; 1 where something does."


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    text: str
    advice: str = ""  # what to do; empty where all is well

    def __str__(self) -> str:
        return f"{self.level:<8} {self.name:<22} {self.text}{'; ' if self.advice else ''}{self.advice}"


def ok(name: str, text: str) -> Finding:
    """Return that something is well."""
    return Finding(name, "ok", text)


def warning(name: str, text: str, advice: str) -> Finding:
    """Return that something works and should be mended."""
    return Finding(name, "warning", text, advice)


def failure(name: str, text: str, advice: str) -> Finding:
    """Return that something will not work."""
    return Finding(name, "failure", text, advice)


def fit_line(text: object) -> str:
    """Return a text without line breaks, as long as a line may be."""
    return textwrap.shorten(" ".join(str(text).split()), 300, placeholder=" ...")


def report(arguments: argparse.Namespace, findings: Iterable[Finding]) -> int:
    """Print findings as they come (as JSON: at the end), and return the exit code."""
    found = []
    for finding in findings:
        found.append(finding)
        if not arguments.json:
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()
    counts = {level: sum(one.level == level for one in found) for level in ("failure", "warning", "ok")}
    failed = counts["failure"] > 0
    if arguments.json:
        summary = {"ok": not failed, "counts": counts, "findings": [asdict(one) for one in found]}
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    else:
        sys.stdout.write(f"{counts['failure']} failures, {counts['warning']} warnings, {counts['ok']} ok\n")
    return FAILED if failed else 0


def guard(name: str, errors: tuple[type[Exception], ...], advice: str, act: Callable[[], str]) -> Finding:
    """Return what a check says, or the error that it raises as a failure."""
    try:
        return ok(name, act())
    except errors as error:
        return failure(name, fit_line(error), advice)


def fail_each(name: str, error: Exception, advice: str) -> Iterator[Finding]:
    """Return a failure for each line of an error, as a settings file may have several faults."""
    for line in str(error).splitlines():
        yield failure(name, line, advice)


Examine = Callable[[argparse.Namespace], Iterable[Finding]]


def command(commands: cli.Commands, program: str, look: Examine) -> None:
    """Add the command `doctor` to a program; `look` yields the findings."""
    file = commands.settings_file
    text = f"Examine this machine, {file}, the broker: what works, what does not, what to do. Nothing is changed."
    examples = f"examples:\n  {program} doctor -c {file}\n  {program} doctor -c {file} --json\n\n{EXIT_CODES}"

    def act(arguments: argparse.Namespace) -> int:
        return report(arguments, look(arguments))

    commands.add("doctor", act, "examine the machine, the settings and the broker", description=text, examples=examples)
