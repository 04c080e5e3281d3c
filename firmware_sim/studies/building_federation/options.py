"""What the study of the costs of federation may be told: sensors, ways to travel, and the paper's sum."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.building_federation.data import Windows
from fedgate.firmware_sim.studies.engine.study import StudyOptions

Model = Literal["federated", "central", "ridge", "last value"]


class Method(settings.Table):
    """One row of the table of costs.

    :param model: `federated` and `central` train the network, the latter on the rows of all; `ridge`, on what the
        network hears too, is solved from federated sums, and `last value` knows nothing.
    :param settings: of the algorithm, beside those that all share: how updates travel.
    :param sensors: where it is other than that of the others.
    :param rounds: where it is other than that of the others.
    """

    model: Model = "federated"
    settings: dict[str, Any] = Field(default_factory=dict)
    sensors: int | None = Field(default=None, ge=2)
    rounds: int | None = Field(default=None, ge=1)
    note: str = ""


class Paper(settings.Table):
    """The paper's own set-up, of which its claim on communication can be checked."""

    parameters: int = Field(ge=1)
    sensors: int = Field(ge=1)
    rounds: int = Field(ge=1)
    events: int = Field(ge=1)
    event_bytes: int = Field(ge=1)


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param heard: steps of 5 minutes that the network hears, `horizon` those from there to the one it tells.
    :param every: steps from one row to the next.
    :param trains: share of every recording that trains.
    :param counts: fleets of which the convergence is shown; `sensors` is the one that methods are compared on.
    :param algorithm: settings of `recurrent-fedavg` that all share.
    :param drawn: the ways that the picture shows, all where none is named.
    :param reached: losses of which is told what it took to reach them, as shares of the last value's.
    :param seeds: how many fleets and networks are drawn.
    :param note: what else a reader must know about how the experiment came about.
    """

    folder: str = "streams/keti_rooms"
    heard: int = Field(default=12, ge=1)
    horizon: int = Field(default=6, ge=1)
    every: int = Field(default=3, ge=1)
    trains: float = Field(default=0.75, gt=0, lt=1)
    counts: list[int] = Field(min_length=1)
    sensors: int = Field(ge=2)
    rounds: int = Field(ge=1)
    seeds: int = Field(default=2, ge=1)
    algorithm: dict[str, Any]
    methods: dict[str, Method]
    plain: str
    drawn: tuple[str, ...] = ()
    reached: list[float] = Field(min_length=1)
    paper: Paper
    note: str = ""

    @model_validator(mode="after")
    def _names_a_method(self) -> Self:
        if self.plain not in self.methods:
            raise ValueError(f"plain: expected one of {', '.join(self.methods)}, got {self.plain!r}")
        unknown = [name for name in self.drawn if name not in self.methods]
        if unknown:
            raise ValueError(f"drawn: expected some of {', '.join(self.methods)}, got {unknown[0]!r}")
        return self

    @property
    def windows(self) -> Windows:
        """Return how recordings are cut."""
        return Windows(self.heard, self.horizon, self.every, self.trains)
