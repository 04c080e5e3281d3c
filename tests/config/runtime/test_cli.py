"""Goal: the commands of all three programs teach, answer and fail in one way.

Method: every parser that the two services declare is looked at; errors are raised by commands of a test.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator

import pytest

from fedgate.cloud_aggregator.__main__ import build_parser as of_aggregator
from fedgate.config.runtime import cli
from fedgate.firmware_sim.__main__ import COMMANDS
from fedgate.firmware_sim.__main__ import main as firmware_sim
from fedgate.gateway_agent.__main__ import build_parser as of_gateway

Capture = pytest.CaptureFixture[str]
NO_FACTS = re.compile(
    r"(init|run|certificate|alarms|gateways|keys|maintenance|metrics|samples|users|web)$"
)  # they do things, or their parts show facts


def commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the commands of a program and their parts."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from commands(command)


@pytest.mark.parametrize("parser", [of_aggregator(), of_gateway()], ids=lambda parser: parser.prog)
def test_every_command_teaches_by_an_example_and_shows_facts_as_json(parser: argparse.ArgumentParser) -> None:
    for command in commands(parser):
        said = command.format_help()
        assert re.search(rf"examples?:\n(.*\n)*  {command.prog.rpartition(' ')[0]}", said), said
        assert "--json" in said or NO_FACTS.search(command.prog), said


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_firmware_sim_teaches_by_an_example(name: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        firmware_sim([name, "--help"])
    assert re.search(rf"examples?:\n(.*\n)*  firmware-sim {name}\b", capsys.readouterr().out)


def ended(error: Exception | None, *, json_wanted: bool = False) -> int:
    def act(arguments: argparse.Namespace) -> None:
        if error is not None:
            raise error
        cli.show(arguments, {"n": 1}, "one")

    return cli.run("program", argparse.Namespace(act=act, json=json_wanted), LookupError)


def test_facts_are_shown_as_text_or_as_json(capsys: Capture) -> None:
    assert ended(None) == 0 and capsys.readouterr().out == "one\n"
    assert ended(None, json_wanted=True) == 0 and json.loads(capsys.readouterr().out) == {"n": 1}


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("x: expected 1, got 2"), cli.USAGE_ERROR, "x: expected 1, got 2"),
        (FileNotFoundError(2, "No such file", "here"), cli.USAGE_ERROR, "here: no such file"),
        (LookupError("of a kind that is said"), cli.USAGE_ERROR, "of a kind that is said"),
        (cli.NotDoneError("refused"), cli.SERVICE_ERROR, "refused"),
        (ModuleNotFoundError("no", name="torch"), cli.USAGE_ERROR, "needs the package torch, which is not installed"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error: Exception, code: int, line: str, capsys: Capture) -> None:
    assert ended(error, json_wanted=True) == code
    said = capsys.readouterr()
    assert not said.out and said.err.startswith(f"program: {line}") and said.err.count("\n") == 1


def test_what_is_not_done_is_told_to_machines_on_standard_output(capsys: Capture) -> None:
    assert ended(cli.NotDoneError("refused", {"is_done": False}), json_wanted=True) == cli.SERVICE_ERROR
    assert json.loads(capsys.readouterr().out) == {"is_done": False}
    assert ended(cli.NotDoneError("refused", {"is_done": False})) == cli.SERVICE_ERROR
    assert capsys.readouterr().err == "program: refused\n"


def test_an_error_of_another_kind_is_a_fault_and_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        ended(ZeroDivisionError())
