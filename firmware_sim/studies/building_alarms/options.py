"""What the study of alarm rules may be told: data sets, and by what each of them is watched."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.engine.study import StudyOptions
from fedgate.models.alarms.profile_spec import ProfileSpec
from fedgate.models.alarms.rule_statistics import Given
from fedgate.models.alarms.rules import RuleSpec

DataSet = Literal["keti", "skab", "nab", "hvac"]
Score = Literal["none", "last value", "esn"]
CONTEXT = "context"  # the name of the rule that the profile speaks for


class Method(settings.Table):
    """One way of watching.

    :param rules: as a gateway has them in [alarm.rules].
    :param score: whose score the rules on the score judge.
    :param network: settings of the echo state network.
    :param profile: as a gateway has it in [alarm.contextual], for the rule named `context`.
    :param times_largest: the level of every rule is so often the largest of its baseline, whatever was promised.
    :param false_alarms_per_day: the promises that are tried, where not those of the set.
    """

    rules: RuleSpec
    score: Score = "none"
    network: dict[str, Any] = Field(default_factory=dict)
    profile: ProfileSpec | None = None
    times_largest: float | None = Field(default=None, gt=1)
    false_alarms_per_day: list[float] = Field(default_factory=list)

    @model_validator(mode="after")
    def _context_has_a_profile(self) -> Self:
        given = [name for name, rule in self.rules.rules.items() if isinstance(rule, Given)]
        if given != [CONTEXT] * (self.profile is not None):
            raise ValueError(
                f"rules {given} of kind 'given', expected one named {CONTEXT!r} exactly where profile is set"
            )
        return self


class AlarmSet(settings.Table):
    """One data set.

    :param folder: below the folder of data.
    :param watched: names of the columns that are watched, each as a sensor of its own; all as one where none is given.
    :param faults: how many of each kind are put into each watched column; none where 0.
    :param false_alarms_per_day: the promises that are tried.
    :param merge_s: alarms less than this apart are one.
    """

    data: DataSet
    folder: str
    watched: tuple[str, ...] = ()
    faults: int = Field(default=0, ge=0)
    false_alarms_per_day: list[float] = Field(min_length=1)
    merge_s: float = Field(gt=0)
    methods: dict[str, Method]
    note: str = ""


class Target(settings.Table):
    """What a method is to reach on the reported part of a set.

    :param promised: at which promise it is measured.
    :param figure: which figure is to be `least` or more, at no more than `false_alarms_per_day`.
    """

    set: str
    method: str
    promised: float
    figure: str = "recall"
    least: float
    false_alarms_per_day: float
    words: str


class Paper(settings.Table):
    """One row of the paper's table: correct and false alarms in percent, collective and contextual."""

    method: str
    collective: tuple[float, float]
    contextual: tuple[float, float]


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param collective: kinds of faults that are collective, many rows wrong together; `contextual` those out of place.
    :param held_within: the factor within which a promise is to hold on healthy data of a later period.
    :param checked: by set the methods whose promise is checked.
    """

    sets: dict[str, AlarmSet]
    targets: list[Target] = Field(default_factory=list)
    paper: list[Paper] = Field(default_factory=list)
    paper_note: str = ""
    collective: list[str] = Field(default_factory=list)
    contextual: list[str] = Field(default_factory=list)
    held_within: float = Field(default=1.5, gt=1)
    checked: dict[str, list[str]] = Field(default_factory=dict)
    note: str = ""

    def promises(self, name: str, method: str) -> list[float]:
        """Return the promises at which a method is tried; a level that promises nothing is tried once."""
        each = self.sets[name]
        tried = each.methods[method].false_alarms_per_day or each.false_alarms_per_day
        return tried[:1] if each.methods[method].times_largest is not None else tried

    @model_validator(mode="after")
    def _targets_exist(self) -> Self:
        for target in self.targets:
            known = target.set not in self.sets or (
                target.method in self.sets[target.set].methods
                and target.promised in self.promises(target.set, target.method)
            )
            if not known:
                raise ValueError(f"targets: {target.set!r} has no {target.method!r} at {target.promised:g} a day")
        return self
