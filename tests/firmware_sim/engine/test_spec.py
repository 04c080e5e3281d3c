"""The files that describe a study: what one takes over from another, and what is said of a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim.engine.spec import Choice, Figure, Section, Spec, Target, load_spec
from tests.support.syntax import ROOT

BASE = """
title = "Base"
about = "All of it."
probe = "tests.support.powers"
data = "data"
settings = { seed = 1, method = { exponent = 2, data = "part" } }
cells = { number = [1, 2], seed = [1] }

[define.method]
a = { exponent = 1 }

[[section]]
title = "first"
figures = { power = "power" }

[[section]]
title = "second"
figures = { power = { of = "power", digits = 1 } }
"""


def write(folder: Path, **files: str) -> Path:
    """Write files, `of/name` being in a folder of its own, and return the last."""
    path = folder
    for name, text in files.items():
        path = folder / f"{name.replace('_of_', '/')}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def spec_of(folder: Path, **files: str) -> Spec:
    return load_spec(write(folder, **files))


def test_a_file_is_as_it_says_and_its_data_lie_beside_it(tmp_path: Path) -> None:
    found = spec_of(tmp_path, base=BASE)
    assert (found.title, found.data, found.jobs) == ("Base", tmp_path / "data", None)
    assert found.cells == [{"number": [1, 2], "seed": [1]}]
    assert [each.figures["power"].digits for each in found.section] == [3, 1]
    assert spec_of(tmp_path, bare=BASE.replace('data = "data"', "")).data is None


def test_tables_of_another_file_are_taken_over_key_by_key_and_lists_as_a_whole(tmp_path: Path) -> None:
    like = """
    like = "../base.toml"
    title = "Like"
    settings.method.exponent = 3
    cells = { number = [5] }
    define.method.b = { exponent = 4 }
    [[section]]
    title = "only"
    text = "prose"
    kind = "text"
    """
    found = spec_of(tmp_path, base=BASE, below_of_like=like)
    assert (found.title, found.about) == ("Like", "All of it.")
    assert found.data is not None and found.data.resolve() == tmp_path / "data", "where the file that says so lies"
    assert found.settings == {"seed": 1, "method": {"exponent": 3, "data": "part"}}
    assert found.cells == [{"number": [5], "seed": [1]}]
    assert list(found.define["method"]) == ["a", "b"]
    assert [each.title for each in found.section] == ["only"]
    third = spec_of(tmp_path, third='like = "below/like.toml"\ndata = ""\n[[cells]]\nnumber = 3')
    assert (third.title, third.data, third.cells) == ("Like", None, [{"number": 3}])


SHOWN = 'title = "second"'


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("about|abut", "about"),
        ('title = "Base"|title = 1', "title"),
        ("digits = 1|digits = -1", "section[1].figures.power.digits"),
        ("digits = 1|digts = 1", "section[1].figures.power.digts"),
        ("\ndata =|\njobs = 0\ndata =", "jobs"),
        (f'{SHOWN}|kind = "tabel"', "section[1].kind"),
        (f"{SHOWN}\nfigures|{SHOWN}\n#", "section 'second' of kind 'table' has no `figures`"),
        (f'{SHOWN}|{SHOWN}\nkind = "lines"', "section 'second' of kind 'lines' has no `rows`"),
        (f'{SHOWN}|{SHOWN}\nkind = "choices"', "section 'second' of kind 'choices' has no `choose`"),
        (f'{SHOWN}|{SHOWN}\nkind = "targets"', "section 'second' of kind 'targets' has no `targets`"),
        (f'{SHOWN}|{SHOWN}\nkind = "text"', "section 'second' of kind 'text' has no `text`"),
        (f'{SHOWN}|{SHOWN}\ntargets = [{{ text = "t" }}]', "target 't': expected one of `least` and `most`"),
        (f'{SHOWN}|{SHOWN}\ntargets = [{{ text = "t", least = 1, most = 2 }}]', "target 't': expected one of"),
        (
            f'{SHOWN}|{SHOWN}\ntargets = [{{ text = "t", least = 1, figures = {{ a = "a", b = "b" }} }}]',
            "target 't': expected one figure",
        ),
        (
            f'{SHOWN}|{SHOWN}\nrows = ["number"]\nagainst = {{ method = "a" }}',
            "section 'second': against: 'method' is none of number",
        ),
        (
            f'{SHOWN}|{SHOWN}\nkind = "bars"\nrows = ["number", "seed"]\npanels = "number"',
            "section 'second': panels: 'number' is none of seed",
        ),
        ("[1, 2]|[1979-05-27, 2]\nx = [", "like.toml:"),
        ("seed = 1|seed = ", "like.toml:"),
    ],
)
def test_what_is_wrong_names_the_file_and_the_key(tmp_path: Path, change: str, words: str) -> None:
    before, _, after = change.partition("|")
    text = BASE.replace(before, after)
    assert text != BASE
    with pytest.raises(SettingsError) as caught:
        spec_of(tmp_path, like=text)
    assert "like.toml:" in str(caught.value) and words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": 'like = "b.toml"'}, "b.toml: No such file or directory; expected a TOML file that describes a study"),
        ({"b": "title = ", "a": 'like = "b.toml"'}, "b.toml: not TOML: Invalid value"),
        ({"b": 'like = "a.toml"', "a": 'like = "b.toml"'}, "a.toml: like: the files are like each other"),
        ({"a": "like = 1"}, "1: No such file or directory"),
        ({"b": BASE, "a": 'like = "b.toml"\ntitle = 1'}, "a.toml:2: title"),
    ],
)
def test_what_is_wrong_with_a_file_that_others_are_like_is_named(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        spec_of(tmp_path, **files)


def test_a_day_is_a_value_as_it_is_written(tmp_path: Path) -> None:
    assert spec_of(tmp_path, base=BASE.replace("[1, 2]", "[1979-05-27]")).cells[0]["number"] == ["1979-05-27"]


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match=r"x\.toml: .*utf-8"):
        load_spec(path)


def test_the_page_on_tables_names_every_key() -> None:
    page = (ROOT / "docs" / "reference" / "extend.md").read_text("utf-8")
    part = page.partition("## A table of your own")[2].partition("## A data set of your own")[0]
    prose = re.sub(r"^```.*?^```", "", part, flags=re.DOTALL | re.MULTILINE)
    words = {word for code in re.findall(r"`([^`]+)`", prose) for word in re.findall(r"\w+", code)}
    kinds = (Spec, Section, Target, Choice, Figure)
    assert [name for kind in kinds for name in kind.model_fields if name not in words] == []


def test_a_section_that_is_like_another_takes_coordinates_and_figures_of_a_paper_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        """title = "t"
cells = { number = [1] }
[[section]]
title = "one"
where = { a = 1, b = 2 }
paper = { x = { y = 1 } }
labels = { a = "A", b = "B" }
rows = ["number"]
figures = { f = { of = "f", digits = 1, minus = { a = 1, b = 2 } }, g = "g" }
[[section]]
title = "two"
like = "one"
where = { b = 3 }
paper = {}
labels = { b = "C" }
figures = { f = { minus = { b = 2 } } }
""",
        "utf-8",
    )
    two = load_spec(path).section[1]
    assert (two.where, two.paper, two.labels) == ({"b": 3}, {}, {"a": "A", "b": "C"})
    assert list(two.figures) == ["f", "g"] and (two.figures["f"].digits, two.figures["f"].minus) == (1, {"b": 2})
