"""Goal: each console line of the docs is run by a test, or is in `NOT_RUN` with the reason why none can.

Method: lines stand in blocks marked `sh` or `console` and nowhere else, and each is looked up in what the tests of the
docs run: `test_docs.py` in a folder with a broker, `test_docs_site.py` on a machine that is a folder, and
`test_docs_machine.py` on copies of this machine. Of what is not run make says at least that it knows it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedgate.firmware_sim import children
from tests.project.test_docs import BLOCK, NOT_RUN, OURS, PAGES, blocks, commands, lines
from tests.project.test_docs_machine import GIVEN
from tests.project.test_docs_site import commands_here
from tests.support.syntax import ROOT, name_of
from tests.support.waiting import PATIENCE_S

KINDS = {"console", "python", "sh", "text", "toml"}
PROGRAMS = (*OURS, "apt", "make", "mkdir", "mosquitto", "mosquitto_sub", "pip", "python", "python3", "rm", "sudo")
COMMAND = re.compile(rf"(?:\S*/)?(?:{'|'.join(PROGRAMS)}) ")
INDENTED = re.compile(r"^ {4,}(.*)", re.MULTILINE)


def console(page: Path | str) -> list[str]:
    """Return every line of a page, or of a text, that is given in a console."""
    return [line for kind in ("sh", "console") for block in blocks(page, kind) for line in lines(block)]


def misplaced(text: str) -> list[str]:
    """Return what no test looks at on a page: blocks of other kinds, and commands in no block that is run."""
    rest = BLOCK.sub("", text)
    unknown = [kind for _, kind, _ in BLOCK.findall(text) if kind not in KINDS] + re.findall("```.*", rest)
    shown = [line for block in blocks(text, "text") for line in lines(block)] + INDENTED.findall(rest)
    return unknown + [line for line in shown if COMMAND.match(line)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_line_is_run_or_it_is_said_why_not(page: Path) -> None:
    assert misplaced(page.read_text(encoding="utf-8")) == []
    run = {
        *commands(page, "sh"),  # by test_docs.py
        *commands_here(page),  # by test_docs_site.py
        *(line for of, line in GIVEN if of == page),  # by test_docs_machine.py
    }
    assert [line for line in console(page) if line not in run | NOT_RUN.keys()] == []


@pytest.mark.soak
def test_what_is_not_run_is_on_a_page_and_make_knows_it() -> None:
    on_pages = {line for page in PAGES for line in console(page)}
    assert NOT_RUN.keys() <= on_pages
    for line in (line for line in NOT_RUN if line.startswith("make ")):
        make, *words = shlex.split(line)
        done = children.run([make, "-n", *words], PATIENCE_S, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr


def test_lines_are_found_wherever_they_stand() -> None:
    run = "```sh\nmkdir a  # a folder\n```\n- So:\n\n  ```console\n  sudo b \\\n    c\n  ```\n"
    text = f"{run}\n    make d\n\n```text\nrm e\n```\n"
    assert console(text) == ["mkdir a", "sudo b      c"]
    assert misplaced(text) == ["rm e", "make d"]
    assert misplaced("```bash\nls\n```\n\n```\nls\n```\n") == ["bash", "```", "```"]
