"""A gateway's way from samples to alarms on a recording, by the functions that run on the gateway.

The first windows are the baseline, as on the gateway. A model is then trained on it, calibrated as a model that comes
from the aggregator is, and judges all windows that follow. So no window is scored that taught anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedgate.config.settings.settings import GatewaySettings
from fedgate.firmware_sim.backtest.inputs import label_of
from fedgate.firmware_sim.demo.outcome import AlarmSpan, Trace
from fedgate.firmware_sim.evaluate.datasets import DataError, EvaluationError
from fedgate.firmware_sim.evaluate.training import NothingSentError, commission, tensors_fed, train_fleet
from fedgate.firmware_sim.recordings import Recording
from fedgate.firmware_sim.recordings.cutting import begin_of, cut_blocks, find_jump
from fedgate.firmware_sim.recordings.recording import DAMAGED
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.deployment.validation import describe_out_of_reach
from fedgate.gateway_agent.pipeline import pipeline as scoring
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, WindowResult
from fedgate.gateway_agent.pipeline.recurrence import score
from fedgate.models.alarms.profile import ProfileError
from fedgate.models.alarms.threshold import CalibrationError
from fedgate.models.arrays import FEATURES, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.protocol.algorithm import Algorithm, normalise
from fedgate.models.time_units import NS
from fedgate.models.units import in_own_units
from fedgate.models.windows import grid


class Scored(NamedTuple):
    """A window that was judged, in recording seconds."""

    end_s: float
    score: float  # on the scale of the level
    level: float
    is_alarmed: bool
    label: int  # HEALTHY, DAMAGED or UNKNOWN
    rule: str
    feature: str
    row: Floats  # (F,)


@dataclass(frozen=True)
class Backtest:
    """What a gateway would have done over a recording.

    Attributes:
        commissioned_s: when the baseline was whole, in recording seconds.
        lost: windows with missing samples, or whose features could not be measured.
        faulty: how many windows had a fault of the sensor, by channel.
        warning: why no alarm can come, empty where one can.
    """

    gateway: str
    window_s: float
    commissioned_s: float
    windows: tuple[Scored, ...]
    alarms: tuple[AlarmSpan, ...]
    center: Floats  # (F,), of the baseline
    scale: Floats  # (F,)
    lost: int
    faulty: Mapping[str, int]
    warning: str

    def trace(self, sensor: str) -> Trace:
        """Return it as what is drawn and judged, beside the distance from the mean of the baseline."""
        columns = list(zip(*(window[:5] for window in self.windows), strict=True)) or [()] * 5
        ends_s, scores, levels, alarmed, labels = (np.array(column) for column in columns)
        rows = np.array([window.row for window in self.windows]).reshape(len(self.windows), len(self.center))
        return Trace(
            gateway=self.gateway,
            sensor=sensor,
            t_s=ends_s.astype(np.float64),
            score=scores.astype(np.float64),
            level=levels.astype(np.float64),
            label=labels.astype(np.int64),
            alarmed=alarmed.astype(np.bool_),
            model_version=np.ones(len(self.windows), dtype=np.int64),
            alarms=self.alarms,
            window_s=self.window_s,
            bytes_sent=None,
            bytes_received=None,
            trivial=np.linalg.norm(in_own_units({"center": self.center, "scale": self.scale}, rows), axis=1),
        )


def backtest(settings: GatewaySettings, recording: Recording, algorithm: Algorithm, seed: int) -> Backtest:
    """Return what a gateway of these settings does over a recording whose channels play the roles of its features, in
    their order.

    Raises:
        EvaluationError: the recording is no longer than the baseline, or the algorithm makes no model of it.
    """
    spec, begin_ns = settings.features, begin_of(recording)
    pipeline = start_pipeline(settings)
    windows, alarms, commissioned_s, lost, faulty = list[Scored](), list[AlarmSpan](), 0.0, 0, Counter[str]()
    for pipeline, result in _judge(settings, recording, algorithm, seed):
        at_s = (result.t_ns - begin_ns) / NS
        lost, faulty = lost + (result.lost is not None), faulty + Counter(result.faulty)
        if pipeline.judge is None:
            commissioned_s = max(commissioned_s, at_s)
        if result.transition is not None:
            alarms = _with_transition(alarms, result, begin_ns)
        if result.height is not None and result.row is not None and pipeline.judge is not None:
            is_alarmed = bool(alarms) and alarms[-1].cleared_s is None
            label = label_of(recording.states, at_s - spec.window_s, at_s)
            height, level = result.height, pipeline.judge.levels.raise_level
            named = height.rule, height.feature or ""
            windows.append(Scored(at_s, height.value, level, is_alarmed, label, *named, np.asarray(result.row)))
    if not pipeline.commissioned:
        found = f"{len(pipeline.baseline)} windows of the recording can be learned from"
        needed = f"more than the {settings.baseline.windows} of the baseline"
        raise DataError(f"{found}; expected {needed}: give a longer recording, or a smaller --baseline")
    if any(one.label == DAMAGED and one.start_s < commissioned_s for one in recording.states):
        found = f"the structure was damaged within the {commissioned_s:g} s of the baseline"
        raise DataError(f"{found}; expected a baseline that is healthy: give such a recording first, or --baseline")
    if not windows:
        raise DataError("no window is left behind the baseline; expected a longer recording, or a smaller baseline")
    data = scoring.collect_data(pipeline.baseline, spec.hop_s, settings.baseline.calibration_windows)
    units, _ = normalise({}, data, "own")
    return Backtest(
        settings.gateway.id,
        spec.window_s,
        commissioned_s,
        tuple(windows),
        tuple(alarms),
        units["center"],
        units["scale"],
        lost,
        dict(faulty),
        describe_out_of_reach(pipeline, pipeline.judge) if pipeline.judge else "",
    )


def start_pipeline(settings: GatewaySettings) -> Pipeline:
    """Return the pipeline of a gateway of these settings before its first sample."""
    return scoring.start(settings.features, settings.streams, settings.alarm, settings.baseline.windows)


def _judge(
    settings: GatewaySettings, recording: Recording, algorithm: Algorithm, seed: int
) -> Iterator[tuple[Pipeline, WindowResult]]:
    """Yield what becomes of each window, with the pipeline behind it."""
    pipeline = start_pipeline(settings)
    for jump_ns, block in cut_blocks(settings.features, settings.streams, recording):
        if (lost := find_jump(pipeline.windower, settings.features, jump_ns)) is not None:
            yield pipeline, WindowResult(lost.t_ns, lost=lost)
            pipeline = replace(pipeline, windower=grid.start(settings.features, settings.streams))
        pipeline, results = scoring.push(pipeline, block)
        for result in results:
            yield pipeline, result
        if pipeline.commissioned and pipeline.judge is None:
            pipeline = _with_model(settings, pipeline, algorithm, seed)


def _with_model(settings: GatewaySettings, pipeline: Pipeline, algorithm: Algorithm, seed: int) -> Pipeline:
    """Return the pipeline with a model of its baseline in force."""
    name, held_out = settings.gateway.id, settings.baseline.calibration_windows
    data = scoring.collect_data(pipeline.baseline, pipeline.spec.hop_s, held_out)
    try:
        fit = train_fleet(algorithm, {name: data}, seed=seed)
    except NothingSentError as error:
        found = f"{len(data[FEATURES])} windows of the baseline train"
        raise EvaluationError(f"{found}, of which the algorithm makes no model: {error}") from None
    own = fit.own[name] or commission(algorithm, fit.shared, data, seed)
    graph = DETECTORS[algorithm.detector].graph(fit.shared, algorithm.personal)
    model = Scorer(graph, tensors_fed(algorithm.personal, own))
    scores = score(model, scoring.stack_rows(pipeline.baseline), scoring.count_gaps(pipeline))
    units, _ = normalise({}, data, "own")
    try:
        return scoring.replace_model(pipeline, *scoring.calibrate_model(pipeline, model, scores, held_out, units, {}))
    except (CalibrationError, ProfileError) as error:
        raise EvaluationError(f"no level can be taken from the baseline: {error}") from None


def _with_transition(alarms: list[AlarmSpan], result: WindowResult, begin_ns: int) -> list[AlarmSpan]:
    change = result.transition
    if change is None:
        return alarms
    onset_s, at_s = ((t_ns - begin_ns) / NS for t_ns in (change.onset_ns, change.t_ns))
    if change.kind == "raised":
        return [*alarms, AlarmSpan(str(len(alarms) + 1), onset_s, at_s, None)]
    return [*alarms[:-1], replace(alarms[-1], cleared_s=at_s)]
