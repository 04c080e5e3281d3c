"""What a gateway judges a window by, beside the model: rules, the profile of its context, and drift of its scores.

Without rules the model's score is the statistic and the level is its own. With them every rule gives a height, the
largest counts, and the level is 1; see `fedgate.models.alarms.rules`. Each gateway calibrates all of it on its own
baseline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fedgate.config.settings.alarm import AlarmTable
from fedgate.gateway_agent.feature_row import FeatureRow, Row
from fedgate.gateway_agent.pipeline.recurrence import Gaps, Model
from fedgate.models.alarms import drift, profile, rules, threshold
from fedgate.models.alarms.drift import DriftState, Reference
from fedgate.models.alarms.profile import Profile
from fedgate.models.alarms.rule_statistics import looks_at
from fedgate.models.alarms.rules import Calibrated, Height, RulesState, Still
from fedgate.models.alarms.threshold import MINIMUM_SCORES, CalibrationError, Levels
from fedgate.models.arrays import NEVER, Array, Arrays, Floats
from fedgate.models.time_units import DAY_S
from fedgate.models.units import in_own_units

SCORE = "score"  # the rule of a gateway without rules
_DRIFT = TypeAdapter(DriftState)


class Context(NamedTuple):
    """The profile of a gateway, and how to place a window in it."""

    profile: Profile
    columns: tuple[int, ...]
    units: Arrays  # the gateway's own, in which the profile is kept


class ScoringModel(NamedTuple):
    """A model in force, and what else judges the windows of one gateway; from its levels on one is an alarm."""

    model: Model
    levels: Levels
    rules: Calibrated | None = None
    context: Context | None = None
    drift: Reference | None = None
    is_borrowed: bool = False  # whether the level is the site's


class DecisionState(NamedTuple):
    """What is remembered from one window to the next; plain numbers."""

    rules: RulesState = RulesState()
    drift: DriftState = DriftState()


class Commissioned(NamedTuple):
    """A gateway's baseline, as a model sees it: all of it, of which the first `trained` windows trained the models."""

    rows: Array  # (n, F)
    ends_ns: Array  # (n,)
    gaps: Gaps  # (n,)
    scores: Floats  # (n,)
    is_settled: NDArray[np.bool_]  # (n,)
    trained: int
    names: tuple[str, ...]  # of the features
    hop_s: float

    @property
    def held_out(self) -> Floats:
        """The scores of windows that trained nothing and can be trusted."""
        return self.scores[self.trained :][self.is_settled[self.trained :]]


def calibrate(
    table: AlarmTable, model: Model, baseline: Commissioned, units: Arrays, site: Arrays
) -> tuple[ScoringModel, DecisionState]:
    """Return what a gateway judges by from now on; `site` are the sums of a survey, empty where there was none.

    Raises `CalibrationError`, or `profile.ProfileError` where neither the gateway nor its site has seen enough.
    """
    windows_per_day, drift_state = DAY_S / baseline.hop_s, DriftState()
    reference = None
    if table.drift is not None:
        reference, drift_state = drift.begin(table.drift, baseline.held_out, windows_per_day)
    if table.active_rules is None:
        levels = threshold.calibrate(table, baseline.held_out, windows_per_day)
        return ScoringModel(model, levels, drift=reference), DecisionState(drift=drift_state)
    from fedgate.models.alarms import rule_calibration

    context, extra = _learn_context(table, baseline, units, site)
    scores = np.where(
        baseline.is_settled & (np.arange(len(baseline.scores)) >= baseline.trained), baseline.scores, np.nan
    )
    seen = rule_calibration.Baseline(scores, baseline.rows, baseline.gaps, extra)
    found = rule_calibration.calibrate(table.active_rules, table, seen, baseline.names, baseline.hop_s)
    return ScoringModel(model, found.levels, found, context, reference), DecisionState(drift=drift_state)


def _learn_context(
    table: AlarmTable, baseline: Commissioned, units: Arrays, site: Arrays
) -> tuple[Context | None, Mapping[str, Floats]]:
    """Return the profile of the training windows, and what it says (n,) of those behind them."""
    spec, name = table.contextual, table.contextual_rule
    if spec is None or name is None:
        return None, {}
    columns = tuple(profile.context_columns(spec, baseline.names))
    places = profile.cells(spec, baseline.ends_ns, baseline.rows[:, columns])
    z = in_own_units(units, baseline.rows)
    own = profile.sums(spec, places[: baseline.trained], z[: baseline.trained])
    built = profile.build_profile(spec, own, {key: site[key] for key in own} if profile.COUNT in site else None)
    inside = np.full(len(z), np.nan)
    for row in range(baseline.trained, len(z)):
        found = profile.deviation(built, int(places[row]), z[row])
        inside[row] = np.nan if found is None else found
    if np.isfinite(inside).sum() < MINIMUM_SCORES:
        raise CalibrationError(
            f"only {np.isfinite(inside).sum()} calibration windows have a known time, the contextual rule needs "
            f"{MINIMUM_SCORES}: see that the clock was set while the gateway was commissioned"
        )
    return Context(built, columns, units), {name: inside}


def judge_window(
    table: AlarmTable,
    judge: ScoringModel,
    watching: DecisionState,
    seen: FeatureRow,
    score: float | None,
    *,
    is_calm: bool,
) -> tuple[DecisionState, Height | None, Still]:
    """Return what is remembered after a window, what is to be judged of it: nothing where nothing can be said, and
    which features are stuck.

    `score` is the model's, None while that has not settled. Only windows of a calm time, while there is no alarm
    and nothing stuck, say whether the level is out of date: damage is no drift.
    """
    state, height, still = _step(table, judge, watching, seen, score)
    remembered = watching.drift
    if judge.drift is not None and score is not None and is_calm and not still.stuck:
        remembered, _ = drift.update(judge.drift, remembered, score)
    return DecisionState(state, remembered), height, still


def _step(
    table: AlarmTable, judge: ScoringModel, watching: DecisionState, seen: FeatureRow, score: float | None
) -> tuple[RulesState, Height | None, Still]:
    if judge.rules is None:
        height = None if score is None else Height(score, SCORE, score, judge.levels.raise_level, None)
        return watching.rules, height, Still()
    extra = (
        {} if judge.context is None else {table.contextual_rule or "": _measure_deviation(table, judge.context, seen)}
    )
    end_ns = 0 if seen.end_ns is None else seen.end_ns
    return rules.step(judge.rules, watching.rules, end_ns, score, seen.row, extra)


def is_of_score(judge: ScoringModel, height: Height) -> bool:
    """Tell whether a height is that of the model's score, and not of features or of their context."""
    return judge.rules is None or looks_at(judge.rules.spec.rules[height.rule]) == "score"


def _measure_deviation(table: AlarmTable, context: Context, seen: FeatureRow) -> float | None:
    if table.contextual is None:
        return None
    end_ns = np.array([NEVER if seen.end_ns is None else seen.end_ns])
    row: Row = seen.row
    place = profile.cells(table.contextual, end_ns, row[None, list(context.columns)])
    return profile.deviation(context.profile, int(place[0]), in_own_units(context.units, row))


def describe_rules(judge: ScoringModel, watching: DecisionState) -> list[tuple[Literal["info", "warning"], str]]:
    """Return what is to be logged of the rules of a gateway: their levels, those that say nothing and why, whose the
    profile is, and whether drift has anything to compare with.
    """
    logged: list[tuple[Literal["info", "warning"], str]] = []
    if judge.rules is not None:
        levels = [f"{name} {each.level:.3g}" for name, each in judge.rules.by_rule.items()]
        levels += [f"{name} {_format_windows(each)} windows" for name, each in judge.rules.stuck.items()]
        logged.append(("info", f"rules in force, with their levels: {', '.join(levels)}"))
        for reason, names in _group_by_reason(judge.rules.left_out).items():
            logged.append(("info", f"features {reason}: {', '.join(names)}"))
        logged += [("warning", f"rule {name} is silent: {reason}") for name, reason in judge.rules.silent.items()]
    if judge.context is not None:
        origins = judge.context.profile.origins
        counts = ", ".join(f"{count} from {origin}" for origin, count in origins.items() if count)
        logged.append(("info" if origins["own"] == sum(origins.values()) else "warning", f"profile by cell: {counts}"))
    if judge.drift is not None and watching.drift.blocks == 0:
        nothing = "the calibration windows fill no block of [alarm.drift] block_h, those that follow are learned first"
        logged.append(("warning", f"drift: {nothing}"))
    return logged


def _format_windows(levels: Floats) -> str:
    """Return from how many windows on features are stuck, of those that can be."""
    known = np.ceil(levels[np.isfinite(levels)])
    return f"{known.min():.0f}" if known.min() == known.max() else f"{known.min():.0f} to {known.max():.0f}"


def _group_by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        found.setdefault(reason, []).append(name)
    return found


def dump_watching(watching: DecisionState) -> str:
    """Return what is remembered as text."""
    return json.dumps([rules.dump_state(watching.rules), _DRIFT.dump_json(watching.drift).decode()])


def restore_watching(text: str) -> DecisionState:
    """Return what `stored` held."""
    ruled, drifted = json.loads(text)
    return DecisionState(rules.load_state(ruled), _DRIFT.validate_json(drifted))
