"""What the stress study may be told: features of a wrist, methods with their settings, and how subjects are split."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.engine.study import StudyOptions
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.federated import ALGORITHMS

CLOCK, ALWAYS, LOGISTIC = "clock", "always", "logistic"
BASELINES = (CLOCK, ALWAYS)  # look at no signal
Normalisation = Literal["recording", "commissioning", "moving"]
Count = Annotated[int, Field(ge=1)]
Duration = Annotated[float, Field(gt=0)]


class Method(settings.Table):
    """One row of the tables.

    :param algorithm: a federated one, `logistic` (one logistic regression of all training subjects' rows), or one that
        sees no signal: `clock`, `always`.
    :param data: `federated` with a gateway for each training subject, or `pooled`: one gateway that holds all of them.
    :param averages: moving averages of the features stand beside them.
    :param control: it shows what a method knows of the time, and is no candidate.
    :param silent: all features are zero, so that only what a method knows without a signal is left.
    :param feature_sets: on which it is measured, and `normalisations` in which; all where not given.
    :param grid: settings to choose among, `network.leak` being that of a table in a table.
    """

    algorithm: str
    data: Literal["federated", "pooled"] = "federated"
    averages: bool = False
    control: bool = False
    silent: bool = False
    feature_sets: list[str] | None = None
    normalisations: list[Normalisation] | None = None
    seeds: Count = 1
    fixed: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)


class Target(settings.Table):
    """The least mean AUC that is wanted of a method, and where."""

    method: str
    feature_set: str
    normalisation: Normalisation
    auc: float


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param folder: of the recordings, below the folder of data.
    :param features: what is measured; every stream of the recordings is a channel.
    :param feature_sets: names of features by the name of their set; the first is the picture's.
    :param folds: parts of the subjects that are left out in turn, `inner_folds` those of the others where settings and
        thresholds are chosen.
    :param commissioning_s: what a gateway knows at first; `moving_s` the memory of moving normalisation.
    :param averages_s: time constants of the moving averages.
    :param compare: pairs of methods, the first of which is held against the second subject by subject.
    :param late_s: how long after the start a second scoring begins, as if the wrist had been switched on only then.
    """

    folder: str
    features: FeatureSpec
    feature_sets: dict[str, list[str]] = Field(min_length=1)
    normalisations: list[Normalisation] = Field(min_length=1)
    folds: Annotated[int, Field(ge=2)]
    inner_folds: Annotated[int, Field(ge=2)]
    commissioning_s: Duration = 300.0
    moving_s: Duration = 300.0
    late_s: Duration
    averages_s: list[Duration] = Field(min_length=1)
    methods: dict[str, Method] = Field(min_length=1)
    compare: list[tuple[str, str]] = Field(default_factory=list)
    targets: list[Target] = Field(default_factory=list)
    note: str = ""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        known = feature_names(self.features)
        for name, members in self.feature_sets.items():
            unknown = [each for each in members if each not in known]
            if unknown:
                raise ValueError(f"feature_sets.{name}: {unknown[0]!r} is no feature; expected some of {known}")
        for name, method in self.methods.items():
            if method.algorithm not in (*ALGORITHMS, *BASELINES, LOGISTIC):
                expected = ", ".join((*BASELINES, LOGISTIC, *ALGORITHMS))
                raise ValueError(f"methods.{name}.algorithm: expected one of {expected}, got {method.algorithm!r}")
            strange = sorted(set(method.feature_sets or []) - self.feature_sets.keys())
            if strange:
                raise ValueError(f"methods.{name}.feature_sets: {strange[0]!r} is none of {list(self.feature_sets)}")
        unmeasured = sorted({name for pair in self.compare for name in pair} - self.methods.keys())
        if unmeasured:
            raise ValueError(f"compare: {unmeasured[0]!r} is no method; expected some of {list(self.methods)}")
        for target in self.targets:
            if target.method not in self.methods or target.feature_set not in self.feature_sets:
                raise ValueError(f"targets: {target.method!r} on {target.feature_set!r} is not measured")
        return self
