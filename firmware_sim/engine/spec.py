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
    :param scale: what it is multiplied by.
    :param reduce: how cells that differ in nothing shown become one figure; what is no number is left out.
    :param spread: the sample standard deviation of those (n - 1), their standard error, or of their mean the figure
        named here.
    :param minus: coordinates; shown is the difference to the cell that has these and is alike in all others.
    """

    of: str
    digits: Annotated[int, Field(ge=0)] = 3
    scale: float = 1.0
    reduce: Literal["mean", "median", "min", "max", "sum"] = "mean"
    spread: str = ""
    minus: Axes = Field(default_factory=dict)


def _as_figure(value: object) -> object:
    return {"of": value} if isinstance(value, str) else value


Shown = Annotated[Figure, BeforeValidator(_as_figure)]


class Choice(settings.Table):
    """Which cells stand for a row and column, where some coordinates were tried out.

    :param by: the figure, averaged over cells, that decides.
    :param among: the coordinates that are tried; the first of equals is taken.
    :param take: `best` alone, or `worst` as well; then `rank` is a coordinate.
    """

    by: str
    among: list[str]
    lowest: bool = False
    take: tuple[Literal["best", "worst"], ...] = ("best",)


class View(settings.Table):
    """Figures of the cells, by row and column.

    :param figures: by their heads.
    :param where: coordinates and the value or values that are shown.
    :param rows, columns: coordinates; where no column is named, figures are the columns.
    """

    figures: dict[str, Shown] = Field(default_factory=dict)
    where: Axes = Field(default_factory=dict)
    choose: Choice | None = None
    rows: list[str] = Field(default_factory=list)
    columns: list[str] = Field(default_factory=list)


class Target(View):
    """A bound that the best of the rows is to keep: at least `least`, or at most `most`. What it does not say of a view
    is that of its section.
    """

    text: str
    least: float | None = None
    most: float | None = None

    @model_validator(mode="after")
    def _has_one_bound(self) -> Self:
        if (self.least is None) == (self.most is None):
            raise ValueError(f"target {self.text!r}: expected one of `least` and `most`")
        return self


class Section(View):
    """One part of a report.

    :param kind: a table; a picture of it, with the first of `rows` along the axis; the targets; what was chosen; or
        prose alone.
    :param labels: words for coordinates and their values.
    :param paper: what the paper has, by row (coordinates joined with `, `) and column; shown in brackets.
    :param bold: which figure of a row or column stands out.
    :param against: coordinates of the row that the others are held against, figure by figure that has a spread.
    :param panels: in a picture, the coordinate or `figure` that has a panel for each value.
    :param level: in a picture, heights with a line across.
    """

    title: str = ""
    text: str = ""
    kind: Literal["table", "lines", "points", "bars", "targets", "choices", "text"] = "table"
    labels: dict[str, str] = Field(default_factory=dict)
    paper: dict[str, dict[str, float]] = Field(default_factory=dict)
    bold: Literal["", "highest in row", "lowest in row", "highest in column", "lowest in column"] = ""
    against: Axes = Field(default_factory=dict)
    panels: str = ""
    level: dict[str, float] = Field(default_factory=dict)
    log: Literal["", "x", "y", "xy"] = ""
    targets: list[Target] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_what_its_kind_shows(self) -> Self:
        if missing := next((field for field in NEEDS[self.kind] if not getattr(self, field)), ""):
            raise ValueError(f"section {self.title!r} of kind {self.kind!r} has no `{missing}`")
        for target in self.targets:
            if len(target.figures or self.figures) != 1:
                raise ValueError(f"target {target.text!r}: expected one figure")
        names = {"against": [*self.against], "panels": [self.panels] * (self.panels not in ("", HEAD))}
        for field, allowed in (("against", self.rows), ("panels", [*self.rows[1:], *self.columns])):
            if unknown := [name for name in names[field] if name not in allowed]:
                raise ValueError(f"section {self.title!r}: {field}: {unknown[0]!r} is none of {', '.join(allowed)}")
        return self


class Spec(settings.Table):
    """A study.

    :param about: what was measured, how data were split, and what was chosen on what.
    :param probe: the module of `studies/probes` that measures a cell, or the full name of another one.
    :param folder: of the data set, below the folder of data.
    :param data: the folder of data, relative to the file, where it comes with it.
    :param jobs: most cells at a time: running times want a machine to themselves.
    :param settings: fields of the probe's case that are the same in all cells.
    :param define: by axis, what its names stand for; `like` takes over another's keys, `grid` of settings is an axis of
        its own, `only` restricts other axes.
    :param cells: by axis a list of values, a number n for 0 to n - 1, or `*` for every name that is defined; several
        products one after the other. An axis may lie inside another: `method.settings.rounds = [1, 5, 20]`.
    """

    title: str
    about: str
    probe: str
    folder: str = ""
    data: Path | None = None
    jobs: Annotated[int, Field(ge=1)] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    define: dict[str, dict[str, Any]] = Field(default_factory=dict)
    cells: Annotated[list[Axes], BeforeValidator(lambda value: [value] if isinstance(value, dict) else value)]
    section: list[Section] = Field(default_factory=list)


def load_spec(path: Path) -> Spec:
    """Return the study that a file describes; with `like = "other.toml"`, its keys replace those of the other file.

    Raises:
        SettingsError: a file is wrong.
    """
    raw = _merged(path)
    if not raw.get("data"):
        raw.pop("data", None)
    try:
        return Spec.model_validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        raise SettingsError(f"{path}: {find_first_problem(error)}") from None


def _merged(path: Path, likes: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in likes:
        raise SettingsError(f"{path}: like: the files are like each other; expected one that is like none")
    try:
        raw = tomllib.loads(path.read_text(encoding=settings.ENCODING))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; expected a TOML file that describes a study") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    if raw.get("data"):
        raw["data"] = str(path.parent / str(raw["data"]))
    like = raw.pop("like", None)
    return raw if like is None else overlaid(_merged(path.parent / str(like), (*likes, path.resolve())), raw)


def overlaid(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `over` in place of its own, tables key by key."""
    found = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = overlaid(found[key], value) if both else value
    return found
