"""What the bridges study may be told: recordings, windows, methods with their settings, and the paper's own figures."""

from __future__ import annotations

import inspect
from typing import Self

from pydantic import Field, model_validator

from fedgate.firmware_sim.studies.bridges.aligned_events import aligned_events
from fedgate.firmware_sim.studies.bridges.data import DataSet, Spectrum
from fedgate.firmware_sim.studies.bridges.methods import ALIGNED, DISTANCE, FOREST, Method, View
from fedgate.firmware_sim.studies.engine.study import StudyOptions
from fedgate.models.federated import ALGORITHMS, COMMON_SETTINGS

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of healthy and damaged scores, for the picture


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param folder: of the recordings, below the folder of data; Munich's come with the package.
    :param train_setups: healthy windows of these train; settings are chosen by leaving one of them out in turn.
    :param test_setups: these are reported and choose nothing.
    :param sweep: instead of a table, how values of a setting change the result, as curves.
    :param states: what each damaged state is, for the table.
    :param local: the method that the others are held against, since it needs no federation.
    :param shown: the federated method that stands beside it in the picture of setups.
    :param note: what else a reader must know about how the experiment came about.
    :param paper: figures of the paper by method, one for each of its bridges.
    :param targets: the least AUC of the fleet that is wanted of some federated method, by view.
    """

    data_set: DataSet
    folder: str = ""
    train_setups: list[int]
    test_setups: list[int]
    views: list[View]
    spectra: list[Spectrum] = Field(min_length=1)
    methods: dict[str, Method]
    sweep: dict[str, list[int]] = Field(default_factory=dict)
    states: dict[str, str] = Field(default_factory=dict)
    paper: dict[str, list[float]] = Field(default_factory=dict)
    local: str
    shown: str
    note: str = ""
    targets: dict[View, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for key, name in (("local", self.local), ("shown", self.shown)):
            if name not in self.methods:
                raise ValueError(f"{key}: {name!r} is no method; expected one of {', '.join(self.methods)}")
        for name, method in self.methods.items():
            _check_settings(name, method)
        overlap = sorted(set(self.train_setups) & set(self.test_setups))
        if overlap:
            raise ValueError(f"test_setups: setup {overlap[0]} trains as well; expected setups that choose nothing")
        if len(self.train_setups) == 1 and not self.sweep:
            for name, method in self.methods.items():
                if len(self.spectra) > 1 or any(len(values) > 1 for values in method.grid.values()):
                    raise ValueError(f"methods.{name}: settings are chosen among training setups; expected one choice")
        return self


def _check_settings(name: str, method: Method) -> None:
    """Raise ValueError for an algorithm that there is none of, or a setting that it does not take."""
    if method.algorithm not in (*ALGORITHMS, ALIGNED, FOREST, DISTANCE):
        expected = ", ".join((*ALGORITHMS, ALIGNED, FOREST, DISTANCE))
        raise ValueError(f"methods.{name}.algorithm: expected one of {expected}, got {method.algorithm!r}")
    known = {"normalisation"}
    if method.algorithm in ALGORITHMS:
        known |= inspect.signature(ALGORITHMS[method.algorithm]).parameters.keys() | COMMON_SETTINGS.keys()
    if method.algorithm == ALIGNED:
        known |= inspect.signature(aligned_events).parameters.keys()
    unknown = sorted((method.fixed.keys() | method.grid.keys()) - known)
    if unknown:
        raise ValueError(f"methods.{name}: {method.algorithm} has no setting {unknown[0]!r}")
