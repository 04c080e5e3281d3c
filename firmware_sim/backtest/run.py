"""A backtest as the command asks for it: recordings in the roles of the features, an algorithm, and what is written."""

from __future__ import annotations

import argparse
import csv
import io
from typing import Any

from pydantic import ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.runtime import cli, files
from fedgate.config.settings.settings import AggregatorSettings, Baseline, GatewaySettings, load
from fedgate.config.settings.training import AlgorithmChoice
from fedgate.firmware_sim.backtest.backtest import Backtest, backtest
from fedgate.firmware_sim.backtest.inputs import Inputs, read_inputs
from fedgate.firmware_sim.demo import report
from fedgate.firmware_sim.demo.outcome import Scenario, evaluate
from fedgate.firmware_sim.evaluate.options import settings_of
from fedgate.firmware_sim.evaluate.probe import FOR_FLEETS, build_chosen
from fedgate.firmware_sim.recordings.recording import DAMAGED
from fedgate.models.features.spec import feature_names

NO_STATES = "Nothing says that the structure was damaged: all of it counts as healthy, and every alarm as false."
REPORT_MODE = 0o644
SENSORS = "Alarms of sensors are not shown: windows with a faulty channel or missing samples are left out."
ALONE = "The model is of this gateway alone; on a site it learns from others too."


def run(arguments: argparse.Namespace) -> None:
    """Run a backtest and write its page.

    Raises:
        EvaluationError, SettingsError, RecordingError, ValueError: one line that says what cannot be used.
    """
    settings = _settings(arguments)
    inputs = read_inputs(arguments, settings.features)
    recording = inputs.recording
    choice = _choice(arguments)
    algorithm = build_chosen(choice.name, len(feature_names(settings.features)), choice.settings)
    if algorithm.labels:
        raise ValueError(f"--algorithm: {choice.name} learns from labels here; expected one that needs none")
    found = backtest(settings, recording, algorithm, choice.seed)
    damage = tuple((one.start_s, one.end_s, one.text) for one in recording.states if one.label == DAMAGED)
    notes = [] if inputs.is_known else [NO_STATES]
    notes += [found.warning[0].upper() + found.warning[1:] + "."] if found.warning else []
    names = ", ".join(path.name for path in arguments.recordings)
    title = f"{settings.gateway.id} on {names}"
    data = f"{', '.join(recording.channel_names)} of {names}, {recording.length_s:.0f} s at {recording.rate_hz:g} Hz."
    scenario = Scenario(title, data, damage, (0.0, found.commissioned_s), (ALONE, SENSORS, *notes))
    trace = found.trace(", ".join(f"{one.name} [{one.unit}]" if one.unit else one.name for one in recording.channels))
    faulty = ", ".join(f"{channel} in {count}" for channel, count in found.faulty.items())
    begin = ", ".join(f"{name} at {begin_s:g} s" for name, begin_s in zip(inputs.names, inputs.begin_s, strict=True))
    facts: dict[str, object] = {
        "recordings begin": begin,
        "algorithm": choice.name,
        "baseline windows": settings.baseline.windows,
        "windows scored": len(found.windows),
        "windows lost": found.lost,
        "windows with a faulty channel": faulty or "none",
    }
    evidence = {settings.gateway.id: found.evidence}
    paths = report.write(scenario, [trace], arguments.out, facts, evidence)
    table = arguments.out / "windows.csv"
    files.write(table, _csv(found, settings, inputs).encode(), REPORT_MODE)
    result = evaluate(trace, scenario)
    written = [str(path) for path in (*paths, table)]
    left_out = f"windows left out: {found.lost} with missing samples; with a faulty channel: {faulty or 'none'}"
    text = (
        f"{report.table([result])}\n\nrecordings begin: {begin}\n{_alarms(found)}\n{left_out}\n\n{', '.join(written)}"
    )
    recordings = [
        {"recording": name, "begin_s": begin_s} for name, begin_s in zip(inputs.names, inputs.begin_s, strict=True)
    ]
    as_json = {**report.to_json(scenario, [result], facts), "recordings": recordings, "files": written}
    as_json["evidence"] = report.list_evidence(evidence)
    cli.show(arguments, as_json, text)


def _settings(arguments: argparse.Namespace) -> GatewaySettings:
    settings = load(arguments.config, GatewaySettings)
    if arguments.baseline is None:
        return settings
    try:
        baseline = Baseline(windows=arguments.baseline, calibration_share=settings.baseline.calibration_share)
    except ValidationError as error:
        raise ValueError(f"--baseline: {find_first_problem(error)}") from None
    return settings.model_copy(update={"baseline": baseline})


def _choice(arguments: argparse.Namespace) -> AlgorithmChoice:
    """Return what is trained, without what means nothing for one gateway."""
    choice = AlgorithmChoice(name=arguments.algorithm) if arguments.algorithm else AlgorithmChoice()
    if arguments.aggregator_config:
        choice = load(arguments.aggregator_config, AggregatorSettings).algorithm
    kept = {key: value for key, value in choice.settings.items() if key not in FOR_FLEETS}
    return choice.model_copy(update={"settings": settings_of(arguments.set, kept)})


def _csv(found: Backtest, settings: GatewaySettings, inputs: Inputs) -> str:
    """Return a line for each window that was judged."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = feature_names(settings.features)
    writer.writerow(
        ["recording", "begin_s", "end_s", "score", "level", "is_alarmed", "label", "rule", "feature", *names]
    )
    for window in found.windows:
        place = inputs.place_of(window.end_s)
        figures: list[Any] = [
            inputs.names[place],
            f"{inputs.begin_s[place]:.3f}",
            f"{window.end_s:.3f}",
            f"{window.score:.6g}",
            f"{window.level:.6g}",
        ]
        figures += [int(window.is_alarmed), window.label, window.rule, window.feature]
        writer.writerow([*figures, *(f"{value:.6g}" for value in window.row)])
    return text.getvalue()


def _alarms(found: Backtest) -> str:
    """Return a line for each alarm, and below it what the gateway would have said."""
    if not found.alarms:
        return "no alarm"
    texts = [one.text for one in found.evidence] or [""] * len(found.alarms)
    return "\n".join(
        f"alarm {alarm.alarm_id}: raised at {alarm.raised_s:.0f} s, "
        + ("still active" if alarm.cleared_s is None else f"cleared at {alarm.cleared_s:.0f} s")
        + (f"\n  {text}" if text else "")
        for alarm, text in zip(found.alarms, texts, strict=True)
    )
