"""Goal: pages that a reader can follow: short lines and paragraphs, goal pages that fit one sitting, no names of tests.

Results are written by the studies, and so left out here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.syntax import ROOT, name_of

PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if "results" not in page.parts]
GOAL_NAMES = ("install-gateway", "run-aggregator", "compare-algorithms", "researcher")
GOALS = [ROOT / "docs" / f"{name}.md" for name in GOAL_NAMES]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
LINE_LENGTH, SENTENCES_MAX, GOAL_WORDS, DECISIONS_MAX, DECISION_WORDS = 100, 5, 900, 25, 400
SENTENCE_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)*]))(?<!e\.g\.)(?<!i\.e\.)(?<!al\.)(?<!\d\.)\s+(?=[A-Z`*\[(])")
ITEM = re.compile(r"\s*([-*]|\d+\.)\s")
TEST_NAME = re.compile(r"`(tests/|test_)")


def prose(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the blocks of lines of a page between blank ones, with the number of their first line: no code, no tables,
    no headings and no pictures.
    """
    block: list[str] = []
    is_code = False
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        is_fence = line.lstrip().startswith("```")
        is_other = is_code or is_fence or not line.strip() or line.lstrip().startswith(("|", "#", "!["))
        is_code ^= is_fence
        if is_other and block:
            yield number - len(block), block
            block = []
        elif not is_other:
            block.append(line)


def faults(text: str) -> Iterator[str]:
    """Yield what is wrong with the prose of a page, by line."""
    for first, block in prose(text):
        for number, line in enumerate(block, start=first):
            if len(line) > LINE_LENGTH and " " in line.strip().removeprefix("- "):
                yield f"{number}: {len(line)} characters, wrap at {LINE_LENGTH}"
            if TEST_NAME.search(line):
                yield f"{number}: a test is named; name it in docs/reference/tests.md"
        before_list = next((place for place, line in enumerate(block) if ITEM.match(line)), len(block))
        count = len(SENTENCE_END.split(" ".join(block[:before_list]))) if before_list else 0
        if count > SENTENCES_MAX:
            yield f"{first}: a paragraph of {count} sentences, at most {SENTENCES_MAX}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_has_short_lines_and_paragraphs_and_names_no_test(page: Path) -> None:
    assert not list(faults(page.read_text("utf-8")))


@pytest.mark.parametrize("page", GOALS, ids=name_of)
def test_a_page_that_leads_to_a_goal_is_read_in_one_sitting(page: Path) -> None:
    assert len(page.read_text("utf-8").split()) <= GOAL_WORDS


def test_decisions_are_few_short_and_listed() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text("utf-8")
    assert len(DECISIONS) <= DECISIONS_MAX
    assert [page.name for page in DECISIONS if f"({page.name})" not in listed] == []
    assert [page.name for page in DECISIONS if len(page.read_text("utf-8").split()) > DECISION_WORDS] == []


def test_what_is_wrong_with_a_page_is_found() -> None:
    long, many = "word " * 30, "One. Two. Three. Four. Five. Six."
    found = list(faults(f"# Title\n\n{long}\n\n{many}\n\nShown by `tests/x.py`.\n\n| {long} |\n\n```sh\n{long}\n```\n"))
    assert [fault.split(":")[0] for fault in found] == ["3", "5", "7"]
