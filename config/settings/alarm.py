"""When a gateway raises an alarm: the table [alarm] with its rules, its context, its covariates and its watch over
drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import model_validator

from fedgate.config.settings.base import Table
from fedgate.models.alarms.drift import DriftSpec
from fedgate.models.alarms.profile import context_columns
from fedgate.models.alarms.profile_spec import ProfileSpec
from fedgate.models.alarms.rule_statistics import Given, Point, Stuck
from fedgate.models.alarms.rules import RuleSpec
from fedgate.models.alarms.threshold import AlarmSpec, least_scores

CONTEXTUAL = "contextual"  # the name of that rule where none is given


class CovariateSpec(Table):
    """[alarm.covariates]: features that no change of the structure moves, by what they measure; see
    `fedgate.models.alarms.attribution`.

    :param weather: names of features of weather or load: a temperature, a wind speed, the traffic.
    :param power: names of features of the supply: the voltage of the sensors or of the gateway.
    """

    weather: tuple[str, ...] = ()
    power: tuple[str, ...] = ()


class AlarmTable(AlarmSpec):
    """[alarm]: the promise, and by what windows are judged.

    Without `rules` and `contextual` the score of the model is judged alone. With `contextual` alone it shares the
    promise with the deviation from the profile, half and half. `evidence` is what follows an anomaly, see
    `fedgate.config.protocol.evidence`: `reduced` is without scores and spectrum.
    """

    rules: RuleSpec | None = None
    contextual: ProfileSpec | None = None
    drift: DriftSpec | None = None
    covariates: CovariateSpec = CovariateSpec()
    evidence: Literal["full", "reduced", "off"] = "full"

    @property
    def active_rules(self) -> RuleSpec | None:
        """The rules that are in force, None for the score alone."""
        if self.rules is None and self.contextual is not None:
            return RuleSpec(rules={"point": Point(), CONTEXTUAL: Given(kind="given")})
        return self.rules

    @property
    def contextual_rule(self) -> str | None:
        """The name of the rule that the profile speaks for."""
        known = self.active_rules.rules if self.active_rules else {}
        return next((name for name, rule in known.items() if isinstance(rule, Given)), None)

    def check_features(self, names: Sequence[str]) -> None:
        """Raise `ValueError` where a rule, the context or a covariate names a feature that is not measured."""
        try:
            context_columns(self.contextual or ProfileSpec(), names)
        except ValueError as error:
            raise ValueError(f"alarm.contextual: {error}") from None
        named = {
            "rules.watched": self.rules.watched if self.rules else (),
            "covariates.weather": self.covariates.weather,
            "covariates.power": self.covariates.power,
        }
        for key, given in named.items():
            unknown = [name for name in given if name not in names]
            if unknown:
                raise ValueError(f"alarm.{key}: {unknown[0]!r} is no feature; expected some of {', '.join(names)}")

    def check_windows(self, calibration_windows: int, windows_per_day: float) -> None:
        """Raise `ValueError` where the calibration windows cannot give a level by the `method` for the promise."""
        shares = {"": 1.0} if self.active_rules is None else self.active_rules.shares
        known = {} if self.active_rules is None else self.active_rules.rules
        if self.active_rules is not None and self.active_rules.promise == "alarms":
            return  # whose levels come from runs of windows, by a way of their own
        for name, share in shares.items():
            if isinstance(known.get(name), Stuck):
                continue
            own = self.model_copy(update={"false_alarms_per_day": share * self.false_alarms_per_day})
            needed = least_scores(own, windows_per_day)
            if needed > calibration_windows:
                whose = f"rule {name!r}" if name else "the level"
                raise ValueError(
                    f"alarm.method: {self.method!r} needs {needed} calibration windows for {whose} at "
                    f"{own.false_alarms_per_day:g} false alarms a day, and baseline leaves {calibration_windows}: "
                    "take a longer baseline, promise more, or take 'automatic', which extrapolates"
                )

    @model_validator(mode="after")
    def _belong_together(self) -> AlarmTable:
        if both := {*self.covariates.weather} & {*self.covariates.power}:
            raise ValueError(f"covariates: {min(both)!r} is named under weather and power, expected under one of them")
        given = [name for name, rule in (self.rules.rules if self.rules else {}).items() if isinstance(rule, Given)]
        if len(given) > 1 or (given and self.contextual is None):
            raise ValueError(
                f"rules: {given} of kind 'given', expected at most one, and the table [alarm.contextual] beside it"
            )
        if self.rules is not None and self.contextual is not None and not given:
            raise ValueError("rules: none of kind 'given', expected one that [alarm.contextual] speaks for")
        return self
