"""What the study of memory may be told: tasks, what is tried of every model, and the grid of the capacity curve."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.engine.study import StudyOptions

Kind = Literal["narma", "mackey-glass", "air handling", "bearing", "occupancy", "pump"]
Leak = Annotated[float, Field(gt=0, le=1)]
Number = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class TaskOptions(settings.Table):
    """One task.

    :param folder: below the folder of data; a generated series has none.
    :param rows: how long a generated series is.
    :param ahead: of Mackey-Glass, how many steps after the input the target lies.
    """

    kind: Kind
    folder: str = ""
    rows: Count = 6_000
    ahead: Count = 84
    note: str = ""


class Grid(settings.Table):
    """What is tried of the networks, and the ridges of every model."""

    leak: list[Leak] = Field(min_length=1)
    spectral_radius: list[Number] = Field(min_length=1)
    input_scaling: list[Number] = Field(min_length=1)
    ridge: list[Number] = Field(min_length=1)
    lags: list[Count] = Field(min_length=1)


class Capacity(settings.Table):
    """The memory capacity curve: of what size, over which delays, at which leaks and radii."""

    units: Count = 100
    rows: Count = 6_000
    delays: Count = 100
    leak: list[Leak]
    spectral_radius: list[Number]


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param note: what else a reader must know about how the experiment came about.
    """

    tasks: dict[str, TaskOptions]
    units: Count = 200
    seeds: Count = 3
    grid: Grid
    capacity: Capacity
    note: str = ""
