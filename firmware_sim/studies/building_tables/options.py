"""What the study of smart buildings may be told: tables, methods with what is tried of each, the paper's figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.building_tables.data import DataSet
from fedgate.firmware_sim.studies.engine.study import StudyOptions

TRIVIAL = ("majority", "mean", "persistence", "day before")
Model = Literal["majority", "mean", "persistence", "day before", "lags", "esn", "recurrent"]
Count = Annotated[int, Field(ge=1)]


class Method(settings.Table):
    """One row of a table.

    :param data: `federated`, `central`: one gateway that holds all rows, or `local`: every gateway for itself.
    :param columns: channels that `lags` sees; all where not given.
    :param fixed: settings, `network.hidden` being that of a table in a table.
    :param grid: settings to choose among on the inner folds, with the number of rounds where there are several.
    :param like: the settings and rounds chosen for another method are taken, and `fixed` on top of them.
    :param rounds: most rounds; all of them where nothing is chosen.
    :param fraction: of the gateways that take part in a round, others each time or, without `redraw`, the same.
    :param seeds: at most so many of the table's seeds.
    :param only_seen: it has nothing for a gateway that did not train.
    """

    model: Model
    data: Literal["federated", "central", "local"] = "federated"
    columns: tuple[int, ...] = ()
    fixed: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)
    like: str = ""
    rounds: Count = 1
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    redraw: bool = True
    seeds: Count | None = None
    only_seen: bool = False

    @property
    def seeded(self) -> bool:
        """Whether another seed makes another result."""
        return self.model in ("esn", "recurrent")


class Target(settings.Table):
    """What is wanted of a figure of the table's group: at least, or at most, and which methods may reach it.

    `beside` are those that the figure is to be read against.
    """

    figure: str
    least: float | None = None
    most: float | None = None
    methods: list[str] = Field(min_length=1)
    beside: list[str] = Field(default_factory=list)


class TableOptions(settings.Table):
    """One table: a task and the methods on it.

    :param folder: below the folder of data.
    :param window: steps that are seen, and `horizon` how many later the value is; 0 for a class.
    :param change: whether methods tell a value as its change over the last one.
    :param every: of the windows that train one in so many does.
    :param left_out: rooms that are left out in turn.
    :param group: gateways over which the figures are: those that trained, the others, or all of them.
    :param recurrent: settings of the recurrent networks here, below those of a method; not of the paper's form, nor of
        linear ones, which have no size.
    :param curve: methods whose error after each round is drawn, and `roc` those whose curve is.
    :param near: pairs of a federated method and the same in one place.
    """

    data: DataSet
    folder: str
    methods: list[str] = Field(min_length=1)
    window: Count
    horizon: Annotated[int, Field(ge=0)] = 0
    change: bool = True
    every: Count = 1
    seeds: Count = 3
    left_out: list[str] = Field(default_factory=lambda: [""], min_length=1)
    group: Literal["all", "seen", "unseen"] = "all"
    recurrent: dict[str, Any] = Field(default_factory=dict)
    curve: list[str] = Field(default_factory=list)
    roc: list[str] = Field(default_factory=list)
    near: list[tuple[str, str]] = Field(default_factory=list)
    targets: list[Target] = Field(default_factory=list)
    note: str = ""


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param paper: the paper's figures by method and name of the figure.
    :param note: what else a reader must know about how the experiment came about.
    """

    tables: dict[str, TableOptions] = Field(min_length=1)
    methods: dict[str, Method] = Field(min_length=1)
    paper: dict[str, dict[str, float]] = Field(default_factory=dict)
    note: str = ""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name, method in self.methods.items():
            if method.data == "local" and method.grid:
                raise ValueError(f"methods.{name}.grid: expected none with data 'local', whose folds are other rooms")
            if method.like and (method.grid or self._chooser(method.like) is None):
                raise ValueError(f"methods.{name}.like: expected a method with a grid, and none here: {method.like!r}")
        for name, table in self.tables.items():
            paired = [each for pair in table.near for each in pair]
            wanted = [each for target in table.targets for each in [*target.methods, *target.beside]]
            named = {"methods": table.methods, "curve": table.curve, "roc": table.roc, "near": paired}
            for key, names in {**named, "targets": wanted}.items():
                known = list(self.methods) if key == "methods" else table.methods
                unknown = [each for each in names if each not in known]
                if unknown:
                    raise ValueError(f"tables.{name}.{key}: {unknown[0]!r} is none of {', '.join(known)}")
            if table.horizon == 0:
                wrong = [each for each in table.methods if self.methods[each].model in TRIVIAL[1:]]
                if wrong:
                    raise ValueError(f"tables.{name}.methods: {wrong[0]!r} tells values, expected methods for classes")
        return self

    def _chooser(self, name: str) -> Method | None:
        found = self.methods.get(name)
        return found if found is not None and found.grid and found.model == "recurrent" else None


def combinations(table: TableOptions, method: Method) -> Iterator[dict[str, Any]]:
    """Yield every choice of settings that a method offers on a table."""
    for values in product(*method.grid.values()):
        yield {**of_table(table, method), **method.fixed, **dict(zip(method.grid, values, strict=True))}


def of_table(table: TableOptions, method: Method) -> dict[str, Any]:
    """Return the settings that a table has for a method."""
    sized = method.fixed.get("network.cell") != "linear" and not method.fixed.get("paper")
    return table.recurrent if method.model == "recurrent" and sized else {}
