"""The levels of alarm rules, from what a gateway saw while all was well.

Every rule is walked over the baseline as it will be over new windows, and its level taken from what it said there: for
a promise of windows by the ways of `models.levels`, for a promise of alarms by `models.rule_levels`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models import threshold
from models.arrays import Array, Floats
from models.expected import BRIDGED_ROWS, LEAST_ROWS, expectation, usual
from models.rule_levels import level_of_alarms
from models.rule_statistics import STUCK_FACTOR, Part, Seen, Stuck, looks_at
from models.rules import DAY_S, Calibrated, RuleLevel, RuleSpec, all_told
from models.threshold import AlarmSpec, CalibrationError, Levels

TO_DEVIATION = 1.4826  # of a normal distribution's median absolute deviation
LEAST_SPREAD = 1e-9
CLEAR_CAP = 0.8  # height


class Baseline(NamedTuple):
    """What a gateway saw while all was well, oldest first.

    `scores` (n,) are NaN where the model is no judge: where it was trained, or had not settled. `values` are the
    features (n, F), `missing` (n,) the windows missing before each (`models.arrays.MISSING`), `extra` what the caller
    says by rule, (n,) with NaN where nothing.
    """

    scores: Floats
    values: Array
    missing: NDArray[np.int64]
    extra: Mapping[str, Floats] = MappingProxyType({})


def calibrate(
    spec: RuleSpec, alarm_spec: AlarmSpec, baseline: Baseline, names: Sequence[str], hop_s: float
) -> Calibrated:
    """Take the level of every rule from a gateway's baseline; `names` are those of the F features.

    Raises:
        CalibrationError: no rule at all has a level, or a watched feature does not exist.
    """
    columns, needs, missing = _columns(spec, names), spec.needs, np.asarray(baseline.missing, dtype=np.int64)
    found, expected, silent = None, None, dict[str, str]()
    levels = deviations = np.full((len(missing), len(columns)), np.nan)
    if needs & {"values", "level", "features"}:
        if len(missing) < LEAST_ROWS:
            raise CalibrationError(f"{len(missing)} windows given, at least {LEAST_ROWS} needed for rules on features")
        found, around = usual(baseline.values)
        levels = around[:, list(columns)]
    if found is not None and "values" in needs:
        try:
            z = found.deviations(baseline.values)
            expected, deviations = expectation(z, missing, columns, spec.lags, spec.others)
        except CalibrationError as error:
            silent = {name: str(error) for name, rule in spec.rules.items() if looks_at(rule) == "values"}
    judged = baseline.scores[np.isfinite(baseline.scores)]
    median = float(np.median(judged)) if len(judged) else 0.0
    spread = TO_DEVIATION * float(np.median(np.abs(judged - median))) if len(judged) else 0.0
    watched = tuple(names[column] for column in columns)
    blank = Levels(1.0, CLEAR_CAP, 0.0, len(missing), extrapolated=False)
    scale = max(spread, LEAST_SPREAD)
    rules = Calibrated(spec, {}, silent, blank, watched, columns, found, expected, median, scale, hop_s)
    return _levelled(rules, alarm_spec, _statistics(rules, baseline, levels, deviations))


def _columns(spec: RuleSpec, names: Sequence[str]) -> tuple[int, ...]:
    unknown = [name for name in spec.watched if name not in names]
    if unknown:
        raise CalibrationError(
            f"rules.watched: no feature is named {unknown[0]!r}; expected some of {', '.join(names)}"
        )
    return tuple(index for index, name in enumerate(names) if not spec.watched or name in spec.watched)


def _statistics(rules: Calibrated, baseline: Baseline, levels: Floats, deviations: Floats) -> dict[str, Floats]:
    """Return what every rule says of every window of the baseline (n,), NaN where nothing."""
    found = {name: np.full(len(baseline.missing), np.nan) for name in rules.spec.rules}
    parts: Mapping[str, Part] = {}
    for row, missing in enumerate(baseline.missing.tolist()):
        score = _known(baseline.scores[row])
        seen = Seen(
            score,
            None if score is None else (score - rules.score_median) / rules.score_spread,
            deviations[row] if np.isfinite(deviations[row]).all() else None,
            levels[row] if rules.usual is not None else None,
            np.asarray(baseline.values[row], np.float64)[list(rules.columns)] if rules.usual is not None else None,
            {name: _known(each[row]) for name, each in baseline.extra.items()},
        )
        parts, says = all_told(rules, parts if 0 <= missing <= BRIDGED_ROWS else {}, seen)
        for name, each in says.items():
            found[name][row] = each.statistic
    return found


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
    if not by_rule:
        raise CalibrationError("; ".join(f"rule {name}: {reason}" for name, reason in silent.items()))
    heights = [(statistics[name] - each.median) / (each.level - each.median) for name, each in by_rule.items()]
    largest = np.fmax.reduce(heights)
    largest = largest[np.isfinite(largest)]
    clear_level = min(float(np.quantile(largest, alarm_spec.clear_quantile)), CLEAR_CAP)
    extrapolated = any(each.extrapolated for each in by_rule.values())
    levels = Levels(1.0, clear_level, 0.0, len(largest), extrapolated)
    return replace(rules, by_rule=by_rule, silent=silent, levels=levels)


def _rule_level(rules: Calibrated, alarm_spec: AlarmSpec, name: str, series: Floats) -> RuleLevel:
    rule, judged, windows_per_day = rules.spec.rules[name], series[np.isfinite(series)], DAY_S / rules.hop_s
    if isinstance(rule, Stuck):
        longest = float(judged.max(initial=0.0))
        return RuleLevel(0.0, STUCK_FACTOR * longest + rule.least_s / rules.hop_s, extrapolated=True)
    promised = rules.spec.shares[name] * alarm_spec.false_alarms_per_day
    if rules.spec.promise == "windows":
        own = alarm_spec.model_copy(update={"false_alarms_per_day": promised})
        levels = threshold.calibrate(own, judged, windows_per_day)
        found = RuleLevel(levels.median, levels.raise_level, levels.extrapolated)
    else:
        merge_rows = rules.spec.merge_s / rules.hop_s
        level, extrapolated = level_of_alarms(series, promised, windows_per_day, merge_rows)
        found = RuleLevel(float(np.median(judged)), level, extrapolated)
    if found.level <= found.median:
        raise CalibrationError(f"level {found.level:g} is no higher than the median: the statistic has no tail")
    return found
