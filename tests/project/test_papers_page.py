"""Goal: the page of the papers says no more than the pages of results do, and counts its own rows right.

Method: every row of its tables is read. A state is one of four words, of which the last comes with a reason; what was
measured links to its page and its figures occur there, compared as they are written; the table at the top has the
counts of the rows; and a row that rests on unfair settings leads to a page that says so, and every such page has one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.project.test_docs_style import faults
from tests.support.syntax import ROOT

RESULTS = ROOT / "docs" / "results"
PAGE = RESULTS / "papers.md"
COLUMNS = ["in the paper", "it says", "ours", "state"]
MEASURED, CANNOT_BE = ("reproduced", "not reproduced"), "cannot be"
STATES = (*MEASURED, "not measured yet", CANNOT_BE)
UNFAIR, NOT_SETTLED = "**unfair settings**: ", "> Not settled: "
LINK = re.compile(r"\[[^\]]*\]\(([^)]+)\)")
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w|[.,]\d)")


class Row(NamedTuple):
    """One row under the heading of a paper."""

    paper: str
    where: str
    says: str
    ours: str
    state: str


def cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(text: str) -> Iterator[Row]:
    """Yield the rows under the headings of the papers."""
    paper, is_row = "", False
    for line in text.splitlines():
        if line.startswith("## "):
            paper = line.removeprefix("## ")
        found = cells(line)
        if paper and line.startswith("|") and is_row and set(line) - set("|- "):
            yield Row(paper, *found)
        is_row = line.startswith("|") and (is_row or found == COLUMNS)


def counted(text: str) -> dict[str, list[str]]:
    """Return the counts at the top, by paper."""
    top = text.partition("\n## ")[0]
    lines = [cells(line) for line in top.splitlines() if line.startswith("|")]
    assert lines[0] == ["paper", "rows", *STATES, "on unfair settings"], "expected the table of counts first"
    return {name: counts for name, *counts in lines[2:]}


def counts_of(found: Sequence[Row]) -> list[str]:
    """Return what the table of counts must say of rows."""
    states = Counter(state_of(row) for row in found)
    unfair = sum(UNFAIR in row.ours for row in found)
    return [str(count) for count in (len(found), *(states[state] for state in STATES), unfair)]


def state_of(row: Row) -> str:
    """Return the state of a row without its reason."""
    return row.state.partition(":")[0]


def linked(row: Row) -> list[Path]:
    """Return the pages that stand beside ours."""
    return [(RESULTS / target).resolve() for target in LINK.findall(row.ours)]


def what_is_wrong(row: Row) -> Iterator[str]:
    """Yield what a row says that it must not, or leaves out."""
    state, colon, reason = row.state.partition(":")
    pages = linked(row)
    if state not in STATES:
        yield f"state {state!r}, expected one of {', '.join(STATES)}"
    if (state == CANNOT_BE) != bool(colon and reason.strip()):
        yield "a reason goes with `cannot be`, and with nothing else"
    if state in MEASURED and not pages:
        yield f"{state} without a link to the page that shows it"
    if missing := [str(page) for page in pages if not page.is_file()]:
        yield f"links to no page: {', '.join(missing)}"
        return
    on_pages = {number for page in pages for number in NUMBER.findall(page.read_text("utf-8"))}
    for number in NUMBER.findall(LINK.sub("", row.ours)):
        if number not in on_pages:
            yield f"{number} stands on no page that is linked"
    if UNFAIR in row.ours and not any(is_open(page) for page in pages):
        yield f"no page that is linked says {NOT_SETTLED.strip()!r}"


def is_open(page: Path) -> bool:
    """Return whether a page says that a conclusion of its is not settled, and where to look."""
    notes = [part for part in page.read_text("utf-8").split("\n\n") if part.startswith(NOT_SETTLED)]
    return any("(papers.md)" in note for note in notes)


ROWS = list(rows(PAGE.read_text("utf-8")))


@pytest.mark.parametrize("paper", dict.fromkeys(row.paper for row in ROWS))
def test_a_row_says_what_its_pages_say(paper: str) -> None:
    wrong = [(row.where, row.says, fault) for row in ROWS if row.paper == paper for fault in what_is_wrong(row)]
    assert wrong == []


def test_the_counts_at_the_top_are_those_of_the_rows() -> None:
    papers = dict.fromkeys(row.paper for row in ROWS)
    expected = {paper: counts_of([row for row in ROWS if row.paper == paper]) for paper in papers}
    assert counted(PAGE.read_text("utf-8")) == {**expected, "all": counts_of(ROWS)}
    assert len(papers) == 5


def test_a_page_is_open_only_where_a_row_rests_on_unfair_settings() -> None:
    unfair = {page for row in ROWS if UNFAIR in row.ours for page in linked(row)}
    assert {page for page in RESULTS.glob("*.md") if is_open(page)} <= unfair


def test_the_page_reads_as_others_do_and_is_listed() -> None:
    assert list(faults(PAGE.read_text("utf-8"))) == []
    assert f"({PAGE.name})" in (RESULTS / "README.md").read_text("utf-8")


def test_what_is_wrong_with_a_row_is_found() -> None:
    page = "[z](z24-rounds.md)"

    def found(ours: str, state: str) -> list[str]:
        return [fault.split()[0] for fault in what_is_wrong(Row("P", "Table 1", "0.96", ours, state))]

    assert found(f"after 40 rounds 0.654: {page}", "reproduced") == []
    assert found(f"after 40 rounds 0.65: {page}", "reproduced") == ["0.65"]
    assert found("0.654", "reproduced") == ["reproduced", "0.654"]
    assert found("", "not measured yet") == []
    assert found("", "cannot be: it is lost") == []
    assert found("", "cannot be") == ["a"]
    assert found("", "not measured yet: no time") == ["a"]
    assert found("", "open") == ["state"]
    assert found("[z](z25.md)", "reproduced") == ["links"]
    assert found(f"{UNFAIR}one setting: [c](cwru.md)", "reproduced") == ["no"]


def test_rows_are_those_of_the_papers_tables() -> None:
    head = f"| {' | '.join(COLUMNS)} |\n|---|---|---|---|\n"
    other = "| x | y | z | no row |\n"
    text = f"{other}## P\n{head}| 1 | 2 | – | open |\n\n{other}### Q\n{head}| 3 | 4 | – | open |\n"
    assert [row.where for row in rows(text)] == ["1", "3"]
    assert counts_of(list(rows(text))) == ["2", "0", "0", "0", "0", "0"]
