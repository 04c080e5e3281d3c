"""Scores to alarms: levels from the gateway's own baseline, and a state machine that raises once and clears once.

What a score means differs from sensor to sensor, so no level is shipped with a model: each gateway takes its own from
the scores it saw while all was well, for a promised number of false alarms per day. Higher scores are more anomalous.

The promise is made per window. Successive windows share the weather, the traffic and, where they overlap, samples;
their high scores therefore come in runs, and a run is one alarm. So for dependent windows, and with any
`minimum_duration_s`, alarms are rarer than promised; the promise itself is met only where windows are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pydantic import BaseModel, Field

from fedgate.models.alarms import levels as ways
from fedgate.models.alarms.levels import MINIMUM_SCORES, CalibrationError, Method
from fedgate.models.arrays import Array, Floats

__all__ = [
    "MINIMUM_SCORES",
    "AlarmSpec",
    "AlarmState",
    "CalibrationError",
    "Levels",
    "ScoreError",
    "Severity",
    "Transition",
    "calibrate",
    "least_scores",
    "severity",
    "update",
]

_HIGHEST_RATE = 0.05  # alarms per window: a promise of more would put the level among ordinary scores
CLEAR_CAP = 0.8  # of the way from the median to the raise level
_MAJOR, _CRITICAL = 1.0, 3.0  # in heights of the raise level over the median, counted from the raise level

Severity = Literal["warning", "major", "critical"]


class ScoreError(ValueError):
    """A score that is no number, so that it can be neither above nor below a level."""


class AlarmSpec(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """When a gateway raises and clears an alarm; an operator's settings.

    `method` says how the level comes from the baseline (`fedgate.models.alarms.levels`). `reach` bounds how far an
    extrapolated level may lie: at most so many times as far above the median as the highest baseline score. With n
    scores of an exponential tail a level at that bound is exceeded with a probability of 2**(reach - 1) Γ(reach + 1) /
    n**reach at most, on average: 24 / n³ for 3. Such a level is `capped`, and the promise need not hold.

    `clear_quantile` is the share of baseline scores below the level under which an alarm may clear. An alarm clears
    after all scores of `clear_duration_s` stayed there: with m independent windows in it, a healthy structure manages
    that with probability clear_quantile**m at a time, so keep m small.
    """

    false_alarms_per_day: float = Field(default=1.0, gt=0)
    method: Method = "automatic"
    reach: float | None = Field(default=None, ge=1)
    minimum_duration_s: float = Field(default=0.0, ge=0)
    clear_quantile: float = Field(default=0.9, ge=0.5, le=0.95)
    clear_duration_s: float = Field(default=0.0, ge=0)


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels of one gateway, with what is needed to judge them."""

    raise_level: float  # alarms at or above
    clear_level: float  # clears at or below; always less than raise_level
    median: float  # of the baseline, the origin of severity
    samples: int  # scores they were taken from
    extrapolated: bool  # raise_level lies beyond what so many scores show
    capped: bool = False  # by the setting `reach`: the promise need not hold


@dataclass(frozen=True, slots=True)
class AlarmState:
    """What the state machine remembers between scores."""

    active: bool = False
    run_ns: int | None = None  # start of the latest run of scores that, if it lasts, raises or (while active) clears
    onset_ns: int = 0  # of the active alarm, or of the run that may become one; otherwise without meaning
    peak: float = 0.0  # highest score since the onset
    last_ns: int | None = None  # time of the latest score


@dataclass(frozen=True, slots=True)
class Transition:
    """An alarm begins or ends at `t_ns`; `score` is its highest score so far, `level` the one that was crossed."""

    kind: Literal["raised", "cleared"]
    onset_ns: int
    t_ns: int
    score: float
    level: float


def calibrate(spec: AlarmSpec, scores: Array, windows_per_day: float) -> Levels:
    """Take the levels from baseline scores (n,).

    The raise level keeps p = false_alarms_per_day / windows_per_day (at most 0.05) alarms a window by the method of the
    settings. `automatic` ranks the scores where at least ten lie above the level, and otherwise extrapolates an
    exponential tail. The clear level is the baseline's `clear_quantile`, but at most 0.8 of the way from the median to
    the raise level.

    Raises:
        CalibrationError: fewer scores than the method needs (`least_scores`), a score that is not finite, the highest
            ones all equal (a saturated score has no tail), or windows_per_day not positive.
    """
    rate = rate_of(spec, windows_per_day)
    ordered = np.sort(np.asarray(scores, dtype=np.float64))  # (n,) ascending
    _check_scores(ordered)
    level = ways.level_of(spec.method, ordered, rate)
    extrapolated = ways.beyond(ordered, rate)
    median, quantile = np.quantile(ordered, [0.5, spec.clear_quantile]).tolist()
    farthest = math.inf if spec.reach is None else median + spec.reach * (float(ordered[-1]) - median)
    capped = level > farthest
    raise_level = farthest if capped else level
    return Levels(raise_level, cleared_at(median, quantile, raise_level), median, len(ordered), extrapolated, capped)


def cleared_at(median: float, quantile: float, raise_level: float) -> float:
    """Return the level at or below which an alarm may clear, given the baseline's `clear_quantile`."""
    return min(quantile, median + CLEAR_CAP * (raise_level - median))


def least_scores(spec: AlarmSpec, windows_per_day: float) -> int:
    """Return how many baseline scores the method of the settings needs for their promise.

    Raises CalibrationError where windows_per_day is not positive.
    """
    return ways.least_scores(spec.method, rate_of(spec, windows_per_day))


def rate_of(spec: AlarmSpec, windows_per_day: float) -> float:
    """Return the promised alarms per window. Raises CalibrationError where windows_per_day is not positive."""
    if not 0 < windows_per_day < math.inf:
        raise CalibrationError(f"{windows_per_day} windows per day given; expected a positive number")
    return min(spec.false_alarms_per_day / windows_per_day, _HIGHEST_RATE)


def _check_scores(ordered: Floats) -> None:
    finite = int(np.isfinite(ordered).sum())
    if ordered.ndim != 1 or len(ordered) < MINIMUM_SCORES:
        raise CalibrationError(
            f"scores of shape {ordered.shape} given, at least {MINIMUM_SCORES} needed: let the baseline run longer"
        )
    if finite < len(ordered):
        raise CalibrationError(f"{len(ordered) - finite} of {len(ordered)} scores are not finite; expected none")


def severity(levels: Levels, score: float) -> Severity:
    """Judge an alarm by how far its peak is above the raise level, in heights of that level over the median.

    Less than 1 is a warning, less than 3 major, more is critical.
    """
    excess = (score - levels.raise_level) / (levels.raise_level - levels.median)
    if excess < _MAJOR:
        return "warning"
    return "major" if excess < _CRITICAL else "critical"


def update(
    levels: Levels, spec: AlarmSpec, state: AlarmState, t_ns: int, score: float
) -> tuple[AlarmState, Transition | None]:
    """Judge the next score; `t_ns` is its window's time. Start from `AlarmState()`.

    Raised when all scores of `minimum_duration_s` were at or above the raise level; the onset is the first of them.
    Cleared when all scores of `clear_duration_s` were at or below the clear level. Anything between the levels holds
    an alarm. While one is active no other is raised. Durations run from the first to the latest score; where the clock
    goes backwards they start anew, so that a jump alone neither raises nor clears.

    Raises:
        ScoreError: the score is not finite.
    """
    if not math.isfinite(score):
        raise ScoreError(f"score {score} given; expected a finite number: leave out windows that cannot be scored")
    if state.last_ns is not None and t_ns < state.last_ns:
        state = replace(state, run_ns=None)
    return (_judge_active if state.active else _judge_clear)(levels, spec, replace(state, last_ns=t_ns), t_ns, score)


def _judge_clear(
    levels: Levels, spec: AlarmSpec, state: AlarmState, t_ns: int, score: float
) -> tuple[AlarmState, Transition | None]:
    if score < levels.raise_level:
        return replace(state, run_ns=None), None
    onset_ns, peak = (t_ns, score) if state.run_ns is None else (state.run_ns, max(state.peak, score))
    state = replace(state, run_ns=onset_ns, onset_ns=onset_ns, peak=peak)
    if t_ns - onset_ns < _nanoseconds(spec.minimum_duration_s):
        return state, None
    return replace(state, active=True, run_ns=None), Transition("raised", onset_ns, t_ns, peak, levels.raise_level)


def _judge_active(
    levels: Levels, spec: AlarmSpec, state: AlarmState, t_ns: int, score: float
) -> tuple[AlarmState, Transition | None]:
    peak = max(state.peak, score)
    if score > levels.clear_level:
        return replace(state, run_ns=None, peak=peak), None
    quiet_ns = t_ns if state.run_ns is None else state.run_ns
    if t_ns - quiet_ns < _nanoseconds(spec.clear_duration_s):
        return replace(state, run_ns=quiet_ns), None
    return AlarmState(last_ns=t_ns), Transition("cleared", state.onset_ns, t_ns, peak, levels.clear_level)


def _nanoseconds(duration_s: float) -> int:
    return round(duration_s * 1e9)
