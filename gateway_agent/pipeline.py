"""A sample's way to an alarm, a line each: block -> window -> features -> score -> alarm. Score first, learn after."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway_agent import memory as recall
from gateway_agent.memory import BLANK, Gaps, Memory, Model, Row, Seen
from models import sensor_health, signal, threshold
from models.arrays import FEATURES, MISSING, Arrays, Floats
from models.features import LARGEST, FeatureSpec, extract
from models.signal import Block, Lost, StreamSpec, Window, Windower
from models.threshold import AlarmSpec, AlarmState, Levels, Transition

NS = 1_000_000_000
DAY_S = 86_400.0
GAP_HOPS = 2.5  # from the end of one window to the next; more means that windows are missing
RECENT_WINDOWS = 256  # kept to show a new model what it would remember had it been in force


class Judge(NamedTuple):
    """A model in force: how it scores, and from which level on this gateway calls a score an alarm."""

    model: Model
    levels: Levels


@dataclass(frozen=True)
class Pipeline:
    """All that the way from sample to alarm remembers."""

    spec: FeatureSpec
    alarm_spec: AlarmSpec
    windower: Windower
    regular: tuple[str, ...]  # roles sampled at a steady rate
    baseline: tuple[Seen, ...]  # oldest first
    baseline_needed: int
    judge: Judge | None = None
    memory: Memory = BLANK  # of the model in force
    recent: tuple[Seen, ...] = ()
    alarm: AlarmState = field(default_factory=AlarmState)

    @property
    def commissioned(self) -> bool:
        """True once the baseline is whole."""
        return len(self.baseline) >= self.baseline_needed

    @property
    def settling(self) -> bool:
        """True where the model in force has not yet seen enough to be asked."""
        return self.judge is not None and self.memory.rows < self.judge.model.washout_rows


class Reading(NamedTuple):
    """What became of one window."""

    t_ns: int  # end of the window
    row: Row | None = None  # (F,) features, None for a window that was lost or faulty
    score: float | None = None  # None as well while the model's memory is fresh
    transition: Transition | None = None
    learned: bool = False
    lost: Lost | None = None
    faulty: tuple[str, ...] = ()  # channels with a fault, by name


def start(
    spec: FeatureSpec,
    streams: Sequence[StreamSpec],
    alarm_spec: AlarmSpec,
    baseline_needed: int,
    baseline: Sequence[Seen] = (),
) -> Pipeline:
    """Return the pipeline of a gateway with what it has learned so far."""
    regular = tuple(role for stream in streams if stream.fill == "interpolate" for role in stream.channels)
    return Pipeline(spec, alarm_spec, signal.start(spec, streams), regular, tuple(baseline), baseline_needed)


def push(pipeline: Pipeline, block: Block) -> tuple[Pipeline, list[Reading]]:
    """Take in a block of samples and return what became of each window it completed."""
    windower, pieces = signal.push(pipeline.windower, block)
    pipeline, readings = replace(pipeline, windower=windower), []
    for piece in pieces:
        pipeline, reading = _lost(pipeline, piece) if isinstance(piece, Lost) else _window(pipeline, piece)
        readings.append(reading)
    return pipeline, readings


def _lost(pipeline: Pipeline, lost: Lost) -> tuple[Pipeline, Reading]:
    return pipeline, Reading(lost.t_ns, lost=lost)


def _window(pipeline: Pipeline, window: Window) -> tuple[Pipeline, Reading]:
    end_ns = window.t_ns + round(pipeline.spec.window_s * NS)
    faulty = _faulty_channels(pipeline, window)
    if faulty:  # a broken sensor must never read as damage, nor be learned as normal
        return pipeline, Reading(end_ns, faulty=faulty)
    row = extract(pipeline.spec, window.values)
    pipeline, judged = _judged(pipeline, row, end_ns)
    if judged.lost is not None:
        return pipeline, judged
    learned = not pipeline.commissioned
    if learned:
        pipeline = replace(pipeline, baseline=(*pipeline.baseline, Seen(row, end_ns)))
    return _recalling(pipeline, Seen(row, end_ns)), judged._replace(learned=learned)


def _recalling(pipeline: Pipeline, seen: Seen) -> Pipeline:
    """Return the pipeline with a window more among the recent ones; none are kept for a model without memory, whose
    next release will most likely have none either.
    """
    washout_rows = RECENT_WINDOWS if pipeline.judge is None else pipeline.judge.model.washout_rows
    kept = max(RECENT_WINDOWS, washout_rows + 1) if washout_rows else 0
    return replace(pipeline, recent=(*pipeline.recent, seen)[-kept:] if kept else ())


def _judged(pipeline: Pipeline, row: Row, end_ns: int) -> tuple[Pipeline, Reading]:
    """Return what the model in force says of a window; nothing where there is none, or where its memory is fresh."""
    judge = pipeline.judge
    if judge is None:
        return pipeline, Reading(end_ns, row)
    score, is_settled, memory = recall.taken_in(judge.model, pipeline.memory, Seen(row, end_ns), pipeline.spec.hop_s)
    if not math.isfinite(score):  # so far from all that was learned that float32 ends: no structure moves like that
        start_ns = end_ns - round(pipeline.spec.window_s * NS)
        return _lost(pipeline, Lost(start_ns, pipeline.spec.channels, f"the model's score for it is {score}"))
    pipeline = replace(pipeline, memory=memory)
    if not is_settled:
        return pipeline, Reading(end_ns, row)
    gap_ns = 0 if pipeline.alarm.last_ns is None else end_ns - pipeline.alarm.last_ns
    if gap_ns > GAP_HOPS * pipeline.spec.hop_s * NS:  # what lies between was not seen, and can not have lasted
        pipeline = replace(pipeline, alarm=replace(pipeline.alarm, run_ns=None))
    alarm, transition = threshold.update(judge.levels, pipeline.alarm_spec, pipeline.alarm, end_ns, score)
    return replace(pipeline, alarm=alarm), Reading(end_ns, row, score, transition)


def _faulty_channels(pipeline: Pipeline, window: Window) -> tuple[str, ...]:
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


def training_data(pipeline: Pipeline, calibration_windows: int) -> Arrays:
    """Return what this gateway's models are trained on: the baseline but for its end, as `models.arrays` names it."""
    used = slice(len(pipeline.baseline) - calibration_windows)
    return {FEATURES: rows_of(pipeline.baseline)[used], MISSING: _gaps(pipeline)[used]}


def rows_of(windows: Sequence[Seen]) -> Row:
    """Return the features (n, F) of windows."""
    return np.array([seen.row for seen in windows])


def _gaps(pipeline: Pipeline) -> Gaps:
    return recall.missing_rows([seen.end_ns for seen in pipeline.baseline], pipeline.spec.hop_s)


def judged_by(pipeline: Pipeline, judge: Judge) -> Pipeline:
    """Return the pipeline with another model in force, which remembers the recent windows as if it had scored them; an
    active alarm stays, on the scale of the new scores.
    """
    alarm = replace(pipeline.alarm, run_ns=None, peak=judge.levels.median)
    memory = recall.replayed(judge.model, pipeline.recent, pipeline.spec.hop_s)
    return replace(pipeline, judge=judge, alarm=alarm, memory=memory)


def of_baseline(pipeline: Pipeline, model: Model) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the scores (n,) of the baseline, and which of them can be trusted."""
    return recall.scored(model, rows_of(pipeline.baseline), _gaps(pipeline))


def calibrated(
    pipeline: Pipeline, model: Model, scored: tuple[Floats, NDArray[np.bool_]], calibration_windows: int
) -> Judge:
    """Return a judge whose level comes from the scores of the gateway's own calibration rows: those at the end of the
    baseline, that no model is trained on.

    Raises `models.threshold.CalibrationError` where the scores do not allow a level.
    """
    scores, is_settled = scored
    held_out = scores[-calibration_windows:][is_settled[-calibration_windows:]]
    if len(held_out) < threshold.MINIMUM_SCORES <= calibration_windows:
        raise threshold.CalibrationError(
            f"only {len(held_out)} of {calibration_windows} calibration windows lie behind the {model.washout_rows} "
            "that the model needs after each gap before it can be asked: let the baseline run longer, or let the "
            "operator give the network a larger leak"
        )
    return Judge(model, threshold.calibrate(pipeline.alarm_spec, held_out, DAY_S / pipeline.spec.hop_s))
