"""A gateway's way from samples to alarms on a recording, by the functions that run on the gateway.

The first windows are the baseline, as on the gateway. A model is then trained on it, calibrated as a model that comes
from the aggregator is, and judges all windows that follow. So no window is scored that taught anything. Alarms and
their evidence are the agent's own messages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import Alarm, Manifest, Transfer
from fedgate.config.settings.settings import GatewaySettings
from fedgate.firmware_sim.backtest.inputs import label_of
from fedgate.firmware_sim.demo.outcome import AlarmSpan, Trace
from fedgate.firmware_sim.evaluate.datasets import DataError, EvaluationError
from fedgate.firmware_sim.evaluate.training import NothingSentError, commission, tensors_fed, train_fleet
from fedgate.firmware_sim.recordings import Recording
from fedgate.firmware_sim.recordings.cutting import begin_of, cut_blocks, find_jump
from fedgate.firmware_sim.recordings.recording import DAMAGED
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.deployment.validation import describe_out_of_reach
from fedgate.gateway_agent.events import EVIDENCE_PRIORITY, Deliver
from fedgate.gateway_agent.monitor.alarms import check_reading
from fedgate.gateway_agent.monitor.monitor import Monitor
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
        messages: what the gateway would have said of alarms, those of sensors among them, the oldest first.
        evidence: what followed them, of those of the structure.
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
    messages: tuple[Alarm, ...] = ()
    evidence: tuple[AlarmEvidence, ...] = ()

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


@dataclass
class _Listener:
    """The agent's monitor with what it says of alarms."""

    context: Context
    monitor: Monitor
    messages: list[Alarm] = field(default_factory=list)
    evidence: list[AlarmEvidence] = field(default_factory=list)

    def take(self, pipeline: Pipeline, result: WindowResult, manifest: Manifest | None) -> None:
        """Take in what became of a window, with the pipeline behind it."""
        monitor = replace(self.monitor, pipeline=pipeline)
        self.monitor, effects = check_reading(monitor, self.context, manifest, result)
        for item in (one.item for one in effects if isinstance(one, Deliver)):
            if item.priority == EVIDENCE_PRIORITY:
                self.evidence.append(AlarmEvidence.from_bytes(item.payloads[0]))
            else:
                self.messages.append(Alarm.from_bytes(item.payloads[0]))


def _start_listener(settings: GatewaySettings, recording: Recording) -> _Listener:
    context = Context(
        settings=settings,
        boot_id="backtest",
        uptime_ns=0,
        verified=lambda _message, _signature: False,
        anchor_ns=begin_of(recording),
        clock="unknown" if recording.t0_ns is None else "synchronised",
        line_payload_bytes=settings.limits.max_payload_bytes,
    )
    return _Listener(context, Monitor(start_pipeline(settings)))


def backtest(
    settings: GatewaySettings,
    recording: Recording,
    algorithm: Algorithm,
    seed: int,
    maintenance: tuple[tuple[int, int], ...] = (),
) -> Backtest:
    """Return what a gateway of these settings does over a recording whose channels play the roles of its features, in
    their order.

    :param maintenance: begin and end of maintenance that is announced to it, in ns.

    Raises:
        EvaluationError: the recording is no longer than the baseline, or the algorithm makes no model of it.
    """
    spec, begin_ns = settings.features, begin_of(recording)
    pipeline = first = replace(start_pipeline(settings), maintenance=maintenance)
    listener = _start_listener(settings, recording)
    windows, alarms, commissioned_s, lost, faulty = list[Scored](), list[AlarmSpan](), 0.0, 0, Counter[str]()
    for pipeline, result, manifest in _judge(settings, first, recording, algorithm, seed):
        listener.take(pipeline, result, manifest)
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
        tuple(listener.messages),
        tuple(listener.evidence),
    )


def start_pipeline(settings: GatewaySettings) -> Pipeline:
    """Return the pipeline of a gateway of these settings before its first sample."""
    return scoring.start(settings.features, settings.streams, settings.alarm, settings.baseline.windows)


def _judge(
    settings: GatewaySettings, pipeline: Pipeline, recording: Recording, algorithm: Algorithm, seed: int
) -> Iterator[tuple[Pipeline, WindowResult, Manifest | None]]:
    """Yield what becomes of each window, with the pipeline behind it and what is known of its model."""
    manifest = None
    for jump_ns, block in cut_blocks(settings.features, settings.streams, recording):
        if (lost := find_jump(pipeline.windower, settings.features, jump_ns)) is not None:
            yield pipeline, WindowResult(lost.t_ns, lost=lost), manifest
            pipeline = replace(pipeline, windower=grid.start(settings.features, settings.streams))
        pipeline, results = scoring.push(pipeline, block)
        for result in results:
            yield pipeline, result, manifest
        if pipeline.commissioned and pipeline.judge is None:
            pipeline, manifest = _with_model(settings, pipeline, algorithm, seed)


def _with_model(
    settings: GatewaySettings, pipeline: Pipeline, algorithm: Algorithm, seed: int
) -> tuple[Pipeline, Manifest]:
    """Return the pipeline with a model of its baseline in force, and what would have announced it."""
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
        judge = scoring.calibrate_model(pipeline, model, scores, held_out, units, {})
    except (CalibrationError, ProfileError) as error:
        raise EvaluationError(f"no level can be taken from the baseline: {error}") from None
    return scoring.replace_model(pipeline, *judge), _announce(pipeline, algorithm, graph)


def _announce(pipeline: Pipeline, algorithm: Algorithm, graph: bytes) -> Manifest:
    return Manifest(
        audience="backtest",
        version=1,
        model=Transfer(digest=hashlib.sha256(graph).hexdigest(), size_bytes=len(graph), chunks=1),
        algorithm="backtest",
        detector=algorithm.detector,
        run="backtest",
        round_index=0,
        features=pipeline.spec,
        personal=algorithm.personal,
        opset=0,
        golden_x=(),
        golden_score=(),
        gateways=1,
        created_ns=0,
    )


def _with_transition(alarms: list[AlarmSpan], result: WindowResult, begin_ns: int) -> list[AlarmSpan]:
    change = result.transition
    if change is None:
        return alarms
    onset_s, at_s = ((t_ns - begin_ns) / NS for t_ns in (change.onset_ns, change.t_ns))
    if change.kind == "raised":
        return [*alarms, AlarmSpan(str(len(alarms) + 1), onset_s, at_s, None)]
    return [*alarms[:-1], replace(alarms[-1], cleared_s=at_s)]
