"""What the study of sensor streams may be told: data sets, methods with what is tried of each, and targets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.engine.study import StudyOptions
from fedgate.firmware_sim.studies.esn_streams.data import DataSet

Model = Literal["esn", "lags", "last value", "level"]
SETTINGS: dict[Model, frozenset[str]] = {
    "esn": frozenset({"ridge", "units", "leak", "spectral_radius", "input_scaling", "bias_scaling"}),
    "lags": frozenset({"ridge", "lags"}),
    "last value": frozenset(),
    "level": frozenset(),
}


class StreamSet(settings.Table):
    """One data set.

    :param folder: below the folder of data; Munich's recordings come with the package.
    :param methods: names of those that are tried on it.
    :param targets: columns that task `reconstruct` tells from the others.
    :param channels: of a room, those that faults are put into.
    :param columns: of a room, those that a gateway sees; all where not given.
    :param faults: how many of each kind in each of them; `choice_faults` on the development half.
    :param smooth: how many of the last scores are averaged; which is chosen like any setting.
    :param seeds: how many reservoirs are drawn.
    :param choose: by which figure of the development half settings are chosen, the recall at the alarm level or the
        area; by `nothing` the first of everything on offer is taken.
    """

    data: DataSet
    folder: str = ""
    methods: list[str] = Field(min_length=1)
    targets: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    faults: int = Field(default=1, ge=1)
    choice_faults: int = Field(default=1, ge=1)
    false_alarms_per_day: float = Field(gt=0)
    smooth: list[int] = Field(default_factory=lambda: [1], min_length=1)
    seeds: int = Field(default=3, ge=1)
    choose: Literal["recall", "auc", "nothing"] = "auc"
    note: str = ""


class Method(settings.Table):
    """One row of a table: a model, what it is for, whose data it is fitted to, and what is tried of it."""

    model: Model
    data: Literal["federated", "local"] = "local"
    task: Literal["predict", "reconstruct"] = "predict"
    grid: dict[str, list[Any]] = Field(default_factory=dict)


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param note: what else a reader must know about how the experiment came about.
    :param targets: by set the recall wanted of some method and the false alarms a day at which it is wanted.
    """

    sets: dict[str, StreamSet]
    methods: dict[str, Method]
    note: str = ""
    targets: dict[str, tuple[float, float]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name, method in self.methods.items():
            unknown = sorted(method.grid.keys() - SETTINGS[method.model])
            if unknown:
                known = ", ".join(sorted(SETTINGS[method.model])) or "none"
                raise ValueError(f"methods.{name}: {method.model} has no setting {unknown[0]!r}, expected {known}")
        for name, each in self.sets.items():
            unknown = sorted(set(each.methods) - self.methods.keys())
            if unknown:
                raise ValueError(f"sets.{name}.methods: {unknown[0]!r} is none of {', '.join(self.methods)}")
            lost = [method for method in each.methods if self.methods[method].task == "reconstruct"]
            if lost and not each.targets:
                raise ValueError(f"sets.{name}.targets: expected the columns that {lost[0]!r} reconstructs, got none")
        return self


def combinations(method: Method, stream_set: StreamSet) -> list[dict[str, Any]]:
    """Return what is tried of a method: every combination of its settings and of how scores are smoothed."""
    return list(_combinations(method, stream_set))


def _combinations(method: Method, stream_set: StreamSet) -> Iterator[dict[str, Any]]:
    for values in product(*method.grid.values()):
        for smooth in stream_set.smooth:
            yield {**dict(zip(method.grid, values, strict=True)), "smooth": smooth}
