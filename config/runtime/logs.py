"""How a service writes its log, to standard error: lines for people, for systemd's journal, or JSON for machines.

The journal keeps the time itself and sorts by priority, which sd-daemon(3) has in front of each line: `<4>` is a
warning. What a line is about (a round, a model, the digest of a body) stands in JSON as fields of their own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TextIO, get_args

Format = Literal["automatic", "text", "journal", "json"]
PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
ABOUT = "about"  # the attribute of a record with the fields


class JournalFormatter(logging.Formatter):
    """Lines with their priority, also each line of a traceback, and without the time."""

    def format(self, record: logging.LogRecord) -> str:
        priority = PRIORITIES.get(record.levelno, PRIORITIES[logging.INFO])
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (UTC, ISO 8601), `level`, `logger`, `message`, what it is about, `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts: dict[str, object] = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        about: Mapping[str, object] = getattr(record, ABOUT, {})
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts | dict(about))


def add_options(run: argparse.ArgumentParser) -> None:
    """Add what a command that serves takes for its log."""
    run.add_argument("-q", "--quiet", action="store_true", help="log warnings only")
    text = "automatic (default): with priorities where the journal of systemd reads, else text for people"
    run.add_argument("--log-format", choices=get_args(Format), default="automatic", help=text)


def begin_log(arguments: argparse.Namespace) -> None:
    """Log to standard error as the arguments say; a service manager keeps the lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(make_formatter(arguments.log_format, sys.stderr, os.environ))
    logging.basicConfig(level=logging.WARNING if arguments.quiet else logging.INFO, handlers=[handler])


def make_formatter(name: Format, stream: TextIO, environment: Mapping[str, str]) -> logging.Formatter:
    """Return the formatter of that name for a stream."""
    if name == "json":
        return JsonFormatter()
    if name == "journal" or (name == "automatic" and is_read_by_journal(stream, environment)):
        return JournalFormatter("%(name)s: %(message)s")
    return logging.Formatter(TEXT)


def is_read_by_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether a stream is the one that systemd connected to its journal (systemd.exec(5), JOURNAL_STREAM): a shell
    that a service starts has the variable too, and its terminal is another.
    """
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # it is no file
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
