"""A sample's way to an alarm, a line each: block -> window -> features -> score -> alarm. Score first, learn after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.config.settings.alarm import AlarmTable
from fedgate.gateway_agent.feature_row import FeatureRow, Row
from fedgate.gateway_agent.pipeline import recurrence as recall
from fedgate.gateway_agent.pipeline import spectra
from fedgate.gateway_agent.pipeline.decision import (
    Commissioned,
    DecisionState,
    ScoringModel,
    calibrate,
    is_of_score,
    judge_window,
)
from fedgate.gateway_agent.pipeline.recurrence import BLANK, Gaps, Memory, Model
from fedgate.gateway_agent.pipeline.spectra import Spectra, Worst
from fedgate.models.alarms import threshold
from fedgate.models.alarms.contributions import (
    Contribution,
    contribute,
    describe_place,
    measure_healthy,
    rank_contributions,
)
from fedgate.models.alarms.rules import Height
from fedgate.models.alarms.threshold import AlarmState, Transition
from fedgate.models.arrays import CALIBRATION, END_NS, FEATURES, MISSING, NEVER, Array, Arrays, Floats
from fedgate.models.features.spec import LARGEST, FeatureSpec, extract, feature_names
from fedgate.models.time_units import NS
from fedgate.models.windows import grid, sensor_health
from fedgate.models.windows.grid import Block, Lost, StreamSpec, Window, Windower

GAP_HOPS = 2.5  # from the end of one window to the next; more means that windows are missing
UNSEEN = DecisionState()
RECALLED_WINDOWS = 256  # of the recent ones, shown to a new model so that it remembers them as if it had been in force
# Kept to run a candidate beside the model in force before it takes its place, see docs/decisions/14: with windows
# every 5 s these are 85 minutes, and with 16 features a third of a MiB.
RECENT_WINDOWS = 1_024
RECENT_BYTES = 1_048_576
WINDOW_BYTES = 256  # that a kept window takes besides its values


@dataclass(frozen=True)
class Pipeline:
    """All that the way from sample to alarm remembers."""

    spec: FeatureSpec
    alarm_table: AlarmTable
    windower: Windower
    regular: tuple[str, ...]  # roles sampled at a steady rate
    baseline: tuple[FeatureRow, ...]  # oldest first
    baseline_needed: int
    judge: ScoringModel | None = None
    memory: Memory = BLANK  # of the model in force
    watching: DecisionState = UNSEEN  # of the rules in force
    recent: tuple[FeatureRow, ...] = ()
    alarm: AlarmState = field(default_factory=AlarmState)
    healthy: Spectra = spectra.NONE  # of the baseline
    worst: Worst | None = None  # window of a run that may become an alarm
    maintenance: tuple[tuple[int, int], ...] = ()  # begin and end of times from which nothing is learned, in Unix ns

    @property
    def commissioned(self) -> bool:
        """True once the baseline is whole."""
        return len(self.baseline) >= self.baseline_needed

    @property
    def settling(self) -> bool:
        """True where the model in force has not yet seen enough to be asked."""
        return self.judge is not None and self.memory.rows < self.judge.model.washout_rows


class WindowResult(NamedTuple):
    """What became of one window."""

    t_ns: int  # end of the window
    row: Row | None = None  # (F,) features, None for a window that was lost or faulty
    height: Height | None = None  # what was judged of it, None as well while the model's memory is fresh
    stuck: tuple[str, ...] = ()  # features that have not changed for too long
    moved: tuple[str, ...] = ()  # features that have just changed, and so are not stuck
    transition: Transition | None = None
    standing_out: tuple[Contribution, ...] = ()  # features that raised an alarm, the largest contribution first
    worst: Worst | None = None  # window of an alarm that is raised
    lost: Lost | None = None
    unscored: Row | None = None  # (F,) features of a window that was lost for its score
    faulty: tuple[str, ...] = ()  # channels with a fault, by name
    filled: Mapping[str, int] = MappingProxyType({})  # by channel: values that were bridged, new in this window


def start(
    spec: FeatureSpec,
    streams: Sequence[StreamSpec],
    alarm_table: AlarmTable,
    baseline_needed: int,
    baseline: Sequence[FeatureRow] = (),
) -> Pipeline:
    """Return the pipeline of a gateway with what it has learned so far."""
    regular = tuple(role for stream in streams if stream.fill == "interpolate" for role in stream.channels)
    healthy = spectra.start(spec, regular, is_wanted=alarm_table.evidence == "full")
    windower = grid.start(spec, streams)
    return Pipeline(spec, alarm_table, windower, regular, tuple(baseline), baseline_needed, healthy=healthy)


def push(pipeline: Pipeline, block: Block) -> tuple[Pipeline, list[WindowResult]]:
    """Take in a block of samples and return what became of each window it completed."""
    windower, pieces = grid.push(pipeline.windower, block)
    pipeline, readings = replace(pipeline, windower=windower), []
    for piece in pieces:
        if isinstance(piece, Lost):
            readings.append(WindowResult(piece.t_ns, lost=piece))
            continue
        pipeline, reading = _window(pipeline, piece)
        readings.append(reading._replace(filled=piece.newly_filled(pipeline.spec)))
    return pipeline, readings


def _window(pipeline: Pipeline, window: Window) -> tuple[Pipeline, WindowResult]:
    end_ns = window.t_ns + round(pipeline.spec.window_s * NS)
    faulty = find_faulty_channels(pipeline, window)
    if faulty:  # a broken sensor must never read as damage, nor be learned as normal
        return pipeline, WindowResult(end_ns, faulty=faulty)
    row = extract(pipeline.spec, window.values, window.t_ns)
    if missing := _find_unmeasured(pipeline, row):
        return pipeline, WindowResult(window.t_ns, lost=Lost(window.t_ns, *missing))
    seen, before = FeatureRow(row, end_ns), pipeline
    pipeline, judged = judge_row(pipeline, seen)
    if judged.lost is not None:
        return pipeline, judged
    pipeline = _note_worst(before, pipeline, judged, window)
    if judged.transition is not None and judged.transition.kind == "raised":
        judged = judged._replace(standing_out=explain(before, seen, judged.height), worst=pipeline.worst)
    if not pipeline.commissioned and not is_in_maintenance(pipeline, end_ns):
        healthy = spectra.gather(pipeline.healthy, pipeline.spec, window.values)
        pipeline = replace(pipeline, baseline=(*pipeline.baseline, seen), healthy=healthy)
    return _remember(pipeline, seen), judged


def is_in_maintenance(pipeline: Pipeline, end_ns: int) -> bool:
    """Tell whether a window that ended then shares time with maintenance."""
    start_ns = end_ns - round(pipeline.spec.window_s * NS)
    return any(from_ns < end_ns and start_ns < to_ns for from_ns, to_ns in pipeline.maintenance)


def _note_worst(before: Pipeline, pipeline: Pipeline, judged: WindowResult, window: Window) -> Pipeline:
    """Return the pipeline with the worst window of the run at hand; without one where there is no run."""
    height, judge = judged.height, pipeline.judge
    is_of_run = height is not None and judge is not None and height.value >= judge.levels.raise_level
    if height is None or before.alarm.active or not is_of_run:
        return pipeline if pipeline.worst is None else replace(pipeline, worst=None)
    onset_ns = pipeline.alarm.onset_ns
    known = None if judged.t_ns == onset_ns else before.worst
    seen = (pipeline.healthy, pipeline.spec, window.values, height.value, judged.t_ns, onset_ns)
    return replace(pipeline, worst=spectra.note_worst(known, *seen))


def _find_unmeasured(pipeline: Pipeline, row: Row) -> tuple[tuple[str, ...], str] | None:
    """Return in which channels there was nothing to measure, and what; a pulse without beats is no heart at rest."""
    names = [name for name, value in zip(feature_names(pipeline.spec), row, strict=True) if math.isnan(value)]
    channels = {channel for channel in pipeline.spec.channels for name in names if name.startswith(f"{channel}.")}
    of_some = tuple(sorted(channels or pipeline.spec.channels))  # what is made of several channels is of no one of them
    return (of_some, f"nothing was found to measure as {', '.join(names)}") if names else None


def _remember(pipeline: Pipeline, seen: FeatureRow) -> Pipeline:
    """Return the pipeline with a window more among the recent ones."""
    fitting = min(RECENT_WINDOWS, RECENT_BYTES // (seen.row.nbytes + WINDOW_BYTES))
    washout_rows = 0 if pipeline.judge is None else pipeline.judge.model.washout_rows
    kept = max(fitting, _count_recalled(washout_rows))
    return replace(pipeline, recent=(*pipeline.recent, seen)[-kept:])


def _count_recalled(washout_rows: int) -> int:
    """Return how many windows a model is shown so that it remembers them; none where it has no memory."""
    return max(RECALLED_WINDOWS, washout_rows + 1) if washout_rows else 0


def judge_row(pipeline: Pipeline, seen: FeatureRow) -> tuple[Pipeline, WindowResult]:
    """Return what the model of a pipeline says of a window; nothing where there is none, or where its memory is
    fresh.
    """
    judge, row, end_ns = pipeline.judge, seen.row, seen.end_ns or 0
    if judge is None:
        return pipeline, WindowResult(end_ns, row)
    score, is_settled, memory = recall.take_in(judge.model, pipeline.memory, seen, pipeline.spec.hop_s)
    if not math.isfinite(score):  # so far from all that was learned that float32 ends: no structure moves like that
        start_ns = end_ns - round(pipeline.spec.window_s * NS)
        lost = Lost(start_ns, pipeline.spec.channels, f"the model's score for it is {score}")
        return pipeline, WindowResult(start_ns, lost=lost, unscored=row)
    shown = score if is_settled else None
    is_calm = not pipeline.alarm.active and not is_in_maintenance(pipeline, end_ns)
    watching, height, still = judge_window(pipeline.alarm_table, judge, pipeline.watching, seen, shown, is_calm=is_calm)
    pipeline = replace(pipeline, memory=memory, watching=watching)
    if height is None:
        return pipeline, WindowResult(end_ns, row, stuck=still.stuck, moved=still.moved)
    gap_ns = 0 if pipeline.alarm.last_ns is None else end_ns - pipeline.alarm.last_ns
    if gap_ns > GAP_HOPS * pipeline.spec.hop_s * NS:  # what lies between was not seen, and can not have lasted
        pipeline = replace(pipeline, alarm=replace(pipeline.alarm, run_ns=None))
    alarm, transition = threshold.update(judge.levels, pipeline.alarm_table, pipeline.alarm, end_ns, height.value)
    return replace(pipeline, alarm=alarm), WindowResult(end_ns, row, height, still.stuck, still.moved, transition)


def explain(before: Pipeline, seen: FeatureRow, height: Height | None) -> tuple[Contribution, ...]:
    """Return the features that made a window's score high, by the pipeline before it, or the one that a rule found;
    none where the rule knows of none, or where there is no baseline.
    """
    judge, hop_s = before.judge, before.spec.hop_s
    if judge is None or height is None or not before.baseline:
        return ()
    names, healthy = feature_names(before.spec), measure_healthy(stack_rows(before.baseline))
    if height.feature is not None:
        return (describe_place(names, seen.row, healthy, names.index(height.feature), height.value),)
    if not is_of_score(judge, height):
        return ()

    def score(rows: Array) -> Floats:
        return recall.score_each(judge.model, before.memory, rows, seen.end_ns, hop_s)

    return rank_contributions(names, seen.row, healthy, contribute(score, seen.row, healthy.median))


def find_faulty_channels(pipeline: Pipeline, window: Window) -> tuple[str, ...]:
    """Name the channels that are stuck, clipped or beyond what any sensor measures; a channel whose last value holds
    may well stand still.
    """
    largest = np.abs(window.values).max(axis=0)  # (C,)
    absurd = tuple(name for name, value in zip(pipeline.spec.channels, largest, strict=True) if value > LARGEST)
    columns = [pipeline.spec.channels.index(role) for role in pipeline.regular]
    values = window.values[:, columns]
    stuck = sensor_health.stuck_channels(pipeline.regular, values)
    faulty = {*absurd, *stuck, *sensor_health.clipped_channels(pipeline.regular, values)}
    return tuple(name for name in pipeline.spec.channels if name in faulty)


def collect_data(baseline: Sequence[FeatureRow], hop_s: float, calibration_windows: int) -> Arrays:
    """Return what this gateway's models are trained on: its baseline of windows every `hop_s`, the end of it apart, as
    `fedgate.models.arrays` names it.
    """
    rows, end = stack_rows(baseline), len(baseline) - calibration_windows
    gaps = recall.count_missing_rows([seen.end_ns for seen in baseline], hop_s)[:end]
    return {FEATURES: rows[:end], MISSING: gaps, END_NS: _stack_ends_ns(baseline)[:end], CALIBRATION: rows[end:]}


def _stack_ends_ns(windows: Sequence[FeatureRow]) -> NDArray[np.int64]:
    return np.array([NEVER if seen.end_ns is None else seen.end_ns for seen in windows], dtype=np.int64)


def stack_rows(windows: Sequence[FeatureRow]) -> Row:
    """Return the features (n, F) of windows."""
    return np.array([seen.row for seen in windows])


def count_gaps(pipeline: Pipeline) -> Gaps:
    """Return how many windows are missing before each of the baseline (n,)."""
    return recall.count_missing_rows([seen.end_ns for seen in pipeline.baseline], pipeline.spec.hop_s)


def replace_model(pipeline: Pipeline, judge: ScoringModel, watching: DecisionState = UNSEEN) -> Pipeline:
    """Return the pipeline with another model in force, which remembers the recent windows as if it had scored them; an
    active alarm stays, on the scale of the new scores. What its rules remember of hours begins anew.
    """
    alarm = replace(pipeline.alarm, run_ns=None, peak=judge.levels.median)
    shown = _count_recalled(judge.model.washout_rows)
    recent = pipeline.recent[-shown:] if shown else ()
    memory = recall.replay(judge.model, recent, pipeline.spec.hop_s)
    return replace(pipeline, judge=judge, alarm=alarm, memory=memory, watching=watching)


def make_beside(
    pipeline: Pipeline, judge: ScoringModel, watching: DecisionState = UNSEEN, memory: Memory = BLANK
) -> Pipeline:
    """Return a pipeline for a model that is not in force: it judges the windows of another, and raises nothing."""
    alarm = AlarmState()
    return replace(
        pipeline, judge=judge, memory=memory, watching=watching, alarm=alarm, baseline=(), recent=(), worst=None
    )


def is_alarming(pipeline: Pipeline, reading: WindowResult) -> bool:
    """Tell whether a model alarms with a window just judged: its level is reached, for as long as an alarm takes."""
    return pipeline.alarm.active and is_at_level(pipeline, reading) is True


def is_at_level(pipeline: Pipeline, reading: WindowResult) -> bool | None:
    """Tell whether a window just judged reaches its model's level; None where it was not judged."""
    if reading.height is None or pipeline.judge is None:
        return None
    return reading.height.value >= pipeline.judge.levels.raise_level


def calibrate_model(
    pipeline: Pipeline,
    model: Model,
    scored: tuple[Floats, NDArray[np.bool_]],
    calibration_windows: int,
    units: Arrays,
    site: Arrays,
) -> tuple[ScoringModel, DecisionState]:
    """Return a judge whose levels come from the gateway's own calibration rows, those at the end of the baseline that
    no model is trained on, and what it remembers at first.

    `units` are the gateway's own centre and scale, `site` what a survey found. Raises
    `fedgate.models.alarms.threshold.CalibrationError` where the scores do not allow a level,
    `fedgate.models.alarms.profile.ProfileError` where nobody has seen enough for a profile.
    """
    baseline = Commissioned(
        stack_rows(pipeline.baseline),
        _stack_ends_ns(pipeline.baseline),
        count_gaps(pipeline),
        *scored,
        len(pipeline.baseline) - calibration_windows,
        feature_names(pipeline.spec),
        pipeline.spec.hop_s,
    )
    if len(baseline.held_out) < threshold.MINIMUM_SCORES <= calibration_windows:
        raise threshold.CalibrationError(
            f"only {len(baseline.held_out)} of {calibration_windows} calibration windows lie behind the "
            f"{model.washout_rows} that the model needs after each gap before it can be asked: let the baseline run "
            "longer, or let the operator give the network a larger leak"
        )
    return calibrate(pipeline.alarm_table, model, baseline, units, site)
