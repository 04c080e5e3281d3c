"""The levels of alarm rules, from what a gateway saw while all was well.

Every rule is walked over the baseline as it will be over new windows, and its level taken from what it said there: for
a promise of windows by the ways of `fedgate.models.alarms.levels`, for a promise of alarms by
`fedgate.models.alarms.rule_levels`. How long a feature may stand still is taken of each feature by itself: one that
rests at night says nothing of one that never does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedgate.models.alarms import threshold
from fedgate.models.alarms.expectation import (
    BRIDGED_ROWS,
    LEAST_ROWS,
    Expectation,
    Standardisation,
    expectation,
    standardise,
)
from fedgate.models.alarms.rule_levels import level_of_alarms
from fedgate.models.alarms.rule_statistics import STUCK_FACTOR, Part, Seen, Stuck, looks_at
from fedgate.models.alarms.rules import Calibrated, RuleLevel, RuleSpec, evaluate_all
from fedgate.models.alarms.threshold import AlarmSpec, CalibrationError, Levels
from fedgate.models.arrays import Array, Floats, Integers
from fedgate.models.time_units import DAY_S
from fedgate.models.units import median_spread, scales

OF_FEATURES = frozenset({"values", "level", "features"})
CALENDAR = "calendar."  # how `fedgate.models.features.calendar` begins the names of its columns
FEWEST_VALUES = 3  # in the baseline, of a feature that is watched without being named


class Baseline(NamedTuple):
    """What a gateway saw while all was well, oldest first.

    `scores` (n,) are NaN where the model is no judge: where it was trained, or had not settled. `values` are the
    features (n, F), `missing` (n,) the windows missing before each (`fedgate.models.arrays.MISSING`), `extra` what the
    caller says by rule, (n,) with NaN where nothing.
    """

    scores: Floats
    values: Array
    missing: Integers
    extra: Mapping[str, Floats] = MappingProxyType({})


class _Features(NamedTuple):
    """What the features of a baseline show: where they lie, what is expected, and how far its windows are from both."""

    standardisation: Standardisation | None
    expected: Expectation | None
    levels: Floats  # (n, W), NaN where nothing can be said
    deviations: Floats  # (n, W)


def calibrate(
    spec: RuleSpec, alarm_spec: AlarmSpec, baseline: Baseline, names: Sequence[str], hop_s: float
) -> Calibrated:
    """Take the level of every rule from a gateway's baseline; `names` are those of the F features.

    Raises:
        CalibrationError: no rule at all has a level, or a watched feature does not exist.
    """
    (columns, left_out), silent = _columns(spec, baseline, names), dict[str, str]()
    features = _features(spec, baseline, columns, silent)
    judged = baseline.scores[np.isfinite(baseline.scores)]
    median = float(np.median(judged)) if len(judged) else 0.0
    spread = float(median_spread(judged, median)) if len(judged) else 0.0
    rules = Calibrated(
        spec=spec,
        by_rule={},
        stuck={},
        silent=silent,
        left_out=left_out,
        levels=Levels(1.0, threshold.CLEAR_CAP, 0.0, len(baseline.missing), extrapolated=False),
        watched=tuple(names[column] for column in columns),
        columns=columns,
        standardisation=features.standardisation,
        expected=features.expected,
        score_median=median,
        score_spread=float(scales(np.array(median), np.array(spread))),
        hop_s=hop_s,
    )
    statistics, runs = _statistics(rules, baseline, features)
    return _levelled(_stuck(rules, baseline, runs), alarm_spec, statistics)


def _features(spec: RuleSpec, baseline: Baseline, columns: tuple[int, ...], silent: dict[str, str]) -> _Features:
    """Return what the rules on features need; those that cannot have it go into `silent`."""
    missing = np.asarray(baseline.missing, dtype=np.int64)
    found = _Features(None, None, *np.full((2, len(missing), len(columns)), np.nan))
    if not spec.needs & OF_FEATURES:
        return found
    by_need = {need: [name for name, rule in spec.rules.items() if looks_at(rule) == need] for need in OF_FEATURES}
    if len(missing) < LEAST_ROWS or not columns:
        reason = f"{len(missing)} windows given, at least {LEAST_ROWS} needed for rules on features: wait for more"
        if not columns:
            reason = "no feature had three values in the baseline: name those that it is to watch in rules.watched"
        silent.update({name: reason for names in by_need.values() for name in names})
        return found
    around, levels = standardise(baseline.values)
    found = found._replace(standardisation=around, levels=levels[:, list(columns)])
    try:
        z = around.deviations(baseline.values)
        expected, deviations = expectation(z, missing, columns, spec.lags, spec.others)
    except CalibrationError as error:
        silent.update(dict.fromkeys(by_need["values"], str(error)))
        return found
    return found._replace(expected=expected, deviations=deviations)


def _columns(spec: RuleSpec, baseline: Baseline, names: Sequence[str]) -> tuple[tuple[int, ...], dict[str, str]]:
    """Return the places of the watched features, and why the others are left out that nobody chose to leave out."""
    unknown = [name for name in spec.watched if name not in names]
    if unknown:
        raise CalibrationError(
            f"rules.watched: no feature is named {unknown[0]!r}; expected some of {', '.join(names)}"
        )
    if spec.watched:
        return tuple(index for index, name in enumerate(names) if name in spec.watched), {}
    if not spec.needs & OF_FEATURES or len(baseline.missing) < LEAST_ROWS:
        return tuple(range(len(names))), {}
    left_out = {name: "not watched, a column of the calendar" for name in names if name.startswith(CALENDAR)}
    for index, name in enumerate(names):
        if name not in left_out and (count := _values_of(baseline, index)) < FEWEST_VALUES:
            amount = "two values only" if count > 1 else "constant"
            left_out[name] = f"not watched, {amount} in the baseline"
    return tuple(index for index, name in enumerate(names) if name not in left_out), left_out


def _values_of(baseline: Baseline, column: int) -> int:
    return len(np.unique(np.asarray(baseline.values)[:, column]))


def _stuck(rules: Calibrated, baseline: Baseline, runs: Mapping[str, Floats]) -> Calibrated:
    """Return the rules with the windows (W,) from which on each feature is stuck; what was constant all through the
    baseline never is.
    """
    if not runs:
        return rules
    moves = np.array([_values_of(baseline, column) > 1 for column in rules.columns], dtype=bool)
    stuck, silent, left_out = dict[str, Floats](), dict(rules.silent), dict(rules.left_out)
    for name, longest in runs.items():
        rule = rules.spec.rules[name]
        if isinstance(rule, Stuck) and name not in silent:
            stuck[name] = np.where(moves, STUCK_FACTOR * longest + rule.least_s / rules.hop_s, np.inf)
            still = [each for each, has_moved in zip(rules.watched, moves.tolist(), strict=True) if not has_moved]
            left_out |= dict.fromkeys(still, "never called stuck, constant in the baseline")
            if not moves.any():
                silent[name] = "every watched feature was constant in the baseline: of none a standstill can be told"
                del stuck[name]
    return replace(rules, stuck=stuck, silent=silent, left_out=left_out)


def _statistics(
    rules: Calibrated, baseline: Baseline, features: _Features
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return what every rule with a height says of every window of the baseline (n,), NaN where nothing, and by the
    others the longest runs (W,) of equal values.
    """
    longest = {name: np.zeros(len(rules.columns)) for name, rule in rules.spec.rules.items() if isinstance(rule, Stuck)}
    found = {name: np.full(len(baseline.missing), np.nan) for name in rules.spec.rules if name not in longest}
    parts: Mapping[str, Part] = {}
    for row, missing in enumerate(baseline.missing.tolist()):
        score, deviations = _known(baseline.scores[row]), features.deviations[row]
        seen = Seen(score, rules.deviation_of(score), None, None, None, {})
        if rules.standardisation is not None:
            own = np.asarray(baseline.values[row], dtype=np.float64)[list(rules.columns)]
            known = deviations if np.isfinite(deviations).all() else None
            seen = seen._replace(deviations=known, levels=features.levels[row], values=own)
        extra = {name: _known(each[row]) for name, each in baseline.extra.items()}
        unbroken = 0 <= missing <= BRIDGED_ROWS
        parts, readings, runs = evaluate_all(rules, parts if unbroken else {}, seen._replace(extra=extra))
        for name, each in readings.items():
            found[name][row] = each.statistic
        for name, run in runs.items():
            longest[name] = np.maximum(longest[name], run)
    return found, longest


def _known(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _levelled(rules: Calibrated, alarm_spec: AlarmSpec, statistics: Mapping[str, Floats]) -> Calibrated:
    by_rule, silent = dict[str, RuleLevel](), dict(rules.silent)
    for name, series in statistics.items():
        try:
            if name not in silent:
                by_rule[name] = _rule_level(rules, alarm_spec, name, series)
        except CalibrationError as error:
            silent[name] = str(error)
    if not by_rule and not rules.stuck:
        raise CalibrationError("; ".join(f"rule {name}: {reason}" for name, reason in silent.items()))
    if not by_rule:  # there are no heights
        return replace(rules, silent=silent)
    heights = [(statistics[name] - each.median) / (each.level - each.median) for name, each in by_rule.items()]
    largest = np.fmax.reduce(heights)
    largest = largest[np.isfinite(largest)]
    clear_level = min(float(np.quantile(largest, alarm_spec.clear_quantile)), threshold.CLEAR_CAP)
    extrapolated = any(each.extrapolated for each in by_rule.values())
    levels = Levels(1.0, clear_level, 0.0, len(largest), extrapolated)
    return replace(rules, by_rule=by_rule, silent=silent, levels=levels)


def _rule_level(rules: Calibrated, alarm_spec: AlarmSpec, name: str, series: Floats) -> RuleLevel:
    judged, windows_per_day = series[np.isfinite(series)], DAY_S / rules.hop_s
    largest = float(judged.max(initial=0.0))
    promised = rules.spec.shares[name] * alarm_spec.false_alarms_per_day
    if rules.spec.promise == "windows":
        own = alarm_spec.model_copy(update={"false_alarms_per_day": promised})
        levels = threshold.calibrate(own, judged, windows_per_day)
        level, extrapolated = levels.raise_level, levels.extrapolated
    else:
        merge_rows = rules.spec.merge_s / rules.hop_s
        level, extrapolated = level_of_alarms(series, promised, windows_per_day, merge_rows)
    median = float(np.median(judged))
    if level <= median:
        raise CalibrationError(f"level {level:g} is no higher than the median: the statistic has no tail")
    return RuleLevel(median, level, extrapolated, largest)
