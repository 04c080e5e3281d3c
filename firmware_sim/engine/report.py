"""The report of a study, as data and from one template: tables, pictures, targets, and under what it was measured."""

from __future__ import annotations

import base64
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fedgate.firmware_sim.engine.frame import (
    PLACE,
    NothingShownError,
    Results,
    Shown,
    choices,
    lay_out,
    selected,
    taken,
)
from fedgate.firmware_sim.engine.pictures import draw, named
from fedgate.firmware_sim.engine.spec import Choice, Section, Spec, StudyError, Target, View

MISSING = "-"
WIDTH = 100
KEPT = "\0"  # a space at which no line is broken
# One before a word that would begin a list, a heading or the like, were it the first of a line.
BEGINS_A_BLOCK = re.compile(r"\s+(?=([-+*]|=+|-{2,}|#{1,6}|>\S*|\d{1,9}[.)]|\*{3,}|_{3,}|[`~]{3}\S*)(\s|$))")


class Table(NamedTuple):
    """The heads of columns, and the texts of rows."""

    head: list[str]
    rows: list[list[str]]


class Part(NamedTuple):
    """One section as the template writes it."""

    title: str
    text: str
    table: Table | None
    notes: list[str]
    picture: Path | None


def parts_of(spec: Spec, results: Results, prefix: Path, *, short: bool = False) -> Iterator[Part]:
    """Yield the sections of a report; pictures are written to `<prefix>-<number>.png`. A `short` run leaves out what it
    measured nothing for.

    Raises:
        StudyError: a section asks for a figure or coordinate that no cell has.
    """
    pictures = 0
    several = (_for_each(given, results) for given in spec.section)
    for parts, section in ((every, one) for every in several for one in every):
        try:
            picture = prefix.with_name(f"{prefix.name}-{pictures + 1}.png")
            if section is parts[0] and not short:
                _check_paper(parts, results)
            part = _part_of(section, results, picture)
            pictures += part.picture is not None
        except StudyError as error:
            is_empty = isinstance(error, NothingShownError)
            if is_empty and section.otherwise:
                part = Part(section.title, section.otherwise, None, [], None)
            elif is_empty and short:
                continue
            else:
                raise type(error)(f"section {section.title!r}: {error}") from None
        yield part


def _part_of(section: Section, results: Results, picture: Path) -> Part:
    """Return a section as it is written, after its picture was drawn where it is one."""
    part = Part(section.title, section.text.strip(), None, [], None)
    if section.kind == "table":
        return part._replace(table=tabulated(section, results), notes=list(_comparisons(section, results)))
    if section.kind == "targets":
        return part._replace(table=_targets(section, results))
    if section.kind == "choices":
        return part._replace(table=_choices(section, results))
    if section.kind == "text":
        return part
    draw(section, results, picture)
    return part._replace(picture=picture)


def _for_each(section: Section, results: Results) -> list[Section]:
    """Return a section for each value of its coordinate, its text with the first; itself where it names none, or where
    nothing has one.
    """
    shown, parts = _values(section, results) if section.each else [], list[Section]()
    for index, value in enumerate(shown):
        title = ", ".join(part for part in (section.title, named(section, value)) if part)
        where = {**section.where, section.each: value}
        parts.append(section.model_copy(update={"title": title, "text": section.text * (index == 0), "where": where}))
    return parts or [section]


def _values(section: Section, results: Results) -> list[Any]:
    """Return the values that a section is written for, of a coordinate of cells or in the name of its first figure."""
    shown = [found[section.each] for found, _ in selected(results, section.where) if section.each in found]
    figure = next(iter(section.figures.values()), None)
    if not shown and figure is not None and section.each in PLACE.findall(figure.of):
        with suppress(NothingShownError):
            shown = list(taken(results, figure, section.where)[section.each])
    return list(dict.fromkeys(shown))


def tabulated(section: Section, results: Results) -> Table:
    """Return a section as a table, with the paper's figures in brackets."""
    entries = lay_out(results, section)
    heads = list(dict.fromkeys(column for columns in entries.values() for column in columns))
    if not section.columns:  # figures are the columns, in the order of the file
        heads = [(head,) for head in section.figures if (head,) in heads]
    words = [_head(section, column) for column in heads]
    rows = []
    for row, columns in entries.items():
        texts = [format_shown(section, column, columns.get(column)) for column in heads]
        paper = section.paper.get(_row_name(row), {})
        texts = [
            f"{text} ({paper[word]:,.10g})" if word in paper else text for text, word in zip(texts, words, strict=True)
        ]
        bold = _bold(section, entries, row, heads)
        rows.append(
            [*(named(section, value) for value in row)]
            + [f"**{text}**" if column in bold else text for text, column in zip(texts, heads, strict=True)]
        )
    return Table([*(named(section, key) for key in section.rows), *words], rows)


def _check_paper(parts: Sequence[Section], results: Results) -> None:
    """Refuse figures of a paper beside which none of ours would stand, in any part of a section."""
    paper = parts[0].paper if parts[0].kind == "table" else {}
    laid_out = [(part, lay_out(results, part)) for part in parts if paper]
    rows = list(dict.fromkeys(_row_name(row) for _, entries in laid_out for row in entries))
    heads = {_head(part, column) for part, entries in laid_out for columns in entries.values() for column in columns}
    for row, figures in paper.items():
        if row not in rows:
            raise StudyError(f"paper: no row is {row!r}; expected one of {'; '.join(rows)}")
        if unknown := sorted(figures.keys() - heads):
            raise StudyError(f"paper: no column is {unknown[0]!r}; expected one of {'; '.join(sorted(heads))}")


def _row_name(row: tuple[Any, ...]) -> str:
    return ", ".join(_plain(value) for value in row)


def _head(section: Section, column: tuple[Any, ...]) -> str:
    *coordinates, head = column
    names = [named(section, value) for value in coordinates]
    return ", ".join(names if len(section.figures) == 1 and names else [*names, head])


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_shown(section: View, column: tuple[Any, ...], shown: Shown | None) -> str:
    """Return a figure with its spread, as its column wants it."""
    if shown is None or math.isnan(shown.value):
        return MISSING
    digits = section.figures[column[-1]].digits
    text = f"{shown.value:z,.{digits}f}"  # no minus before zeros
    return text if math.isnan(shown.spread) else f"{text} ± {shown.spread:,.{digits}f}"


def _bold(section: Section, entries: dict[Any, dict[Any, Shown]], row: Any, heads: list[Any]) -> set[Any]:
    """Return the columns whose figure stands out in this row."""
    if not section.bold:
        return set()
    which, _, where = section.bold.split()
    best = max if which == "highest" else min

    def shown(row: Any, column: Any) -> float:
        entry = entries[row].get(column)
        return math.nan if entry is None else round(entry.value, section.figures[column[-1]].digits)

    found = set()
    for column in heads:
        beside = [shown(row, each) for each in heads] if where == "row" else [shown(each, column) for each in entries]
        known = [value for value in beside if not math.isnan(value)]
        if known and shown(row, column) == best(known):
            found.add(column)
    return found


def _comparisons(section: Section, results: Results) -> Iterator[str]:
    """Say which rows lie above and below the one they are held against, and which are not told apart.

    Two figures are told apart that differ by more than the root of the sum of the squares of their spreads.
    """
    if not section.against:
        return
    entries = lay_out(results, section)
    places = {row: dict(zip(section.rows, row, strict=True)) for row in entries}
    bases = [row for row in entries if all(places[row][key] == value for key, value in section.against.items())]
    if not bases:
        where = ", ".join(f"{key}={value}" for key, value in section.against.items())
        raise NothingShownError(f"against: no row has {where}")
    for row in bases:
        others = {
            other: each
            for other, each in entries.items()
            if other != row
            and all(places[other][key] == places[row][key] for key in section.rows if key not in section.against)
        }
        for column, base in entries[row].items():
            if math.isnan(base.value) or math.isnan(base.spread):
                continue
            sides: dict[str, list[str]] = {"Above": [], "Below": [], "Not told apart from": []}
            for other, each in others.items():
                if column in each and not math.isnan(each[column].value):
                    name = ", ".join(named(section, places[other][key]) for key in section.against)
                    sides[_side(each[column], base)].append(name)
            name = ", ".join(named(section, value) for value in [*row, *column])
            sentences = [f"{side} it: {'; '.join(names)}." for side, names in sides.items() if names]
            yield " ".join([f"{name}, {format_shown(section, column, base)}.", *sentences])


def _side(shown: Shown, base: Shown) -> str:
    error = math.hypot(*(0.0 if math.isnan(each.spread) else each.spread for each in (shown, base)))
    difference = shown.value - base.value
    return "Not told apart from" if abs(difference) <= error else "Above" if difference > 0 else "Below"


def _targets(section: Section, results: Results) -> Table:
    own = section.model_dump(include=set(View.model_fields))
    rows = []
    for target in section.targets:
        whole = Target.model_validate({**own, **target.model_dump(exclude_unset=True)})
        rows += [[target.text, *verdict] for verdict in _verdicts(section, whole, results)]
    return Table(["target", "wanted", "measured", "met"], rows)


def _verdicts(section: Section, target: Target, results: Results) -> Iterator[list[str]]:
    entries = lay_out(results, target)
    flat = {(*row, *column[:-1]): shown for row, columns in entries.items() for column, shown in columns.items()}
    known = {place: shown.value for place, shown in flat.items() if not math.isnan(shown.value)}
    (head,) = target.figures
    if not known:
        yield [_bound(target), MISSING, "**no**"]
        return
    best = (max if target.least is not None else min)(known, key=lambda place: known[place])
    for place in known if target.every else [best]:
        is_met = known[place] >= target.least if target.least is not None else known[place] <= (target.most or 0.0)
        name = ", ".join(named(section, each) for each in place)
        text = format_shown(target, (head,), flat[place])
        yield [_bound(target), f"{text} ({name})" if name else text, "yes" if is_met else "**no**"]


def _bound(target: Target) -> str:
    return f"at least {target.least:g}" if target.least is not None else f"at most {target.most:g}"


def _choices(section: Section, results: Results) -> Table:
    table = choices(results, section, cast(Choice, section.choose))  # which this kind has
    rows = [[named(section, value) for value in line] for line in table.itertuples(index=False)]
    return Table([named(section, str(key)) for key in table], rows)


def write_report(spec: Spec, parts: Sequence[Part], facts: dict[str, Any], template: str) -> str:
    """Return a report: `report.md` for the docs, `report.html` as one page with its pictures inside."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=template.endswith(".html"),
    )
    environment.filters |= {"wrap": _wrap, "paragraphs": _paragraphs, "cell": _cell, "embedded": _embedded}
    return environment.get_template(template).render(spec=spec, parts=parts, **facts)


def _wrap(text: str) -> str:
    """Return paragraphs with lines of no more than `WIDTH`; items of a list and notes behind `> ` stay such."""
    return "\n\n".join("\n".join(map(_filled, _lines(paragraph))) for paragraph in _split(text))


def _paragraphs(text: str) -> Markup:
    """Return paragraphs as HTML, with what stands between backticks as code."""
    parts = [re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(part))) for part in _split(text)]
    return Markup("\n".join(f"<p>{part}</p>" for part in parts))  # noqa: S704 - escaped above


def _split(text: str) -> list[str]:
    return re.split(r"\n\s*\n", text.strip())


def _lines(paragraph: str) -> list[str]:
    found: list[str] = []
    for line in map(str.strip, paragraph.splitlines()):
        if line.startswith("- ") or not found:
            found.append(line)
        else:
            found[-1] += f" {line.removeprefix('> ') if found[-1].startswith('> ') else line}"
    return found


def _filled(line: str) -> str:
    indent = next((mark for mark in ("> ", "- ") if line.startswith(mark)), "")
    text = textwrap.fill(
        BEGINS_A_BLOCK.sub(KEPT, line[len(indent) :]),
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent.replace("-", " "),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return text.replace(KEPT, " ")


def _cell(text: str) -> str:
    """Return a text that no table of Markdown is broken by."""
    return " ".join(text.split()).replace("|", r"\|")


def _embedded(picture: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode("ascii")
