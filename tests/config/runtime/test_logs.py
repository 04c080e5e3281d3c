"""Goal: whoever keeps the log of a service can sort and search it: the journal by priority, machines by fields.

Method: records as services write them, through each formatter; the journal is recognised by a real file's numbers.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fedgate.config.runtime import app, logs
from fedgate.config.runtime.events import Log


def lines_of(formatter: logging.Formatter, *effects: Log, **more: Any) -> list[str]:
    """Return what a service with this formatter writes."""
    log, written = logging.Logger("fedgate.test"), list[str]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.extend(self.format(record).split("\n"))

    handler = Kept()
    handler.setFormatter(formatter)
    log.addHandler(handler)
    for effect in effects:
        app.write_log(log, effect)
    if more:
        log.error("it ends", **more)
    return written


def test_the_journal_gets_a_priority_in_front_of_each_line_and_no_second_time() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        written = lines_of(
            logs.make_formatter("journal", sys.stderr, {}), Log("warning", "full"), Log("info", "good"), exc_info=True
        )
    assert written[:3] == ["<4>fedgate.test: full", "<6>fedgate.test: good", "<3>fedgate.test: it ends"]
    assert len(written) > 5 and all(line.startswith("<3>") for line in written[2:])


def test_each_json_line_is_an_object_with_what_the_line_is_about_whatever_an_outsider_has_sent() -> None:
    hostile = 'x"\n{"level": "info"}\x1b[2J\u2028'
    try:
        raise OSError("gone")
    except OSError:
        written = lines_of(
            logs.make_formatter("json", sys.stderr, {}),
            Log("info", "round 3 closed with 2 updates", {"run": "r", "round": 3}),
            Log("warning", hostile),
            exc_info=True,
        )
    first, second, third = map(json.loads, written)
    assert (first["level"], first["logger"], first["round"], first["run"]) == ("info", "fedgate.test", 3, "r")
    assert first["message"] == "round 3 closed with 2 updates" and first["time"].endswith("+00:00")
    assert second["level"] == "warning" and "\x1b" not in second["message"]
    assert "OSError: gone" in third["exception"]


@pytest.mark.parametrize(("of_stream", "expected"), [(True, logs.JournalFormatter), (False, logging.Formatter)])
def test_the_journal_is_told_from_a_terminal_that_a_service_has_opened(
    tmp_path: Path, of_stream: bool, expected: type
) -> None:
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "other").open("w") as other:
        found = (stream if of_stream else other).fileno()
        about = os.fstat(found)
        environment = {"JOURNAL_STREAM": f"{about.st_dev}:{about.st_ino}"}
        assert type(logs.make_formatter("automatic", stream, environment)) is expected
        assert type(logs.make_formatter("automatic", stream, {})) is logging.Formatter
