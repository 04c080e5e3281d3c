"""What a study is: the cells of a table, how one is measured, and how all of them become a report.

    Study(options, cells,       cells(options) -> [cell]             the coordinates of every measurement
          measure, report,      measure(options, data, cell)         one of them, a pure function
          identity)             report(options, results, prefix)     Markdown, with pictures named <prefix>-...
                                identity(options, cell)              what of the options a measurement depends on

A table of a paper takes minutes to hours. Cut into cells it can be measured on all cores, shows how far it is, and goes
on where it was stopped (`fedgate.firmware_sim.studies.runner`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.settings import settings
from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim.evaluate.datasets import EvaluationError

Profile = Literal["full", "short"]
Cell = dict[str, Any]  # the coordinates of one measurement, plain JSON: {"set": "letter", "clients": 5}
Figures = dict[str, float]  # what was measured there
Results = Sequence[tuple[Cell, Figures]]


class StudyError(EvaluationError):
    """A study that cannot be run; the message is one line."""


class StudyOptions(settings.Table):
    """The keys that every study has; a subclass adds its own. `short` replaces keys where a profile of seconds is
    wanted.
    """

    study: str
    title: str
    seed: int = Field(default=0, ge=0)
    data: Path | None = None
    jobs: int | None = Field(default=None, ge=1)  # most cells at a time: running times want a machine to themselves
    short: dict[str, Any] = Field(default_factory=dict)


class Study(NamedTuple):
    """One kind of study; what it measures is chosen by the options in its experiment file."""

    options: type[StudyOptions]
    cells: Callable[[Any], list[Cell]]
    measure: Callable[[Any, Path, Cell], Figures]
    report: Callable[[Any, Results, Path], str]
    identity: Callable[[Any, Cell], Any]


def load_options(path: Path, study: Study, profile: Profile) -> StudyOptions:
    """Return the options in an experiment file; raises `SettingsError`."""
    options = settings.load(path, study.options)
    if profile == "full":
        return options
    raw = tomllib.loads(path.read_text(encoding=settings.ENCODING))
    data = {} if options.data is None else {"data": str(options.data)}
    try:
        return study.options.model_validate_json(json.dumps({**raw, **data, **raw.get("short", {})}), strict=True)
    except ValidationError as error:
        raise SettingsError(f"{path}: short.{find_first_problem(error)}") from None
