"""A study as a file describes it: which cells a probe measures, and what is shown of them.

    settings, define, cells     the cases: what stays, what names stand for, and the axes whose product is measured
    section                     the report: tables, pictures and targets, in order, each with the prose that judges it

A *cell* is the probe's case with each axis at one value. Any field of a case may be a setting or an axis.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.settings import settings
from fedgate.config.settings.problems import list_problems
from fedgate.config.settings.settings import SettingsError

HEAD = "figure"  # the coordinate of a figure among several
PICTURE = ("figures", "rows")
NEEDS: dict[str, tuple[str, ...]] = {  # what each kind of section shows
    "table": ("figures",),
    **dict.fromkeys(("lines", "points", "bars"), PICTURE),
    "targets": ("targets",),
    "choices": ("choose",),
    "text": ("text",),
}

Axes = dict[str, Any]
Figures = dict[str, float]  # what one cell measured, by name


class StudyError(ValueError):
    """A study that cannot be run; the message is one line."""


class Figure(settings.Table):
    """A figure of the cells, as it is shown.

    :param of: its name; `auc.{draw}` takes every figure of that form, and what stands for `draw` is a coordinate.
    :param where: coordinates beside those of the view.
    :param scale: what it is multiplied by.
    :param reduce: how cells that differ in nothing shown become one figure; what is no number is left out.
    :param spread: the sample standard deviation of those (n - 1), their standard error, or of their mean the figure
        named here.
    :param minus, over: coordinates; shown is the difference, or the ratio, to the cell that has these and is alike in
        all others. Where a `choice` was made, what was tried is no coordinate.
    """

    of: str
    where: Axes = Field(default_factory=dict)
    digits: Annotated[int, Field(ge=0)] = 3
    scale: float = 1.0
    reduce: Literal["mean", "median", "min", "max", "sum"] = "mean"
    spread: str = ""
    minus: Axes = Field(default_factory=dict)
    over: Axes = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_one_comparison(self) -> Self:
        if self.minus and self.over:
            raise ValueError("minus and over: both given; expected a difference or a ratio")
        return self


def _as_figure(value: object) -> object:
    return {"of": value} if isinstance(value, str) else value


Shown = Annotated[Figure, BeforeValidator(_as_figure)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class Choice(settings.Table):
    """Which cells stand for a row and column, where some coordinates were tried out.

    :param by: the figure, averaged over cells, that decides.
    :param among: the coordinates that are tried; the first of equals is taken.
    :param each: coordinates that are not shown for whose every value it is chosen anew, such as a seed.
    :param take: `best` alone, or `worst` as well; then `rank` is a coordinate.
    """

    by: str
    among: list[str]
    each: list[str] = Field(default_factory=list)
    lowest: bool = False
    take: tuple[Literal["best", "worst"], ...] = ("best",)


class View(settings.Table):
    """Figures of the cells, by row and column.

    :param figures: by their heads.
    :param where: coordinates, also those in names of figures, and the value or values that are shown.
    :param averaged: coordinates whose mean is taken before anything else, such as that of folds before a spread over
        draws.
    :param rows, columns: coordinates; where no column is named, figures are the columns.
    """

    figures: dict[str, Shown] = Field(default_factory=dict)
    where: Axes = Field(default_factory=dict)
    averaged: list[str] = Field(default_factory=list)
    choose: Choice | None = None
    rows: list[str] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)


class Target(View):
    """A bound that the best of the rows, or `every` one, is to keep: at least `least`, or at most `most`. What it does
    not say of a view is that of its section.
    """

    text: str
    every: bool = False
    least: float | None = None
    most: float | None = None

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        if (self.least is None) == (self.most is None):
            raise ValueError(f"target {self.text!r}: expected one of `least` and `most`")
        return self


class Section(View):
    """One part of a report; one that is `like` another before it, or of the file that its file is like, named by its
    title, has its keys below its own: figures by head and key by key, labels by name, every other table, such as
    `where`, as a whole.

    :param kind: a table; a picture of it, with the first of `rows` along the axis; the targets; what was chosen; or
        prose alone.
    :param each: a coordinate; the section is written once for each value of it, which becomes the title of one without.
    :param also: what is shown of the same behind it, such as a picture: each a section without title and text, whose
        keys stand in place of those here.
    :param otherwise: what is said in its place where no cell has its figures, which is an error without it.
    :param labels: words for coordinates and their values.
    :param paper: what the paper has, by row (coordinates joined with `, `) and column; shown in brackets.
    :param bold: which figure of a row or column stands out.
    :param against: coordinates of the row that the others are held against, figure by figure that has a spread.
    :param panels: in a picture, the coordinate or `figure`, or several, with a panel for each value.
    :param stacked: in a picture, the panels stand one below the other, on one axis.
    :param along: in a picture, the figure along the axis in place of the first of `rows`.
    :param level: in a picture, heights with a line across.
    :param shaded: in a picture of lines, a figure: the panel is shaded where it is above 0.
    """

    title: str = ""
    text: str = ""
    kind: Literal["table", "lines", "points", "bars", "targets", "choices", "text"] = "table"
    each: str = ""
    also: list[dict[str, Any]] = Field(default_factory=list)
    otherwise: str = ""
    labels: dict[str, str] = Field(default_factory=dict)
    paper: dict[str, dict[str, float]] = Field(default_factory=dict)
    bold: Literal["", "highest in row", "lowest in row", "highest in column", "lowest in column"] = ""
    against: Axes = Field(default_factory=dict)
    panels: Annotated[list[str], BeforeValidator(_as_list)] = Field(default_factory=list)
    stacked: bool = False
    along: Shown | None = None
    level: dict[str, float] = Field(default_factory=dict)
    shaded: str = ""
    log: Literal["", "x", "y", "xy"] = ""
    targets: list[Target] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_what_its_kind_shows(self) -> Self:
        if missing := next((field for field in NEEDS[self.kind] if not getattr(self, field)), ""):
            raise ValueError(f"section {self.title!r} of kind {self.kind!r} has no `{missing}`")
        for target in self.targets:
            if len(target.figures or self.figures) != 1:
                raise ValueError(f"target {target.text!r}: expected one figure")
        names = {"against": [*self.against], "panels": [name for name in self.panels if name != HEAD]}
        for field, allowed in (("against", self.rows), ("panels", [*self.rows[1:], *self.columns])):
            if unknown := [name for name in names[field] if name not in allowed]:
                raise ValueError(f"section {self.title!r}: {field}: {unknown[0]!r} is none of {', '.join(allowed)}")
        self.list_parts()
        return self

    def list_parts(self) -> list[Section]:
        """Return it and what is shown of the same behind it; raises `ValueError` where that is wrong."""
        own = self.model_dump(exclude_unset=True, exclude={"also", "title", "text"})
        try:
            return [self, *(Section.model_validate(own | each) for each in self.also)]
        except ValidationError as error:
            raise ValueError(f"section {self.title!r}: also: {find_first_problem(error)}") from None


class Spec(settings.Table):
    """A study.

    :param about: what was measured, how data were split, and what was chosen on what.
    :param probe: the module of `studies/probes` that measures a cell, the full name of another one, or `evaluate`: any
        algorithm on any table or recordings.
    :param data: the folder of data, relative to the file, where it comes with it.
    :param jobs: most cells at a time: running times want a machine to themselves.
    :param settings: fields of the probe's case that are the same in all cells.
    :param define: by axis, what its names stand for; `like` takes over another's keys, `grid` of settings is an axis of
        its own, `only` restricts other axes.
    :param cells: by axis a list of values, a number n for 0 to n - 1, or `*` for every name that is defined; several
        products one after the other. An axis may lie inside another: `method.settings.rounds = [1, 5, 20]`.
    """

    title: Annotated[str, Field(pattern=r"\S")]
    about: str = ""
    probe: str = "evaluate"
    data: Path | None = None
    jobs: Annotated[int, Field(ge=1)] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    define: dict[str, dict[str, Any]] = Field(default_factory=dict)
    cells: Annotated[list[Axes], BeforeValidator(lambda value: [value] if isinstance(value, dict) else value)]
    section: list[Section] = Field(default_factory=list)


def load_spec(path: Path) -> Spec:
    """Return the study that a file describes.

    Raises:
        SettingsError: a file is wrong.
    """
    return spec_of(load_raw(path), path)


def spec_of(raw: dict[str, Any], path: Path | None) -> Spec:
    """Return the study that the keys of a file describe, or those of a command; raises `SettingsError`."""
    try:
        spec = Spec.model_validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        if path is None:
            raise SettingsError(find_first_problem(error)) from None
        text = path.read_text(encoding=settings.ENCODING)
        raise SettingsError("\n".join(f"{path}:{problem}" for problem in list_problems(text, error, Spec))) from None
    return spec.model_copy(update={"section": [part for section in spec.section for part in section.list_parts()]})


def load_raw(path: Path) -> dict[str, Any]:
    """Return the keys of a file; with `like = "other.toml"`, they replace those of the other one.

    Raises:
        SettingsError: a file cannot be read.
    """
    raw = _merged(path)
    if not raw.get("data"):
        raw.pop("data", None)
    return raw


def _merged(path: Path, likes: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in likes:
        raise SettingsError(f"{path}: like: the files are like each other; expected one that is like none")
    try:
        raw = tomllib.loads(path.read_text(encoding=settings.ENCODING))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; expected a TOML file that describes a study") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    if raw.get("data"):
        raw["data"] = str(path.parent / str(raw["data"]))
    like = raw.pop("like", None)
    base = {} if like is None else _merged(path.parent / str(like), (*likes, path.resolve()))
    if isinstance(raw.get("section"), list):
        raw["section"] = _spelled_out(raw["section"], base.get("section", []))
    return overlaid(base, raw)


def _spelled_out(sections: list[dict[str, Any]], before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return sections with the keys of those that they are `like`, of this file or of sections `before` it."""
    by_title = {section.get("title", ""): section for section in before}
    found = []
    for section in sections:
        like = section.pop("like", None)
        if like is not None and like not in by_title:
            raise SettingsError(f"section.like: {like!r} given; expected the title of a section before it")
        whole = section if like is None else _laid_over(by_title[like], section)
        by_title[whole.get("title", "")] = whole
        found.append(whole)
    return found


def _laid_over(base: dict[str, Any], section: dict[str, Any]) -> dict[str, Any]:
    """Return a section over that which it is like: figures by head and key by key, labels by name, all else whole."""
    found = base | section
    for key in ("figures", "labels"):
        own, below = section.get(key), base.get(key)
        if isinstance(own, dict) and isinstance(below, dict):
            found[key] = below | {
                head: below[head] | value if isinstance(value, dict) and isinstance(below.get(head), dict) else value
                for head, value in own.items()
            }
    return found


def overlaid(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `over` in place of its own, tables key by key."""
    found = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = overlaid(found[key], value) if both else value
    return found
