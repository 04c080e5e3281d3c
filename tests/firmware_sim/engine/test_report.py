"""What a report says of the figures of cells, in Markdown that wraps and in HTML that nothing breaks out of."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.firmware_sim.engine.frame import NothingShownError, Results
from fedgate.firmware_sim.engine.report import Part, Table, parts_of, tabulated, write_report
from fedgate.firmware_sim.engine.spec import Section, Spec, StudyError

NAN = math.nan
RESULTS: Results = [
    ({"view": "one", "method": "a", "width": 1.0}, {"auc": 0.9004, "error": 0.01, "count": 1_234.0, "choice": 0.5}),
    ({"view": "one", "method": "b", "width": 2.0}, {"auc": 0.9, "error": 0.01, "count": 2.0, "choice": 0.6}),
    ({"view": "one", "method": "c", "width": 2.0}, {"auc": 0.7, "error": 0.01, "count": -0.001, "choice": 0.7}),
    ({"view": "two", "method": "a", "width": 1.0}, {"auc": 0.5, "error": 0.01, "count": NAN, "choice": 0.4}),
    ({"view": "two", "method": "b", "width": 2.0}, {"auc": 0.512, "error": 0.01, "count": 3.0, "choice": 0.4}),
]
SIZES: Results = [
    ({"method": "a", "size": 8, "seed": 0}, {"auc": 0.7}),
    ({"method": "a", "size": 8, "seed": 1}, {"auc": 0.8}),
    ({"method": "a", "size": 16, "seed": 0}, {"auc": 0.9}),
    ({"method": "b", "size": 8, "seed": 0}, {"auc": 0.6}),
]
AUC, COUNT = {"of": "auc"}, {"of": "count", "digits": 1}
WITH_ERROR = {"AUC": {"of": "auc", "spread": "error"}}


def spec_of(*sections: dict[str, Any], **given: Any) -> Spec:
    raw = {"title": "A study", "about": "About it.", "probe": "x", "cells": {}, "section": list(sections), **given}
    return Spec.model_validate(raw)


def parts(
    *sections: dict[str, Any], folder: Path = Path(), short: bool = False, results: Results = RESULTS
) -> list[Part]:
    return list(parts_of(spec_of(*sections), results, folder / "study", short=short))


def table_of(section: dict[str, Any], results: Results = RESULTS) -> Table:
    return tabulated(Section.model_validate(section), results)


def rows_of(section: dict[str, Any], results: Results = RESULTS) -> list[list[str]]:
    return table_of(section, results).rows


def markdown(*made: Part, **given: Any) -> str:
    facts = {"circumstances": "Measured today.", "command": "measure it"}
    return write_report(spec_of(**given), made, facts, "report.md")


def test_a_table_has_a_row_for_each_place_and_a_column_for_each_figure() -> None:
    found = table_of({"rows": ["view", "method"], "figures": {"AUC": AUC, "n": COUNT}})
    assert found.head == ["view", "method", "AUC", "n"]
    assert found.rows == [
        ["one", "a", "0.900", "1,234.0"],
        ["one", "b", "0.900", "2.0"],
        ["one", "c", "0.700", "0.0"],
        ["two", "a", "0.500", "-"],
        ["two", "b", "0.512", "3.0"],
    ]


def test_columns_are_coordinates_and_with_several_figures_both() -> None:
    one = table_of({"rows": ["method"], "columns": ["view"], "figures": {"AUC": AUC}})
    assert one == Table(
        ["method", "one", "two"], [["a", "0.900", "0.500"], ["b", "0.900", "0.512"], ["c", "0.700", "-"]]
    )
    two = table_of({"rows": ["method"], "columns": ["view"], "figures": {"AUC": AUC, "n": COUNT}})
    assert two.head == ["method", "one, AUC", "two, AUC", "one, n", "two, n"]
    assert two.rows[2] == ["c", "0.700", "-", "0.0", "-"]


def test_labels_are_words_for_coordinates_and_values() -> None:
    labels = {"method": "the method", "a": "the first", "one": "all", "2": "two hours"}
    found = table_of({"rows": ["method", "width"], "columns": ["view"], "figures": {"AUC": AUC}, "labels": labels})
    assert found.head == ["the method", "width", "all", "two"]
    assert [row[:2] for row in found.rows] == [["the first", "1"], ["b", "two hours"], ["c", "two hours"]]


def test_the_figures_of_the_paper_stand_in_brackets_beside_ours() -> None:
    paper = {"one, a": {"AUC": 0.95, "n": 1_000_000.0}, "two, b": {"AUC": 0.9}}
    found = rows_of({"rows": ["view", "method"], "figures": {"AUC": AUC, "n": COUNT}, "paper": paper})
    assert found[0] == ["one", "a", "0.900 (0.95)", "1,234.0 (1,000,000)"]
    assert found[4] == ["two", "b", "0.512 (0.9)", "3.0"]
    by_column = {"a": {"two": 0.25}, "c": {"two": 0.75}}
    found = rows_of({"rows": ["method"], "columns": ["view"], "figures": {"AUC": AUC}, "paper": by_column})
    assert found == [["a", "0.900", "0.500 (0.25)"], ["b", "0.900", "0.512"], ["c", "0.700", "- (0.75)"]]


@pytest.mark.parametrize(("paper", "name"), [({"one, d": {"AUC": 1}}, "one, d"), ({"one, a": {"F": 1}}, "F")])
def test_a_figure_of_the_paper_beside_which_nothing_stands_is_named(paper: dict[str, Any], name: str) -> None:
    section = {"title": "T", "rows": ["view", "method"], "figures": {"AUC": AUC}, "paper": paper}
    with pytest.raises(StudyError, match=f"section 'T': paper: .*'{name}'"):
        parts(section)
    assert parts(section, short=True), "which measures less"


@pytest.mark.parametrize(
    ("bold", "wanted"),
    [
        ("highest in row", ["one a", "one b", "two b", "one c"]),  # what is shown alike is alike
        ("lowest in row", ["two a", "one b", "two b", "one c"]),
        ("highest in column", ["one a", "one b", "two b"]),
        ("lowest in column", ["one c", "two a"]),
        ("", []),
    ],
)
def test_what_stands_out_is_bold(bold: str, wanted: list[str]) -> None:
    results: Results = [
        ({"row": row, "column": column}, {"f": value})
        for row, column, value in (
            ("a", "one", 0.9004),
            ("a", "two", 0.7),
            ("b", "one", 0.9),
            ("b", "two", 0.9001),
            ("c", "one", 0.8),
            ("c", "two", NAN),
        )
    ]
    found = table_of({"rows": ["row"], "columns": ["column"], "figures": {"f": "f"}, "bold": bold}, results)
    assert sorted(
        f"{head} {row[0]}" for row in found.rows for head, text in zip(found.head, row, strict=True) if "**" in text
    ) == sorted(wanted)
    assert not any("-" in text and "**" in text for row in found.rows for text in row)


def test_rows_are_held_against_one_by_their_errors() -> None:
    section = {"rows": ["view", "method"], "figures": {**WITH_ERROR, "n": COUNT}, "against": {"method": "b"}}
    (part,) = parts(section)
    assert part.notes == [
        "one, b, AUC, 0.900 ± 0.010. Below it: c. Not told apart from it: a.",
        "two, b, AUC, 0.512 ± 0.010. Not told apart from it: a.",
    ]
    further = [*RESULTS, ({"view": "two", "method": "d"}, {"auc": 0.527, "error": 0.01, "count": 0.0, "choice": 0.0})]
    (part,) = parts(section, results=further)
    assert part.notes[1].endswith("Above it: d. Not told apart from it: a.")
    alone = [({"view": "three", "method": "b"}, {"auc": 0.5, "error": 0.01, "count": 0.0})]
    assert parts(section, results=alone)[0].notes == ["three, b, AUC, 0.500 ± 0.010."]


def test_what_is_no_number_is_held_against_nothing() -> None:
    results: Results = [
        ({"method": method}, {"auc": value, "error": 0.01}) for method, value in (("a", NAN), ("b", 0.5), ("c", NAN))
    ]
    section = {"rows": ["method"], "figures": WITH_ERROR}
    assert parts({**section, "against": {"method": "a"}}, results=results)[0].notes == []
    assert parts({**section, "against": {"method": "b"}}, results=results)[0].notes == ["b, AUC, 0.500 ± 0.010."]
    with pytest.raises(NothingShownError, match="section '': against: no row has method=d"):
        parts({**section, "against": {"method": "d"}}, results=results)


def test_a_target_is_kept_by_the_best_row_or_missed() -> None:
    targets = [
        {"text": "high", "least": 0.9004, "where": {"view": "one"}},
        {"text": "higher", "least": 0.9005},
        {"text": "low", "most": 0.5, "figures": WITH_ERROR},
        {"text": "few", "most": -1, "figures": {"n": COUNT}, "rows": ["view", "method"]},
        {"text": "none", "least": 0, "figures": {"n": COUNT}, "where": {"view": "two", "method": "a"}},
        {"text": "mean", "least": 0.6, "rows": []},
    ]
    (part,) = parts(
        {"kind": "targets", "rows": ["method"], "figures": {"AUC": AUC}, "targets": targets, "labels": {"a": "A"}}
    )
    assert part.table is not None and part.table.head == ["target", "wanted", "measured", "met"]
    assert part.table.rows == [
        ["high", "at least 0.9004", "0.900 (A)", "yes"],
        ["higher", "at least 0.9005", "0.706 (b)", "**no**"],
        ["low", "at most 0.5", "0.700 ± 0.010 (c)", "**no**"],
        ["few", "at most -1", "0.0 (one, c)", "**no**"],
        ["none", "at least 0", "-", "**no**"],
        ["mean", "at least 0.6", "0.702", "yes"],
    ]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (False, [["t", "at least 0.7", "0.900 (a, 16)", "yes"]]),
        (
            True,
            [
                ["t", "at least 0.7", "0.750 (a, 8)", "yes"],
                ["t", "at least 0.7", "0.900 (a, 16)", "yes"],
                ["t", "at least 0.7", "0.600 (b, 8)", "**no**"],
            ],
        ),
    ],
)
def test_a_target_is_for_the_best_row_or_for_every_one(every: bool, expected: list[list[str]]) -> None:
    target = {"text": "t", "least": 0.7, "every": every}
    section = {"kind": "targets", "rows": ["method", "size"], "figures": {"AUC": "auc"}, "targets": [target]}
    (part,) = parts(section, results=SIZES)
    assert part.table is not None and part.table.rows == expected


def test_a_target_of_zero_is_a_bound_as_any_other() -> None:
    results: Results = [({}, {"f": 0.0})]
    (part,) = parts(
        {
            "kind": "targets",
            "figures": {"f": {"of": "f", "digits": 0}},
            "targets": [{"text": "t", "most": 0}, {"text": "u", "least": 0}],
        },
        results=results,
    )
    assert part.table is not None and [row[1:] for row in part.table.rows] == [
        ["at most 0", "0", "yes"],
        ["at least 0", "0", "yes"],
    ]


def test_what_was_chosen_is_said() -> None:
    choose = {"by": "choice", "among": ["method", "width"], "take": ("best", "worst")}
    (part,) = parts({"kind": "choices", "rows": ["view"], "choose": choose, "labels": {"(+)": "best"}})
    assert part.table == Table(
        ["view", "method", "width", "rank"],
        [["one", "c", "2", "best"], ["two", "a", "1", "best"], ["one", "a", "1", "(-)"], ["two", "a", "1", "(-)"]],
    )


@pytest.mark.parametrize("section", [{"rows": ["where"], "figures": {"f": "f"}}, {"figures": {"f": "gone"}}])
def test_a_part_that_shows_nothing_is_named_and_left_out_of_a_short_run(section: dict[str, Any]) -> None:
    results: Results = [({}, {"f": 1.0})]
    with pytest.raises(StudyError, match="section 'T': "):
        parts({"title": "T", **section}, results=results)
    other = {"title": "U", "figures": {"f": "f"}}
    if "rows" not in section:
        found = parts({"title": "T", **section}, other, short=True, results=results)
        assert [part.title for part in found] == ["U"]


@pytest.mark.soak
def test_prose_stands_alone_and_pictures_are_numbered(tmp_path: Path) -> None:
    picture = {"kind": "points", "rows": ["method"], "figures": {"AUC": AUC}}
    found = parts({"kind": "text", "text": " Words. \n"}, picture, {**picture, "title": "Second"}, folder=tmp_path)
    assert [(part.text, part.table) for part in found] == [("Words.", None), ("", None), ("", None)]
    assert [part.picture for part in found] == [None, tmp_path / "study-1.png", tmp_path / "study-2.png"]
    text = markdown(*found)
    assert "\nWords.\n" in text
    assert "![A study](study-1.png)" in text and "## Second\n\n![Second](study-2.png)" in text


def test_a_report_is_markdown_from_its_title_to_how_it_was_measured() -> None:
    (part,) = parts(
        {"title": "T", "text": "Why.", "rows": ["view", "method"], "figures": WITH_ERROR, "against": {"method": "b"}}
    )
    assert markdown(part) == (
        "# A study\n\nAbout it.\n\n## T\n\nWhy.\n\n"
        "| view | method | AUC |\n| --- | --- | --- |\n"
        "| one | a | 0.900 ± 0.010 |\n| one | b | 0.900 ± 0.010 |\n| one | c | 0.700 ± 0.010 |\n"
        "| two | a | 0.500 ± 0.010 |\n| two | b | 0.512 ± 0.010 |\n\n"
        "- one, b, AUC, 0.900 ± 0.010. Below it: c. Not told apart from it: a.\n"
        "- two, b, AUC, 0.512 ± 0.010. Not told apart from it: a.\n\n"
        "---\n\nMeasured today.\n\n```sh\nmeasure it\n```\n"
    )


words = st.lists(
    st.one_of(
        st.sampled_from(["-", "*", "+", ">", "#", "1.", "23)", "=", "---", "|", "word", "a" * 120, "`x y`", "**b**"]),
        st.text("abcdefgh,.()", min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=80,
)


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the blocks that a reader of Markdown finds, each with its text and white space made one."""
    from markdown_it import MarkdownIt

    found, kind = [], ""
    for token in MarkdownIt().parse(text):
        if token.type.endswith("_open"):
            kind = token.tag if token.tag != "p" or kind not in ("li", "blockquote") else kind
        elif token.type == "inline":
            found.append((kind, " ".join(token.content.split())))
            kind = ""
        elif token.type in ("hr", "code_block"):
            found.append((token.type, token.content))
    return found


@pytest.mark.soak
@given(st.lists(st.tuples(st.sampled_from(["", "- ", "> "]), words), min_size=1, max_size=4))
def test_wrapped_prose_keeps_its_words_and_its_blocks(paragraphs: list[tuple[str, list[str]]]) -> None:
    """Words that begin a block where they begin a line do not come to stand there."""
    paragraphs = [(mark, ["begin", *each]) for mark, each in paragraphs]
    about = "\n\n".join(mark + " ".join(each) for mark, each in paragraphs)
    text = markdown(about=about)
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    for line in text.splitlines():
        assert len(line) <= 100 or max(map(len, line.split())) > 60, line
    written = text.removeprefix("# A study\n\n").partition("\n\n---\n\nMeasured")[0]
    assert blocks(written) == blocks(about)


def test_prose_of_a_file_may_be_broken_anywhere() -> None:
    about = "One\ntwo.\n  \n\n\n- a\n  b\n- c\n\n> Not\n> settled:\n> d.\n"
    assert "# A study\n\nOne two.\n\n- a b\n- c\n\n> Not settled: d.\n\n---\n" in markdown(about=about)


HOSTILE = '<script>alert("x")</script> & <b> | `a` \\ ]( " \' </td>'


def test_hostile_texts_stay_in_their_cells_of_a_markdown_table() -> None:
    results: Results = [({"method": f"{HOSTILE}\nnext", "n": "plain"}, {"f": 1.0})]
    (part,) = parts({"title": "T", "rows": ["method", "n"], "figures": {"a | b": "f"}}, results=results)
    lines = [line for line in markdown(part).splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [4, 4, 4]


class Tags(HTMLParser):
    """The elements of a page; every one but the void ones is to be closed in its turn."""

    VOID = frozenset({"meta", "img"})
    OPEN_ENDED = frozenset({"html"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes what is not open"

    def handle_data(self, data: str) -> None:
        self.texts.append(" ".join(data.split()))


def page(*made: Part, **given: Any) -> Tags:
    facts = {"circumstances": given.pop("circumstances", "Measured."), "command": given.pop("command", "measure")}
    tags = Tags()
    tags.feed(write_report(spec_of(**given), made, facts, "report.html"))
    tags.close()
    assert not tags.open
    return tags


def test_the_page_is_whole_and_says_what_the_markdown_says(tmp_path: Path) -> None:
    bold = {"bold": "highest in column", "against": {"method": "b"}}
    found = page(
        *parts(
            {"title": "T", "text": "Why.\n\nAnd why.", "rows": ["view", "method"], "figures": WITH_ERROR, **bold},
            {"kind": "bars", "rows": ["method"], "figures": {"AUC": AUC}},
            folder=tmp_path,
        )
    )
    assert {"A study", "About it.", "T", "Why.", "And why.", "0.900 ± 0.010", "Measured.", "measure"} <= {*found.texts}
    counts = {tag: found.seen.count(tag) for tag in ("h1", "h2", "table", "tr", "th", "td", "strong", "li", "img")}
    assert counts == {"h1": 1, "h2": 1, "table": 1, "tr": 6, "th": 3, "td": 15, "strong": 2, "li": 2, "img": 1}


@pytest.mark.soak
@given(st.text(max_size=30).map(lambda text: HOSTILE + text))
def test_nothing_breaks_out_of_the_page(text: str) -> None:
    results: Results = [({"method": text}, {"f": 1.0})]
    (part,) = parts({"title": text, "text": text, "rows": ["method"], "figures": {"f": "f"}}, results=results)
    given = {"title": text, "about": text, "circumstances": text, "command": text}
    plain = dict.fromkeys(given, "plain")
    (harmless,) = parts({"title": "t", "text": "t", "rows": ["method"], "figures": {"f": "f"}}, results=results)
    found, wanted = page(part, **given), page(harmless, **plain)
    ours = ("p", "code")  # of prose
    assert [tag for tag in found.seen if tag not in ours] == [tag for tag in wanted.seen if tag not in ours]
