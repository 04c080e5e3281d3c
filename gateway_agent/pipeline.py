"""A sample's way to an alarm, a line each: block -> window -> features -> score -> alarm. Score first, learn after."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models import sensor_health, signal, threshold
from models.arrays import Array, Floats
from models.features import LARGEST, FeatureSpec, extract
from models.signal import Block, Lost, StreamSpec, Window, Windower
from models.threshold import AlarmSpec, AlarmState, Levels, Transition

NS = 1_000_000_000
DAY_S = 86_400.0
GAP_HOPS = 2.5  # from the end of one window to the next; more means that windows are missing

Score = Callable[[Array], Floats]
Row = NDArray[np.float32]


class Judge(NamedTuple):
    """A model in force: how it scores, and from which level on this gateway calls a score an alarm."""

    score: Score
    levels: Levels


@dataclass(frozen=True)
class Pipeline:
    """All that the way from sample to alarm remembers."""

    spec: FeatureSpec
    alarm_spec: AlarmSpec
    windower: Windower
    regular: tuple[str, ...]  # roles sampled at a steady rate
    baseline: tuple[Row, ...]  # rows (F,), oldest first
    baseline_needed: int
    judge: Judge | None = None
    alarm: AlarmState = field(default_factory=AlarmState)

    @property
    def commissioned(self) -> bool:
        """True once the baseline is whole."""
        return len(self.baseline) >= self.baseline_needed


class Reading(NamedTuple):
    """What became of one window."""

    t_ns: int  # end of the window
    row: Row | None = None  # (F,) features, None for a window that was lost or faulty
    score: float | None = None
    transition: Transition | None = None
    learned: bool = False
    lost: Lost | None = None
    faulty: tuple[str, ...] = ()  # channels with a fault, by name


def start(
    spec: FeatureSpec,
    streams: Sequence[StreamSpec],
    alarm_spec: AlarmSpec,
    baseline_needed: int,
    baseline: Sequence[Row] = (),
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
    score, transition = None, None
    judge = pipeline.judge
    if judge is not None:
        score = float(judge.score(row[None, :])[0])
        if not math.isfinite(score):  # so far from all that was learned that float32 ends: no structure moves like that
            return _lost(pipeline, Lost(window.t_ns, pipeline.spec.channels, f"the model's score for it is {score}"))
        gap_ns = 0 if pipeline.alarm.last_ns is None else end_ns - pipeline.alarm.last_ns
        if gap_ns > GAP_HOPS * pipeline.spec.hop_s * NS:  # what lies between was not seen, and can not have lasted
            pipeline = replace(pipeline, alarm=replace(pipeline.alarm, run_ns=None))
        alarm, transition = threshold.update(judge.levels, pipeline.alarm_spec, pipeline.alarm, end_ns, score)
        pipeline = replace(pipeline, alarm=alarm)
    learned = not pipeline.commissioned
    if learned:
        pipeline = replace(pipeline, baseline=(*pipeline.baseline, row))
    return pipeline, Reading(end_ns, row, score, transition, learned)


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


def split_baseline(pipeline: Pipeline, calibration_windows: int) -> tuple[Array, Array]:
    """Return the training rows (n, F) and, later in time, the calibration rows (m, F) that no model is trained on."""
    rows = np.array(pipeline.baseline)
    return rows[:-calibration_windows], rows[-calibration_windows:]


def judged_by(pipeline: Pipeline, judge: Judge) -> Pipeline:
    """Return the pipeline with another model in force; an active alarm stays, on the scale of the new scores."""
    alarm = replace(pipeline.alarm, run_ns=None, peak=judge.levels.median)
    return replace(pipeline, judge=judge, alarm=alarm)


def calibrated(pipeline: Pipeline, score: Score, calibration_windows: int) -> Judge:
    """Return a judge whose level comes from the gateway's own calibration rows.

    Raises `models.threshold.CalibrationError` where the scores do not allow a level.
    """
    _, rows = split_baseline(pipeline, calibration_windows)
    return Judge(score, threshold.calibrate(pipeline.alarm_spec, score(rows), DAY_S / pipeline.spec.hop_s))
