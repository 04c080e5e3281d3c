"""Rules that turn what a gateway knows of a window into one height, so that there is one alarm for one cause.

A high score finds what is sudden. What is slow, stuck, noisy or out of place shows in other statistics, and each of
those has its own level. A `Rule` is one statistic with a share of the promised false alarms; its height is 0 at the
median of its baseline and 1 at its level, so heights compare. The largest wins, and the state machine of
`fedgate.models.alarms.threshold` raises where it reaches 1 (`Calibrated.levels` holds the levels of heights for it):

    calibrated = calibrate(spec, alarm_spec, baseline, names, hop_s)                 once, in `rule_calibration`
    state, height, still = step(calibrated, state, t_ns, score, values, extra)       each window, from `RulesState()` on
    if height is not None:
        alarm, transition = threshold.update(calibrated.levels, alarm_spec, alarm, t_ns, height.value)

A statistic is taken of the model's score or, with `on = "values"`, of how far the features of the window are from what
those before it and beside it let expect (`fedgate.models.alarms.expectation`): with a sign, which is what tells a drift
from noise. What only the caller knows, as a deviation from a profile, it hands over in `extra` under the name of the
rule. A feature that is stuck has no height and is told apart: a sensor that repeats itself for days must not hide what
others see.

A rule whose statistic needs more history than there is says nothing; after a gap it begins anew. One whose baseline
allows no level is `silent`, with the reason, and its share of the promise is not spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, model_validator

from fedgate.models.alarms.expectation import BRIDGED_ROWS, Expectation, Standardisation, residual
from fedgate.models.alarms.rule_statistics import FRESH, Part, Reading, Rule, Seen, Stuck, evaluate, looks_at, unchanged
from fedgate.models.alarms.threshold import Levels, ScoreError
from fedgate.models.arrays import Array, Floats
from fedgate.models.time_units import NS

ROUNDING = 1e-9  # of shares written in decimals
NOTHING: Mapping[str, float | None] = MappingProxyType({})


class RuleSpec(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which rules watch, and what they promise; an operator's settings, the table [alarm.rules].

    :param rules: by name; the alarm names the one that raised it. A rule without a `share` of the promised false alarms
        takes an equal part of what the others leave.
    :param promise: `windows` counts every window at or above a level as a false alarm, as
        `fedgate.models.alarms.threshold` does, and therefore promises more than it gives: what is wrong for
        hours is one alarm. `alarms` counts what lies less than `merge_s` apart once.
    :param watched: names of the features that rules on values watch. Where none is given these are all but the
        columns of the calendar and what had one or two values only in the baseline: to something that only switches
        every change is a wonder, and every rest a standstill. The others are context.
    :param lags: how many windows before it a value is expected from.
    :param others: whether it is expected from the other features as well, of the same window and of the one before.
    """

    rules: dict[str, Rule] = Field(min_length=1)
    promise: Literal["windows", "alarms"] = "windows"
    merge_s: float = Field(default=3600.0, ge=0)
    watched: tuple[str, ...] = ()
    lags: int = Field(default=12, ge=0, le=100)
    others: bool = True

    @model_validator(mode="after")
    def _shares_are_whole(self) -> Self:
        given = sum(share or 0.0 for share in self._given.values())
        left = [name for name, share in self._given.items() if share is None]
        if given > 1.0 + ROUNDING or (left and given > 1.0 - ROUNDING):
            also = f", and {', '.join(left)} have none" if left else ""
            raise ValueError(f"rules: shares of {given:g} in all{also}; expected shares that make 1 together, or less")
        return self

    @property
    def _given(self) -> dict[str, float | None]:
        return {name: rule.share for name, rule in self.rules.items() if not isinstance(rule, Stuck)}

    @property
    def shares(self) -> dict[str, float]:
        """The share of the promised false alarms that each rule has that promises any."""
        given = sum(share or 0.0 for share in self._given.values())
        left = sum(share is None for share in self._given.values())
        return {name: (1.0 - given) / left if share is None else share for name, share in self._given.items()}

    @property
    def needs(self) -> frozenset[str]:
        """What of a window the rules judge: its score, values, level, features, or extra statistics."""
        return frozenset(looks_at(rule) for rule in self.rules.values())


class RuleLevel(NamedTuple):
    """Where a rule's height is 0 and 1, and the largest statistic of its baseline."""

    median: float
    level: float
    extrapolated: bool
    largest: float


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """What the rules of one gateway know from its baseline; made anew from it, never stored."""

    spec: RuleSpec
    by_rule: dict[str, RuleLevel]
    stuck: dict[str, Floats]  # by rule: windows (W,) without a change from which on a feature is stuck, inf for never
    silent: dict[str, str]  # rules without a level, and why
    left_out: dict[str, str]  # features that rules do not watch, and why
    levels: Levels  # of heights, for `fedgate.models.alarms.threshold`
    watched: tuple[str, ...]  # names of the watched features
    columns: tuple[int, ...]  # and their places
    standardisation: Standardisation | None  # None where no rule looks at features
    expected: Expectation | None
    score_median: float
    score_spread: float
    hop_s: float

    def deviation_of(self, score: float | None) -> float | None:
        """Return how far a score is above the median of the baseline's, in their spread."""
        return None if score is None else (score - self.score_median) / self.score_spread


class Height(NamedTuple):
    """The rule that stands out most in a window: 0 at the median of its baseline, 1 at its own level."""

    value: float
    rule: str
    statistic: float
    level: float
    feature: str | None  # the watched feature it is about; None where it is about the score


class Still(NamedTuple):
    """Which features are stuck after a window, and which have just moved; what was not seen to move is in neither."""

    stuck: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RulesState:
    """What the rules remember between windows: plain numbers, so that it can be stored and restored exactly."""

    last_ns: int | None = None
    past: tuple[tuple[float, ...], ...] = ()  # standardised features of the last windows, newest first
    parts: Mapping[str, Part] = field(default_factory=dict)


_STATE = TypeAdapter(RulesState)


def dump_state(state: RulesState) -> str:
    """Return a state as JSON text."""
    return _STATE.dump_json(state).decode()


def load_state(text: str) -> RulesState:
    """Return the state in JSON text; raises `pydantic.ValidationError` for text that holds none."""
    return _STATE.validate_json(text)


def step(
    rules: Calibrated,
    state: RulesState,
    t_ns: int,
    score: float | None,
    values: Array | None = None,
    extra: Mapping[str, float | None] = NOTHING,
) -> tuple[RulesState, Height | None, Still]:
    """Judge the next window, which ends at `t_ns`: the model's score, None where it has none, and the features (F,).

    Returns the state, the largest height, and which features are stuck. Up to `BRIDGED_ROWS` missing windows are
    bridged by the last one; after more, or where the clock went backwards, all that was remembered is forgotten.

    Raises:
        ScoreError: the score or a feature is not finite, or a rule needs the features and there are none.
    """
    if (score is not None and not math.isfinite(score)) or (values is not None and not np.isfinite(values).all()):
        raise ScoreError(f"score {score} and features {values} given; expected finite numbers: leave out the window")
    if values is None and rules.standardisation is not None:
        raise ScoreError("no features given; rules on values need those of every window")
    missing = 0 if state.last_ns is None else round((t_ns - state.last_ns) / (rules.hop_s * NS)) - 1
    if not 0 <= missing <= BRIDGED_ROWS:
        state, missing = RulesState(), 0
    past, seen = _seen(rules, state, missing, score, values, extra)
    parts, readings, runs = evaluate_all(rules, state.parts, seen)
    return RulesState(t_ns, past, parts), _highest(rules, readings), _still(rules, parts, runs)


def evaluate_all(
    rules: Calibrated, parts: Mapping[str, Part], seen: Seen
) -> tuple[dict[str, Part], dict[str, Reading], dict[str, Floats]]:
    """Return what every rule remembers, what those with a height say, and the runs (W,) of equal values by the rules
    that look for them; only of those that say something.
    """
    now, readings, runs = dict[str, Part](), dict[str, Reading](), dict[str, Floats]()
    for name, rule in rules.spec.rules.items():
        part = parts.get(name, FRESH)
        if isinstance(rule, Stuck):
            now[name], run = unchanged(part, seen.values)
            if run is not None:
                runs[name] = run
            continue
        level = rules.by_rule[name].level if name in rules.by_rule else math.inf
        now[name], each = evaluate(name, rule, part, seen, rules.hop_s, level)
        if each is not None:
            readings[name] = each
    return now, readings, runs


def _still(rules: Calibrated, parts: Mapping[str, Part], runs: Mapping[str, Floats]) -> Still:
    """Return which features are stuck by any rule; the first window after a gap cannot tell whether one moved."""
    if not rules.stuck:
        return Still()
    stuck, moved = np.zeros((2, len(rules.watched)), dtype=bool)
    for name, run in runs.items():
        if name in rules.stuck:
            stuck |= run >= rules.stuck[name]
            moved |= (run == 0.0) & (parts[name].seen > 1)
    return Still(
        tuple(name for name, is_stuck in zip(rules.watched, stuck.tolist(), strict=True) if is_stuck),
        tuple(name for name, has_moved in zip(rules.watched, moved.tolist(), strict=True) if has_moved),
    )


def _seen(
    rules: Calibrated,
    state: RulesState,
    missing: int,
    score: float | None,
    values: Array | None,
    extra: Mapping[str, float | None],
) -> tuple[tuple[tuple[float, ...], ...], Seen]:
    """Return the past with this window in it, and the window as the rules see it."""
    deviation = rules.deviation_of(score)
    if values is None or rules.standardisation is None:
        return (), Seen(score, deviation, None, None, None, extra)
    now = rules.standardisation.deviations(values)
    watched = list(rules.columns)
    own, levels = np.asarray(values, dtype=np.float64)[watched], now[watched]
    if rules.expected is None:
        return (), Seen(score, deviation, None, levels, own, extra)
    past = (*state.past[:1] * missing, *state.past)[: rules.expected.lags]
    known = len(past) == rules.expected.lags
    deviations = residual(rules.expected, np.array(past).reshape(-1, len(now)), now) if known else None
    latest = (tuple(now.tolist()), *past)[: rules.expected.lags]
    return latest, Seen(score, deviation, deviations, levels, own, extra)


def _highest(rules: Calibrated, readings: Mapping[str, Reading]) -> Height | None:
    best = None
    for name, each in readings.items():
        if name in rules.by_rule:
            of = rules.by_rule[name]
            value = (each.statistic - of.median) / (of.level - of.median)
            if best is None or value > best.value:
                feature = None if each.feature is None else rules.watched[each.feature]
                best = Height(value, name, each.statistic, of.level, feature)
    return best
