"""The evidence of an anomaly: what the gateway had before it when it raised the alarm, as an item that follows it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from fedgate.config.protocol.evidence import (
    CHANGES_MAX,
    CHANNELS_MAX,
    DECIBELS_MAX,
    EVIDENCE_BYTES,
    LABEL_MAX,
    SENTENCE_MAX,
    AlarmEvidence,
    BandChange,
    BandSpectrum,
    ChannelHealth,
    Standout,
    cut_text,
    fit,
    keep_worst,
    make_trail,
    round_number,
)
from fedgate.config.protocol.messages import Alarm
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import EVIDENCE_PRIORITY, Deliver, Item, Log, Wanted
from fedgate.gateway_agent.monitor.monitor import Monitor
from fedgate.gateway_agent.monitor.sentence import Meanings, describe_contribution
from fedgate.gateway_agent.pipeline import spectra
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, WindowResult, stack_rows
from fedgate.gateway_agent.pipeline.spectra import Spectra, Worst
from fedgate.models.alarms.contributions import Contribution, describe_place, measure_healthy
from fedgate.models.features.describe import Meaning
from fedgate.models.features.spec import feature_names

QUANTILES = (0.05, 0.5, 0.95)


def queue_evidence(
    monitor: Monitor, context: Context, alarm: Alarm, reading: WindowResult
) -> tuple[Monitor, list[Wanted]]:
    """Keep the evidence of an alarm for who looks at the gateway, and deliver it, where the settings want any and the
    line carries it.

    An error of it is logged: the alarm, which is queued by now, matters more.
    """
    if context.settings.alarm.evidence == "off":
        return monitor, []
    try:
        evidence = gather_evidence(monitor, context, alarm, reading)
    except ValueError as error:
        return monitor, [Log("warning", f"alarm {alarm.cause} has no evidence: {error}")]
    monitor = replace(monitor, evidence=evidence)
    if len(evidence.to_bytes()) > context.payload_bytes:
        return monitor, [
            Log("info", f"alarm {alarm.cause} has no evidence: {context.payload_bytes} bytes are too few for it")
        ]
    topic = context.topic("evidence", evidence.item)
    item = Item(topic, (evidence.to_bytes(),), retain=False, priority=EVIDENCE_PRIORITY)
    return monitor, [Deliver(evidence.item, item)]


def gather_evidence(monitor: Monitor, context: Context, alarm: Alarm, reading: WindowResult) -> AlarmEvidence:
    """Return the evidence of an anomaly that is raised with a window."""
    judge, height, settings = monitor.pipeline.judge, reading.height, context.settings
    if judge is None or height is None:
        raise AssertionError("an anomaly needs a judge and a height")
    meanings, is_full = settings.describe_features(), settings.alarm.evidence == "full"
    spectrum, reason = measure_spectrum(monitor.pipeline, meanings, reading) if is_full else (None, "")
    evidence = AlarmEvidence(
        alarm=alarm.id,
        cause=alarm.cause,
        t_ns=alarm.t_ns,
        onset_ns=alarm.onset_ns,
        window_s=settings.features.window_s,
        model_version=alarm.model_version,
        model_digest=alarm.model_digest,
        rule=cut_text(height.rule, LABEL_MAX),
        score=round_number(height.value),
        level=round_number(judge.levels.raise_level),
        level_of="site" if judge.is_borrowed else "own baseline",
        text=cut_text(alarm.text, SENTENCE_MAX),
        contributions=tuple(_describe(meanings, one) for one in reading.standing_out),
        trail=make_trail(monitor.trail) if is_full else None,
        spectrum=spectrum,
        no_spectrum=cut_text(reason, LABEL_MAX) if is_full else "the settings want reduced evidence",
        changes=compare_bands(monitor.pipeline.healthy, reading.worst) if spectrum is not None else (),
        health=list_health(monitor, context, reading),
        weather=alarm.weather,
        power=alarm.power,
    )
    return fit(evidence, min(EVIDENCE_BYTES, context.payload_bytes))


def _describe(meanings: Meanings, one: Contribution) -> Standout:
    return Standout(
        feature=cut_text(one.feature, LABEL_MAX),
        text=cut_text(f"{_name_channel(meanings, one)}{describe_contribution(meanings, one)}", LABEL_MAX),
        amount=round_number(one.amount),
        value=round_number(one.value),
        median=round_number(one.median),
        spread=round_number(one.spread),
        deviation=round_number(one.deviation) if math.isfinite(one.deviation) else None,
    )


def _name_channel(meanings: Meanings, one: Contribution) -> str:
    channel = meanings.get(one.feature, Meaning("", "")).channel
    return f"{channel}: " if channel else ""


def measure_spectrum(pipeline: Pipeline, meanings: Meanings, reading: WindowResult) -> tuple[BandSpectrum | None, str]:
    """Return the spectrum of the worst window for the channel of the first feature that has one, beside healthy
    quantiles; or why there is none.
    """
    healthy, worst = pipeline.healthy, reading.worst
    if not reading.standing_out:
        return None, "no feature stands out"
    named = [meanings.get(one.feature, Meaning("", "")).channel for one in reading.standing_out]
    channel = next((one for one in named if one in healthy.channels), None)
    if channel is None or worst is None:
        return None, f"{named[0] or 'what stands out'} has no spectrum: it is slow, made of several, or of the time"
    if not healthy.rows:
        return None, "no healthy spectra are kept: the baseline is older than they are, or they were lost"
    place = healthy.channels.index(channel)
    low, middle, high = np.quantile(np.array([rows[place] for rows in healthy.rows]), QUANTILES, axis=0)
    return BandSpectrum(
        channel=channel,
        t_ns=worst.t_ns,
        edges_hz=tuple(map(round_number, spectra.list_edges(pipeline.spec).tolist())),
        worst=tuple(map(round_number, worst.rows[place].tolist())),
        healthy_5=tuple(map(round_number, low.tolist())),
        healthy_50=tuple(map(round_number, middle.tolist())),
        healthy_95=tuple(map(round_number, high.tolist())),
        healthy_windows=len(healthy.rows),
    ), ""


def compare_bands(healthy: Spectra, worst: Worst | None) -> tuple[BandChange, ...]:
    """Return by how much the bands of each channel differ from the healthy ones; where there are more channels than
    are shown, of those with the most bands that do, in their order.
    """
    if worst is None or not healthy.rows:
        return ()
    low, middle, high = np.quantile(np.array(healthy.rows), QUANTILES, axis=0)  # (C, B) each
    tiny = np.finfo(np.float32).tiny
    decibels = 10.0 * np.log10(np.maximum(worst.rows, tiny) / np.maximum(middle, tiny))
    is_within = (low <= worst.rows) & (worst.rows <= high)
    shown = np.clip(np.round(np.where(is_within, 0.0, decibels)), -DECIBELS_MAX, DECIBELS_MAX).astype(int)
    kept = sorted(np.argsort(np.count_nonzero(shown == 0, axis=1), kind="stable")[:CHANGES_MAX].tolist())
    return tuple(BandChange(channel=healthy.channels[place], decibels=tuple(shown[place].tolist())) for place in kept)


def list_health(monitor: Monitor, context: Context, reading: WindowResult) -> tuple[ChannelHealth, ...]:
    """Return how the channels are, the worst of them where not all fit."""
    outside = find_outside(monitor.pipeline, context.settings.describe_features(), reading)
    named = _list_covariates(context)
    found = [
        ChannelHealth(
            channel=channel,
            filled=monitor.values_filled.get(channel, 0),
            windows_lost=monitor.lost_by_channel.get(channel, 0),
            is_faulty=f"faulty-{channel}" in monitor.alarms.active,
            is_covariate=channel in named,
            **outside.get(channel, {}),
        )
        for channel in context.settings.features.channels
    ]
    return keep_worst(found, CHANNELS_MAX)


def _list_covariates(context: Context) -> set[str]:
    """Return the channels that no change of the structure moves."""
    covariates = context.settings.alarm.covariates
    return {name.rpartition(".")[0] for name in (*covariates.weather, *covariates.power)}


def count_outside(monitor: Monitor, context: Context, reading: WindowResult) -> tuple[int, int]:
    """Return how many channels are clearly outside of their baseline, and how many have features at all; covariates
    are none of them.
    """
    found = find_outside(monitor.pipeline, context.settings.describe_features(), reading)
    covariates = _list_covariates(context)
    own = [ChannelHealth(channel=name, **facts) for name, facts in found.items() if name not in covariates]
    return sum(one.is_clear for one in own), len(own)


def find_outside(pipeline: Pipeline, meanings: Meanings, reading: WindowResult) -> dict[str, dict[str, Any]]:
    """Return of each channel how many features a window has, how many of them lie where they never were in the
    baseline, and which, of these if there are any, is farthest from its healthy median.
    """
    if reading.row is None or not pipeline.baseline:
        return {}
    rows, row, names = stack_rows(pipeline.baseline), reading.row, feature_names(pipeline.spec)
    healthy = measure_healthy(rows)
    is_outside = (row < rows.min(axis=0)) | (row > rows.max(axis=0))
    found: dict[str, dict[str, Any]] = {}
    for channel in pipeline.spec.channels:
        places = [place for place, name in enumerate(names) if meanings[name].channel == channel]
        if not places:
            continue
        ranked = [(bool(is_outside[place]), describe_place(names, row, healthy, place, 0.0)) for place in places]
        _, farthest = max(ranked, key=lambda one: (one[0], abs(one[1].deviation)))
        found[channel] = {
            "features": len(places),
            "outside": int(np.count_nonzero(is_outside[places])),
            "farthest": cut_text(farthest.feature, LABEL_MAX),
            "deviation": round_number(farthest.deviation) if math.isfinite(farthest.deviation) else None,
        }
    return found
